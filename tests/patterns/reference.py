"""Row patterns by backtracking over Python values: slow, and without any of the matcher's machinery.

It shares the reading of a pattern's text with it, and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp

from penstock.patterns import RowPattern, parse_pattern
from penstock.patterns import tree as t
from penstock.patterns.expressions import _with_modes

Mapped = tuple[tuple[int, str, bool], ...]
"""Rows that are taken: which, as which variable, and whether each is excluded."""
Row = Mapping[str, Any]


class OpenError(Exception):
    """Rows that aren't there yet decide; it has the rows that were taken."""


@dataclass(frozen=True)
class Found:
    """A match."""

    first: int
    mapped: Mapped
    number: int


@dataclass(frozen=True)
class Result:
    """Matches, the row from which the next one is looked for, and rows of the output.

    `partial` are the rows of the match that may still come, `late` those of each that ran out of time.
    """

    matches: list[Found]
    next: int
    rows: list[dict[str, Any]]
    partial: Mapped
    late: list[Mapped]


def expected(
    spec: RowPattern,
    rows: Sequence[Row],
    time: str = "at",
    *,
    complete: bool = True,
    frontier: int | None = None,
) -> Result:
    """The matches of one partition, from its first row; `time` is a column of whole numbers."""
    return _Reference(spec, rows, time, complete, frontier).result()


class _Reference:
    def __init__(
        self, spec: RowPattern, rows: Sequence[Row], time: str, complete: bool, frontier: int | None
    ) -> None:
        self.spec, self.rows, self.time, self.complete, self.frontier = (
            spec, rows, time, complete, frontier,
        )  # fmt: skip
        self.node = parse_pattern(spec.pattern)
        self.subsets = {name: set(members) for name, members in spec.subsets}
        self.defines = {name: _parsed(text) for name, text in spec.defines}
        self.first, self.number = 0, 0
        self.late: Mapped = ()

    def result(self) -> Result:
        matches: list[Found] = []
        partial: Mapped = ()
        late: list[Mapped] = []
        at = 0
        while at < len(self.rows):
            self.first, self.number, self.late = at, len(matches) + 1, ()
            try:
                ways = self.ways(self.node, at, (), False, (), ())
                if self.spec.after == "no skip":
                    each = []
                    for _, mapped in ways:
                        self.number = len(matches) + len(each) + 1
                        each.append(Found(at, mapped, self.number))
                        self.number += 1
                    late += [self.late] if self.late and not each else []
                    matches += each
                    at += 1
                    continue
                found = next(ways, None)
                if found is not None:
                    self.check_measures(found[1])
            except OpenError as error:
                partial = error.args[0] if error.args else ()
                break
            if found is None:
                late += [self.late] if self.late else []
                at += 1
                continue
            matches.append(Found(at, found[1], self.number))
            at = self.after(at, found[1])
        return Result(matches, at, self.output(matches, at), partial, late)

    def after(self, first: int, mapped: Mapped) -> int:
        if not mapped or self.spec.after == "next row":
            return first + 1
        if self.spec.after == "past last row":
            return mapped[-1][0] + 1
        which, _, name = self.spec.after.rpartition(" ")
        rows = [i for i, one, _ in mapped if one in self.subsets.get(name, {name})]
        target = (rows[0] if which == "first" else rows[-1]) if rows else first
        return target if target > first else first + 1

    # Ways to match a node from a row, the preferred one first.

    def ways(
        self,
        node: t.Node,
        i: int,
        m: Mapped,
        out: bool,
        ends: tuple[int, ...],
        until: tuple[str, ...],
    ) -> Iterator[tuple[int, Mapped]]:
        match node:
            case t.Name(name):
                if (
                    self.needs(i, m, ends)
                    and not any(self.holds(one, i, m) for one in until)
                    and self.holds(name, i, m)
                ):
                    yield i + 1, (*m, (i, name, out))
            case t.Sequence(parts):
                yield from self.sequence(parts, i, m, out, ends, until)
            case t.Choice(parts):
                for part in parts:
                    yield from self.ways(part, i, m, out, ends, until)
            case t.Permute(parts):
                for order in itertools.permutations(parts):
                    yield from self.sequence(order, i, m, out, ends, until)
            case t.Repeat():
                yield from self.repeat(node, 0, i, m, out, ends, until)
            case t.Excluded(part):
                yield from self.ways(part, i, m, True, ends, until)
            case t.Until(part, name):
                yield from self.ways(part, i, m, out, ends, (*until, name))
            case t.Bounded(part, within):
                yield from self.ways(part, i, m, out, (*ends, *self.bound(m, within)), until)
            case t.Start():
                if i == 0:
                    yield i, m
            case t.End():
                if i == len(self.rows):
                    if not self.complete:
                        raise OpenError(m)
                    yield i, m
            case t.Absent(name):
                if not self.needs(i, m, ends, quiet=True) or not self.holds(name, i, m):
                    yield i, m
            case t.Empty():
                yield i, m
            case t.Then(parts, gaps):
                for j, m1 in self.ways(parts[0], i, m, out, ends, until):
                    yield from self.then(parts[1:], gaps, (), j, m1, out, ends, until)

    def sequence(
        self, parts: Any, i: int, m: Mapped, out: bool, ends: Any, until: Any
    ) -> Iterator[tuple[int, Mapped]]:
        if not parts:
            yield i, m
            return
        for j, m1 in self.ways(parts[0], i, m, out, ends, until):
            yield from self.sequence(parts[1:], j, m1, out, ends, until)

    def repeat(
        self, node: t.Repeat, count: int, i: int, m: Mapped, out: bool, ends: Any, until: Any
    ) -> Iterator[tuple[int, Mapped]]:
        def more() -> Iterator[tuple[int, Mapped]]:
            for j, m1 in self.ways(node.part, i, m, out, ends, until):
                if len(m1) > len(m) or count < node.least:
                    yield from self.repeat(node, count + 1, j, m1, out, ends, until)

        if count < node.least:
            yield from more()
            return
        can = node.most is None or count < node.most
        if can and node.greedy:
            yield from more()
        yield i, m
        if can and not node.greedy:
            yield from more()

    def then(
        self,
        parts: Any,
        gaps: Any,
        absent: tuple[str, ...],
        i: int,
        m: Mapped,
        out: bool,
        ends: Any,
        until: Any,
    ) -> Iterator[tuple[int, Mapped]]:
        if not parts:
            yield i, m
            return
        part, *rest = parts
        last = isinstance(part, t.Repeat) and not part.greedy
        bound: Any = ()
        if isinstance(part, t.Bounded):
            bound, part = self.bound(m, part.within_us), part.part
        if isinstance(part, t.Absent):
            if rest:
                yield from self.then(rest, gaps[1:], (*absent, part.name), i, m, out, ends, until)
            else:
                yield from self.absence((*absent, part.name), i, m, (*ends, *bound))
            return
        inner = (*ends, *bound)

        def behind() -> Iterator[tuple[int, Mapped]]:
            for j in self.gap(part, gaps[0], absent, i, m, inner):
                for k, m1 in self.ways(part, j, m, out, inner, until):
                    if len(m1) > len(m) or not t.can_be_empty(part):
                        yield from self.then(rest, gaps[1:], (), k, m1, out, ends, until)

        if t.can_be_empty(part) and last:
            yield from self.then(rest, gaps[1:], (), i, m, out, ends, until)
        yield from behind()
        if t.can_be_empty(part) and not last:
            yield from self.then(rest, gaps[1:], (), i, m, out, ends, until)

    def gap(
        self, part: t.Node, gap: str, absent: tuple[str, ...], i: int, m: Mapped, ends: Any
    ) -> Iterator[int]:
        """Where a part may begin, behind rows that are passed over."""
        while True:
            if gap == "any":
                yield i
                if not self.needs(i, m, ends):
                    return
            else:
                if not self.needs(i, m, ends):
                    return
                if any(self.holds(one, i, m) for one in t.first_names(part)):
                    yield i
                    return
            if not m or any(self.holds(one, i, m) for one in absent):
                return
            i += 1

    def absence(
        self, names: tuple[str, ...], i: int, m: Mapped, ends: Any
    ) -> Iterator[tuple[int, Mapped]]:
        while self.needs(i, m, ends, quiet=True):
            if any(self.holds(one, i, m) for one in names):
                return
            i += 1
        yield i, m

    def bound(self, m: Mapped, within: int) -> tuple[int, ...]:
        return (self.rows[m[-1][0]][self.time] + within,) if m else ()

    def needs(self, i: int, m: Mapped, ends: tuple[int, ...], *, quiet: bool = False) -> bool:
        """Whether there is a row in time; unless `quiet`, a match without one is late."""
        limits = list(ends)
        if self.spec.within_us is not None:
            limits.append(self.rows[self.first][self.time] + self.spec.within_us)
        if i < len(self.rows):
            over = any(self.rows[i][self.time] > one for one in limits)
            there = not over
        else:
            over = self.frontier is not None and any(self.frontier > one for one in limits)
            there = False
            if not self.complete and not over:
                raise OpenError(m)
        if over and not quiet and len(m) > len(self.late):
            self.late = m
        return there

    # Expressions.

    def holds(self, name: str, i: int, m: Mapped) -> bool:
        node = self.defines.get(name)
        if node is None:
            return True
        return self.value(node, (*m, (i, name, False)), (*m, (i, name, False)), name) is True

    def check_measures(self, m: Mapped) -> None:
        for _, text, _ in self.spec.measures:
            self.value(_parsed(text), m, m, None)

    def output(self, matches: list[Found], end: int) -> list[dict[str, Any]]:
        spec = self.spec
        found: list[tuple[int, dict[str, Any]]] = []
        for one in matches:
            self.number = one.number
            if not one.mapped and spec.empty == "omit":
                continue
            if spec.rows == "one":
                found.append((one.first, self.measures(one.mapped, one.mapped)))
                continue
            if not one.mapped:
                found.append((one.first, {**self.rows[one.first], **self.measures((), ())}))
            for k, (i, _, is_out) in enumerate(one.mapped):
                if not is_out:
                    made = self.measures(one.mapped[: k + 1], one.mapped)
                    found.append((one.first, {**self.rows[i], **made}))
        if spec.unmatched:
            taken = {i for one in matches for i, _, _ in one.mapped}
            taken |= {one.first for one in matches}
            nothing = {name: None for name, _, _ in spec.measures}
            left = (i for i in range(end) if i not in taken)
            found += [(i, {**self.rows[i], **nothing}) for i in left]
        return [row for _, row in sorted(found, key=lambda one: one[0])]

    def measures(self, upto: Mapped, whole: Mapped) -> dict[str, Any]:
        return {
            name: self.value(_parsed(text), whole if mode == "final" else upto, whole, None, upto)
            for name, text, mode in self.spec.measures
        }

    def value(
        self, node: Any, seen: Mapped, whole: Mapped, here: str | None, upto: Mapped | None = None
    ) -> Any:
        """An expression, of the rows that it sees."""

        def of(one: Any) -> Any:
            return self.value(one, seen, whole, here, upto)

        match node:
            case exp.Paren():
                return of(node.this)
            case exp.Literal():
                return (
                    node.this if node.is_string else (float if "." in node.this else int)(node.this)
                )
            case exp.Null():
                return None
            case exp.Boolean():
                return node.this
            case exp.And():
                return _and(of(node.this), of(node.expression))
            case exp.Or():
                found = _and(_not(of(node.this)), _not(of(node.expression)))
                return _not(found)
            case exp.Not():
                return _not(of(node.this))
            case exp.Is():
                return of(node.this) is None
            case exp.Coalesce():
                values = (of(one) for one in (node.this, *node.expressions))
                return next((one for one in values if one is not None), None)
            case exp.Anonymous() if node.this.lower() in ("running", "final"):
                is_final = node.this.lower() == "final"
                seen = whole if is_final else (upto if upto is not None else seen)
                return self.value(node.expressions[0], seen, whole, here, upto)
            case exp.Anonymous() if node.this.lower() == "match_number":
                return self.number
            case exp.Count() | exp.Sum() | exp.Avg() | exp.Min() | exp.Max():
                return self.aggregate(node, seen)
            case exp.ArrayAgg():
                return self.rows_of(node.this, seen) or None
            case exp.Column() | exp.First() | exp.Last() | exp.Anonymous():
                return self.navigated(node, seen)
        if type(node) in _BINARY:
            left, right = of(node.this), of(node.expression)
            return None if left is None or right is None else _BINARY[type(node)](left, right)
        raise AssertionError(node)

    def navigated(
        self, node: Any, seen: Mapped, kind: str = "last", n: int = 0, shift: int = 0
    ) -> Any:
        if isinstance(node, exp.Column):
            places = [i for i, name, _ in seen if self.is_of(name, node.table)]
            at = n if kind == "first" else len(places) - 1 - n
            if not 0 <= at < len(places):
                return None
            i = places[at] + shift
            if i >= len(self.rows) and not self.complete:
                raise OpenError
            return self.rows[i][node.name] if 0 <= i < len(self.rows) else None
        name = node.this.lower() if isinstance(node, exp.Anonymous) else ""
        if name == "classifier":
            table = node.expressions[0].name if node.expressions else ""
            names = [one for _, one, _ in seen if self.is_of(one, table)]
            at = n if kind == "first" else len(names) - 1 - n
            return names[at] if 0 <= at < len(names) else None
        if name in ("prev", "next"):
            inner, *more = node.expressions
            offset = int(more[0].this) if more else 1
            return self.navigated(inner, seen, kind, n, -offset if name == "prev" else offset)
        second = node.args.get("expression")
        n = int(second.this) if second is not None else 0
        return self.navigated(node.this, seen, node.key, n, shift)

    def is_of(self, name: str, table: str) -> bool:
        return not table or name in self.subsets.get(table, {table})

    def rows_of(self, node: Any, seen: Mapped) -> list[Any]:
        if isinstance(node, exp.Star):
            return [True for _ in seen]
        if isinstance(node.this, exp.Star):
            return [True for _, name, _ in seen if self.is_of(name, node.table)]
        return [self.rows[i][node.name] for i, name, _ in seen if self.is_of(name, node.table)]

    def aggregate(self, node: Any, seen: Mapped) -> Any:
        values = [one for one in self.rows_of(node.this, seen) if one is not None]
        match node.key:
            case "count":
                return len(values)
            case "avg":
                return sum(values) / len(values) if values else None
            case name:
                return {"sum": sum, "min": min, "max": max}[name](values) if values else None


@functools.cache
def _parsed(text: str) -> Any:
    return sqlglot.parse_one(_with_modes(text), dialect="duckdb")


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _not(one: bool | None) -> bool | None:
    return None if one is None else not one


_BINARY: dict[Any, Any] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}
