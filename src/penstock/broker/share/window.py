"""The stretch of a partition that a share group is at work on, as runs of records.

`[start_offset, end_offset)`: all before it is DONE, all after it was never handed out. Records in a
row with equal state are one run, so an acquired batch is one run, and what is DONE in the middle
costs one run however long it is.

Invariants (see `check`): the runs cover the window without gap or overlap; neighbours that are
equal are one run; the first one is not DONE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.broker.share.model import Counts, Run, State

__all__ = ["NEVER", "Window"]

NEVER: Final = 1 << 62
"""Later than any time, and behind any offset."""


class Window:
    """The runs of a share partition.

    Args:
        start_offset: where it begins; it is empty.
    """

    def __init__(self, start_offset: int) -> None:
        self.reset(start_offset)

    def reset(self, offset: int) -> None:
        """Begins again at an offset."""
        self.start_offset = self.end_offset = offset
        self._runs: list[Run] = []
        self._sizes = dict.fromkeys(State, 0)
        self._delayed = 0
        self._next_ms = NEVER
        self._hint = offset  # nothing before it is ready
        self._touched: list[tuple[int, int]] = []
        self._is_whole = True

    # -- its runs ----------------------------------------------------------------------------------

    @property
    def runs(self) -> Sequence[Run]:
        """The runs, in order."""
        return self._runs

    @property
    def counts(self) -> Counts:
        """How many records wait for what."""
        sizes = self._sizes
        return Counts(
            sizes[State.AVAILABLE] - self._delayed,
            self._delayed,
            sizes[State.ACQUIRED],
            sizes[State.REJECTED],
        )

    def state_of(self, offset: int) -> Run:
        """A record's run; for offsets outside the window a run of it alone."""
        if offset < self.start_offset:
            return Run(offset, offset, State.DONE)
        if offset >= self.end_offset:
            return Run(offset, offset, State.AVAILABLE)
        return self._runs[self._index(offset)]

    def between(self, first: int, last: int) -> list[Run]:
        """The runs of these records, as far as they are in the window."""
        found = []
        first = max(first, self.start_offset)
        last = min(last, self.end_offset - 1)
        at = max(self._index(first), 0)
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            found.append(run.part(max(run.first, first), min(run.last, last)))
            at += 1
        return found

    def next_ready(self) -> int | None:
        """The first record that is available now."""
        found = next(self._ready(self._hint), None)
        self._hint = self.end_offset if found is None else found
        return found

    def _ready(self, since: int) -> Iterator[int]:
        if self._sizes[State.AVAILABLE] == self._delayed:
            return
        for at in range(max(self._index(since), 0), len(self._runs)):
            if self._runs[at].is_ready:
                yield self._runs[at].first

    def due(self, now_ms: int) -> list[Run]:
        """The runs whose lock or delay is over; each is returned once."""
        if now_ms < self._next_ms:
            return []
        waiting = (run.until_ms for run in self._runs if run.until_ms > now_ms)
        self._next_ms = min(waiting, default=NEVER)
        return [run for run in self._runs if 0 < run.until_ms <= now_ms]

    # -- changes -----------------------------------------------------------------------------------

    def set(self, run: Run) -> None:
        """Makes `run` the window's, in place of the runs there; it may lengthen the window."""
        assert self.start_offset <= run.first <= self.end_offset, run
        low = self._cut(run.first)
        high = self._cut(run.last + 1)
        for old in self._runs[low:high]:
            self._note(old, -1)
        self._note(run, 1)
        self.end_offset = max(self.end_offset, run.last + 1)
        self._touched.append((run.first, run.last))
        if run.state is State.ACQUIRED or run.until_ms:
            self._next_ms = min(self._next_ms, run.until_ms)
        elif run.state is State.AVAILABLE:
            self._hint = min(self._hint, run.first)
        merged = [run]
        if low and self._runs[low - 1].precedes(run):
            low -= 1
            merged = [self._runs[low].and_upto(run.last)]
        if high < len(self._runs) and merged[0].precedes(self._runs[high]):
            merged = [merged[0].and_upto(self._runs[high].last)]
            high += 1
        self._runs[low:high] = merged
        if self._runs[0].state is State.DONE:
            self._advance()

    def _index(self, offset: int) -> int:
        return bisect_right(self._runs, offset, key=lambda run: run.first) - 1

    def _note(self, run: Run, sign: int) -> None:
        self._sizes[run.state] += sign * run.size
        if run.state is State.AVAILABLE and run.until_ms:
            self._delayed += sign * run.size

    def _cut(self, offset: int) -> int:
        """Makes a run begin at `offset`; its index (or the runs' number, at the end)."""
        if offset >= self.end_offset:
            return len(self._runs)
        at = self._index(offset)
        run = self._runs[at]
        if run.first == offset:
            return at
        self._runs[at : at + 1] = [run.part(run.first, offset - 1), run.part(offset, run.last)]
        return at + 1

    def _advance(self) -> None:
        while self._runs and self._runs[0].state is State.DONE:
            run = self._runs.pop(0)
            self._note(run, -1)
            self.start_offset = run.last + 1

    def cut_end(self, offset: int) -> None:
        """Ends the window there."""
        assert self.start_offset < offset < self.end_offset
        at = self._cut(offset)
        for run in self._runs[at:]:
            self._note(run, -1)
        del self._runs[at:]
        self.end_offset = offset
        self._hint = min(self._hint, offset)
        self.rewrite()

    # -- what changed ------------------------------------------------------------------------------

    def drain(self) -> tuple[list[Run], bool] | None:
        """The runs that were set since the last call, and whether they are all there are; None:
        nothing changed. What has left the window at its start is DONE.
        """
        if self._is_whole:
            self.settle()
            return list(self._runs), True
        if not self._touched:
            return None
        runs: list[Run] = []
        end = -1
        for low, high in sorted(self._touched):
            low, high = max(low, end + 1), min(high, self.end_offset - 1)  # noqa: PLW2901
            if low > high:
                continue
            if low < self.start_offset:
                runs.append(Run(low, min(high, self.start_offset - 1), State.DONE))
            runs += self.between(low, high)
            end = max(end, high)
        self.settle()
        return runs, False

    def rewrite(self) -> None:
        """The next `drain` gives all."""
        self._touched, self._is_whole = [], True

    def settle(self) -> None:
        """All that has changed is known."""
        self._touched, self._is_whole = [], False

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts all invariants."""
        position = self.start_offset
        sizes = dict.fromkeys(State, 0)
        delayed = 0
        for run in self._runs:
            assert run.first == position <= run.last, run
            position = run.last + 1
            sizes[run.state] += run.size
            delayed += run.size if run.state is State.AVAILABLE and run.until_ms else 0
            assert not run.until_ms or self._next_ms <= run.until_ms, run
            assert not run.is_ready or run.last >= self._hint, run
        assert position == self.end_offset
        assert sizes == self._sizes
        assert delayed == self._delayed
        assert not self._runs or self._runs[0].state is not State.DONE
