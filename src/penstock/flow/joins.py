"""What all joins of a program are given, checked: the columns that are equal, and the names of the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.core.names import known_names
from penstock.core.schema import Schema
from penstock.errors import FlowError
from penstock.flow.checks import check_columns

__all__ = ["On", "check_how", "check_names_differ", "check_on", "check_same_flow"]

On: TypeAlias = str | tuple[str, ...] | Mapping[str, str]
"""Columns that must be equal: a name, some names, or the left side's names and the right side's."""

T = TypeVar("T", bound=str)


def check_on(on: On, left: Schema, right: Schema) -> tuple[tuple[str, str], ...]:
    """Pairs of columns that must be equal, as the schemas spell them.

    Raises:
        FlowError: there are none, or they can't be compared.
        SchemaError: there is no such column.
    """
    if isinstance(on, Mapping):
        pairs = tuple(on.items())
    else:
        names = (on,) if isinstance(on, str) else tuple(on)
        pairs = tuple((name, name) for name in names)
    if not pairs:
        raise FlowError('expected columns to join on, such as on="user"; found none')
    check_columns(tuple(mine for mine, _ in pairs), left, "on")
    check_columns(tuple(other for _, other in pairs), right, "on")
    for mine, other in pairs:
        one, two = left[mine], right[other]
        if pa.types.is_list(one.type):
            raise FlowError(
                f"expected a column of single values to join on; found the array {mine!r}"
            )
        if one.type != two.type:
            raise FlowError(
                f"expected columns of one type to join on; found {mine!r}, {one.type}, and {other!r}, "
                f"{two.type}. Cast one before: select({other}='{other}::…')"
            )
    found = tuple((left[mine].name, right[other].name) for mine, other in pairs)
    for side in zip(*found, strict=True):
        if len(set(side)) < len(side):
            raise FlowError(f"expected each column once in on=…; found {', '.join(side)}")
    return found


def check_names_differ(
    left: Schema, right: Schema, on: tuple[tuple[str, str], ...], what: str = "right"
) -> None:
    """Refuses columns that both sides have, but for the right side's that must be equal.

    Raises:
        FlowError: there are some.
    """
    equal = {other for _, other in on}
    both = [name for name in right.names if name not in equal and name in left]
    if both:
        renamed = ", ".join(f"{what}_{name}='{name}'" for name in both)
        raise FlowError(
            f"expected names that differ in both sides of a join, but for those in on=…; found "
            f"{known_names(both)} twice. Rename before: select(…, {renamed})"
        )


def check_how(how: T, known: Collection[T]) -> T:
    """The kind of a join.

    Raises:
        FlowError: there is no such kind.
    """
    if how not in known:
        raise FlowError(f"expected how= one of {', '.join(known)}; found how={how!r}")
    return how


class Named(Protocol):
    """A flow."""

    name: str


def check_same_flow(left: Named, right: Named) -> None:
    """Raises `FlowError` where two collections are of different apps."""
    if left is not right:
        raise FlowError(
            f"expected both sides of a join in the app {left.name!r}; found one of {right.name!r}. An app "
            "reads another's topic: table.to(…) there, app.table(…) here"
        )
