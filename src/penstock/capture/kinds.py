"""The kinds of databases that can be captured: modules `kind` of `databases` declare them in `KINDS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.capture.database import Kind
from penstock.errors import UserError
from penstock.plugins import Registry

__all__ = ["SOURCES", "kind_called", "kind_named", "kind_of"]

SOURCES: Final = Registry("penstock.sources", "penstock.capture.databases", Kind, "kind")
"""Those of other distributions are entry points."""
LIBPQ: Final = "postgresql"
"""The kind of addresses such as `host=db dbname=shop`."""


def _all() -> Iterator[Kind]:
    """Our own, and then those of other distributions, which are loaded if it gets there."""
    yield from SOURCES.own()
    yield from SOURCES.others()


def kind_of(url: str) -> Kind:
    """The kind of an address.

    Raises:
        UserError: there is none.
    """
    scheme, found, _ = url.partition("://")
    if not found and "=" in url:  # libpq's `key=value` text
        return kind_named(LIBPQ)
    for one in _all() if found else ():
        if scheme in one.schemes:
            return one
    known = ", ".join(f"{one.schemes[0]}://…" for one in SOURCES.own())
    raise UserError(
        f"expected a database's address: {known}; found {scheme + found!r}{SOURCES.broken()}"
    )


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        UserError: there is none: a newer version, or a plugin that isn't installed, has stored it.
        SetupError: a plugin with it can't be loaded.
    """
    if (found := SOURCES.named(name)) is not None:
        return found
    known = ", ".join(one.name for one in SOURCES.own())
    raise UserError(f"expected a capture of {known}, or of an installed plugin; found {name!r}")


def kind_called(word: str) -> Kind:
    """The kind that SQL calls by this word, in any letters.

    Raises:
        UserError: there is none.
    """
    for one in _all():
        if word.upper() in one.words:
            return one
    words = ", ".join(word for one in SOURCES.own() for word in one.words)
    raise UserError(f"expected FROM {words}; found {word!r}{SOURCES.broken()}")
