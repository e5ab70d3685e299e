"""The trace: an operator's state on one shard, as a few sorted runs that are merged at a measured pace.

    contents(trace) = combine(all rows of all runs), from `low_us` on
    contents(append(trace, delta)) = combine(contents(trace) ++ delta)

Design. An append writes one small run. Runs are in order of age; the tier of a run is the logarithm of its
rows. `FAN_IN` free runs of a tier are merged into one of the next, so there are at most
O(FAN_IN * log(rows)) runs, and a row is rewritten O(log(rows)) times in its life. A merge is paced:
each append gives every merge fuel in proportion to its own rows, which is spent a chunk at a time; until
the merge is done, readers use its inputs. So no append pays for a big merge alone, and the work per
append grows with the append and the logarithm of the state.

A piece of an input that overlaps nothing is linked into the output as it is, not copied: state in
order of time, whose old windows no longer change, is hardly ever rewritten.

Sources: McSherry et al., Shared Arrangements (2020), section 4, for merging with effort in proportion to new
updates; O'Neil et al., The Log-Structured Merge-Tree (1996).

A trace is immutable. It is a function of the description and rows it was made from: no clock, no chance.
"""

# ruff: noqa: SLF001 -- a trace makes the next one, and that is of its own class

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector, raw
from penstock.errors import CorruptError
from penstock.state import kernels, merging
from penstock.state.files import StateFiles
from penstock.state.layout import Layout, concat, equal, hashes, windows
from penstock.state.merging import Position
from penstock.state.runs import (
    LINK_ROWS_MIN,
    OPEN,
    PIECE_ROWS_MAX,
    Opened,
    Piece,
    Run,
    Writer,
    gathered,
)

FORMAT: Final = 1  # of the description
FAN_IN: Final = 3  # runs per merge: more means fewer rewrites and more runs to search
TINY_ROWS: Final = 1_024
"""Rows: runs up to this are folded into the next append's run; costs about 1 ms."""
FUEL_PER_ROW: Final = 3
"""Rows a merge may handle per row appended: above 1, so that merges end early."""
FUEL_MIN: Final = 2_048  # rows per append: merges of a quiet pipeline end some day, too
PIECE_ROWS_MIN: Final = 1 << 15  # rows: fuel is saved up until a piece is worth a file
LINKED_PER_PIECE: Final = 4  # a merge links pieces down to this part of one that it would write
PIECES_PER_MERGE: Final = 64  # bounds the files of a big run, and so the description's size
FILTER_ROWS_MIN: Final = 1 << 14  # rows: smaller pieces are searched without a filter
ALWAYS: Final = -(2**63)  # low_us of a trace that drops nothing


@dataclass(frozen=True)
class Merge:
    """A merge in progress: of runs [first, first + count) of the trace."""

    first: int
    count: int
    cursor: tuple[Position, ...]
    output: tuple[Piece, ...] = ()
    fuel: int = 0

    @property
    def end(self) -> int:
        """The run after the last input."""
        return self.first + self.count


@dataclass(frozen=True)
class Trace:
    """One version of an operator's state on a shard."""

    layout: Layout
    files: StateFiles
    runs: tuple[Run, ...] = ()
    merges: tuple[Merge, ...] = ()
    low_us: int = ALWAYS  # rows of windows below are gone

    @staticmethod
    def open(layout: Layout, files: StateFiles, description: Mapping[str, Any]) -> Trace:
        """The trace that a description is of; no file is read yet.

        Raises:
            CorruptError: the description is of another format.
        """
        if description.get("format") != FORMAT:
            raise CorruptError(
                f"expected a trace of format {FORMAT}; found {description.get('format')!r}. Use the "
                "release of Penstock that wrote it, or run the pipeline with --rebuild"
            )
        runs = tuple(Run(tuple(map(Piece.parse, pieces))) for pieces in description["runs"])
        merges = tuple(
            Merge(
                m["first"],
                m["count"],
                tuple((piece, row) for piece, row in m["cursor"]),
                tuple(map(Piece.parse, m["output"])),
                m["fuel"],
            )
            for m in description["merges"]
        )
        return Trace(layout, files, runs, merges, description["low_us"])

    def describe(self) -> dict[str, Any]:
        """All that `open` needs, as JSON."""
        return {
            "format": FORMAT,
            "low_us": self.low_us,
            "runs": [[piece.describe() for piece in run.pieces] for run in self.runs],
            "merges": [
                {
                    "first": m.first,
                    "count": m.count,
                    "cursor": [list(position) for position in m.cursor],
                    "output": [piece.describe() for piece in m.output],
                    "fuel": m.fuel,
                }
                for m in self.merges
            ],
        }

    @property
    def rows(self) -> int:
        """Rows in all runs; an identity counts once per run."""
        return sum(run.rows for run in self.runs)

    @property
    def bytes(self) -> int:
        """Bytes of the files of all runs, without merges in progress."""
        return sum(piece.bytes for run in self.runs for piece in run.pieces)

    def append(self, delta: pa.RecordBatch, writer: Writer, *, low_us: int | None = None) -> Trace:
        """The trace with a delta added.

        Args:
            delta: sorted and consolidated, in the layout's columns; may be empty.
            writer: of this version.
            low_us: windows below it need not be kept any longer.
        """
        low = self.low_us if low_us is None else max(low_us, self.low_us)
        if not len(delta) and not self.merges and low == self.low_us and not self._has_expired:
            return self
        trace = replace(self, low_us=low)
        trace = trace._expire()
        trace, delta = trace._fold(self._above(delta, low))
        fuel = max(FUEL_MIN, FUEL_PER_ROW * len(delta))
        if len(delta):
            trace = replace(trace, runs=(*trace.runs, writer.run(delta)))
        trace = trace._begin_merges()._work(writer, fuel)
        OPEN.forget(self.files, self._pieces() - trace._pieces())
        return trace

    def scan(
        self,
        lo_us: int | None = None,
        hi_us: int | None = None,
        *,
        chunk_rows: int = PIECE_ROWS_MAX,
    ) -> Iterator[pa.RecordBatch]:
        """The contents of windows [lo_us, hi_us), in order, consolidated, some rows at a time."""
        low = max(self.low_us, ALWAYS if lo_us is None else lo_us)
        runs = [run for run in (run.since(low) for run in self.runs) if run.pieces]
        if hi_us is not None:
            runs = [
                Run(tuple(p for p in run.pieces if p.first[0] < hi_us))
                for run in runs
                if run.pieces[0].first[0] < hi_us
            ]
        cursor: Sequence[Position] = [merging.seek(run, (0, 0), low, self._open) for run in runs]
        while any(at[0] < len(run.pieces) for run, at in zip(runs, cursor, strict=True)):
            slices, cursor = merging.chunk(self.layout, runs, cursor, chunk_rows, self._open)
            if hi_us is not None:
                slices = [self._below(rows, hi_us) for rows in slices]
                if not any(len(rows) for rows in slices):
                    return
            merged = self.layout.merge(slices, whole=True)
            if len(merged):
                yield merged

    def lookup(
        self,
        wanted: pa.RecordBatch,
        columns: Sequence[str] | None = None,
        *,
        between: tuple[str, Vector, Vector] | None = None,
        mostly_absent: bool = False,
    ) -> tuple[Vector, list[pa.RecordBatch]]:
        """Finds the rows of some keys.

        Args:
            wanted: `$window`, `$hash` and the layout's keys; sorted by window and hash.
            columns: to give of the rows; all, if None.
            between: a column of 64-bit numbers; its least and greatest value for each row of `wanted`.
            mostly_absent: whether most keys are expected not to be there; see `ranges`.

        Returns:
            The number in `wanted` of each row found: int64[rows]; and the rows, in some batches. Each run
            has its own part of a row.
        """
        which: list[Vector] = []
        found: list[tuple[Opened, Vector]] = []
        for start, piece, lo, hi in self.ranges(wanted, mostly_absent=mostly_absent):
            total = int((hi - lo).sum())
            q, at = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.expand(lo, hi, q, at)
            q += start
            keep = self.alike(wanted, q, piece, at)
            if between is not None:
                name, least, most = between
                column = piece.longs(name)
                values = (raw(piece.rows.column(name)) if column is None else column)[at]
                inside = (values >= least[q]) & (values <= most[q])
                keep = inside if keep is None else keep & inside
            if keep is not None and not keep.all():
                q, at = q[keep], at[keep]
            if len(q):
                which.append(q)
                found.append((piece, at))
        if not which:
            return np.zeros(0, np.int64), []
        names = self.layout.schema.names if columns is None else columns
        return np.concatenate(which), gathered(found, [self.layout.schema.field(n) for n in names])

    def ranges(
        self, wanted: pa.RecordBatch, *, mostly_absent: bool = False
    ) -> Iterator[tuple[int, Opened, Vector, Vector]]:
        """Where the rows of some windows and hashes lie.

        Args:
            wanted: as `lookup` takes it.
            mostly_absent: asks a filter of each piece first, which is in memory: a key that isn't there
                then costs no page of the file. Filters take 1.5 bytes for each row.

        Yields:
            A number in `wanted`; a piece that has rows; and the first row and the one after the last of each
            row of `wanted` from that number on: int64[n] each, which may be fewer than are left. Among
            the piece's rows may be some of other keys of the same hash (see `alike`).
        """
        w, h = windows(wanted), hashes(wanted)
        n = len(w)
        begin = 0
        if self.low_us != ALWAYS:
            begin = kernels.bisect(w, h, 0, n, self.low_us, ALWAYS, False)  # noqa: FBT003
        if begin == n:
            return
        least, most = (int(w[begin]), int(h[begin])), (int(w[-1]), int(h[-1]))
        for run in self.runs:
            for piece in run.pieces:
                if piece.last < least or piece.first > most:
                    continue
                start = kernels.bisect(w, h, begin, n, *piece.first, False)  # noqa: FBT003
                end = kernels.bisect(w, h, start, n, *piece.last, True)  # noqa: FBT003
                if start == end:
                    continue
                there = OPEN.get(self.files, piece, self.layout)
                lo, hi = np.zeros(end - start, np.int64), np.zeros(end - start, np.int64)
                if not mostly_absent or piece.rows < FILTER_ROWS_MIN:
                    if kernels.find(
                        w[start:end], h[start:end], there.windows, there.hashes, lo, hi
                    ):
                        yield start, there, lo, hi
                    continue
                some = np.flatnonzero(there.may_have(h[start:end]))
                least_rows, most_rows = lo[some], hi[some]
                asked = w[start:end][some], h[start:end][some]
                if kernels.find(*asked, there.windows, there.hashes, least_rows, most_rows):
                    lo[some], hi[some] = least_rows, most_rows
                    yield start, there, lo, hi

    def alike(
        self, wanted: pa.RecordBatch, which: Vector, piece: Opened, at: Vector
    ) -> Vector | None:
        """bool[n]: whether a piece's row at[i] has the keys of wanted[which[i]], of its hash; None: all."""
        found: Vector | None = None
        for i, key in enumerate(self.layout.keys, 2):  # behind window and hash, in both
            ours = wanted.column(i)
            if not self.layout.exact or ours.null_count or piece.longs(key.name) is None:
                same = equal(ours, which, piece.rows.column(i), at)
                found = same if found is None else found & same
        return found

    def above(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Sorted rows without those of windows that are gone."""
        return self._above(rows, self.low_us)

    def check(self) -> None:
        """Asserts every invariant; opens and verifies every file."""
        at = 0
        for merge in self.merges:
            assert at <= merge.first, "merges are in order and don't overlap"
            assert merge.count > 1
            at = merge.end
            assert at <= len(self.runs)
            assert len(merge.cursor) == merge.count
            self._check_run(Run(merge.output))
        for run in self.runs:
            assert run.pieces, "a run has rows"
            self._check_run(run)

    def _check_run(self, run: Run) -> None:
        last: tuple[int, int] | None = None
        for piece in run.pieces:
            rows = self._open(piece)
            assert len(rows) == piece.rows > 0
            w, h = windows(rows), hashes(rows)
            assert (w[0], h[0]) == piece.first
            assert (w[-1], h[-1]) == piece.last
            assert last is None or last <= piece.first, "pieces follow one another"
            alike = (w[1:] == w[:-1]) & (h[1:] == h[:-1])
            after = (w[1:] > w[:-1]) | ((w[1:] == w[:-1]) & (h[1:] > h[:-1]))
            assert bool(np.all(after | alike)), "sorted"
            if alike.any():  # else each is another identity, and no kernel needs to be loaded
                _, first = self.layout.grouping(rows)
                assert len(first) == len(rows), "each identity once"
            last = piece.last

    def _open(self, piece: Piece) -> pa.RecordBatch:
        return OPEN.get(self.files, piece, self.layout).rows

    def _above(self, rows: pa.RecordBatch, low_us: int) -> pa.RecordBatch:
        if low_us == ALWAYS or not len(rows):
            return rows
        cut = kernels.bisect(windows(rows), hashes(rows), 0, len(rows), low_us, ALWAYS, False)  # noqa: FBT003
        return rows.slice(cut)

    def _below(self, rows: pa.RecordBatch, hi_us: int) -> pa.RecordBatch:
        cut = kernels.bisect(windows(rows), hashes(rows), 0, len(rows), hi_us, ALWAYS, False)  # noqa: FBT003
        return rows.slice(0, cut)

    def _pieces(self) -> set[Piece]:
        outputs = (piece for merge in self.merges for piece in merge.output)
        return {*(piece for run in self.runs for piece in run.pieces), *outputs}

    def _busy(self) -> set[int]:
        return {i for m in self.merges for i in range(m.first, m.end)}

    @property
    def _has_expired(self) -> bool:
        """Whether pieces lie below `low_us`, as a new one may say for a trace that is there."""
        return any(run.pieces[0].last[0] < self.low_us for run in self.runs)

    def _expire(self) -> Trace:
        """Lets go of whole pieces below `low_us`; merges skip the rest when they come to it."""
        if self.low_us == ALWAYS:
            return self
        busy = self._busy()
        kept, merges, dropped = [], list(self.merges), 0
        starts = {m.first: i for i, m in enumerate(self.merges)}
        for i, run in enumerate(self.runs):
            if i in starts:
                m = merges[starts[i]]
                merges[starts[i]] = replace(m, first=m.first - dropped)
            left = run if i in busy else run.since(self.low_us)
            if left.pieces:
                kept.append(left)
            else:
                dropped += 1
        return replace(self, runs=tuple(kept), merges=tuple(merges))

    def _fold(self, delta: pa.RecordBatch) -> tuple[Trace, pa.RecordBatch]:
        """Takes tiny runs off the end and merges them with a small delta at once."""
        if not 0 < len(delta) <= TINY_ROWS:
            return self, delta
        busy = self._busy()
        first = len(self.runs)
        while first and first - 1 not in busy and self.runs[first - 1].rows <= TINY_ROWS:
            first -= 1
        if first == len(self.runs):
            return self, delta
        old = [self._above(self._open(p), self.low_us) for r in self.runs[first:] for p in r.pieces]
        merged = self.layout.merge([*old, delta], whole=first == 0)
        return replace(self, runs=self.runs[:first]), merged

    def _begin_merges(self) -> Trace:
        merges = list(self.merges)
        busy = self._busy()
        at = 0
        while at < len(self.runs):
            if at in busy:
                at += 1
                continue
            end = at
            while end < len(self.runs) and end not in busy:
                end += 1
            span = _due([run.rows for run in self.runs[at:end]])
            if span is not None:
                first, count = at + span[0], span[1]
                cursor = merging.start(self.runs[first : first + count])
                merges.append(Merge(first, count, cursor))
            at = end
        if len(merges) == len(self.merges):
            return self
        merges.sort(key=lambda m: m.first)
        return replace(self, merges=tuple(merges))

    def _work(self, writer: Writer, fuel: int) -> Trace:
        if not self.merges:
            return self
        runs, merges, shift = list(self.runs), [], 0
        for merge in self.merges:
            merge = replace(merge, first=merge.first - shift)  # noqa: PLW2901
            inputs = runs[merge.first : merge.end]
            whole = merge.first == 0
            merge = self._advance(merge, inputs, writer, fuel, whole=whole)  # noqa: PLW2901
            if all(at[0] == len(r.pieces) for r, at in zip(inputs, merge.cursor, strict=True)):
                output = [Run(merge.output)] if merge.output else []
                runs[merge.first : merge.end] = output
                shift += merge.count - len(output)
            else:
                merges.append(merge)
        return replace(self, runs=tuple(runs), merges=tuple(merges))

    def _advance(
        self, merge: Merge, inputs: list[Run], writer: Writer, fuel: int, *, whole: bool
    ) -> Merge:
        cursor, output = list(merge.cursor), list(merge.output)
        fuel += merge.fuel
        total = sum(run.rows for run in inputs)
        worth = min(max(total // PIECES_PER_MERGE, PIECE_ROWS_MIN), PIECE_ROWS_MAX)
        while True:
            cursor = [
                merging.seek(run, at, self.low_us, self._open)
                for run, at in zip(inputs, cursor, strict=True)
            ]
            left = sum(merging.remaining(r, at) for r, at in zip(inputs, cursor, strict=True))
            if not left:
                break
            i = self._linkable(inputs, cursor, worth)
            if i is not None:
                output.append(inputs[i].pieces[cursor[i][0]])
                cursor[i] = (cursor[i][0] + 1, 0)
                continue
            if fuel < min(worth, left):
                break
            rows, taken, cursor = self._merged(
                inputs, cursor, min(fuel, PIECE_ROWS_MAX), worth, whole=whole
            )
            fuel -= taken
            if len(rows):
                output.append(writer.write(rows))
        return replace(merge, cursor=tuple(cursor), output=tuple(output), fuel=fuel)

    def _linkable(self, inputs: list[Run], cursor: list[Position], worth: int) -> int | None:
        """The input whose next piece goes into the output as it is.

        What is small next to the pieces that are worth a file in a merge of this size is copied, so that the
        pieces of a trace don't become more with each batch.
        """
        i = merging.whole_piece(inputs, cursor, self._open)
        if i is None:
            return None
        rows_min = max(LINK_ROWS_MIN, worth // LINKED_PER_PIECE)
        return i if inputs[i].pieces[cursor[i][0]].rows >= rows_min else None

    def _merged(
        self, inputs: list[Run], cursor: list[Position], goal: int, worth: int, *, whole: bool
    ) -> tuple[pa.RecordBatch, int, list[Position]]:
        """A piece of so many rows: of several chunks, as each ends where a piece of an input does.

        Otherwise pieces could only become smaller from merge to merge.

        Returns:
            The piece, how many rows were taken for it, at least half as many as said if there are so many
            before a piece that can be linked; and the cursor behind them.
        """
        parts: list[pa.RecordBatch] = []
        taken = 0
        while 2 * taken < goal:
            slices, moved = merging.chunk(self.layout, inputs, cursor, goal - taken, self._open)
            cursor = list(moved)
            taken += sum(map(len, slices))
            parts.append(self.layout.merge(slices, whole=whole))
            if self._linkable(inputs, cursor, worth) is not None:
                break
            if all(at[0] == len(r.pieces) for r, at in zip(inputs, cursor, strict=True)):
                break
        return concat([part for part in parts if len(part)] or parts[:1]), taken, cursor


def _due(rows: Sequence[int]) -> tuple[int, int] | None:
    """Which of some neighbouring runs, oldest first, to merge: (first, count).

    A run counts as of its own tier or that of any newer run, whichever is higher, so tiers fall from old to
    new, and a tier has at most `FAN_IN` - 1 runs that wait.
    """
    tiers: list[int] = []
    tier = 0
    for n in reversed(rows):
        tier = max(tier, _tier(n))
        tiers.append(tier)
    tiers.reverse()
    for tier in sorted(set(tiers)):
        count = tiers.count(tier)
        if count >= FAN_IN:
            return tiers.index(tier), count
    return None


def _tier(rows: int) -> int:
    tier, limit = 0, TINY_ROWS
    while rows > limit:
        tier, limit = tier + 1, limit * FAN_IN
    return tier
