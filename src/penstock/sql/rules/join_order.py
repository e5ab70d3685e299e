"""The order of inner joins: by the sizes of their tables; where these aren't known, by keys.

    order  = that of the least cost of all in which each table has an equality with one before it
    cost   = the rows that all joins but the last give, as each is state, and work of the changes that pass
    joined = rows of one side * rows of the other / values of what they are equal in

Columns that are equal to each other, over any number of tables, have at most as many values as a table of
which one of them is the key has rows; the columns of a longer key together as many as its table. Without
such a table, they are guessed to have the square root of the rows. Conditions are guessed to leave a tenth,
or a third, as in System R (Selinger et al., Access Path Selection, 1979). Orders are searched as there: the
best one of a set of tables ends with one of them, and begins with the best one of the others.

What is estimated wrongly costs state and time; the result is the same in any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp, parse_one

from penstock.expr import Expression
from penstock.flow.algebra import sizes as of_nodes
from penstock.flow.graph import Node, RowStep, row_key
from penstock.ops.rows import Where
from penstock.sql.rules.intervals import apart
from penstock.sql.scope import Scope, Sizes
from penstock.sql.trees import AsValue, name_of, own_columns

__all__ = ["Same", "are_alike", "by_key", "by_size", "equalities", "rows_of", "selectivity"]

TABLES_MAX: Final = 10
"""Of a join that is ordered by size: there are 2 ** TABLES_MAX sets of them."""
EQUAL: Final = 0.1
COMPARED: Final = 1 / 3


def by_key(current: Scope, parts: Sequence[Scope], conditions: Sequence[exp.Expr]) -> int:
    """Which part is joined next, where sizes don't decide it: of some that are as good, the first."""

    def rank(part: Scope) -> tuple[int, bool]:
        pairs = [(mine, other) for _, mine, other in equalities(conditions, current, part)]
        whole = not _is_filtered(part.rows.node)
        if not pairs:
            return 3, whole
        if _identified(part, [other for _, other in pairs]):
            return 0, whole  # a row finds one at most
        return 1 if _identified(current, [mine for mine, _ in pairs]) else 2, whole

    ranks = [rank(part) for part in parts]
    return ranks.index(min(ranks))


def by_size(
    first: Scope | None, parts: Sequence[Scope], conditions: Sequence[exp.Expr], sizes: Sizes
) -> tuple[list[int], list[exp.Expr]] | None:
    """The order in which some parts are joined, and what they are joined on; None: sizes don't decide it.

    Args:
        first: what they are joined to, in any order; None: one of them is first.
        parts: tables, each with the conditions on it alone.
        conditions: on several.
        sizes: of topics; it is noted there whether they were asked for, and what they decided.

    Returns:
        The order, and the conditions with the equalities that follow from them.
    """
    scopes = [*([] if first is None else [first]), *parts]
    if not 3 <= len(scopes) <= TABLES_MAX:
        return None  # both sides of a single join are kept in any order
    if any(apart(conditions, a, b) is not None for a in scopes for b in scopes if a is not b):
        return None  # an interval join is of streams as they come, not of what another join gives
    joins = _Joins(scopes, conditions)
    if not joins.are_connected():
        return None
    sizes.asked += 1
    rows = [rows_of(scope.rows.node, sizes.records) for scope in scopes]
    whole = [of_nodes.rows_of(scope.rows.node, sizes.records, None) for scope in scopes]
    if None in rows or None in whole:
        return None
    known = [max(1.0, one or 0.0) for one in rows]
    order = joins.cheapest(known, [max(1.0, one or 0.0) for one in whole], begun=first is not None)
    named = [next((of for of, _ in scope.names), None) or "" for scope in scopes]
    sizes.orders.append(tuple((named[i], known[i]) for i in order))
    implied = [one for one in joins.implied() if one not in conditions]
    return (order if first is None else [i - 1 for i in order[1:]]), [*conditions, *implied]


def equalities(
    conditions: Sequence[exp.Expr], left: Scope, right: Scope
) -> list[tuple[exp.Expr, exp.Expr, exp.Expr]]:
    """The conditions that make a column of each side equal: with left's expression, and right's."""
    found: list[tuple[exp.Expr, exp.Expr, exp.Expr]] = []
    for condition in conditions:
        if isinstance(condition, exp.EQ | exp.NullSafeEQ):
            one, two = condition.this, condition.expression
            if isinstance(condition, exp.NullSafeEQ):
                one, two = AsValue(this=one), AsValue(this=two)
            if left.has(one) and right.has(two):
                found.append((condition, one, two))
            elif left.has(two) and right.has(one):
                found.append((condition, two, one))
    return found


def are_alike(one: exp.Expr, two: exp.Expr, left: Scope, right: Scope) -> bool:
    """Whether both are columns of one type, so that what equals one equals the other."""
    if not isinstance(one, exp.Column) or not isinstance(two, exp.Column):
        return False
    name, other = left.names.get(name_of(one)), right.names.get(name_of(two))
    if name is None or other is None:
        return False
    return left.rows.schema[name].type == right.rows.schema[other].type


def _identified(scope: Scope, equal: Sequence[exp.Expr]) -> bool:
    """Whether values for some expressions leave one row at most: they are the columns of a key."""
    key = row_key(scope.rows.node)
    columns = {scope.names.get(name_of(e)) for e in equal if isinstance(e, exp.Column)}
    return bool(key) and columns >= set(key)


def _is_filtered(node: Node) -> bool:
    """Whether some of a table's rows are left out."""
    while isinstance(node, RowStep):
        if isinstance(node.operator, Where):
            return True
        node = node.parent
    return False


def rows_of(node: Node, records: Mapping[str, int]) -> float | None:
    """How many rows a node has, as a guess from the sizes of topics; None where one isn't known."""
    return of_nodes.rows_of(node, records, _left)


def _left(condition: Expression) -> float:
    """Which part of the rows a step leaves, as a guess."""
    return selectivity(parse_one(condition.sql, dialect="duckdb"))


def selectivity(condition: exp.Expr) -> float:
    """Which part of the rows a condition leaves, as a guess."""
    match condition:
        case exp.Paren() | exp.Cast():
            return selectivity(condition.this)
        case exp.And():
            return selectivity(condition.this) * selectivity(condition.expression)
        case exp.Or():
            return min(1.0, selectivity(condition.this) + selectivity(condition.expression))
        case exp.Not():
            return max(EQUAL, 1 - selectivity(condition.this))
        case exp.In():
            return min(0.5, EQUAL * max(1, len(condition.expressions)))
        case exp.NEQ():
            return 1 - EQUAL
        case exp.EQ() | exp.NullSafeEQ() | exp.Like() | exp.ILike() | exp.Is():
            return EQUAL
        case exp.Boolean():
            return float(condition.this)
        case _:
            return COMPARED


Member = tuple[int, str]
"""A part's number, and its column, or an expression over its columns."""


class Same:
    """Columns that are equal to each other in all rows."""

    def __init__(self) -> None:
        self._root: dict[exp.Expr, exp.Expr] = {}

    def _of(self, one: exp.Expr) -> exp.Expr:
        while self._root.setdefault(one, one) is not one:
            one = self._root[one]
        return one

    def add(self, one: exp.Expr, two: exp.Expr) -> bool:
        """Notes that two are equal; False where that was known."""
        one, two = self._of(one), self._of(two)
        self._root[one] = two
        return one is not two

    def classes(self, columns: Iterable[exp.Expr]) -> list[list[exp.Expr]]:
        """Those of some columns that are equal."""
        found: dict[exp.Expr, list[exp.Expr]] = {}
        for one in columns:
            found.setdefault(self._of(one), []).append(one)
        return list(found.values())


def _sides(condition: exp.Expr) -> tuple[exp.Expr, ...]:
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return ()
    return condition.this, condition.expression


def _member(side: exp.Expr, parts: Sequence[Scope]) -> Member | None:
    of = next((i for i, part in enumerate(parts) if part.has(side)), None)
    if of is None:
        return None
    name = parts[of].names.get(name_of(side)) if isinstance(side, exp.Column) else None
    return of, f"({side.sql(dialect='duckdb')})" if name is None else name


def _type(side: exp.Expr, parts: Sequence[Scope]) -> pa.DataType | None:
    """A plain column's type."""
    if not isinstance(side, exp.Column):
        return None
    part = next(one for one in parts if one.has(side))
    name = part.names.get(name_of(side))
    return None if name is None else part.rows.schema[name].type


class _Joins:
    """Parts, what is equal in them, and conditions on several.

    Sets of parts are bits.
    """

    def __init__(self, parts: Sequence[Scope], conditions: Sequence[exp.Expr]) -> None:
        self.n = len(parts)
        self.keys = [row_key(part.rows.node) for part in parts]
        self.rest: list[tuple[int, float]] = []  # the parts that a condition needs, what it leaves
        self.classes: list[list[Member]] = []
        same = Same()
        self.columns: dict[exp.Expr, Member] = {}
        for condition in conditions:
            sides = [_member(side, parts) for side in _sides(condition)]
            one, two = sides if len(sides) == 2 else (None, None)
            if one is None or two is None or one[0] == two[0]:
                needed = {name_of(c) for c in own_columns(condition)}
                mask = sum(1 << i for i, part in enumerate(parts) if needed & part.names.keys())
                self.rest.append((mask, selectivity(condition)))
            elif (
                isinstance(condition, exp.EQ)
                and _type(condition.this, parts) == _type(condition.expression, parts) is not None
            ):
                self.columns |= {condition.this: one, condition.expression: two}
                same.add(condition.this, condition.expression)
            else:
                self.classes.append([one, two])
        self.equal = same.classes(self.columns)
        self.classes += [[self.columns[one] for one in members] for members in self.equal]
        self.masks = [sum({1 << i for i, _ in members}) for members in self.classes]

    def implied(self) -> list[exp.Expr]:
        """An equality for each two equal columns of different parts."""
        return [
            exp.EQ(this=one.copy(), expression=two.copy())
            for members in self.equal
            for one, two in itertools.combinations(members, 2)
            if self.columns[one][0] != self.columns[two][0]
        ]

    def are_connected(self) -> bool:
        """Whether equalities lead from each part to all others."""
        reached = 1
        for _ in range(self.n):
            for mask in self.masks:
                if mask & reached:
                    reached |= mask
        return reached == (1 << self.n) - 1

    def cheapest(self, rows: Sequence[float], whole: Sequence[float], *, begun: bool) -> list[int]:
        """The order; of equals, the one that has first what is listed first.

        Args:
            rows: of each part.
            whole: likewise without conditions.
            begun: whether the first part is first in any case.
        """
        values = [self._values(members, whole) for members in self.classes]
        every = (1 << self.n) - 1
        best: dict[int, tuple[float, float, list[int]]] = {
            1 << i: (0.0, rows[i], [i]) for i in range(1 if begun else self.n)
        }
        for _ in range(self.n - 1):
            made: dict[int, tuple[float, float, list[int]]] = {}
            for have, (cost, before, order) in best.items():
                for i in range(self.n):
                    both = have | 1 << i
                    if both == have or not any(
                        mask & have and mask & 1 << i for mask in self.masks
                    ):
                        continue
                    after = self._joined(have, i, before, rows[i], values, whole)
                    spent = cost + (after if both != every else 0.0)
                    known = made.get(both)
                    if known is None or (spent, [*order, i]) < (known[0], known[2]):
                        made[both] = (spent, after, [*order, i])
            best = made
        return best[every][2]

    def _values(self, members: Sequence[tuple[int, str]], whole: Sequence[float]) -> float | None:
        """How many values columns have that are equal to each other; None: no key says."""
        found = [whole[i] for i, name in members if self.keys[i] == (name,)]
        return min(found, default=None)

    def _joined(
        self,
        have: int,
        part: int,
        before: float,
        rows: float,
        values: Sequence[float | None],
        whole: Sequence[float],
    ) -> float:
        """How many rows a set of parts has with another one."""
        bit = 1 << part
        between = [n for n, mask in enumerate(self.masks) if mask & have and mask & bit]
        count, done = 1.0, set[int]()
        for i in range(self.n):  # keys of several columns
            if len(self.keys[i]) < 2 or not (have | bit) >> i & 1:
                continue
            mine = {name: n for n in between for of, name in self.classes[n] if of == i}
            if set(self.keys[i]) <= mine.keys():
                made = {mine[name] for name in self.keys[i]}
                if not made & done:
                    count *= whole[i]
                    done |= made
        for n in between:
            if n not in done:
                guess = math.sqrt(min(whole[i] for i, _ in self.classes[n]))
                count *= values[n] or guess
        after = before * rows / count
        for mask, left in self.rest:
            if mask & ~(have | bit) == 0 and mask & ~have and mask & have:
                after *= left
        return max(1.0, after)
