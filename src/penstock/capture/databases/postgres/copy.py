"""COPY's text: lines to values, names to SQL. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from penstock.capture.table_schemas import spelled, unspelled
from penstock.errors import UserError

__all__ = ["parse_tables", "quoted", "split", "unescaped"]

_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def split(line: bytes) -> list[bytes | None]:
    r"""A line of COPY as values.

    >>> split(b"1\t\\N\ta\\tb\n")
    [b'1', None, b'a\tb']
    """
    fields: list[Any] = line[:-1].split(b"\t")
    if b"\\" not in line:
        return fields
    return [None if one == b"\\N" else unescaped(one) for one in fields]


def unescaped(text: bytes) -> bytes:
    r"""A value as it is, of its form in COPY.

    >>> unescaped(b"a\\tb")
    b'a\tb'
    """
    if b"\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def quoted(name: str) -> str:
    """A name for SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def parse_tables(tables: Iterable[str]) -> list[str]:
    """Patterns of tables, `schema.table` with `*` for anything; `public` where no schema is said.

    Raises:
        UserError: there is none, or one isn't such.
    """
    made = []
    for one in tables:
        for part in one.split(","):
            text = part.strip()
            if not text:
                continue
            if text.count(".") > 1 and text[0] != '"':
                raise UserError(
                    f"expected tables such as 'public.users'; found {text!r}. Quote a schema whose name has "
                    "a '.': '\"my.schema\".users'"
                )
            made.append(spelled(unspelled(text, "public")))
    if not made:
        raise UserError("expected at least one table, such as 'public.users'; found none")
    return made
