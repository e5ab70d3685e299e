"""Messages between tasks as rows of Spark: large ones by way of files, or in pieces.

On one machine a large message lies in a file that its reader opens, so the JVM moves a name: the bytes
are written and read once, at memory speed, and deleted after the batch, mostly before the disk sees
them. Between machines they go through Spark's shuffle, in pieces, since what the JVM handles in one
piece, it copies while the piece grows.
"""

from __future__ import annotations

import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.engine.tasks import Message

__all__ = ["ROWS", "Parcels"]

ROWS: Final = "shard int, tag string, message string, piece int, blob binary"
PIECE_BYTES: Final = 1 << 20
FILE_BYTES_MIN: Final = 64 << 10  # less goes through the JVM, which costs less than a file then
IN_FILE: Final = -1  # as the number of a piece: the message is the file with its name

_TYPES: Final[dict[str, pa.DataType]] = {
    "shard": pa.int32(),
    "tag": pa.string(),
    "message": pa.string(),
    "piece": pa.int32(),
    "blob": pa.binary(),
}
_ARROW: Final = pa.schema(_TYPES)


@dataclass(frozen=True)
class Parcels:
    """How messages travel.

    Args:
        folder: for large messages, seen by all tasks; None sends everything through Spark.
    """

    folder: Path | None = None

    def pack(self, messages: Iterable[Message]) -> Iterator[pa.RecordBatch]:
        """Rows of `ROWS`, a batch each."""
        for shard, tag, blob in messages:
            name = (
                uuid.uuid4().hex
            )  # of this attempt: one that is repeated must not write the same file
            if self.folder is not None and len(blob) >= FILE_BYTES_MIN:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(blob)
                yield _row(shard, tag, name, IN_FILE, b"")
                continue
            for piece, start in enumerate(range(0, max(len(blob), 1), PIECE_BYTES)):
                yield _row(shard, tag, name, piece, blob[start : start + PIECE_BYTES])

    def unpack(self, rows: Iterable[Any]) -> list[Message]:
        """The messages of rows, whichever order their pieces came in."""
        found: dict[str, dict[int, bytes]] = defaultdict(dict)
        heads: dict[str, tuple[int, str]] = {}
        for shard, tag, name, piece, blob in rows:
            heads[name] = (shard, tag)
            found[name][piece] = blob
        return [(*heads[name], self._joined(name, pieces)) for name, pieces in found.items()]

    def clear(self) -> None:
        """Deletes what was sent."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _joined(self, name: str, pieces: dict[int, bytes]) -> bytes:
        if IN_FILE in pieces:
            assert self.folder is not None, "whoever sent it had the same folder"
            return (self.folder / name).read_bytes()
        return b"".join(blob for _, blob in sorted(pieces.items()))


def _row(*values: object) -> pa.RecordBatch:
    arrays = [pa.array([value], type_) for value, type_ in zip(values, _ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
