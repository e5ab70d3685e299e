"""A Delta table in a directory: rows, deletions and offsets are one commit of its log.

A commit has transactions of applications (`txn`: an id and a version). A partition's next offset is the
version of `penstock/NAME/TOPIC/PARTITION`. Each commit stands on the version that was read, so what somebody
else has committed meanwhile lets it fail, and the table is read again.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.lazy import installed
from penstock.sinks.targets.contract import Batch, Rows, Unchanged, check_columns
from penstock.sinks.targets.kind import Facts, TargetKind
from penstock.sinks.targets.lake.filling import filled, lacking_keys
from penstock.sinks.targets.lake.folders import FOLDER_RENAMED, FolderTarget
from penstock.sinks.targets.texts import plain_columns

__all__ = ["KINDS", "DeltaTarget", "delta"]

PACE_S: Final = 5.0
"""The least time between commits while the sink follows: each one makes files."""
GONE: Final = "penstock_gone"
"""The column of a merge's source that says that a row is deleted."""
CHECKPOINTS: Final = {"delta.checkpointInterval": "100"}


def delta(path: str | Path, *, pace_s: float = PACE_S) -> DeltaTarget:
    """A Delta table in a directory, created if it doesn't exist.

    Args:
        path: of the directory.
        pace_s: the least time between commits, in seconds; the last ones of a run don't wait.
    """
    return DeltaTarget(path, pace_s)


class DeltaTarget(FolderTarget):
    """See `delta`."""

    kind = "delta"
    unchanged: Unchanged = "kept"

    def __init__(self, path: str | Path, pace_s: float, owner: str | None = None) -> None:
        super().__init__(path, owner)
        self.pace_s = pace_s
        self._module: Any = installed("deltalake", "delta", "to write Delta tables")
        self._errors: Any = import_module("deltalake.exceptions")
        self._delta: Any = None

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """A directory that another process writes to; others that commit; a disk that is full."""
        return (OSError, self._errors.CommitFailedError)

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, when no other process has the directory; the next offsets."""
        self.close()
        self._rows, self._own = rows, f"penstock/{self._owned_by(sink, rows)}"
        self._folder.take()
        schema = plain_columns(rows.nothing(), times=False).schema
        with self._away():
            self._delta = self._module.DeltaTable.create(
                str(self._path), schema=schema, mode="ignore", configuration=CHECKPOINTS
            )
        there = [field.name for field in self._delta.schema().fields]
        check_columns(str(self._path), rows, there, "Rebuild it")
        count = self._delta.transaction_version(self._own) or 0
        found = {p: self._delta.transaction_version(f"{self._own}/{p}") for p in range(count)}
        self._offsets = {p: int(offset) for p, offset in found.items() if offset is not None}
        return dict(self._offsets)

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
        if self._delta is None:
            raise OSError(f"{self.name} is closed")
        self._offsets = {**self._offsets, **offsets}
        if not len(batch):
            return  # offsets alone are written with the next changes: each commit makes files
        one = self._module.Transaction
        # A partition that wasn't written has no id; so the highest one is given, too.
        transactions = [one(f"{self._own}/{p}", offset) for p, offset in self._offsets.items()]
        transactions.append(one(self._own, max(self._offsets) + 1))
        properties = self._module.CommitProperties(
            app_transactions=transactions, max_commit_retries=0
        )
        with self._away():
            if not self._rows.key:
                upserts = plain_columns(batch.upserts, times=False)
                self._module.write_deltalake(
                    self._delta, upserts, mode="append", commit_properties=properties
                )
            else:
                self._merge(batch, properties)
            self._delta.update_incremental()

    @contextlib.contextmanager
    def _away(self) -> Iterator[None]:
        """Errors of files, which the library has no class for, pass: such as of a disk that is full."""
        try:
            yield
        except self._errors.DeltaError as error:
            if type(error) is not self._errors.DeltaError:
                raise
            raise OSError(f"{self._path} can't be written: {error}") from error

    def _merge(self, batch: Batch, properties: Any) -> None:
        upserts, deletes = self._upserts(batch), plain_columns(batch.deletes, times=False)
        mark = pa.array([False] * len(upserts))
        source = pa.concat_tables(
            [
                upserts.append_column(GONE, mark),
                deletes.append_column(GONE, pa.array([True] * len(deletes))),
            ],
            promote_options="default",
        )
        names = {_quoted(name): f"s.{_quoted(name)}" for name in self._rows.schema.names}
        same = " AND ".join(f"t.{_quoted(n)} = s.{_quoted(n)}" for n in self._rows.key)
        merge = self._delta.merge(
            source,
            predicate=same,
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        merge = merge.when_matched_delete(f"s.{GONE}").when_matched_update(names)
        merge.when_not_matched_insert(names, predicate=f"NOT s.{GONE}").execute()

    def _upserts(self, batch: Batch) -> pa.Table:
        """The batch's rows, with the table's values where they lack some."""
        upserts = plain_columns(batch.upserts, times=False)
        if not batch.kept:
            return upserts
        keys = lacking_keys(batch, upserts, self._rows.key)
        conditions: list[Any] = [
            pc.field(n).isin(keys.column(n).unique()) for n in keys.column_names
        ]
        condition = functools.reduce(operator.and_, conditions)
        columns = [*self._rows.key, *batch.kept]
        old = self._delta.to_pyarrow_dataset().to_table(columns=columns, filter=condition)
        return filled(batch, upserts, self._rows.key, old)

    def close(self) -> None:
        """Lets the directory go."""
        self._delta = None
        self._folder.let_go()

    def _at(self, path: Path, owner: str) -> DeltaTarget:
        return DeltaTarget(path, self.pace_s, owner)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


KINDS: Final = (
    TargetKind(
        name="delta",
        title="Delta",
        make=delta,
        arguments="directory",
        examples=("DIRECTORY.delta",),
        suffixes=(".delta",),
        table="",
        extra="delta",
        facts=Facts(
            guarantee="yes",
            exactly_once="rows, deletions and offsets (`txn`) are one commit of the table's log",
            older_process="the directory belongs to one process; a commit is based on the version that was "
            "read",
            loading="Parquet files",
            others="can read",
            left_out="is read from the target, and written again",
            rebuilt=FOLDER_RENAMED,
        ),
    ),
)
