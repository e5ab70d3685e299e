"""The packets of a query's rows, as they come: PyMySQL makes an object of each value.

Source: MySQL's documentation, "Text Resultset". A row that doesn't fit into a packet is in several.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.capture.databases.mysql.server import answering
from penstock.capture.databases.mysql.snapshots import kernels

__all__ = ["Packets", "read"]

READ_BYTES: Final = 256 << 10
"""That are asked of the connection at a time."""
_QUERY: Final = 3
_LONG_BYTES: Final = 0xFFFFFF
_BINARY: Final = 63
"""The character set of bytes."""


class Packets(NamedTuple):
    """Rows of a query.

    Attributes:
        data: what has them; of one row that was in several packets, without what is between these.
        rows: how many they are.
        length: of that one; 0: their packets say that.
        is_bytes: which columns have bytes; others have text.
        is_cut: whether there are more than were wanted.
    """

    data: bytes
    rows: int
    length: int
    is_bytes: tuple[bool, ...]
    is_cut: bool = False


def read(sql: Any, query: str, rows_max: int, bytes_max: int) -> Generator[Packets]:
    """The rows of a query. Once begun, the connection is for nothing else until all were read.

    Args:
        sql: the connection.
        query: in SQL.
        rows_max: how many rows are given at a time.
        bytes_max: likewise, beyond which no further row is; those that were given say that they are cut.

    Raises:
        pymysql.err.Error: the server refuses it.
        ConnectionError: it is gone, or doesn't answer in time.
    """
    with answering(sql):
        sql._execute_command(_QUERY, query.encode())  # noqa: SLF001 - PyMySQL has no other way
        is_bytes = _columns(sql)
    coming, state = _Coming(sql), np.zeros(2, np.int64)
    rows = 0
    while True:
        begin, more = int(state[0]), rows_max - rows
        rows += kernels.find_rows(coming.array, begin, more, bytes_max, state)
        end, why = int(state[0]), int(state[1])
        if why == kernels.MORE:
            coming.more()
            continue
        if rows:
            yield Packets(coming.take(end), rows, 0, is_bytes, why == kernels.CUT)
        rows, state[0] = 0, 0
        if why == kernels.LONG:
            row = coming.long()
            yield Packets(bytes(kernels.HEAD) + row, 1, len(row), is_bytes, len(row) > bytes_max)
        elif why == kernels.END:
            coming.end()
            return


def _columns(sql: Any) -> tuple[bool, ...]:
    """Which columns of an answer have bytes; its rows follow."""
    from pymysql.connections import TEXT_TYPES
    from pymysql.constants import FIELD_TYPE
    from pymysql.protocol import FieldDescriptorPacket

    count = sql._read_packet().read_length_encoded_integer()  # noqa: SLF001
    found = [sql._read_packet(FieldDescriptorPacket) for _ in range(count)]  # noqa: SLF001
    sql._read_packet()  # noqa: SLF001 - their end
    return tuple(
        one.type_code in TEXT_TYPES
        and one.type_code != FIELD_TYPE.JSON
        and one.charsetnr == _BINARY
        for one in found
    )


class _Coming:
    """What has come of a connection, and wasn't taken."""

    def __init__(self, sql: Any) -> None:
        self._sql, self._data = sql, bytearray()

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All of it, until there is more."""
        return np.frombuffer(self._data, np.uint8)

    def more(self) -> None:
        """Waits for more.

        Raises:
            ConnectionError: nothing comes any more.
        """
        sql = self._sql
        try:
            found: bytes = sql._rfile.read1(READ_BYTES)  # noqa: SLF001
        except TimeoutError:
            seconds = sql._read_timeout  # noqa: SLF001
            sql._force_close()  # noqa: SLF001
            raise ConnectionError(
                f"expected {sql.host}:{sql.port} to send rows within {seconds:g} s; found that it says "
                "nothing"
            ) from None
        except OSError:
            sql._force_close()  # noqa: SLF001
            raise
        if not found:
            sql._force_close()  # noqa: SLF001
            raise ConnectionError(f"{sql.host}:{sql.port} has ended the connection")
        self._data += found

    def take(self, end: int) -> bytes:
        """What is before a position, which then is the first."""
        found = bytes(memoryview(self._data)[:end])
        del self._data[:end]
        return found

    def packet(self) -> bytes:
        """The first packet."""
        while len(self._data) < kernels.HEAD:
            self.more()
        end = kernels.HEAD + int.from_bytes(self._data[:3], "little")
        while len(self._data) < end:
            self.more()
        return self.take(end)[kernels.HEAD :]

    def long(self) -> bytes:
        """A row of several packets: the last one isn't full."""
        parts = [self.packet()]
        while len(parts[-1]) == _LONG_BYTES:
            parts.append(self.packet())
        return b"".join(parts)

    def end(self) -> None:
        """Takes what ends the rows.

        Raises:
            pymysql.err.Error: it is an error.
        """
        from pymysql.protocol import MysqlPacket

        found = MysqlPacket(self.packet(), self._sql.encoding)
        if found.is_error_packet():
            found.raise_for_error()
