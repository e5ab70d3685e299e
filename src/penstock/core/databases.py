"""Addresses of databases and other systems."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

__all__ = ["described", "is_target"]

TARGET_SUFFIXES: Final = (
    ".sqlite", ".sqlite3", ".db", ".duckdb", ".iceberg", ".delta", ".tantivy", ".parquet",
    ".vectors",
)  # fmt: skip
"""Of files and directories that sinks write; `penstock.sinks.from_address` makes targets of them."""


def is_target(text: str) -> bool:
    """Whether a text is the address of a system that a sink writes, and not the name of a topic.

    >>> [is_target(text) for text in ("kafka://db:9092", "out/users", "users.sqlite", "users")]
    [True, True, True, False]
    """
    return "/" in text or text.partition("?")[0].endswith(TARGET_SUFFIXES)


def described(url: str) -> str:
    """An address without its password, for messages and for what is kept.

    >>> described("postgresql://ann:secret@db:5432/shop?sslmode=require&password=x")
    'postgresql://ann@db:5432/shop?sslmode=require'
    """
    if "://" not in url:
        return re.sub(r"\s*\b(ssl)?password\s*=\s*('(?:[^'\\]|\\.)*'|\S+)", "", url).strip()
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    user = user.split(":", 1)[0]
    query = "&".join(q for q in parts.query.split("&") if q and "password" not in q.split("=")[0])
    netloc = f"{user}@{host}" if user else host
    return f"{parts.scheme}://{netloc}{parts.path}{'?' + query if query else ''}"
