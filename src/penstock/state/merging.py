"""Merging runs a chunk at a time: what a paced merge and a scan have in common.

A cursor is a position (piece, row) in each input. A chunk is the longest stretch of identities such that
each input gives at most its share of the goal, so memory is bounded by the goal, whatever the runs' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.state import kernels
from penstock.state.layout import Layout, concat, hashes, ranks, windows
from penstock.state.runs import Piece, Run

Position: TypeAlias = tuple[int, int]  # piece, row
Open: TypeAlias = Callable[[Piece], pa.RecordBatch]


@dataclass
class _Head:
    """What one input could give next: rows [lo, hi) of a piece."""

    index: int
    rows: pa.RecordBatch
    lo: int
    hi: int
    more: bool  # whether the input continues after hi

    @cached_property
    def places(self) -> tuple[Vector, Vector]:
        return windows(self.rows), hashes(self.rows)

    def key(self, row: int) -> tuple[int, int]:
        w, h = self.places
        return int(w[row]), int(h[row])

    def bisect(self, key: tuple[int, int], *, after: bool) -> int:
        return int(kernels.bisect(*self.places, self.lo, self.hi, *key, after))


def start(inputs: Sequence[Run]) -> tuple[Position, ...]:
    """The cursor before everything."""
    return tuple((0, 0) for _ in inputs)


def remaining(run: Run, position: Position) -> int:
    """Rows of a run at and after a position."""
    piece, row = position
    return sum(p.rows for p in run.pieces[piece:]) - row


def seek(run: Run, position: Position, low_us: int, open_: Open) -> Position:
    """Moves a position past the rows of windows below `low_us`."""
    piece, row = position
    while piece < len(run.pieces) and run.pieces[piece].last[0] < low_us:
        piece, row = piece + 1, 0
    if piece < len(run.pieces) and run.pieces[piece].first[0] < low_us:
        rows = open_(run.pieces[piece])
        least = -(2**63)
        row = int(
            kernels.bisect(windows(rows), hashes(rows), row, len(rows), low_us, least, False)  # noqa: FBT003
        )
    return piece, row


def whole_piece(inputs: Sequence[Run], cursor: Sequence[Position], open_: Open) -> int | None:
    """The input whose next piece, whole, lies before all that the others have left."""
    heads: list[tuple[tuple[int, int], int]] = []
    for i, (run, (piece, row)) in enumerate(zip(inputs, cursor, strict=True)):
        if piece < len(run.pieces):
            rows = open_(run.pieces[piece]) if row else None
            first = run.pieces[piece].first
            if rows is not None:
                first = int(windows(rows)[row]), int(hashes(rows)[row])
            heads.append((first, i))
    if not heads:
        return None
    heads.sort()
    least = heads[0][1]
    piece, row = cursor[least]
    if row == 0 and (len(heads) == 1 or inputs[least].pieces[piece].last < heads[1][0]):
        return least
    return None


def chunk(
    layout: Layout, inputs: Sequence[Run], cursor: Sequence[Position], goal: int, open_: Open
) -> tuple[list[pa.RecordBatch], tuple[Position, ...]]:
    """Takes the next chunk from sorted inputs.

    Args:
        layout: of all of them.
        inputs: the runs.
        cursor: where each stands.
        goal: rows to take from all together, at most (but always at least one).
        open_: maps a piece.

    Returns:
        Slices, oldest input first, and the cursor after them. All rows of an identity are in one chunk.
    """
    left = [remaining(run, at) for run, at in zip(inputs, cursor, strict=True)]
    total = sum(left)
    heads = []
    for i, (run, (piece, row)) in enumerate(zip(inputs, cursor, strict=True)):
        if left[i]:
            rows = open_(run.pieces[piece])
            hi = min(len(rows), row + max(1, goal * left[i] // total))
            heads.append(_Head(i, rows, row, hi, hi - row < left[i]))
    if len(heads) > 1 and any(head.more for head in heads):
        _cut(layout, heads)
    moved = list(cursor)
    for head in heads:
        piece = moved[head.index][0]
        done = head.hi == len(head.rows)
        moved[head.index] = (piece + 1, 0) if done else (piece, head.hi)
    return [h.rows.slice(h.lo, h.hi - h.lo) for h in heads if h.hi > h.lo], tuple(moved)


def _cut(layout: Layout, heads: list[_Head]) -> None:
    """Shortens the heads to the identities that no input has more of.

    None goes past the last row of any head, even of an input that ends there: what follows may be a whole
    piece that needs no merging.
    """
    key = min(head.key(head.hi - 1) for head in heads)
    below = [head.bisect(key, after=False) for head in heads]
    upto = [head.bisect(key, after=True) for head in heads]
    ends = [
        (head.more and head.hi == hi and hi > lo)
        for head, lo, hi in zip(heads, below, upto, strict=True)
    ]
    counts = [hi - lo for lo, hi in zip(below, upto, strict=True)]
    if any(ends) and sum(counts) > 1:
        tied = concat(
            [h.rows.slice(lo, n) for h, lo, n in zip(heads, below, counts, strict=True) if n]
        )
        rank = ranks([tied.column(f.name) for f in layout.identity], len(tied))
        bounds = np.cumsum([0, *counts])
        last = [rank[bounds[i + 1] - 1] for i in range(len(heads)) if ends[i]]
        limit = min(last)
        for i in range(len(heads)):
            mine = rank[bounds[i] : bounds[i + 1]]
            upto[i] = below[i] + int(np.searchsorted(mine, limit, side="right"))
    for head, hi in zip(heads, upto, strict=True):
        head.hi = hi
