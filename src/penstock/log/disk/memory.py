"""Log files in memory that can crash, fill up and fail: for tests and simulations.

What was not synced may be lost at a crash, in whole or in part: a file may end at any byte beyond
what is durable, and blocks in between may read as zeros, as a disk that reorders writes leaves
them. A file whose name was not synced may be gone.
"""

from __future__ import annotations

import errno
import os
import random
from typing import Final

from penstock.log.disk.files import LogFile
from penstock.wire.batches import Buffer

__all__ = ["MemoryFiles"]

BLOCK_BYTES: Final = 512
"""What a disk writes at once: a crash leaves a block old or new."""


class _Node:
    """A file's bytes, as processes see them and as the disk has them."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = b""
        self.is_name_durable = False


class _MemoryFile:
    def __init__(self, files: MemoryFiles, node: _Node) -> None:
        self._files = files
        self._node = node

    def size(self) -> int:
        return len(self._node.seen)

    def write(self, at: int, data: Buffer) -> None:
        seen = self._node.seen
        if at > len(seen):
            seen.extend(bytes(at - len(seen)))
        room = self._files.room_bytes
        fits = len(data) if room is None else min(len(data), room)
        seen[at : at + fits] = data[:fits]
        if room is not None:
            self._files.room_bytes = room - fits
        if fits < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self, at: int, size: int) -> Buffer:
        return bytes(self._node.seen[at : at + size])

    def truncate(self, size: int) -> None:
        del self._node.seen[size:]
        self._node.durable = self._node.durable[:size]

    def sync(self) -> None:
        if self._files.fails_to_sync:
            raise OSError(self._files.sync_errno, os.strerror(self._files.sync_errno))
        self._node.durable = bytes(self._node.seen)

    def rest(self) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        """There is nothing to close."""


class MemoryFiles:
    """A tree of files in memory.

    Attributes:
        room_bytes: bytes that may still be written; None: any number.
        fails_to_sync: whether syncs fail.
        sync_errno: what they fail with.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self.room_bytes: int | None = None
        self.fails_to_sync = False
        self.sync_errno = errno.EIO

    def open(self, path: str) -> LogFile:
        """Opens a log file, making it where it is missing."""
        return _MemoryFile(self, self._nodes.setdefault(path, _Node()))

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        prefix = path + "/"
        inside = (name[len(prefix) :] for name in self._nodes if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inside})

    def load(self, path: str) -> bytes | None:
        """A small file's bytes, None where it is missing."""
        node = self._nodes.get(path)
        return None if node is None else bytes(node.seen)

    def store(self, path: str, data: Buffer) -> None:
        """Replaces a small file as a whole, durably."""
        if self.room_bytes is not None and self.room_bytes < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        node = self._nodes[path] = _Node()
        node.seen = bytearray(data)
        node.durable = bytes(data)
        node.is_name_durable = True

    def rename(self, path: str, new_path: str) -> None:
        """Moves a file or a directory tree, durably."""
        for name in [one for one in self._nodes if one == path or one.startswith(path + "/")]:
            node = self._nodes.pop(name)
            node.is_name_durable = True
            self._nodes[new_path + name[len(path) :]] = node

    def delete(self, path: str) -> None:
        """Removes a file or a directory tree."""
        for name in [one for one in self._nodes if one == path or one.startswith(path + "/")]:
            del self._nodes[name]

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        for name, node in self._nodes.items():
            if name.rpartition("/")[0] == path:
                node.is_name_durable = True

    def crash(self, chance: random.Random) -> None:
        """The machine loses power; `chance` decides what of the rest has reached the disk."""
        for name, node in list(self._nodes.items()):
            if not node.is_name_durable and chance.random() < 0.5:
                del self._nodes[name]
                continue
            node.is_name_durable = True
            kept = chance.randint(len(node.durable), max(len(node.seen), len(node.durable)))
            after = bytearray(node.seen[:kept])
            after[: len(node.durable)] = node.durable
            for block in range(len(node.durable) // BLOCK_BYTES + 1, kept // BLOCK_BYTES):
                if chance.random() < 0.2:
                    after[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes(BLOCK_BYTES)
            node.seen = after
            node.durable = bytes(after)

    def damage(self, path: str, at: int, bit: int) -> None:
        """Flips a bit of a file."""
        self._nodes[path].seen[at] ^= 1 << bit
