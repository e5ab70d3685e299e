"""Snapshots of tables in chunks, read by several connections while changes flow."""

from penstock.capture._chunked._blocks import BOOL, PLAIN, TEXT, Raw, wrapped
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
    "BOOL",
    "CONNECTIONS",
    "PLAIN",
    "TEXT",
    "Chunk",
    "GoneError",
    "Incremental",
    "Key",
    "Mark",
    "Part",
    "Raw",
    "Reader",
    "Rows",
    "Ways",
    "wrapped",
]
