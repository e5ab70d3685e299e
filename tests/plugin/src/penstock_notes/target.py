"""A target that keeps rows in a file of JSON, which is replaced as a whole, with the offsets."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import FencedError
from penstock.sinks import BaseTarget, Batch, Facts, Option, Rows, TargetKind


def notes(path: str | Path, *, indent: int | None = None) -> NotesTarget:
    """A file of JSON, for a few thousand rows.

    Args:
        path: of the file, created if it doesn't exist.
        indent: spaces before a member.
    """
    return NotesTarget(path, indent)


class NotesTarget(BaseTarget):
    """See `notes`."""

    passing = (OSError,)

    def __init__(self, path: str | Path, indent: int | None) -> None:
        self._path, self._indent = Path(path), indent
        self.name, self.table = f"notes {path}", self._path.stem
        self._owned: tuple[str, int] | None = None  # the sink, and the epoch that this one had

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over: raises the epoch. One that was replaced meanwhile doesn't take it back."""
        self._key, owner = rows.key, f"{sink} {rows.topic}"
        with self._changed() as state:
            own = state["sinks"].setdefault(owner, {"epoch": 0, "next": {}})
            if self._owned is not None and self._owned != (owner, own["epoch"]):
                raise FencedError(
                    f"expected to write {self._path}; found that {owner} is written elsewhere"
                )
            own["epoch"] += 1
            found = {int(partition): offset for partition, offset in own["next"].items()}
            epoch = own["epoch"]
        self._owned = (owner, epoch)
        return found

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Replaces the file by one with the changes and the offsets."""
        assert self._owned is not None, "open comes first"
        owner, epoch = self._owned
        with self._changed() as state:
            own = state["sinks"][owner]
            if own["epoch"] != epoch:
                raise FencedError(
                    f"expected to write {self._path}; found that {owner} is written elsewhere"
                )
            for key in self._keys(batch.deletes):
                state["rows"].pop(key, None)
            for key, row in zip(self._keys(batch.upserts), batch.upserts.to_pylist(), strict=True):
                state["rows"][key] = row
            own["next"] |= {str(partition): offset for partition, offset in offsets.items()}

    def close(self) -> None:
        """Nothing is open between two writes."""

    def _keys(self, rows: pa.RecordBatch) -> list[str]:
        return [json.dumps([row[name] for name in self._key]) for row in rows.to_pylist()]

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """What the file has, and replaces it afterwards, unless there is an error. Others wait meanwhile."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state: dict[str, Any] = {"sinks": {}, "rows": {}}
            if self._path.exists():
                state = json.loads(self._path.read_text())
            yield state
            new = self._path.with_suffix(".new")
            with new.open("w") as file:
                json.dump(state, file, indent=self._indent, default=str)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)


NOTES = TargetKind(
    name="notes",
    title="JSON notes",
    make=notes,
    arguments="path",
    examples=("FILE.notes",),
    suffixes=(".notes",),
    table="",
    options=(Option("indent", "SPACES", "Before a member", int),),
    facts=Facts(guarantee="yes", exactly_once="one file is replaced, which has rows and offsets"),
)
