"""Queries over committed views.

A view is the committed state itself: its files are mapped, not copied to a server. A reader works on
one committed version, so all views agree; it needs neither the pipeline's program nor that the
pipeline runs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from penstock.core.names import hint, known_names, unknown
from penstock.core.time import instant_text
from penstock.engine.record.version import OperatorEntry, Version, ViewEntry
from penstock.engine.store import NO_SAVEPOINTS, Store
from penstock.errors import CorruptError, LimitError, PenstockError, QueryError
from penstock.expr.duck import add_functions, confine, known
from penstock.expr.typed import fitting, with_json
from penstock.ops import operator_from_spec
from penstock.serve.answers import Answer, Counting, Failure, Report, logged
from penstock.serve.arrivals import Arrivals, wait_for
from penstock.serve.carets import one_select, pointed
from penstock.serve.characters import add_function
from penstock.serve.listings import listed
from penstock.serve.moments import AsOf, parted
from penstock.serve.parts import ViewPart
from penstock.serve.places import VersionStatus, newest, open_store, status_of
from penstock.serve.texts.names import names_schema, open_schema, register, with_quotes
from penstock.state import StateFiles

# DuckDB and sqlglot are imported where they are used: what lists or copies views needs none.
if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from sqlglot import exp

__all__ = ["Snapshot", "Views"]

T = TypeVar("T")
HUGEINT: Final = pa.decimal128(38, 0)  # as Arrow has it
BATCH_ROWS: Final = 20_000  # of an answer, fetched at a time
COUNT_SECONDS_MAX: Final = 1.0  # for counting the rows that an answer leaves out
THREADS_MAX: Final = 4  # of a query in bounded memory: each thread takes a part of it
_PLAIN: Final = re.compile(r"\s*(SELECT|WITH|FROM)\b", re.IGNORECASE)
"""What DuckDB takes for nothing but a query: SHOW and SUMMARIZE are SELECTs to it, too."""
_NO_TABLE: Final = re.compile(r"Catalog Error: Table with name (\S+) does not exist")


class Views:
    """The views of one pipeline.

    Args:
        where: an app's name, its directory (`NAME.penstock`), or the URI of its state.
        report: takes what fails in a view each time when its rows are read, and is NULL there; by default
            the log `penstock.views` has a warning, once for each view, expression and kind of reason.
    """

    def __init__(self, where: str | Path, report: Report | None = None) -> None:
        self.store = open_store(where)
        self.where = str(where)
        self.report = report or logged(self.where)

    @property
    def version(self) -> int:
        """The number of the last committed version; 0 before the first."""
        return self.store.newest_version()

    def names(self) -> list[str]:
        """The views' names."""
        return self.snapshot().names()

    def __repr__(self) -> str:
        from penstock.serve.shown.tables import columns_text

        shown = f"Views({self.where!r})"
        with contextlib.suppress(PenstockError, OSError):  # a debugger shows whatever there is
            snapshot = self.snapshot()
            lines = (
                f"\n  {one} ({columns_text(snapshot.schema(one))})" for one in snapshot.names()
            )
            shown += f", version {snapshot.version}{''.join(lines)}"
        return shown

    def _repr_html_(self) -> str:
        """In a notebook: the views' first rows, of the last committed version."""
        if self.version == 0:
            return "<p>Nothing has been committed yet.</p>"
        return self._again(lambda s: s._repr_html_())

    def keys(self, name: str) -> list[str]:
        """A view's grouping columns."""
        return self._again(lambda s: s.keys(name))

    def every_us(self, name: str) -> int:
        """From the start of one of a view's windows to the next one's."""
        return self._again(lambda s: s.every_us(name))

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """A view's rows, see `Snapshot.table`."""
        return self._again(lambda s: s.table(name, window_from_us=window_from_us, limit=limit))

    def failures(self, name: str) -> tuple[Failure, ...]:
        """What fails in a view, and is NULL or left out: its rows are read."""
        return self._again(lambda s: s.counted(name)[1])

    def pandas(self, name: str) -> pd.DataFrame:
        """A view's rows, see `Snapshot.pandas`."""
        return self._again(lambda s: s.pandas(name))

    def polars(self, name: str) -> pl.DataFrame:
        """A view's rows, see `Snapshot.polars`."""
        return self._again(lambda s: s.polars(name))

    def sql(self, query: str) -> pa.Table:
        """Answers a query, see `Snapshot.sql`; it may say which version it reads, `AS OF VERSION 17`."""
        query, as_of = parted(query)
        return self.read(as_of, lambda s: s.sql(query))

    def answer(self, query: str, *, rows_max: int, memory_bytes_max: int) -> Answer:
        """The beginning of a query's answer, in bounded memory; see `Snapshot.answer`."""
        query, as_of = parted(query)
        return self.read(
            as_of,
            lambda s: s.answer(query, rows_max=rows_max, memory_bytes_max=memory_bytes_max),
        )

    def status(self) -> VersionStatus:
        """Version, offsets, watermarks and counts, as plain values."""
        return self.snapshot().status()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """All views of a committed version, by default the last one.

        Raises:
            QueryError: nothing has been committed yet, or that version isn't kept.
        """
        if version is None:
            return self._again(lambda s: s)
        try:
            return self._snapshot(self.store.version(version))
        except FileNotFoundError:
            raise QueryError(
                f"expected a version of {self.where!r} that is kept; found {version}. {self.kept()}"
            ) from None

    def at(self, as_of: AsOf) -> Snapshot:
        """All views of a version of the past.

        Raises:
            QueryError: it isn't kept.
        """
        if as_of.savepoint is not None:
            try:
                return self._snapshot(self.store.pinned(as_of.savepoint)[0])
            except FileNotFoundError:
                text = unknown("savepoint", as_of.savepoint, self.store.pins(), NO_SAVEPOINTS)
                raise QueryError(text) from None
        if as_of.version is not None:
            return self._pinned_version(as_of.version) or self.snapshot(as_of.version)
        assert as_of.at_us is not None
        for number in reversed(self.store.kept(self.version)):
            with contextlib.suppress(FileNotFoundError, CorruptError):
                content = self.store.version(number)
                if content.wall_us <= as_of.at_us:
                    return self._snapshot(content)
        raise QueryError(
            f"expected a time since the oldest version of {self.where!r} that is kept; found "
            f"{instant_text(as_of.at_us)}. {self.kept()}"
        )

    def _pinned_version(self, number: int) -> Snapshot | None:
        """A version that a savepoint keeps."""
        if number in self.store.kept(self.version):
            return None
        for name in self.store.pins():
            with contextlib.suppress(FileNotFoundError, CorruptError):
                content, _ = self.store.pinned(name)
                if content.number == number:
                    return self._snapshot(content)
        return None

    def _snapshot(self, content: Version) -> Snapshot:
        return Snapshot(self.store, content, self.report)

    def kept(self) -> str:
        """A sentence on which versions can be read."""
        newest = self.version
        numbers = self.store.kept(newest)
        since = ""
        for number in numbers:
            with contextlib.suppress(FileNotFoundError, CorruptError):
                since = f" (committed at {instant_text(self.store.version(number).wall_us)})"
                break
        pins = self.store.pins()
        named = f", and the savepoints {known_names(pins)}" if pins else ""
        return f"Kept are versions {numbers[0] if numbers else 0}{since} to {newest}{named}"

    def wait_for(
        self, token: str, timeout: float = 10.0, gone: Callable[[], bool] = lambda: False
    ) -> int:
        """Waits until the views have seen a write.

        Args:
            token: where the written records are, `topic-partition:offset`, with commas between several.
            timeout: in seconds.
            gone: polled; waiting ends when it returns true.

        Returns:
            The number of a version that has read them.

        Raises:
            UserError: the token is none, or is of a topic that the pipeline doesn't read.
            LimitError: the time is up, or nobody waits any more.
        """
        return wait_for(self.store, token, timeout, gone)

    def arrivals(self, call: Callable[[], None] | None = None) -> Arrivals:
        """Reports versions as they are committed; see `Arrivals`."""
        return Arrivals(self.store, call)

    def read(self, version: AsOf | int | None, work: Callable[[Snapshot], T]) -> T:
        """Does some work on a version.

        Args:
            version: which; None: the last one, and again the next, if it isn't kept any more meanwhile.
            work: what is done.

        Raises:
            QueryError: it isn't kept, or was dropped meanwhile.
        """
        if version is None:
            return self._again(work)
        snapshot = self.at(version) if isinstance(version, AsOf) else self.snapshot(version)
        try:
            return work(snapshot)
        except FileNotFoundError:
            raise QueryError(
                f"expected a version of {self.where!r} that is kept; found {snapshot.version}, which was "
                f"dropped while it was read. {self.kept()}"
            ) from None

    def _again(self, work: Callable[[Snapshot], T]) -> T:
        return newest(self.store, self.where, lambda content: work(self._snapshot(content)))


class Snapshot:
    """The views of one committed version."""

    def __init__(self, store: Store, content: Version, report: Report | None = None) -> None:
        self._store, self.content = store, content
        self._report = report or logged(content.name)

    @property
    def version(self) -> int:
        """The version's number."""
        return self.content.number

    @property
    def files(self) -> StateFiles:
        """Where the state is."""
        return self._store.files

    def names(self) -> list[str]:
        """The views' names."""
        return list(self.content.views)

    def status(self) -> VersionStatus:
        """Offsets, watermarks and who holds them, counts; where the log began, of views that it limits."""
        return status_of(self.content)

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """A view's rows.

        Args:
            name: of the view.
            window_from_us: omits windows that begin earlier.
            limit: most rows, those of the newest windows.

        Raises:
            QueryError: there is no such view.
        """
        rows, failures = self.counted(name, window_from_us=window_from_us, limit=limit)
        self._report(name, failures)
        return rows

    def counted(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> tuple[pa.Table, tuple[Failure, ...]]:
        """What `table` gives, and what failed when the rows were read, of these and of those left out.

        Raises:
            QueryError: there is no such view.
        """
        part, counting = self.part(name), Counting(name)
        found = list(part.read(self._store.files, window_from_us, counting))
        rows = pa.concat_tables(found) if found else part.schema.empty_table()
        order = [c for c in ("window_start",) if c in rows.column_names]
        if order:
            rows = rows.sort_by([(c, "ascending") for c in order])
        if limit is not None and len(rows) > limit:
            rows = rows.slice(len(rows) - limit)
        return rows, counting.failures

    def pandas(self, name: str) -> pd.DataFrame:
        """A view's rows as a pandas DataFrame; whole numbers with NULLs are doubles there.

        Raises:
            QueryError: there is no such view.
            PenstockError: pandas isn't installed.
        """
        return _installed("pandas", lambda: self.table(name).to_pandas())

    def polars(self, name: str) -> pl.DataFrame:
        """A view's rows as a Polars DataFrame, mostly without a copy.

        Raises:
            QueryError: there is no such view.
            PenstockError: Polars isn't installed.
        """

        def made() -> pl.DataFrame:
            import polars as pl

            found = pl.from_arrow(self.table(name))
            assert isinstance(found, pl.DataFrame), "a table is none of its columns"
            return found

        return _installed("polars", made)

    def schema(self, name: str) -> pa.Schema:
        """A view's columns.

        Raises:
            QueryError: there is no such view.
        """
        return self.part(name).schema

    def part(self, name: str) -> ViewPart:
        """The parts of a view's rows, to be read elsewhere.

        Raises:
            QueryError: there is no such view.
        """
        view = self._view(name)
        entry = self.content.operators[view.operator]
        return ViewPart(self.version, entry.spec, entry.traces, tuple(view.steps))

    def keys(self, name: str) -> list[str]:
        """A view's grouping columns."""
        return list(self._view(name).keys)

    def row_key(self, name: str) -> list[str]:
        """The columns that identify a view's rows; none where nobody knows."""
        return list(self._view(name).row_key)

    def kept_by(self, name: str) -> tuple[str, OperatorEntry]:
        """The identity of the operator that keeps a view up to date, and what the version says about it."""
        identity = self._view(name).operator
        return identity, self.content.operators[identity]

    def named(self, query: str) -> list[str]:
        """The views that a query names.

        Raises:
            QueryError: it is not one SELECT.
        """
        return list(self._views_in(one_select(query)))

    def every_us(self, name: str) -> int:
        """From the start of one of a view's windows to the next one's."""
        _, entry = self.kept_by(name)
        return operator_from_spec(entry.spec).traits.every_us

    def _view(self, name: str) -> ViewEntry:
        if name not in self.content.views:
            raise self.no_view(name)
        return self.content.views[name]

    def _repr_html_(self) -> str:
        """In a notebook: the views' first rows."""
        from penstock.serve.shown.tables import table_html

        return "".join(table_html(self.table(name), name, self.keys(name)) for name in self.names())

    def sql(self, query: str) -> pa.Table:
        """Answers a DuckDB query over the views, each a table of its name.

        Raises:
            QueryError: it is not one SELECT over these views.
        """
        if (found := listed(self, query)) is not None:
            return found
        with self._asked(query, {}, {}) as relation:
            return _plain(relation.to_arrow_table(), relation)

    def answer(
        self,
        query: str,
        *,
        rows_max: int,
        memory_bytes_max: int,
        prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
        explain: str = "",
    ) -> Answer:
        """The first rows of what `sql` gives, in bounded memory.

        Args:
            query: one SELECT.
            rows_max: most rows that are returned; the others are counted, if that is quick. 0: the
                columns alone.
            memory_bytes_max: that DuckDB may use, which then spills nothing to disk.
            prepare: makes other tables that the query names.
            explain: `EXPLAIN` or `EXPLAIN ANALYZE`, whose answer is wanted instead.

        Raises:
            QueryError: as `sql`.
            LimitError: it needs more memory.
        """
        if (found := listed(self, query)) is not None:
            return Answer(found, len(found))
        settings = {
            "memory_limit": f"'{memory_bytes_max}B'",
            "threads": str(min(THREADS_MAX, os.cpu_count() or 1)),
            "temp_directory": "''",
            "enable_progress_bar": "false",
        }
        kept: list[pa.RecordBatch] = []
        failures: dict[str, Sequence[Failure]] = {}
        rows = 0
        try:
            with_rows = rows_max > 0 or "pivot" in query.lower()  # its columns are in the rows
            with self._asked(
                query, settings, failures, prepare, explain, with_rows=with_rows
            ) as relation:
                if rows_max == 0:
                    # Its columns alone would do, but limit() gives two of one name different names.
                    columns = relation.limit(0).to_arrow_table().rename_columns(relation.columns)
                    return Answer(columns, None, (), _types(relation))
                reader = relation.to_arrow_reader(BATCH_ROWS)
                counted_until = math.inf
                for batch in reader:
                    if rows < rows_max:
                        kept.append(batch.slice(0, rows_max - rows))
                        counted_until = time.monotonic() + COUNT_SECONDS_MAX
                    rows += len(batch)
                    if time.monotonic() > counted_until:
                        found = _plain(pa.Table.from_batches(kept), relation)
                        return Answer(found, None, (), _types(relation), failures=failures)
                found = _plain(pa.Table.from_batches(kept, reader.schema), relation)
                return Answer(found, rows, (), _types(relation), failures=failures)
        except MemoryError as error:
            raise LimitError(
                f"expected a query that needs at most {memory_bytes_max >> 20} MiB of memory "
                f"(MEMORY_BYTES_MAX); found one that needs more ({str(error).splitlines()[0]}). "
                "Request less at once, or use `penstock query`, which has no limit"
            ) from None

    @contextlib.contextmanager
    def _asked(
        self,
        query: str,
        settings: Mapping[str, str],
        failures: dict[str, Sequence[Failure]],
        prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
        explain: str = "",
        *,
        with_rows: bool = True,
    ) -> Iterator[duckdb.DuckDBPyRelation]:
        """A query in a DuckDB of its own that sees the views, or their columns alone, and nothing else.

        Raises:
            QueryError: it is not one SELECT over these views, or failed in the block.
            MemoryError: likewise.
        """
        import duckdb

        with duckdb.connect(":memory:") as con:
            for name, value in settings.items():
                con.execute(f"SET {name} = {value}")
            query = with_quotes(con, query)
            in_schema = names_schema(query)
            if in_schema:
                open_schema(con)
            add_functions(con, query if prepare is None else None)
            add_function(con, query)
            if prepare is None:
                confine(con)
                names = self._views_of(con, query)
            else:  # it has read the query itself
                names = [name for name in self.names() if name.lower() in query.lower()]
            for name in names:
                rows = self.schema(name).empty_table()
                if with_rows:
                    rows, failures[name] = self.counted(name)
                    self._report(name, failures[name])
                register(con, name, known(rows), in_schema=in_schema)
            try:
                if prepare is not None:
                    prepare(con)
                    confine(con)
            except duckdb.OutOfMemoryException as error:
                raise MemoryError(str(error)) from None
            try:
                yield con.sql(f"{explain} {query}" if explain else query)
            except MemoryError:
                raise
            except duckdb.OutOfMemoryException as error:
                raise MemoryError(str(error)) from None
            except (duckdb.Error, OSError) as error:  # OSError: an Arrow stream's, of any error
                if str(error).startswith("Out of Memory"):
                    raise MemoryError(str(error)) from None
                if (missing := _NO_TABLE.match(str(error))) is not None:
                    raise self.no_view(missing[1]) from None
                raise QueryError(
                    f"expected a query over the views {', '.join(self.names())}; found: "
                    f"{pointed(query, str(error))}"
                ) from None

    def no_view(self, name: str) -> QueryError:
        """The error of a view that there is none of."""
        names = self.names()
        return QueryError(
            f"expected one of the views {known_names(names)}; found {name!r}{hint(name, names)}"
        )

    def _views_of(self, con: duckdb.DuckDBPyConnection, query: str) -> list[str]:
        """The views that a query names: as DuckDB binds it, else as sqlglot reads it.

        Args:
            con: sees no files, as the query is bound in it.
            query: any text.

        Raises:
            QueryError: it is not one SELECT.
        """
        import duckdb

        if _PLAIN.match(query):
            with contextlib.suppress(duckdb.Error):
                by_lower = {name.lower(): name for name in self.names()}
                named = {name.lower() for name in con.get_table_names(query)}
                return [by_lower[name] for name in sorted(named) if name in by_lower]
        return list(self._views_in(one_select(query)))

    def _views_in(self, statement: exp.Expr) -> Iterator[str]:
        from sqlglot import exp

        by_lower = {name.lower(): name for name in self.names()}
        named = {table.name.lower() for table in statement.find_all(exp.Table)}
        yield from (by_lower[name] for name in sorted(named) if name in by_lower)


def _types(relation: duckdb.DuckDBPyRelation) -> tuple[str, ...]:
    """The types of a relation's columns, as DuckDB calls them."""
    return tuple(str(one) for one in relation.types)


def _plain(rows: pa.Table, relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """DuckDB's 128-bit integers, such as sums of BIGINT, as BIGINT where they fit; JSON as such."""
    for i, (field, type_) in enumerate(zip(rows.schema, relation.types, strict=True)):
        if "JSON" in str(type_):
            made = fitting(rows.column(i), with_json(field.type, type_))
            rows = rows.set_column(i, field.name, made)
        if field.type == HUGEINT:
            with contextlib.suppress(pa.ArrowInvalid):
                rows = rows.set_column(i, field.name, rows.column(i).cast(pa.int64()))
    return rows


def _installed(library: str, work: Callable[[], T]) -> T:
    """What needs a library that isn't Penstock's."""
    try:
        return work()
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise PenstockError(
            f"expected {library} to be installed; found it missing. Install it, or take the Arrow table: "
            "views.table(name)"
        ) from None
