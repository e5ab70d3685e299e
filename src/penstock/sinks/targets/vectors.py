"""A vector index in a directory, by usearch: rows that are near a vector.

    rows.sqlite                   rows with their vectors, what is gone, and offsets: one transaction
    index-NUMBER-PLACE.usearch    the graph of the rows up to a number, without those gone up to a place

The graph is derived from the rows. usearch writes it as a whole, so it is written now and then, and who opens
it adds the rows behind its number and removes what is gone behind its place. So a search sees the rows of one
transaction, whichever of the two files was written last when a process was killed.

A row that changes gets a new number. A number is never used twice, so a graph never has another row's vector.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.closing import Closing
from penstock.core.lazy import installed
from penstock.errors import CorruptError, UserError
from penstock.sinks.targets.contract import (
    Batch,
    RefusedError,
    Rows,
    Unchanged,
    no_row,
)
from penstock.sinks.targets.kind import Facts, Option, TargetKind
from penstock.sinks.targets.lake.folders import FOLDER_RENAMED, FolderTarget
from penstock.sinks.targets.texts import completed, json_members, key_texts

__all__ = ["KINDS", "Match", "Metric", "VectorTarget", "Vectors", "vectors"]

Metric: TypeAlias = Literal["cos", "l2sq", "ip"]
DIMENSIONS_MAX: Final = 65_536
"""Of a vector: four bytes each, so a row has at most 256 KiB of them."""
SAVED_CHANGES: Final = 10_000
"""Changes after which the graph is written, at least; more where it has more than ten times as many rows."""
EXACT_ROWS: Final = 1_000
"""Up to which all vectors are compared, which takes no time. After rows have gone, the graph may not lead to
each one that is left, and where there are few, that shows."""
READ_ROWS: Final = 10_000
"""Vectors that are read at a time."""
_DATABASE: Final = "rows.sqlite"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS told (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offsets (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, row TEXT NOT NULL,
    vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS gone (
    place INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL);
"""


class Match(NamedTuple):
    """A row that was found: its columns but the vector, and how far it is by the index's metric."""

    row: dict[str, Any]
    distance: float


def vectors(
    path: str | Path, *, column: str, dimensions: int, metric: Metric = "cos"
) -> VectorTarget:
    """A vector index that needs no server. `ps.sinks.Vectors(path)` searches it, in any process.

    Args:
        path: of its directory, created if it doesn't exist.
        column: of the rows that has the vector: an ARRAY of FLOAT or DOUBLE.
        dimensions: numbers of a vector. Rows with another one are dead letters.
        metric: `cos`, one minus the cosine of the angle; `l2sq`, the square of the distance; or `ip`, one
            minus the inner product.
    """
    return VectorTarget(path, column=column, dimensions=dimensions, metric=metric)


class VectorTarget(FolderTarget):
    """See `vectors`.

    Raises:
        UserError: an argument is wrong.
        SetupError: usearch isn't installed.
    """

    kind = "vectors"
    unchanged: Unchanged = "kept"

    def __init__(
        self,
        path: str | Path,
        *,
        column: str,
        dimensions: int,
        metric: Metric,
        owner: str | None = None,
    ) -> None:
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise UserError(
                f"expected dimensions from 1 to {DIMENSIONS_MAX:,}, numbers of a vector; found {dimensions}"
            )
        if metric not in ("cos", "l2sq", "ip"):
            raise UserError(f"expected metric='cos', 'l2sq' or 'ip'; found {metric!r}")
        _usearch()
        super().__init__(path, owner)
        self._form = _Form(column, dimensions, metric)
        self._sql: sqlite3.Connection | None = None
        self._graph = _Graph(self._path, self._form)

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """A directory that another process writes to; a disk that is full."""
        return (OSError, sqlite3.OperationalError)

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, when no other process has the directory; the next offsets."""
        self.close()
        self._check(rows)
        self._rows, own = rows, self._owned_by(sink, rows)
        self._folder.take()
        sql = self._sql = _connected(self._path)
        sql.executescript(_TABLES)
        state = dict(sql.execute("SELECT name, value FROM told"))
        if state.setdefault("sink", own) != own:
            raise self._others(own, state["sink"])
        if (form := _Form.of(state)) not in (None, self._form):
            raise UserError(
                f"expected the index {self._path} to have {self._form}; found {form}. Rebuild it in another "
                "directory, or remove this one"
            )
        with sql:
            sql.execute("BEGIN IMMEDIATE")
            found = {**self._form._asdict(), "sink": own}
            sql.executemany("INSERT OR REPLACE INTO told VALUES (?, ?)", found.items())
        self._graph = _Graph(self._path, self._form)
        for orphan in self._path.glob("index-*"):
            if orphan.name != state.get("file"):  # a kill came before it counted
                orphan.unlink()
        return dict(sql.execute("SELECT partition, next FROM offsets"))

    def _check(self, rows: Rows) -> None:
        if not rows.key:
            raise UserError(f"expected a key, to replace rows of {self.name}; found none")
        if self._form.column not in rows.schema.names:
            raise UserError(
                f"expected a column {self._form.column!r} with the vectors of {self.name}; found "
                f"{', '.join(rows.schema.names)}"
            )
        type_: Any = rows.schema[self._form.column].type
        if not pa.types.is_list(type_) or not pa.types.is_floating(type_.value_type):
            raise UserError(
                f"expected {self._form.column!r}, with the vectors of {self.name}, as an ARRAY of FLOAT or "
                f"DOUBLE; found {type_}"
            )

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
        sql = self._sql
        if sql is None:
            raise OSError(f"{self._path} is closed")
        upserts = self._upserts(sql, batch) if len(batch.upserts) else []
        keys = key_texts(batch.deletes, self._rows.key) if len(batch.deletes) else []
        keys += [key for key, _, _ in upserts]
        with sql:
            sql.execute("BEGIN IMMEDIATE")
            some = [(one,) for one in keys]
            gone = "INSERT INTO gone (number) SELECT number FROM rows WHERE key = ?"
            sql.executemany(gone, some)
            sql.executemany("DELETE FROM rows WHERE key = ?", some)
            sql.executemany("INSERT INTO rows (key, row, vector) VALUES (?, ?, ?)", upserts)
            sql.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", offsets.items())
        if self._graph.behind(sql) > max(SAVED_CHANGES, len(self._graph) // 10):
            self._graph.save(sql)

    def _upserts(self, sql: sqlite3.Connection, batch: Batch) -> list[tuple[str, str, bytes]]:
        """Key, row and vector.

        Raises:
            RefusedError: a vector doesn't fit, or a row that lacks values isn't there.
        """
        rows, name = batch.upserts, self._form.column
        keys = key_texts(rows, self._rows.key)
        olds, blobs = self._olds(sql, keys, batch)
        is_given = ~batch.kept.get(name, np.zeros(len(rows), np.bool_))
        found = _fitting(rows.column(name).filter(pa.array(is_given)), self._form)
        for i, one in zip(np.flatnonzero(is_given).tolist(), found, strict=True):
            blobs[i] = one.tobytes()
        rest = rows.select([one for one in rows.schema.names if one != name])
        texts = (one.decode() for one in completed(rest, batch.kept, olds))
        return list(zip(keys, texts, blobs, strict=True))

    def _olds(
        self, sql: sqlite3.Connection, keys: list[str], batch: Batch
    ) -> tuple[list[Any], list[bytes]]:
        """The members and vectors of the rows that lack values."""
        olds: list[Any] = [None] * len(keys)
        blobs = [b""] * len(keys)
        for i in np.flatnonzero(batch.is_partial).tolist():
            found = sql.execute("SELECT row, vector FROM rows WHERE key = ?", (keys[i],)).fetchone()
            if found is None:
                raise no_row([name for name, some in batch.kept.items() if some[i]])
            olds[i], blobs[i] = json_members(found[0]), found[1]
        return olds, blobs

    def close(self) -> None:
        """Writes the graph, if it isn't, and lets the directory go."""
        sql, self._sql = self._sql, None
        try:
            if sql is not None and self._graph.behind(sql):
                self._graph.save(sql)
        finally:
            if sql is not None:
                sql.close()
            self._folder.let_go()

    def _at(self, path: Path, owner: str) -> VectorTarget:
        return VectorTarget(path, **self._form._asdict(), owner=owner)


class Vectors(Closing):
    """Searches a vector index that a sink writes; belongs to one thread.

    Each search sees what the sink has committed by then, as of one moment. After a rebuild, open it again.

    Args:
        path: of its directory.

    Raises:
        UserError: there is no such index.
        SetupError: usearch isn't installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not (self._path / _DATABASE).exists():
            raise UserError(f"expected a vector index at {self._path}; found none")
        _usearch()
        self._sql = _connected(self._path)
        form = _Form.of(dict(self._sql.execute("SELECT name, value FROM told")))
        if form is None:
            self._sql.close()
            raise UserError(
                f"expected a vector index at {self._path}; found that it was never written"
            )
        self._form, self._graph = form, _Graph(self._path, form)

    def close(self) -> None:
        """Closes it."""
        self._sql.close()

    def __len__(self) -> int:
        [(count,)] = self._sql.execute("SELECT count(*) FROM rows")
        return int(count)

    def search(
        self, vector: Sequence[float] | npt.NDArray[Any], count: int = 10, *, exact: bool = False
    ) -> list[Match]:
        """The rows that are nearest, the nearest first.

        Args:
            vector: of as many numbers as the index has dimensions.
            count: of rows, at most.
            exact: whether all vectors are compared, instead of those that the graph leads to. So they are in
                an index of up to 1,000 rows, or where a quarter of them is asked for.

        Raises:
            UserError: the vector has another number of dimensions.
        """
        asked = np.asarray(vector, np.float32)
        if asked.shape != (self._form.dimensions,) or count < 1:
            raise UserError(
                f"expected {self._form.dimensions} numbers and a count of 1 or more; found numbers of the "
                f"shape {asked.shape} and {count}"
            )
        self._sql.execute("BEGIN")
        try:
            self._graph.catch_up(self._sql)
            found = self._graph.nearest(asked, count, exact=exact)
            matches = []
            for number, distance in found:
                [(row,)] = self._sql.execute("SELECT row FROM rows WHERE number = ?", (number,))
                matches.append(Match(orjson.loads(row), distance))
        finally:
            self._sql.rollback()
        return matches


class _Form(NamedTuple):
    """What an index's vectors are."""

    column: str
    dimensions: int
    metric: Metric

    def __str__(self) -> str:
        return f"vectors of {self.dimensions} numbers in {self.column!r} with the metric {self.metric!r}"

    @staticmethod
    def of(state: Mapping[str, Any]) -> _Form | None:
        """That of an index; None where it was never written."""
        if "dimensions" not in state:
            return None
        return _Form(state["column"], state["dimensions"], state["metric"])


@dataclass
class _Seen:
    """Up to where a graph has the rows."""

    number: int = 0
    place: int = 0


class _Graph:
    """A graph in memory, which follows the rows."""

    def __init__(self, path: Path, form: _Form) -> None:
        self._path, self._form = path, form
        self._index: Any = None
        self._seen = _Seen()

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def nearest(
        self, vector: npt.NDArray[np.float32], count: int, *, exact: bool
    ) -> list[tuple[int, float]]:
        """Numbers and distances of rows."""
        count = min(count, len(self))
        if not count:
            return []
        # So does one that asks for much of the index: the graph would be walked as a whole.
        exact = exact or len(self) <= max(EXACT_ROWS, 4 * count)
        found = self._index.search(vector, count, exact=exact)
        return [
            (int(number), float(distance))
            for number, distance in zip(found.keys, found.distances, strict=True)
        ]

    def behind(self, sql: sqlite3.Connection) -> int:
        """How many changes the file doesn't have."""
        saved = _saved(sql)
        newest = dict(sql.execute("SELECT name, seq FROM sqlite_sequence"))
        return int(newest.get("rows", 0)) - saved.number + int(newest.get("gone", 0)) - saved.place

    def catch_up(self, sql: sqlite3.Connection) -> None:
        """Has what the rows are, as a transaction sees them."""
        state = dict(sql.execute("SELECT name, value FROM told"))
        if self._index is None or self._seen.place < state.get("place", 0):
            self._load(sql, state)
        [(place,)] = sql.execute("SELECT coalesce(max(place), ?) FROM gone", (self._seen.place,))
        gone = [
            number
            for (number,) in sql.execute(
                "SELECT number FROM gone WHERE place > ? AND number <= ?",
                (self._seen.place, self._seen.number),
            )
        ]
        if gone:
            self._index.remove(np.array(gone, np.uint64))
        self._seen.place = place
        cursor = sql.execute(
            "SELECT number, vector FROM rows WHERE number > ? ORDER BY number", (self._seen.number,)
        )
        while some := cursor.fetchmany(READ_ROWS):
            numbers = np.array([number for number, _ in some], np.uint64)
            data = np.frombuffer(b"".join(vector for _, vector in some), np.float32)
            self._index.add(numbers, data.reshape(len(some), self._form.dimensions))
            self._seen.number = int(numbers[-1])

    def _load(self, sql: sqlite3.Connection, state: Mapping[str, Any]) -> None:
        """Begins with what the file has; with nothing where there is none."""
        usearch = _usearch()
        _, dimensions, metric = self._form
        self._index = usearch.Index(ndim=dimensions, metric=metric, dtype="f32")
        [(place,)] = sql.execute(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'gone'"
        )
        self._seen = _Seen(0, place)
        path = self._path / state.get("file", "none")
        try:
            if not path.exists():
                return
            self._index.load(path)
        except RuntimeError as error:
            if (
                not path.exists()
            ):  # a newer one has taken its place, which this transaction doesn't see
                return
            raise CorruptError(
                f"expected a graph of usearch in {path}; found: {error}. Remove the file: it is made again "
                "of the rows"
            ) from None
        self._seen = _saved(sql)

    def save(self, sql: sqlite3.Connection) -> None:
        """Writes the file; from then on it counts, and what is gone up to there is forgotten."""
        self.catch_up(sql)
        number, place = self._seen.number, self._seen.place
        path = self._path / f"index-{number}-{place}.usearch"
        self._index.save(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        former = dict(sql.execute("SELECT name, value FROM told")).get("file")
        with sql:
            sql.execute("BEGIN IMMEDIATE")
            state = {"file": path.name, "number": number, "place": place}
            sql.executemany("INSERT OR REPLACE INTO told VALUES (?, ?)", state.items())
            sql.execute("DELETE FROM gone WHERE place <= ?", (place,))
        if former not in (None, path.name):
            (self._path / former).unlink(missing_ok=True)


def _saved(sql: sqlite3.Connection) -> _Seen:
    """Up to where the file has the rows."""
    state = dict(sql.execute("SELECT name, value FROM told"))
    return _Seen(state.get("number", 0), state.get("place", 0))


def _fitting(column: Any, form: _Form) -> npt.NDArray[np.float32]:
    """Vectors, float32[n, dimensions].

    Raises:
        RefusedError: one isn't a vector of the index.
    """
    lengths: Any = pc.list_value_length(column)
    fits = np.asarray(lengths.fill_null(-1)) == form.dimensions
    wrong: Any = pa.array(~fits)
    if not fits.all():
        found = lengths.filter(wrong)[0].as_py()
        size = "no vector (NULL)" if found is None else f"{found} numbers"
        raise RefusedError(
            f"expected {form.column!r} as a vector of {form.dimensions} numbers; found {size}"
        )
    flat = column.flatten().cast(pa.float32(), safe=False)
    made = np.asarray(flat.fill_null(np.nan)).reshape(len(column), form.dimensions)
    if not np.isfinite(made).all():
        raise RefusedError(
            f"expected {form.column!r} as a vector of numbers that FLOAT has; found NULL, NaN or an infinity"
        )
    if form.metric == "cos" and not np.square(made, dtype=np.float64).sum(axis=1).all():
        raise RefusedError(
            f"expected {form.column!r} as a vector with a direction, which the metric 'cos' compares; found "
            "zeros alone"
        )
    return made


def _connected(path: Path) -> sqlite3.Connection:
    sql = sqlite3.connect(path / _DATABASE, timeout=60, isolation_level=None)
    sql.execute("PRAGMA journal_mode = wal")
    return sql


def _usearch() -> Any:
    return installed("usearch.index", "vector", "to have a vector index")


KINDS: Final = (
    TargetKind(
        name="vectors",
        title="usearch (vectors)",
        make=vectors,
        arguments="directory, column=…, dimensions=…",
        examples=("DIRECTORY.vectors",),
        suffixes=(".vectors",),
        table="",
        options=(
            Option("column", "NAME", "The column with the vector", required=True),
            Option("dimensions", "NUMBER", "Numbers of a vector", int, required=True),
            Option("metric", "cos|l2sq|ip", "How distances are computed"),
        ),
        extra="vector",
        facts=Facts(
            guarantee="yes",
            exactly_once="rows, vectors and offsets are one transaction of SQLite; the graph for searches "
            "is derived from them",
            older_process="the directory belongs to one process",
            loading="documents or rows by key",
            others="can search",
            left_out="is read from the target, and written again",
            rebuilt=FOLDER_RENAMED,
        ),
    ),
)
