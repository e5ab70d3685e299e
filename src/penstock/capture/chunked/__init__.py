"""Snapshots of tables in chunks, read by several connections while changes flow."""

from penstock.capture.chunked.blocks import BOOL, PLAIN, TEXT, Raw, wrapped
from penstock.capture.chunked.incremental import Incremental, Ways
from penstock.capture.chunked.queue import (
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
