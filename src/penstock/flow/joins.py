"""What all joins of a program have in common: which columns are equal, and how the result's are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.core.names import known_names
from penstock.core.schema import Schema
from penstock.errors import FlowError
from penstock.flow.checks import check_columns
from penstock.flow.graph import Key, Node, Stateful, candidate_keys, row_key
from penstock.ops.joins.table_join import How, TableJoin

__all__ = [
    "On",
    "check_how",
    "check_names_differ",
    "check_on",
    "check_same_flow",
    "join_key",
    "table_join",
]

On: TypeAlias = str | tuple[str, ...] | Mapping[str, str]
"""Columns that must be equal: a name, some names, or the left side's names and the right side's."""

T = TypeVar("T", bound=str)


def table_join(left: Node, right: Node, on: Sequence[tuple[str, str]], how: How) -> Stateful:
    """The join of two tables on equal columns; the right one's are left out of the result.

    Args:
        left: a node.
        right: another one; none of its other columns has a name of the left one's.
        on: pairs of columns of one type: the left node's name, the right one's.
        how: as of `Table.join`.
    """
    join = TableJoin(how, left.schema.arrow, right.schema.arrow, tuple(on))
    key, single = join_key(left, right, on, how, named={other: mine for mine, other in on})
    schema = Schema.from_arrow(join.schema)
    return Stateful((left, right), replace(join, keys=key), schema, single=single)


def join_key(
    left: Node,
    right: Node,
    on: Sequence[tuple[str, str]],
    how: str,
    *,
    named: Mapping[str, str],
    nearest: bool = False,
    alike: Sequence[tuple[str, str]] = (),
) -> tuple[tuple[str, ...], bool]:
    """What identifies the rows of a join of two tables on equal columns.

    Where a row has one partner at most, as the columns that are equal hold a key of the other side, its own
    key identifies the pair; elsewhere both sides' keys do. A row without a partner has its own side's alone.

    Args:
        left: a node.
        right: another one.
        on: pairs of columns that are equal: the left node's name, the right one's.
        how: as of `Table.join`.
        named: what columns of the right side are called in the result, where they have another name.
        nearest: whether a left row is joined to one row at most, whatever identifies the right ones.
        alike: pairs of columns, NULL in both of which makes them equal; where nothing else is asked of rows.

    Returns:
        The columns, none where nothing identifies the rows; and whether there is one row at most.
    """
    mine, theirs = candidate_keys(left), candidate_keys(right)
    if how in ("semi", "anti"):
        return row_key(left), () in mine
    lone_left = how in ("left", "full")  # rows of this side are there without a partner
    lone_right = how in ("right", "full")
    one_right = nearest or any(_holds({other for _, other in on}, key) for key in theirs)
    one_left = any(_holds({name for name, _ in on}, key) for key in mine)
    keys: list[Key] = []
    if one_right and not lone_right:
        keys += mine
    if one_left and not lone_left:
        keys += [_renamed(key, on, named) for key in theirs]
    if not keys and mine and theirs:
        one, two = mine[0], _renamed(theirs[0], on, named)
        # What equals a left column follows from the left key, but for right rows without a partner.
        held = (
            frozenset().union(*one) if lone_right else {name for name, _ in on} & {*named.values()}
        )
        pair = (*one, *(names for names in two if names.isdisjoint(held)))
        if lone_left and lone_right:
            known = {name for names in pair for name in names}
            is_alike = len(alike) == len(on) and known.issuperset(
                name for two in alike for name in two
            )
            pair = pair if pair and is_alike else _of_either(left, right, on, pair, named)
            keys += [pair] if pair else []
        else:
            keys.append(pair)
    found = next((key for key in keys if key), ())
    order = {name: i for i, name in enumerate([*left.schema.names, *right.schema.names])}
    return tuple(min(names, key=order.__getitem__) for names in found), () in keys


def _of_either(
    left: Node,
    right: Node,
    on: Sequence[tuple[str, str]],
    pair: Key,
    named: Mapping[str, str],
) -> Key:
    """What identifies the rows of a full join, also those that have no partner; none where nothing does.

    A left row and a right one that have none are alike in these columns where each is NULL: those that the
    row hasn't, and equal columns, as NULL is equal to nothing. Without NULL, rows are alike in equal columns
    only where they differ in one that the key lacks.
    """
    merged = {named[other]: (mine, other) for mine, other in on if other in named}
    taken = {name for names in pair for name in names}
    whole = (*pair, *(frozenset((name,)) for name in merged if name not in taken))
    order = {name: i for i, name in enumerate([*left.schema.names, *right.schema.names])}
    for key in (pair, whole):
        chosen = [min(names, key=order.__getitem__) for names in key]
        shared = [name for name in chosen if name in merged]
        lone = [name for name in chosen if name not in merged]
        has_null = [
            not (left.schema if name in left.schema else right.schema)[name].required
            for name in lone
        ]
        is_null = [
            not left.schema[merged[name][0]].required and not right.schema[merged[name][1]].required
            for name in shared
        ]
        may_differ = len(shared) < len(on) or any(is_null)
        if not (all(has_null) and may_differ):
            return key
    return ()


def _holds(columns: Collection[str], key: Key) -> bool:
    """Whether some columns hold a key."""
    return all(not names.isdisjoint(columns) for names in key)


def _renamed(key: Key, on: Sequence[tuple[str, str]], named: Mapping[str, str]) -> Key:
    """A right side's key under the result's names: those that are left out are the left side's."""
    gone = {other for _, other in on if other in named}
    return tuple(frozenset(named[name] for name in names & gone) or (names - gone) for names in key)


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
