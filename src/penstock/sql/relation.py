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
from penstock.expr.query import common_type, fixed_query
from penstock.flow import Flow, Stream, Table
from penstock.flow.graph import Node, RowStep, Stateful, Union, is_one_row, retracts, row_key
from penstock.flow.joins import table_join
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.table_join import How
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.rows import Select, Where

__all__ = ["Relation", "null_safe", "quoted"]

ROWS = "rows0"
"""What a query over one relation calls it."""


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


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
        return tuple(f.name for f in self.schema if not pa.types.is_nested(f.type))

    @cached_property
    def collection(self) -> Stream | Table:
        """The same rows, as programs have them."""
        made = Table if retracts(self.node) else Stream
        return made(self.flow, self.node)

    def project(self, columns: Mapping[str, str]) -> Relation:
        """Computes columns: SQL over the relation's own, by name."""
        if list(columns) == list(self.names) and all(quoted(n) == t for n, t in columns.items()):
            return self
        compiled = tuple((n, compile_expression(text, self.schema)) for n, text in columns.items())
        required = {quoted(f.name) for f in self.schema if f.required}
        fields = tuple(Field(n, e.type, e.text in required) for n, e in compiled)
        return self._then(RowStep(self.node, Select(compiled), Schema(fields)))

    def added(self, columns: Mapping[str, str]) -> Relation:
        """The relation's columns, and others computed."""
        return self.project({**{name: quoted(name) for name in self.names}, **columns})

    def only(self, names: Sequence[str]) -> Relation:
        """Some of the columns, in this order."""
        return self.project({name: quoted(name) for name in names})

    def filter(self, condition: str) -> Relation:
        """The rows for which a condition is true."""
        compiled = compile_expression(f"CAST(({condition}) AS BOOLEAN)", self.schema)
        return self._then(RowStep(self.node, Where(compiled), self.schema))

    def distinct(self) -> Relation:
        """Each row once."""
        return Relation(self.flow, self.collection.distinct().node)

    def union(self, other: Relation) -> Relation:
        """The rows of both, which have columns of the same names and types in one order."""
        fields = tuple(
            Field(one.name, one.type, one.required and two.required)
            for one, two in zip(self.schema, other.schema, strict=True)
        )
        if other.node is self.node:  # a node reaches a reader once
            return self.query((), ((),), f"SELECT * FROM {ROWS} UNION ALL SELECT * FROM {ROWS}")
        return self._then(Union((self.node, other.node), Schema(fields)))

    def unified(self, other: Relation) -> tuple[Relation, Relation]:
        """Both relations with columns of common types and this one's names."""
        mine, theirs = {}, {}
        for one, two in zip(self.schema, other.schema, strict=True):
            type_ = common_type(one.type, two.type)
            here, there = quoted(one.name), quoted(two.name)
            mine[one.name] = here if type_ is None else f"CAST({here} AS {type_})"
            theirs[one.name] = there if type_ is None else f"CAST({there} AS {type_})"
        return self.project(mine), other.project(theirs)

    def join(self, other: Relation, on: Sequence[tuple[str, str]], how: How) -> Relation:
        """Joins on equal columns, all of whose names differ.

        Args:
            other: the right side. Its columns that must be equal are left out of the result.
            on: pairs of columns of one type: this relation's name, the other's.
            how: as `Table.join`.
        """
        return self._then(table_join(self.node, other.node, on, how))

    def near(
        self,
        other: Relation,
        on: Sequence[tuple[str, str]],
        before_us: int,
        after_us: int,
        how: How,
    ) -> Relation:
        """Joins two streams on equal columns and times that are so near.

        Args:
            other: the right side; see `join`.
            on: as `join`.
            before_us: how far a right row may lie before its left row.
            after_us: how far after it.
            how: as `Stream.join`.
        """
        join = IntervalJoin(
            left=self.schema,
            right=other.schema,
            on=tuple(on),
            before_us=before_us,
            after_us=after_us,
            how=how,
            taken_back=(retracts(self.node), retracts(other.node)),
        )
        return self._then(Stateful((self.node, other.node), join, join.output))

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
        """
        inputs = (self, *others)
        tables = {f"rows{i}": one.schema for i, one in enumerate(inputs)}
        text, schema = fixed_query(query, tables)
        operator = GroupQuery(
            inputs=tuple(one.schema.arrow for one in inputs),
            key_=tuple(tuple(one) for one in key),
            query=text,
            output=schema.arrow,
            placed=tuple(placed),
            row_key=tuple(row_key),
            always=always,
        )
        nodes = tuple(one.node for one in inputs)
        return self._then(Stateful(nodes, operator, schema, single=single))

    def kept(self) -> Relation:
        """The same rows, kept, so that they can be looked at: a view's."""
        node: Node = self.node
        while isinstance(node, RowStep) and isinstance(node.operator, Select | Where):
            node = node.parent
        if isinstance(node, Stateful) and retracts(node):
            return self
        operator = GroupQuery(
            inputs=(self.schema.arrow,),
            key_=(self.plain_names,),
            query="",
            output=self.schema.arrow,
            placed=self.plain_names,
            row_key=row_key(self.node),
        )
        single = is_one_row(self.node)
        return self._then(Stateful((self.node,), operator, self.schema, single=single))

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify the rows; none where nothing does."""
        return row_key(self.node)

    def _then(self, node: Node) -> Relation:
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
