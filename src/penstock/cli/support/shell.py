"""The statements and commands of `penstock sql`, apart from the terminal that they are typed at."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from penstock.cli.support.tables import FORMATS, write_rows, write_table
from penstock.core.names import hint, known_names
from penstock.errors import PenstockError, QueryError, UserError

if TYPE_CHECKING:
    from penstock.serve import Answer, Views
    from penstock.serve.following import Subscription

__all__ = ["Shell", "Tables", "TopicTables", "ViewTables"]

TOPIC_RECORDS_MAX: Final = 100_000
"""Of each partition of a topic, the newest: a look at it, not an analysis."""
_COLUMNS: Final[dict[str, pa.DataType]] = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "at": pa.timestamp("ms", "UTC"),
    "key": pa.string(),
    "value": pa.string(),
}
RECORD: Final = pa.schema(_COLUMNS)
"""A topic as a table."""
KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "ON",
    "USING", "WITH", "UNION", "DISTINCT", "COUNT", "SUM", "AVG", "MIN", "MAX", "CASE", "WHEN", "THEN",
    "ELSE", "END", "AS OF VERSION", "AS OF TIMESTAMP", "AS OF SAVEPOINT", "SHOW TABLES",
    "SHOW SINKS", "DESCRIBE", "INTERVAL", "BETWEEN", "AND", "OR", "NOT", "NULL", "IS", "IN", "DESC", "ASC",
    "SUBSCRIBE",
)  # fmt: skip
COMMANDS: Final = {
    r"\d": "list views (or topics)",
    r"\d NAME": "columns and their types",
    r"\timing": "show how long statements take, or stop",
    r"\format table|json|csv": "how rows are printed",
    r"\version": "the last committed version, and which are kept",
    r"\?": "this list",
    r"\q": "end; so does Ctrl-D",
}
_STRINGS: Final = re.compile(
    r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL
)


class Tables(Protocol):
    """What can be queried: views, or topics."""

    def names(self) -> list[str]:
        """The tables' names."""
        ...

    def columns(self, name: str) -> Mapping[str, str]:
        """A table's columns and their types."""
        ...

    def sql(self, query: str) -> pa.Table:
        """Answers a query."""
        ...

    def follow(self, what: Subscription) -> Iterator[Answer]:
        """The changes of one, as they come."""
        ...

    def state(self) -> str:
        """A sentence on how current they are."""
        ...


class ViewTables:
    """The views of a pipeline."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def names(self) -> list[str]:
        """The views' names; none before the first version."""
        return self._views.names() if self._views.version else []

    def columns(self, name: str) -> Mapping[str, str]:
        """A view's columns and their types."""
        from penstock.core.schema import type_text

        schema = self._views.snapshot().schema(name)
        return {one.name: type_text(one.type) for one in schema}

    def sql(self, query: str) -> pa.Table:
        """Answers a query."""
        return self._views.sql(query)

    def follow(self, what: Subscription) -> Iterator[Answer]:
        """A view's changes, version by version, without end unless the subscription has one.

        Raises:
            QueryError: there is no such view.
        """
        from penstock.serve.changes import changes
        from penstock.serve.following import follow

        return follow(
            self._views, what, lambda known: changes(self._views, what.view, known), lambda: False
        )

    def state(self) -> str:
        """Which versions can be read."""
        return self._views.kept()


class TopicTables:
    """The topics of a broker: their newest records, as text."""

    def __init__(self, address: str, **settings: Any) -> None:
        self._address, self._settings = address, settings

    def names(self) -> list[str]:
        """The topics' names."""
        from penstock.client import Client

        with Client(self._address, **self._settings) as client:
            return sorted(client.topics())

    def columns(self, name: str) -> Mapping[str, str]:  # noqa: ARG002 - all topics have the same
        """The columns that each topic has."""
        return {
            "partition": "INT", "offset": "BIGINT", "at": "TIMESTAMP", "key": "STRING", "value": "STRING",
        }  # fmt: skip

    def sql(self, query: str) -> pa.Table:
        """Answers a query over the topics that it names.

        Raises:
            QueryError: it can't be answered.
        """
        import duckdb

        from penstock.expr.duck import add_functions, confine
        from penstock.serve.texts.names import with_quotes

        names = [name for name in self.names() if name.lower() in query.lower()]
        with duckdb.connect(":memory:") as con:
            for name in names:
                con.register(name, self._records(name))
            add_functions(con, query)
            confine(con)
            try:
                found: pa.Table = con.sql(with_quotes(con, query)).to_arrow_table()
            except (duckdb.Error, AttributeError) as error:
                known = known_names(self.names())
                raise QueryError(
                    f"expected a query over the topics {known}; found: {error}"
                ) from None
            return found

    def follow(self, what: Subscription) -> Iterator[Answer]:
        """Topics have no versions.

        Raises:
            QueryError: always.
        """
        raise QueryError(
            f"expected SUBSCRIBE to a view of a pipeline (penstock sql APP); found {what.view!r} of a "
            f"broker. `penstock consume {what.view}` prints a topic's records as they come"
        )

    def state(self) -> str:
        """What of a topic is read."""
        return f"Of each partition the newest {TOPIC_RECORDS_MAX:,} records are read"

    def _records(self, topic: str) -> pa.Table:
        from penstock.client import Client, Reader

        found = []
        with (
            Client(self._address, **self._settings) as client,
            Reader(self._address, **self._settings) as reader,
        ):
            firsts = client.offsets(topic, "earliest")
            for p, end in client.offsets(topic, "latest").items():
                begin = max(firsts[p], end - TOPIC_RECORDS_MAX)
                for records in reader.read(topic, p, begin, end, missing="skip"):
                    columns: list[pa.Array] = [
                        pa.array([p] * len(records), pa.int32()),
                        pa.array(records.offset),
                        pa.array(records.timestamp_ms).cast(pa.timestamp("ms", "UTC")),
                        *(_texts(one.to_pylist()) for one in (records.keys(), records.values())),
                    ]
                    found.append(pa.Table.from_arrays(columns, schema=RECORD))
        return pa.concat_tables(found) if found else RECORD.empty_table()


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(
        [None if v is None else v.decode("utf-8", "replace") for v in values], pa.string()
    )


class Shell:
    """Takes lines, and prints what they ask for.

    Args:
        tables: what is queried.
        out: where answers go.
        now: a clock in seconds.
    """

    def __init__(
        self, tables: Tables, out: IO[str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tables, self._out, self._now = tables, out, now
        self._lines: list[str] = []
        self._form, self._times = "table", False
        self.is_over = False

    @property
    def is_within(self) -> bool:
        """Whether a statement has begun and not ended."""
        return bool(self._lines)

    def drop(self) -> None:
        """Forgets a statement that has begun."""
        self._lines.clear()

    def take(self, line: str) -> None:
        """Takes a line: a command, or a part of a statement, which ends with `;`.

        Raises:
            PenstockError: it can't be answered.
        """
        if not self._lines and line.lstrip().startswith("\\"):
            self._command(line.split())
            return
        if not self._lines and not line.strip():
            return
        self._lines.append(line)
        text = "\n".join(self._lines)
        if not _STRINGS.sub("", text).rstrip().endswith(";"):
            return
        self._lines.clear()
        self.run(text)

    def run(self, text: str) -> None:
        """Answers statements, the last of which needn't end with `;`.

        Raises:
            PenstockError: it can't be answered.
        """
        from penstock.serve.postgres.commands import split

        for one in split(text):
            self._answer(one.strip())

    def finish(self) -> None:
        """Answers a statement that has begun, as nothing follows.

        Raises:
            PenstockError: it can't be answered.
        """
        text = "\n".join(self._lines)
        self._lines.clear()
        self.run(text)

    def _answer(self, text: str) -> None:
        begun = self._now()
        if re.fullmatch(r"SHOW\s+(TABLES|VIEWS)", text, re.IGNORECASE):
            self._list()
        elif re.match(r"SUBSCRIBE\b", text, re.IGNORECASE):
            self._follow(text)
        else:
            found = self._tables.sql(text)
            write_table(found, self._form, self._out)
            if self._form == "table":
                self._say(f"({found.num_rows:,} row{'' if found.num_rows == 1 else 's'})")
        if self._times:
            self._say(f"Time: {1_000 * (self._now() - begun):.1f} ms")

    def _follow(self, text: str) -> None:
        """Prints changes until they end, or somebody presses Ctrl-C."""
        from penstock.serve.following import in_front, subscription_of
        from penstock.web import changes_line

        what = subscription_of(text)
        assert what is not None, "it begins with SUBSCRIBE"
        for count, answer in enumerate(self._tables.follow(what)):
            if self._form == "json":
                self._say(changes_line(answer).decode())
            elif self._form == "csv":
                write_table(
                    in_front(answer, progress=what.progress), "csv", self._out, head=not count
                )
            else:
                since = "all rows" if answer.since is None else f"since version {answer.since}"
                self._say(f"Version {answer.version} ({since})")
                rows = answer.table.select(
                    [answer.table.num_columns - 1, *range(answer.table.num_columns - 1)]
                )
                write_table(rows, "table", self._out)
            self._out.flush()

    def _command(self, words: list[str]) -> None:
        match words:
            case [r"\q" | r"\quit"]:
                self.is_over = True
            case [r"\d" | r"\dt" | r"\dv"]:
                self._list()
            case [r"\d", name]:
                self._describe(name.strip('";'))
            case [r"\timing"]:
                self._times = not self._times
                self._say(f"Timing is {'on' if self._times else 'off'}.")
            case [r"\format", form] if form in FORMATS:
                self._form = form
            case [r"\version"]:
                self._say(self._tables.state())
            case [r"\?" | r"\h" | r"\help"]:
                for command, what in COMMANDS.items():
                    self._say(f"{command:<24} {what}")
            case _:
                known = [one.partition(" ")[0] for one in COMMANDS]
                raise UserError(f"expected {known_names(known)}; found {' '.join(words)!r}")

    def _list(self) -> None:
        rows = [(name, ", ".join(self._tables.columns(name))) for name in self._tables.names()]
        write_rows(("name", "columns"), rows, self._form, self._out)

    def _describe(self, name: str) -> None:
        names = self._tables.names()
        if name not in names:
            raise QueryError(
                f"expected one of {known_names(names)}; found {name!r}{hint(name, names)}"
            )
        rows = list(self._tables.columns(name).items())
        write_rows(("column", "type"), rows, self._form, self._out)

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")

    def completions(self, word: str) -> list[str]:
        """What a word may become: names of tables and columns, keywords, commands."""
        return sorted({one for one in self._words() if one.lower().startswith(word.lower())})

    def _words(self) -> Iterator[str]:
        yield from (one.partition(" ")[0] for one in COMMANDS)
        yield from KEYWORDS
        try:
            for name in self._tables.names():
                yield name
                yield from self._tables.columns(name)
        except (PenstockError, OSError):
            return  # more lines follow
