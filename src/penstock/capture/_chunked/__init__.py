"""Snapshots of tables in chunks, read by several connections while changes flow."""

from penstock.capture._chunked._incremental import Incremental, Ways
from penstock.capture._chunked._queue import (
    CONNECTIONS,
    Chunk,
    GoneError,
    Key,
    Mark,
    Part,
    Reader,
    Rows,
)

__all__ = [
    "CONNECTIONS",
    "Chunk",
    "GoneError",
    "Incremental",
    "Key",
    "Mark",
    "Part",
    "Reader",
    "Rows",
    "Ways",
]
