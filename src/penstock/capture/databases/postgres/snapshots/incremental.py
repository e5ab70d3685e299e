"""What PostgreSQL does for snapshots in chunks: see `penstock.capture.chunked`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.capture.chunked import Chunk, wrapped
from penstock.capture.chunked import Reader as AnyReader
from penstock.capture.databases.postgres.encoder import Encoder
from penstock.capture.databases.postgres.server import Server
from penstock.capture.databases.postgres.snapshots.chunks import Reader
from penstock.capture.envelope import Values

__all__ = ["PostgresWays"]


class PostgresWays:
    """See `penstock.capture.chunked.Ways`.

    Args:
        server: of the database; others are connected to as it is.
        encoder: makes records.
        values: how they are written.
        connections: that read at a time.
    """

    def __init__(self, server: Server, encoder: Encoder, values: Values, connections: int) -> None:
        self._server, self._encoder, self._values = server, encoder, values
        self._connections = connections
        self._scratch = np.empty(0, np.uint8)

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """Errors with which a table can't be read."""
        from psycopg import errors

        return (errors.ProgrammingError, errors.DataError)

    def readers(self) -> list[AnyReader]:
        """One for each connection."""
        return [Reader(self._server.another(), self._values) for _ in range(self._connections)]

    def wrapped(self, chunk: Chunk, values: pa.Array[Any], position: int) -> pa.Array[Any]:
        """Rows as values of records."""
        self._encoder.at(time.time_ns() // 1000, None, position)
        around = self._encoder.around(chunk.way, chunk.high, b"incremental")
        made, self._scratch = wrapped(values, *around, self._scratch)
        return made
