"""Changes of a transaction that is still open, until its end says whether they count.

The server sends a large transaction before it ends (protocol 2, `streaming`), in pieces between those of
others. Messages wait in memory up to a bound, and in a temporary file beyond it. Those of subtransactions
that were rolled back are left out.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import Final

__all__ = ["Streamed"]

MEMORY_BYTES: Final = 8 << 20
"""Of each open transaction."""
_HEAD: Final = struct.Struct("<IqI")  # subtransaction, position, size


class Streamed:
    """Messages of one transaction."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
        self._aborted: set[int] = set()

    def close(self) -> None:
        """Forgets them."""
        self._file.close()

    def add(self, xid: int, lsn: int, message: bytes) -> None:
        """Takes a message of the transaction, or of one inside it."""
        self._file.write(_HEAD.pack(xid, lsn, len(message)))
        self._file.write(message)

    def abort(self, xid: int) -> None:
        """A transaction inside it was rolled back."""
        self._aborted.add(xid)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Positions and messages that count, in their order."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            xid, lsn, size = _HEAD.unpack(head)
            message = self._file.read(size)
            if xid not in self._aborted:
                yield lsn, message
