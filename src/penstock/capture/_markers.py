"""Debezium's markers of a snapshot's rows: which are the first and the last, of all and of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["marked"]

T = TypeVar("T")
R = TypeVar("R")


def marked(tables: Iterable[tuple[T, Iterable[R]]]) -> Iterator[tuple[T, R, str]]:
    """Rows with their tables and markers. The first of all is one of the first table.

    >>> [mark for _, _, mark in marked([("a", [1, 2, 3]), ("b", [4])])]
    ['first', 'true', 'last_in_data_collection', 'last']
    """
    held: tuple[T, R] | None = None
    is_first = is_first_of_table = True
    for i, (table, rows) in enumerate(tables):
        is_first &= held is not None or i == 0
        for row in rows:
            if held is not None:
                ends_table = held[0] != table
                yield *held, _marker(is_first, is_first_of_table, ends_table)
                is_first, is_first_of_table = False, ends_table
            held = table, row
    if held is not None:
        yield *held, "last"


def _marker(is_first: bool, is_first_of_table: bool, ends_table: bool) -> str:  # noqa: FBT001
    if is_first:
        return "first"
    if ends_table:
        return "last_in_data_collection"
    return "first_in_data_collection" if is_first_of_table else "true"
