"""What recovery takes out of a log, and keeps next to it for people to look at: nothing reads it.

    DIRECTORY/OFFSET.N.cut      bytes that followed on the record before OFFSET: no whole batch
    DIRECTORY/BASE.log.lost     a segment that doesn't follow on the one before it

Bytes that are cut off may be all that is left of records that were acknowledged; they may as well be
a write that a crash cut short. Nothing in them shows which.
"""

from __future__ import annotations

from typing import Final

from penstock.log.disk.files import LogFiles
from penstock.wire.batches import Buffer

__all__ = ["CUT", "LOST", "keep_cut", "set_aside_in"]

CUT: Final = ".cut"
LOST: Final = ".lost"
CUTS_MAX: Final = 8
"""Torn ends that are kept of a partition; the oldest goes first."""
_PIECE_BYTES: Final = 1 << 20


def keep_cut(files: LogFiles, directory: str, offset: int, data: Buffer) -> str:
    """Keeps what is about to be cut off before an offset; returns where. Zeros alone are not kept:
    that is how a file looks where nothing was written; then the name is empty.

    Raises:
        OSError: the disk is full or failed.
    """
    if _is_zeros(data):
        return ""
    kept = [name for name in files.list(directory) if name.endswith(CUT)]
    number = sum(name.startswith(f"{offset:020d}.") for name in kept)
    while f"{offset:020d}.{number}{CUT}" in kept:
        number += 1
    path = f"{directory}/{offset:020d}.{number}{CUT}"
    files.store(path, data)
    for name in kept[: max(len(kept) + 1 - CUTS_MAX, 0)]:
        files.delete(f"{directory}/{name}")
    return path


def _is_zeros(data: Buffer) -> bool:
    pieces = (bytes(data[at : at + _PIECE_BYTES]) for at in range(0, len(data), _PIECE_BYTES))
    return all(piece.count(0) == len(piece) for piece in pieces)


def set_aside_in(files: LogFiles, directory: str, suffix: str) -> list[str]:
    """The paths of what was kept, the oldest first."""
    return [f"{directory}/{name}" for name in files.list(directory) if name.endswith(suffix)]
