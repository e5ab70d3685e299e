"""Two sides by equal columns: tables, streams that are near in time, streams with tables.

key of a join   where a row has one partner at most, its own; elsewhere those of both sides
time            of pairs that are near, the later one of both rows'; of a stream with a table, the stream's
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyarrow.types import is_integer, is_temporal

from penstock.flow.algebra.stateful import stateful
from penstock.flow.graph import (
    Key,
    Node,
    RowStep,
    Source,
    Stateful,
    candidate_keys,
    keys_of,
    retracts,
    row_key,
)
from penstock.ops.joins.enriched import HowEnriched
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.stream_table_join import StreamTableJoin
from penstock.ops.joins.table_join import How, TableJoin
from penstock.ops.joins.temporal_join import TemporalJoin
from penstock.ops.rows import Readable

if TYPE_CHECKING:
    from penstock.searches.fields import Fields

__all__ = [
    "Pairs",
    "as_of",
    "changes_of",
    "join",
    "join_key",
    "latest",
    "near",
    "percolate",
]

Pairs = Sequence[tuple[str, str]]
"""Columns of one type that are equal: the left node's name, the right one's."""


def join(left: Node, right: Node, on: Pairs, how: How) -> Stateful:
    """The join of two tables; the right one's equal columns are left out of the result.

    Args:
        left: a node.
        right: another one; none of its other columns has a name of the left one's.
        on: what is equal.
        how: as of `Table.join`.
    """
    operator = TableJoin(how, left.schema.arrow, right.schema.arrow, tuple(on))
    key, single = join_key(left, right, on, how, named={other: mine for mine, other in on})
    return stateful(replace(operator, keys=key), left, right, single=single)


def near(
    left: Node, right: Node, on: Pairs, before_us: int, after_us: int, how: How = "inner"
) -> Stateful:
    """The join of two streams on equal columns, which the right one loses, and times that are near.

    Args:
        left: a stream.
        right: another one, or the same.
        on: what is equal.
        before_us: how far a right row may lie before its left row; below 0 where it must lie after it.
        after_us: how far after it.
        how: as of `Stream.join`.
    """
    operator = IntervalJoin(
        left=left.schema,
        right=right.schema,
        on=tuple(on),
        before_us=before_us,
        after_us=after_us,
        how=how,
        taken_back=(retracts(left), retracts(right)),
    )
    return stateful(operator, left, right)


def latest(stream: Node, table: Node, on: Pairs, how: HowEnriched) -> Stateful:
    """A stream's rows with those of a table as it is when they are processed."""
    operator = StreamTableJoin(how, stream.schema.arrow, table.schema.arrow, tuple(on))
    return stateful(operator, stream, table)


def as_of(stream: Node, table: Node, on: Pairs, how: HowEnriched) -> Stateful:
    """A stream's rows with those of a table as it was at their times.

    Args:
        stream: a node.
        table: of a topic, or steps over one.
        on: what is equal: the table's whole key.
        how: as of `Stream.enrich`.
    """
    operator = TemporalJoin(how, stream.schema.arrow, table.schema.arrow, tuple(on))
    return stateful(operator, stream, changes_of(table))


def percolate(
    documents: Node,
    queries: Node,
    query: str,
    columns: Sequence[str],
    fields: Fields,
    *,
    kept: bool,
    said: Mapping[str, str] | None = None,
) -> Stateful:
    """Documents with the searches that they match. Searches that can't be read are left out before.

    Args:
        documents: a node.
        queries: another one; none of its columns has a name of the documents'.
        query: the column of these that is a search.
        columns: of documents, of which the fields are made.
        fields: these columns, as searches name them.
        kept: whether documents are a table's; else they meet the searches of their batch, once.
        said: what is said of a match (`score`, `terms`, `highlights`), and the column's name.
    """
    from penstock.ops.joins.percolate import Percolate  # by programs that have searches alone
    from penstock.searches.fields import MEANING

    asked = said or {}
    readable = RowStep(queries, Readable(query, fields, MEANING), queries.schema)
    key, single = join_key(documents, readable, (), "inner", named={})
    operator = Percolate(
        documents=documents.schema.arrow,
        queries=queries.schema.arrow,
        query=query,
        columns=tuple(columns),
        fields=fields,
        by=_placed(documents),
        kept=kept,
        meaning=MEANING,
        keys=key if kept else keys_of(documents),
        score=asked.get("score"),
        terms=asked.get("terms"),
        highlights=asked.get("highlights"),
    )
    return stateful(operator, documents, readable, single=kept and single)


def _placed(documents: Node) -> tuple[str, ...]:
    """What says where a document is looked for: its key; or numbers and times, which are short; or all."""
    found = row_key(documents) if retracts(documents) else keys_of(documents)
    short = (f.name for f in documents.schema if is_integer(f.type) or is_temporal(f.type))
    return found or tuple(short) or documents.schema.names


def changes_of(table: Node) -> Node:
    """The rows of a table's topic, with the same steps."""
    if isinstance(table, RowStep):
        return replace(table, parent=changes_of(table.parent))
    [source] = table.inputs
    assert isinstance(source, Source), "a table of a topic reads that"
    return source


def join_key(
    left: Node,
    right: Node,
    on: Pairs,
    how: str,
    *,
    named: Mapping[str, str],
    nearest: bool = False,
    alike: Pairs = (),
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
    on: Pairs,
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


def _renamed(key: Key, on: Pairs, named: Mapping[str, str]) -> Key:
    """A right side's key under the result's names: those that are left out are the left side's."""
    gone = {other for _, other in on if other in named}
    return tuple(frozenset(named[name] for name in names & gone) or (names - gone) for names in key)
