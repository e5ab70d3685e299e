"""Addresses of databases, and the driver that comes with an extra."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import SetupError

__all__ = ["described", "psycopg_module", "pymysql_module"]


def psycopg_module() -> Any:
    """The module `psycopg`.

    Raises:
        SetupError: it isn't installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise SetupError(
            f"expected psycopg, to talk to PostgreSQL; found that it can't be imported ({error}). "
            "Install it: pip install 'penstock[postgres]'"
        ) from None
    return psycopg


def pymysql_module() -> Any:
    """The module `pymysql`.

    Raises:
        SetupError: it isn't installed.
    """
    try:
        import pymysql
    except ImportError as error:
        raise SetupError(
            f"expected PyMySQL, to talk to MySQL or MariaDB; found that it can't be imported ({error}). "
            "Install it: pip install 'penstock[mysql]'"
        ) from None
    return pymysql


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
