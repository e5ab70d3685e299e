"""Relations: what queries are made of. Each is rows of the flow, and operations give others.

A relation is a bag: rows may be there several times. They are a stream's, which only come, or a table's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.core.schema import INTERVAL, Field, Schema
from penstock.expr import compile_expression
from penstock.expr.duck import quoted
from penstock.expr.query import common_type
from penstock.flow import Flow, Stream, Table
from penstock.flow.algebra.groups import distinct
from penstock.flow.algebra.joins import Pairs, join, near
from penstock.flow.algebra.queries import kept, plain_names
from penstock.flow.algebra.queries import query as query_of
from penstock.flow.algebra.rows import filtered, project, union
from penstock.flow.graph import Node, retracts, row_key
from penstock.ops.joins.table_join import How

__all__ = ["Relation", "null_safe", "quoted"]

ROWS = "rows0"
"""What a query over one relation calls it."""


@dataclass(frozen=True)
class Relation:
    """Rows of a flow.

    Attributes:
        flow: that they belong to.
        node: that makes them.
    """

    flow: Flow
    node: Node

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.node.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.schema.names

    @property
    def plain_names(self) -> tuple[str, ...]:
        """Those of columns of single values."""
        return plain_names(self.node)

    @cached_property
    def collection(self) -> Stream | Table:
        """The same rows, as programs have them."""
        made = Stream if self.is_stream else Table
        return made(self.flow, self.node)

    @property
    def is_stream(self) -> bool:
        """Whether rows only come."""
        return not retracts(self.node)

    def project(self, columns: Mapping[str, str]) -> Relation:
        """Computes columns: SQL over the relation's own, by name."""
        if list(columns) == list(self.names) and all(quoted(n) == t for n, t in columns.items()):
            return self
        own = {quoted(name): name for name in self.names}
        made = {
            name: own[text] if text in own else compile_expression(text, self.schema)
            for name, text in columns.items()
        }
        return self.over(project(self.node, made))

    def added(self, columns: Mapping[str, str]) -> Relation:
        """The relation's columns, and others computed."""
        return self.project({**{name: quoted(name) for name in self.names}, **columns})

    def only(self, names: Sequence[str]) -> Relation:
        """Some of the columns, in this order."""
        return self.project({name: quoted(name) for name in names})

    def filter(self, condition: str) -> Relation:
        """The rows for which a condition is true."""
        compiled = compile_expression(f"CAST(({condition}) AS BOOLEAN)", self.schema)
        return self.over(filtered(self.node, compiled))

    def distinct(self) -> Relation:
        """Each row once."""
        return self.over(distinct(self.node))

    def union(self, other: Relation) -> Relation:
        """The rows of both, which have columns of the same names and types in one order."""
        if other.node is self.node:  # a node reaches a reader once
            text = f"SELECT * FROM {ROWS} UNION ALL SELECT * FROM {ROWS}"
            return self.query((), ((),), text, like=self.schema)
        return self.over(union((self.node, other.node)))

    def unified(self, other: Relation) -> tuple[Relation, Relation]:
        """Both relations with columns of common types and this one's names."""
        mine, theirs = {}, {}
        for one, two in zip(self.schema, other.schema, strict=True):
            type_ = common_type(one.type, two.type)
            here, there = quoted(one.name), quoted(two.name)
            mine[one.name] = here if type_ is None else f"CAST({here} AS {type_})"
            theirs[one.name] = there if type_ is None else f"CAST({there} AS {type_})"
        return self.project(mine), other.project(theirs)

    def join(self, other: Relation, on: Pairs, how: How) -> Relation:
        """Joins on equal columns, all of whose names differ.

        Args:
            other: the right side. Its columns that must be equal are left out of the result.
            on: pairs of columns of one type: this relation's name, the other's.
            how: as `Table.join`.
        """
        return self.over(join(self.node, other.node, on, how))

    def near(self, other: Relation, on: Pairs, before_us: int, after_us: int, how: How) -> Relation:
        """Joins two streams on equal columns and times that are so near; see `algebra.joins.near`."""
        return self.over(near(self.node, other.node, on, before_us, after_us, how))

    def query(
        self,
        others: Sequence[Relation],
        key: Sequence[Sequence[str]],
        query: str,
        *,
        placed: Sequence[str] = (),
        row_key: Sequence[str] = (),
        single: bool = False,
        always: bool = False,
        like: Schema | None = None,
    ) -> Relation:
        """What a query gives of each group, computed again where a group changes.

        Args:
            others: the relations after this one: `rows1`, …
            key: of each relation, the columns that make up a group.
            query: over `rows0`, …
            placed: columns of the result that have the key's values.
            row_key: columns of the result that identify its rows, where something does.
            single: whether it has one row at most.
            always: whether it is asked of no rows, too; there is no key then.
            like: columns of the names and types of the result's, where it hands them on.
        """
        nodes = (self.node, *(one.node for one in others))
        return self.over(
            query_of(
                nodes,
                key,
                query,
                placed=placed,
                row_key=row_key,
                single=single,
                always=always,
                like=like,
            )
        )

    def kept(self) -> Relation:
        """The same rows, kept, so that they can be looked at: a view's."""
        return self.over(kept(self.node))

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a table's rows; none where nothing does, or it is a stream."""
        return () if self.is_stream else row_key(self.node)

    def over(self, node: Node) -> Relation:
        """What the algebra made of these rows."""
        return Relation(self.flow, self.flow.node(node))


def null_safe(sql: str, of: Field) -> str:
    """An expression that is equal exactly where the given one is, NULL being a value like others.

    Args:
        sql: the expression.
        of: its type, and whether it may be NULL.
    """
    if of.required:
        return sql
    if pa.types.is_nested(of.type):
        return f"[{sql}]"  # a NULL inside of a value is equal to others
    if of.type == INTERVAL:
        sql = f"epoch_us({sql})"  # 1 day is 24 hours, but not as text
    if pa.types.is_floating(of.type):
        sql = f"CASE WHEN {sql} = 0 THEN 0 ELSE {sql} END"  # -0.0 is 0.0, but not as text
    return f"CASE WHEN {sql} IS NULL THEN 'n' ELSE 'v' || CAST({sql} AS VARCHAR) END"
