"""Reading groups of a trace in their order, and no more of them than an answer needs.

A *group* is what has one window and key. In each piece its rows lie together, sorted by the layout's order
where there is one, and by its tie, so
the first live rows of a group are found from the beginnings of a few ranges, and the weight of a row by
bisection: the time is that of the rows that are read, and the logarithm of the group's size.

    present(trace, groups)           which groups have rows
    ends(trace, groups, delta, n)    each group's first n live rows, before and after the delta
    weights(trace, groups, rows)     the weight of each row
    ranked(trace, groups, delta, …)  the values of some ranks of each group, before and after the delta
    around(trace, groups, places)    the rows near some places of groups

Of a range some rows are read, and more the next time. What was read of all ranges of a group is complete up
to the least of the last rows of those that continue; up to there weights are summed. Rows that were taken
back are read, too, until a merge has met both of them.

The value of a rank is found by halving the numbers between a group's least and greatest one: how many rows
lie below is the difference of two sums of each range, as pieces remember the sums of their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.state import kernels
from penstock.state.bag import FIRST
from penstock.state.layout import Layout, concat, equal, hashes, take, windows
from penstock.state.runs import Opened
from penstock.state.trace import Trace

__all__ = [
    "LAST",
    "Known",
    "Ranked",
    "Side",
    "around",
    "ends",
    "is_ranked",
    "present",
    "ranked",
    "weights",
]

READ_ROWS: Final = 4  # of each range of a group, at first
READ_TIMES: Final = 4  # as many the next time

LAST: Final = 2**63 - 1
"""Behind all places of a group."""

_LONGS: Final = (pa.int64(), pa.float64(), pa.timestamp("us", "UTC"))
"""Types whose codes are found in their columns, without making one."""

Side: TypeAlias = tuple[Vector, pa.RecordBatch]
"""The number of each row's group, int64[rows]; and the rows, in the trace's layout."""


@dataclass(frozen=True)
class _Ranges:
    """Where the rows of some groups lie in a piece.

    Attributes:
        piece: that has the rows.
        groups: int64[n], numbers of groups, ascending.
        lo: int64[n], the first row of each.
        hi: int64[n], the row after its last one.
    """

    piece: Opened
    groups: Vector
    lo: Vector
    hi: Vector

    @property
    def rows(self) -> pa.RecordBatch:
        return self.piece.rows


@dataclass(frozen=True)
class _Read:
    """What was read of some groups.

    Attributes:
        number: int64[n], the group of each row.
        rows: of all ranges.
        groups: int64[m], a group for each range that continues.
        edges: int64[m], the last row that was read of that range, by its number in `rows`.
    """

    number: Vector
    rows: pa.RecordBatch
    groups: Vector
    edges: Vector


@dataclass(frozen=True)
class Known:
    """What was read near some places.

    Attributes:
        rows: in the trace's layout; a row may be there with several weights, and rows that lie outside of
            all ranges are there, too.
        lo: int64[places], the first place from which on all rows were read; `FIRST` from the group's start.
        hi: int64[places], the last place up to which all rows were read; `LAST` up to the group's end. Below
            the place itself where it has more rows than were asked for.
    """

    rows: pa.RecordBatch
    lo: Vector
    hi: Vector


def around(
    trace: Trace,
    groups: pa.RecordBatch,
    number: Vector,
    places: Vector,
    back: Vector,
    ahead: Vector,
) -> Known:
    """The rows of groups near some places of the layout's order.

    Args:
        trace: whose layout has an order, as SQL's: no place is `FIRST`.
        groups: `$window`, `$hash` and the layout's keys; sorted, each once.
        number: int64[places], the group of each.
        places: int64[places], in the layout's order.
        back: int64[places], how many rows before the place to read of each piece.
        ahead: int64[places], how many rows from the place on to read of each piece.
    """
    layout = trace.layout
    assert layout.order is not None, "places are in it"
    lo = np.full(len(places), FIRST)
    hi = np.full(len(places), LAST)
    parts = [layout.empty()]
    for one in _ranges(trace, groups):
        index = np.full(len(groups), -1)
        index[one.groups] = np.arange(len(one.groups))
        at = index[number]
        mine = np.flatnonzero(at >= 0)
        if not len(mine):
            continue
        order = vectors.raw(one.rows.column(layout.order.name))
        first, end = one.lo[at[mine]], one.hi[at[mine]]
        here = first.copy()
        kernels.lower(order, False, places[mine], here, end)  # noqa: FBT003
        begin = np.maximum(first, here - back[mine])
        upto = np.minimum(end, here + ahead[mine])
        cut = begin > first
        lo[mine[cut]] = np.maximum(lo[mine[cut]], order[begin[cut] - 1] + 1)
        cut = upto < end
        hi[mine[cut]] = np.minimum(hi[mine[cut]], order[upto[cut]] - 1)
        total = int((upto - begin).sum())
        which, rows = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.expand(begin, upto, which, rows)
        parts.append(_some(one.rows, np.unique(rows) if len(mine) > 1 else rows))
    return Known(concat(parts), lo, hi)


def _some(rows: pa.RecordBatch, at: Vector) -> pa.RecordBatch:
    return rows.take(vectors.from_int64(at))


def present(trace: Trace, groups: pa.RecordBatch) -> Vector:
    """bool[groups]: whether the trace has rows of a group, be they taken back.

    Args:
        trace: that is looked at.
        groups: `$window`, `$hash` and the layout's keys; sorted, each once.
    """
    found = np.zeros(len(groups), np.bool_)
    for one in _ranges(trace, groups):
        found[one.groups] = True
    return found


def ends(
    trace: Trace, groups: pa.RecordBatch, delta: pa.RecordBatch, number: Vector, most: int
) -> tuple[Side, Side]:
    """The first or last live rows of some groups, before a delta and after it: so many, or more.

    Where the layout has an order and carries columns, all rows that share the last one's place are
    among them.

    Args:
        trace: without the delta.
        groups: `$window`, `$hash` and the layout's keys; sorted, each once.
        delta: rows in the trace's layout.
        number: int64[delta], the group of each.
        most: how many rows of a group, counted by their weights; the last ones where it is negative.

    Returns:
        The rows before and after, each once, with their weights.
    """
    layout, n = trace.layout, len(groups)
    ranges = list(_ranges(trace, groups))
    left, count = np.ones(n, np.bool_), max(READ_ROWS, abs(most))
    sides: tuple[list[Side], list[Side]] = ([], [])
    while left.any():
        read = _read(layout, ranges, left, count, from_end=most < 0)
        mine = np.flatnonzero(left[number])
        both = concat([read.rows, delta.take(vectors.from_int64(mine))])
        ids, first = layout.grouping(both)
        group = np.concatenate([read.number, number[mine]])[first]
        orders = layout.orders(both) if layout.carried else None
        order = None if orders is None else orders[first]
        known = _known(read, ids, group, order, n, from_end=most < 0)
        done = left.copy()
        goes_on = np.zeros(n, np.bool_)
        goes_on[read.groups] = True
        weight = vectors.raw(both.column(layout.count))
        found = []
        for upto in (len(read.rows), len(both)):
            sums = np.empty(len(first), np.int64)
            kernels.sum_integers(weight[:upto], None, None, ids[:upto], sums)
            sums[~known] = 0
            there = np.bincount(group, weights=np.maximum(sums, 0), minlength=n)
            done &= ~goes_on | (there >= abs(most))
            found.append(sums)
        for side, sums in zip(sides, found, strict=True):
            live = np.flatnonzero((sums > 0) & done[group])
            side.append((group[live], _weighted(layout, both, first[live], sums[live])))
        left &= ~done
        count *= READ_TIMES
    before, after = (_joined(layout, side) for side in sides)
    return before, after


def weights(trace: Trace, groups: pa.RecordBatch, rows: pa.RecordBatch, number: Vector) -> Vector:
    """The weight that each of some rows has in a trace: int64[rows].

    Args:
        trace: whose rows of a group are distinguished by the tie alone.
        groups: `$window`, `$hash` and the layout's keys; sorted, each once.
        rows: in the trace's layout.
        number: int64[rows], the group of each.
    """
    layout = trace.layout
    assert layout.tie is not None, "rows of a group differ in it"
    assert not layout.carried, "and in nothing else"
    wanted = rows.column(layout.tie.name)
    found = np.zeros(len(rows), np.int64)
    for one in _ranges(trace, groups):
        place = np.full(len(groups), -1)
        place[one.groups] = np.arange(len(one.groups))
        at = place[number]
        mine = np.flatnonzero(at >= 0)
        column = one.rows.column(layout.tie.name)
        lo, hi = one.lo[at[mine]], one.hi[at[mine]]
        row = _bisect(column, wanted.take(vectors.from_int64(mine)), lo, hi)
        there = np.flatnonzero(row < hi)
        mine, row = mine[there], row[there]
        same = equal(wanted, mine, column, row)
        found[mine[same]] += vectors.raw(one.rows.column(layout.count))[row[same]]
    return found


@dataclass(frozen=True)
class Ranked:
    """Values of some ranks of groups.

    Attributes:
        counts: int64[groups], how many rows there are, by their weights.
        codes: int64[groups, ranks], the codes of the ties; of a rank that no row has, anything.
    """

    counts: Vector
    codes: Vector


def is_ranked(type_: pa.DataType) -> bool:
    """Whether `ranked` finds values of a type."""
    return vectors.is_fixed(type_)


def ranked(
    trace: Trace,
    groups: pa.RecordBatch,
    delta: pa.RecordBatch,
    number: Vector,
    ranks: Callable[[Vector], Vector],
) -> tuple[Ranked, Ranked]:
    """The ties of some ranks of groups, before a delta and after it.

    Args:
        trace: without the delta. The rows of a group are distinguished by the tie alone, which `is_ranked`;
            no sum of a row's weights is below 0.
        groups: `$window`, `$hash` and the layout's keys; sorted, each once.
        delta: rows in the trace's layout.
        number: int64[delta], the group of each.
        ranks: says which ranks are wanted of groups with so many rows: int64[groups, ranks], from 0.
    """
    ranges = list(_ranges(trace, groups))
    order = np.argsort(number, kind="stable")
    some = delta.take(vectors.from_int64(order))
    there, first = np.unique(number[order], return_index=True)
    come = Opened(some, windows(some), hashes(some))
    first = np.append(first, len(some)).astype(np.int64)
    after = _Ranges(come, there, first[:-1], first[1:])
    before = _ranked(trace.layout, ranges, len(groups), ranks)
    return before, _ranked(trace.layout, [*ranges, after], len(groups), ranks)


def _ranked(
    layout: Layout, ranges: Sequence[_Ranges], n: int, ranks: Callable[[Vector], Vector]
) -> Ranked:
    assert layout.tie is not None, "rows of a group differ in it"
    counts = np.zeros(n, np.int64)
    least, most = np.full(n, LAST), np.full(n, FIRST)
    for one in ranges:
        sums = one.piece.sums(layout.count)
        counts[one.groups] += sums[one.hi] - sums[one.lo]
        column = one.rows.column(layout.tie.name)
        codes = [vectors.codes(take(column, vectors.from_int64(at))) for at in (one.lo, one.hi - 1)]
        least[one.groups] = np.minimum(least[one.groups], codes[0])
        most[one.groups] = np.maximum(most[one.groups], codes[1])
    wanted = ranks(counts)
    width = wanted.shape[1]
    wanted, many = wanted.ravel(), np.repeat(counts, width)
    a = np.repeat(least, width)
    b = np.where((wanted >= 0) & (wanted < many), np.repeat(most, width), a)
    bounds = [_Bounds.of(layout, one, n, width) for one in ranges]
    while True:
        left = np.flatnonzero(a < b)
        if not len(left):
            return Ranked(counts, a.reshape(n, width))
        apart = (b[left] - a[left]).view(np.uint64) >> np.uint64(1)  # wraps, and is right so
        middle = (a[left].view(np.uint64) + apart).view(np.int64)
        upto = np.zeros(len(left), np.int64)  # how many rows are not above the middle
        found = []
        for bound in bounds:
            mine, at = bound.upto(left, middle)
            upto[mine] += bound.sums[at] - bound.sums[bound.begin[left[mine]]]
            found.append((mine, at))
        down = upto > wanted[left]
        b[left[down]] = middle[down]
        a[left[~down]] = middle[~down] + 1
        for bound, (mine, at) in zip(bounds, found, strict=True):
            bound.narrow(left[mine], at, down[mine])


@dataclass(frozen=True)
class _Bounds:
    """What is left to look at in the ranges of a piece.

    Attributes:
        values: int64[rows], the ties, or their bits.
        floats: whether they are bits of doubles.
        sums: int64[rows + 1], of the weights before each row.
        begin: int64[queries], where the range of each begins, or -1.
        lo: int64[queries], the first row that isn't known to lie below.
        hi: int64[queries], the first row that is known to lie above.
    """

    values: Vector
    floats: bool
    sums: Vector
    begin: Vector
    lo: Vector
    hi: Vector

    @staticmethod
    def of(layout: Layout, ranges: _Ranges, groups: int, width: int) -> _Bounds:
        """Of whole ranges, with so many queries for each group."""
        assert layout.tie is not None, "rows of a group differ in it"
        column = ranges.rows.column(layout.tie.name)
        begin, end = np.full(groups, -1), np.full(groups, -1)
        begin[ranges.groups], end[ranges.groups] = ranges.lo, ranges.hi
        begin, end = np.repeat(begin, width), np.repeat(end, width)
        sums, floats = ranges.piece.sums(layout.count), False
        if column.type in _LONGS:
            values, floats = vectors.raw(column).view(np.int64), bool(vectors.is_float(column.type))
        else:
            values = ranges.piece.codes(layout.tie.name)
        return _Bounds(values, floats, sums, begin, begin.copy(), end)

    def upto(self, queries: Vector, codes: Vector) -> tuple[Vector, Vector]:
        """Of those queries that have a range, by their place: the row behind the last one up to a code."""
        mine = np.flatnonzero(self.begin[queries] >= 0)
        some = queries[mine]
        at = self.lo[some]
        kernels.lower(self.values, self.floats, codes[mine] + 1, at, self.hi[some])
        return mine, at

    def narrow(self, queries: Vector, at: Vector, down: Vector) -> None:
        """Leaves out what lies above the code that was asked for, or up to it."""
        self.hi[queries[down]] = at[down]
        self.lo[queries[~down]] = at[~down]


def _ranges(trace: Trace, groups: pa.RecordBatch) -> Iterator[_Ranges]:
    """The ranges of groups in each piece that has some; none is empty."""
    for start, piece, begin, end in trace.ranges(groups):
        some = np.flatnonzero(end > begin)
        numbers, lo, hi = some + start, begin[some], end[some]
        mixed = np.zeros(len(some), np.bool_)
        # Rows of one hash are sorted by their keys: if others' are among them, they are at an end.
        for at in (lo, hi - 1):
            alike = trace.alike(groups, numbers, piece, at)
            if alike is not None:
                mixed |= ~alike
        for i in np.flatnonzero(mixed):
            at = np.arange(lo[i], hi[i])
            alike = trace.alike(groups, np.full(len(at), numbers[i]), piece, at)
            assert alike is not None, "as it found others' rows"
            own = at[alike]
            lo[i], hi[i] = (own[0], own[-1] + 1) if len(own) else (0, 0)
        keep = hi > lo
        yield _Ranges(piece, numbers[keep], lo[keep], hi[keep])


def _read(
    layout: Layout, ranges: Sequence[_Ranges], left: Vector, count: int, *, from_end: bool
) -> _Read:
    """So many rows of each range, of the groups that are left."""
    numbers, parts = [np.zeros(0, np.int64)], [layout.empty()]
    goes_on, edges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    base = 0
    for one in ranges:
        some = np.flatnonzero(left[one.groups])
        if not len(some):
            continue
        lo, hi, groups = one.lo[some], one.hi[some], one.groups[some]
        taken = np.minimum(hi - lo, count)
        total = int(taken.sum())
        which, at = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.expand(hi - taken if from_end else lo, hi if from_end else lo + taken, which, at)
        more = np.flatnonzero(taken < hi - lo)
        goes_on.append(groups[more])
        ends_at = np.cumsum(taken)
        edges.append(base + (ends_at - (taken if from_end else 1))[more])
        numbers.append(groups[which])
        parts.append(one.rows.take(vectors.from_int64(at)))
        base += total
    rows = concat(parts)
    return _Read(np.concatenate(numbers), rows, np.concatenate(goes_on), np.concatenate(edges))


def _known(
    read: _Read, ids: Vector, group: Vector, order: Vector | None, groups: int, *, from_end: bool
) -> Vector:
    """bool[identities]: whether all rows of an identity have been read.

    Args:
        read: what was.
        ids: the identity of each row, by its place in the order.
        group: the group of each identity.
        order: the order of each identity; None where the tie is one, too.
        groups: how many there are.
        from_end: whether ranges were read from their ends.
    """
    place = np.arange(len(group))
    if order is not None:  # what shares a place is in no order: it is known together
        moved = (group[1:] != group[:-1]) | (order[1:] != order[:-1])
        place = np.concatenate([[0], np.cumsum(moved)])
    inside = 0 if order is None else 1
    edges = place[ids[read.edges]]
    if from_end:
        bound = np.full(groups, -1)
        np.maximum.at(bound, read.groups, edges + inside)
        return np.asarray(place >= bound[group])
    bound = np.full(groups, len(group))
    np.minimum.at(bound, read.groups, edges - inside)
    return np.asarray(place <= bound[group])


def _weighted(layout: Layout, rows: pa.RecordBatch, at: Vector, weight: Vector) -> pa.RecordBatch:
    """Some rows, with other weights."""
    taken = rows.take(vectors.from_int64(at))
    i = taken.schema.get_field_index(layout.count)
    return taken.set_column(i, taken.schema.field(i), vectors.from_int64(weight))


def _joined(layout: Layout, parts: Sequence[Side]) -> Side:
    if not parts:
        return np.zeros(0, np.int64), layout.empty()
    return np.concatenate([which for which, _ in parts]), concat([rows for _, rows in parts])


def _bisect(column: pa.Array, wanted: pa.Array, lo: Vector, hi: Vector) -> Vector:
    """The first row of each range of a column that isn't below the value wanted: int64[ranges]."""
    lo, hi = lo.copy(), hi.copy()
    codes = None if vectors.is_text(column.type) else vectors.codes(wanted)
    if codes is not None and column.type in _LONGS:
        floats = bool(vectors.is_float(column.type))
        kernels.lower(vectors.raw(column).view(np.int64), floats, codes, lo, hi)
        return lo
    while True:
        some = np.flatnonzero(lo < hi)
        if not len(some):
            return lo
        middle = (lo[some] + hi[some]) >> 1
        there = take(column, vectors.from_int64(middle))
        if codes is None:
            less: Any = pc.less(there, take(wanted, vectors.from_int64(some)))
            below = less.to_numpy(zero_copy_only=False)
        else:
            below = vectors.codes(there) < codes[some]
        lo[some[below]] = middle[below] + 1
        hi[some[~below]] = middle[~below]
