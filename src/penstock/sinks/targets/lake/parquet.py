"""Parquet files in the directories of partitions: rows are appended, each once.

    PATH/city=Ulm/at_day=2026-01-01/00000-00000000000000000120-000007.parquet
    PATH/_penstock.json    the next offsets, and the files of the last commit
    PATH/_staged/          files on their way

    invariant: a file that readers see has been committed, and its rows are before the offsets

A commit writes files under `_staged`, replaces `_penstock.json`, which decides, and then renames the files
to their places. The sink that opens the directory after a kill renames those that are missing and removes
what was not committed. A record before the offsets is not written again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.names import hint, known_names
from penstock.core.schema import TIMESTAMP, Schema, type_text
from penstock.errors import UserError
from penstock.sinks.targets.contract import Batch, RefusedError, Rows, Unchanged
from penstock.sinks.targets.kind import Facts, Option, TargetKind
from penstock.sinks.targets.lake.folders import FOLDER_RENAMED, FolderTarget
from penstock.sinks.targets.texts import plain_columns

__all__ = ["KINDS", "ParquetTarget", "parquet"]

PACE_S: Final = 5.0
"""The least time between commits while the sink follows: each one makes files."""
PARTITIONS_MAX: Final = 1_000
"""Of one commit: each is a file. A batch with more is several commits."""
STATE: Final = "_penstock.json"
STAGED: Final = "_staged"
"""Readers of partitioned files skip names that begin with `_`, and those here don't end in `.parquet`."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
DELETED, OFFSET, PARTITION = "_deleted", "_offset", "_partition"
"""The columns of a table with a key, next to its own."""
LABEL_BYTES_MAX: Final = 255
"""File systems have no longer names."""
_SPECIAL: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""What Hive escapes in the names of directories"""
_UNIT: Final = re.compile(r"(year|month|day|hour)\((.+)\)")
_FORMATS: Final = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


def parquet(
    path: str | Path, *, partition_by: tuple[str, ...] | str = (), pace_s: float = PACE_S
) -> ParquetTarget:
    """Parquet files in a directory, partitioned as Hive does, for DuckDB, Spark and others.

    Rows without a key are appended. Of a table with a key, each change is a row: with `_deleted`, `_offset`
    and `_partition`, of its record. The newest row of a key has its highest `_offset`.

    Args:
        path: of the directory, created if it doesn't exist.
        partition_by: columns, or `year(at)`, `month(at)`, `day(at)`, `hour(at)` of a TIMESTAMP or DATE, in a
            tuple or in a text with commas.
        pace_s: the least time between commits, in seconds; the last ones of a run don't wait.
    """
    given = partition_by.split(",") if isinstance(partition_by, str) else partition_by
    return ParquetTarget(path, tuple(one.strip() for one in given if one.strip()), pace_s)


@dataclass(frozen=True)
class _Part:
    """One level of directories: a column, or a unit of a time."""

    name: str
    column: str
    unit: str | None

    def texts(self, rows: pa.Table) -> Any:
        """Of each row, the directory's name.

        Raises:
            RefusedError: one is too long.
        """
        values: Any = rows.column(self.column).combine_chunks()
        unit = self.unit
        texts = values.cast(pa.string()) if unit is None else pc.strftime(values, _FORMATS[unit])
        unique = texts.dictionary_encode()
        head = f"{_escaped(self.name)}="
        labels = [head + (_escaped(text) or NULL) for text in unique.dictionary.to_pylist()]
        for label in labels:
            if len(label.encode()) > LABEL_BYTES_MAX:
                raise RefusedError(
                    f"expected the names of directories with at most {LABEL_BYTES_MAX} bytes "
                    f"(LABEL_BYTES_MAX); found {label[:40]!r}… with {len(label.encode())}. Partition by "
                    "columns with shorter values"
                )
        return pa.array(labels, pa.string()).take(unique.indices).fill_null(head + NULL)


class ParquetTarget(FolderTarget):
    """See `parquet`."""

    kind = "parquet"
    unchanged: Unchanged = "logged"

    def __init__(
        self,
        path: str | Path,
        partition_by: tuple[str, ...],
        pace_s: float,
        owner: str | None = None,
    ) -> None:
        super().__init__(path, owner)
        self._by, self.pace_s = partition_by, pace_s
        self._state: dict[str, Any] | None = None

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, when no other process has the directory, and completes a commit; the next offsets."""
        self.close()
        self._rows, self._parts = rows, _parts(self._by, rows)
        self._own = self._owned_by(sink, rows)
        self._folder.take()
        state = self._read()
        self._place(state["files"])
        shutil.rmtree(self._path / STAGED, ignore_errors=True)
        state["layout"] = self._layout(state["layout"])
        self._state = state
        return {int(p): int(o) for p, o in state["next"].get(self._own, {}).items()}

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = orjson.loads((self._path / STATE).read_bytes())
        except FileNotFoundError:
            return {"commit": 0, "files": {}, "next": {}, "layout": None}
        return found

    def _layout(self, before: dict[str, Any] | None) -> dict[str, Any]:
        """What files have in common.

        Raises:
            UserError: those that are there differ.
        """
        columns = {one.name: type_text(one.type) for one in self._rows.schema}
        own = {"partition_by": list(self._by), "key": list(self._rows.key), "columns": columns}
        if before is None:
            return own
        for what in ("partition_by", "key"):
            if before[what] != own[what]:
                raise UserError(
                    f"expected the files in {self._path} with {what} = {own[what]}; found them with "
                    f"{before[what]}. Rebuild it, or write another directory"
                )
        for name, type_ in columns.items():
            if before["columns"].get(name, type_) != type_:
                raise UserError(
                    f"expected the column {name!r} of {self._path} as {type_}; found it as "
                    f"{before['columns'][name]}. Rebuild it, or write another directory"
                )
        return {**own, "columns": {**before["columns"], **columns}}

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Appends rows and changes with their offsets.

        Raises:
            RefusedError: they belong to too many partitions for one commit.
        """
        if self._state is None:
            raise OSError(f"{self.name} is closed")
        before = self._state["next"].get(self._own, {})
        after = {**before, **{str(p): o for p, o in offsets.items()}}
        rows = self._table(batch, int(before.get(str(batch.partition), 0)))
        commit = self._state["commit"] + 1
        if not len(rows):
            self._state = {**self._state, "next": {**self._state["next"], self._own: after}}
            return  # offsets alone are written with the next rows
        at = int(after.get(str(batch.partition), 0))
        name = f"{batch.partition:05}-{at:020}-{commit:06}.parquet"
        files: dict[str, str] = {}
        for folder, part in self._split(rows):
            staged = f"{STAGED}/{commit:06}-{len(files)}"
            _write(self._path / staged, part)
            files[staged] = f"{folder}{name}"
        next_ = {**self._state["next"], self._own: after}
        state = {**self._state, "commit": commit, "files": files, "next": next_}
        new = self._path / STAGED / "state"
        new.write_bytes(orjson.dumps(state))
        _sync(new)
        new.replace(self._path / STATE)
        _sync(self._path)
        self._state = state
        self._place(files)

    def _place(self, files: Mapping[str, str]) -> None:
        """Puts the files of a commit where readers look for them."""
        for staged, name in files.items():
            to = self._path / name
            if (self._path / staged).exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                (self._path / staged).replace(to)
                _sync(to.parent)

    def _table(self, batch: Batch, since: int) -> pa.Table:
        """Rows of records that aren't written yet; of a table with a key, with what says which they are."""
        new, gone = np.flatnonzero(batch.upserted_at >= since), batch.deleted_at >= since
        rows = plain_columns(batch.upserts.take(new))
        if not self._rows.key:
            return rows
        deletes = plain_columns(batch.deletes.take(np.flatnonzero(gone)))
        parts = [
            part.append_column(DELETED, pa.array(np.full(len(part), is_gone)))
            .append_column(OFFSET, pa.array(at, pa.int64()))
            .append_column(PARTITION, pa.array(np.full(len(part), batch.partition, np.int32)))
            for part, at, is_gone in (
                (rows, batch.upserted_at[new], False),
                (deletes, batch.deleted_at[gone], True),
            )
        ]
        return pa.concat_tables(parts, promote_options="default")

    def _split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Rows by the directory that they belong to.

        Raises:
            RefusedError: there are too many for one commit; of fewer rows, they are fewer.
        """
        if not self._parts:
            yield "", rows
            return
        labels: list[Any] = [part.texts(rows) for part in self._parts]
        join: Any = pc.binary_join_element_wise  # its types want arrays of one kind
        folders = join(*labels, "/").dictionary_encode()
        if len(folders.dictionary) > PARTITIONS_MAX:
            raise RefusedError(
                f"expected rows of at most {PARTITIONS_MAX:,} partitions (PARTITIONS_MAX) in one commit; "
                f"found {len(folders.dictionary):,}. Partition by columns with fewer values"
            )
        numbers = folders.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(folders.dictionary) + 1))
        kept = rows.drop_columns([part.column for part in self._parts if part.unit is None])
        for number, folder in enumerate(folders.dictionary.to_pylist()):
            yield f"{folder}/", kept.take(order[bounds[number] : bounds[number + 1]])

    def close(self) -> None:
        """Lets the directory go."""
        self._state = None
        self._folder.let_go()

    def _at(self, path: Path, owner: str) -> ParquetTarget:
        return ParquetTarget(path, self._by, self.pace_s, owner)


def _escaped(text: str) -> str:
    """A value as Hive writes it into the name of a directory.

    >>> _escaped("50% of a/b, Köln")
    '50%25 of a%2Fb, Köln'
    """
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _parts(by: tuple[str, ...], rows: Rows) -> list[_Part]:
    """The levels of directories.

    Raises:
        UserError: there is no such column, or its type has too many values.
    """
    taken = {DELETED, OFFSET, PARTITION} & set(rows.schema.names) if rows.key else set()
    if taken:
        raise UserError(
            f"expected columns other than {known_names(taken)}, which say what happened to a key; found them "
            "in the schema. Rename them in the query"
        )
    made: list[_Part] = []
    for one in by:
        found = _UNIT.fullmatch(one)
        unit, column = (found[1], found[2].strip()) if found else (None, one)
        if column not in rows.schema.names:
            raise UserError(
                f"expected partition_by among the columns {known_names(rows.schema.names)}; found "
                f"{one!r}{hint(column, rows.schema.names)}"
            )
        _check_part(one, unit, rows.schema, column)
        made.append(_Part(column if unit is None else f"{column}_{unit}", column, unit))
    return made


def _check_part(text: str, unit: str | None, schema: Schema, column: str) -> None:
    type_ = schema[column].type
    is_time = type_ == TIMESTAMP or pa.types.is_date(type_)
    if unit is not None:
        if not is_time or (unit == "hour" and type_ != TIMESTAMP):
            raise UserError(
                f"expected {unit}(…) of a column of instants; found {type_text(type_)} in {text!r}"
            )
        return
    fits = (
        type_ in (pa.string(), pa.bool_()) or pa.types.is_integer(type_) or pa.types.is_date(type_)
    )
    if not fits:
        raise UserError(
            "expected partition_by of STRING, BOOLEAN, INT, BIGINT or DATE, or day(at) of a TIMESTAMP; found "
            f"{type_text(type_)} in {text!r}"
        )


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path, compression="zstd")
    _sync(path)


def _sync(path: Path) -> None:
    """Makes a file, or the names in a directory, survive a crash of the machine."""
    with contextlib.suppress(PermissionError):  # a file system that can't do that with directories
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


KINDS: Final = (
    TargetKind(
        name="parquet",
        title="Parquet",
        make=parquet,
        arguments="directory",
        examples=("DIRECTORY.parquet",),
        suffixes=(".parquet",),
        table="",
        options=(
            Option("partition_by", "COLUMNS", "Columns, or day(at) and the like, of directories"),
        ),
        facts=Facts(
            guarantee="yes",
            exactly_once="one file is replaced, which has the offsets and the names of new files. The files "
            "get these names afterwards, or when the directory is opened again",
            older_process="the directory belongs to one process",
            loading="Parquet files",
            others="can read",
            left_out="is the placeholder, with a warning: the files have all changes, and their readers know "
            "the earlier value",
            rebuilt=FOLDER_RENAMED,
        ),
    ),
)
