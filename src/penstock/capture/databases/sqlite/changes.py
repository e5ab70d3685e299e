"""Rows that triggers wrote to changes of rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock.capture.databases.sqlite.triggers import Layout

__all__ = ["Change", "changes"]

Values = tuple[Any, ...]


class Change(NamedTuple):
    """A row: inserted `c`, updated `u` or deleted `d`.

    Attributes:
        number: of the change.
        layout: what the values are of.
        op: which.
        at: when, as a Julian day.
        old: before; empty where it was inserted.
        new: afterwards; empty where it was deleted.
    """

    number: int
    layout: Layout
    op: str
    at: float
    old: Values
    new: Values


def changes(rows: Iterator[Values], layouts: Mapping[int, Layout]) -> Iterator[Change]:
    """The changes of rows `id, layout, op, at, v0, …`, in their order.

    A candidate (see `triggers.py`) was deleted exactly if the next change of its table makes the row that
    was in its way.
    """
    waiting: dict[int, list[Change]] = {}
    for row in rows:
        number, layout_number, op, at = row[:4]
        layout = layouts[layout_number]
        count = len(layout.columns)
        old, new = row[4 : 4 + count], row[4 + count : 4 + 2 * count]
        if op in "?!":
            waiting.setdefault(layout_number, []).append(Change(number, layout, op, at, old, new))
            continue
        if op == "c":
            old = ()
        elif op == "d":
            new = ()
        for one in waiting.pop(layout_number, ()) if waiting else ():
            kind, is_other = ("?", True) if op == "c" else ("!", one.old != old)
            if one.op == kind and is_other and _is_same(layout, one.new, new):
                yield Change(number, layout, "d", at, one.old, ())
        yield Change(number, layout, op, at, old, new)


def _is_same(layout: Layout, old: Values, new: Values) -> bool:
    """Whether a new row is the one that a candidate was in the way of; its rowid wasn't known then."""
    return old == new or (
        len(new) > 0
        and all(
            one == other or (column.key and one in (None, -1))
            for column, one, other in zip(layout.columns, old, new, strict=True)
        )
    )
