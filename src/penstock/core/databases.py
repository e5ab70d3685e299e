"""Addresses of databases and other systems."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["described"]


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
