"""The kinds of databases that can be captured."""

from __future__ import annotations

from typing import Final

from penstock.capture._database import Kind
from penstock.capture._mysql import MYSQL
from penstock.capture._postgres import POSTGRES
from penstock.capture._sqlite import SQLITE
from penstock.errors import UserError

__all__ = ["KINDS", "kind_named", "kind_of"]

KINDS: Final[tuple[Kind, ...]] = (POSTGRES, MYSQL, SQLITE)


def kind_of(url: str) -> Kind:
    """The kind of an address.

    Raises:
        UserError: there is none.
    """
    scheme, found, _ = url.partition("://")
    if not found and "=" in url:  # libpq's `key=value` text
        return POSTGRES
    for one in KINDS:
        if found and scheme in one.schemes:
            return one
    known = ", ".join(f"{one.schemes[0]}://…" for one in KINDS)
    raise UserError(f"expected a database's address: {known}; found {scheme + found!r}")


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        UserError: there is none: a newer version has stored it.
    """
    for one in KINDS:
        if one.name == name:
            return one
    raise UserError(f"expected a capture of {', '.join(one.name for one in KINDS)}; found {name!r}")
