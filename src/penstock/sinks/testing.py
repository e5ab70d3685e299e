"""The contract of targets as tests: a class that the tests of each target inherit from.

    class TestLines(TargetContract):
        code = str(Path(penstock_lines.__file__).parent)

        @pytest.fixture(autouse=True)
        def path(self, tmp_path):
            self.path = tmp_path / "users.lines"

        def make(self):
            return lines(self.path)

        def rows(self):
            return {row["id"]: row["name"] for row in …}

A source's changes are written in any cuts, again, by a process that takes over, and by one that is killed at
any line of the target's code. What readers find is what the changes before the target's offsets come to.
A failure prints PENSTOCK_SEED, which repeats it.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import PLACEHOLDER
from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.sinks.merging import Merging
from penstock.sinks.targets.contract import Batch, RefusedError, Rows, Switchable, Target

__all__ = ["COLUMNS", "Simulation", "TargetContract", "killed_before"]

COLUMNS: Final = Schema.parse("id BIGINT NOT NULL, name STRING")
OWN_CODE: Final = str(Path(__file__).parent / "targets")
LINES_MAX: Final = 300
"""Before which line a process is killed, at most; a write, a switch or an opening has fewer."""


class _Killed(BaseException):
    """A process has ended."""


@contextlib.contextmanager
def killed_before(line: int, code: str = OWN_CODE) -> Iterator[None]:
    """Ends what runs before a line of code; not even what cleans up runs from then on.

    Args:
        line: the number of the line, counted from here.
        code: the beginning of the names of the files whose lines count.
    """
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(code):
            return None
        if event == "line":
            seen += 1
            if seen >= line:
                raise _Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except _Killed:
        pass
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def _raises(errors: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Checks that one of these errors is raised."""
    try:
        yield
    except errors:
        return
    names = ", ".join(one.__name__ for one in errors)
    raise AssertionError(f"expected one of the errors {names}; found none")


class Simulation:
    """A source with one partition, and the sink's process.

    Args:
        kind: what makes targets of one table, of columns `id` (the key) and `name`.
        seed: of what happens.
    """

    def __init__(self, kind: TargetContract, seed: int) -> None:
        self.kind, self.random = kind, random.Random(seed)  # noqa: S311 - they decide on a test
        self.rows = Rows(f"topic{seed}", COLUMNS, ("id",))
        self.changes: list[tuple[int, str | None]] = []
        self.target: Any = kind.make()
        self.code = kind.code
        self.at = self.opened()

    def opened(self, target: Any = None, sink: str = "sink") -> int:
        """Opens a target; the offset where it continues."""
        return int((target or self.target).open(sink, self.rows).get(0, 0))

    def change(self) -> None:
        """Rows appear, change, and go; `name` is never NULL, which stands for a row that is gone."""
        for _ in range(self.random.randrange(12)):
            id_, chance = self.random.randrange(8), self.random.random()
            name: str | None = f"v{len(self.changes)}"
            if chance < 0.3:
                name = None
            elif chance < 0.5 and self.kind.keeps and id_ in self.truth(len(self.changes)):
                name = PLACEHOLDER
            self.changes.append((id_, name))

    def batch(self, start: int, stop: int) -> Batch:
        """Of each key the last change."""
        some = self.changes[start:stop]
        ids = pa.array([id_ for id_, _ in some], pa.int64())
        names = pa.array([name for _, name in some], pa.string())
        columns = pa.RecordBatch.from_arrays([ids, names], names=["id", "name"])
        gone = np.array([name is None for _, name in some], np.bool_)
        return Merging(self.rows, self.target).merged(columns, gone, np.arange(start, stop), 0)

    def truth(self, stop: int) -> dict[int, str]:
        """The rows that the first changes come to."""
        newest: dict[int, str] = {}
        for id_, name in self.changes[:stop]:
            if name is None:
                newest.pop(id_, None)
            elif name != PLACEHOLDER:
                newest[id_] = name
        return newest

    def write(self, target: Any, start: int, stop: int) -> None:
        """Writes changes, and the offset behind them."""
        target.write(self.batch(start, stop), {0: stop})

    def step_write(self) -> None:
        """The next changes."""
        stop = self.random.randint(self.at, len(self.changes))
        self.write(self.target, self.at, stop)
        self.at = stop

    def step_write_again(self) -> None:
        """As after an answer that was lost."""
        start = self.random.randint(max(self.at - 10, 0), self.at)
        self.write(self.target, start, self.at)

    def step_restart(self) -> None:
        """The process ends, and another one continues."""
        self.target.close()
        self.kind.wait()
        self.target = self.kind.make()
        self.at = self.opened()

    def step_take_over(self) -> None:
        """Another process begins under the sink's name."""
        if self.kind.is_alone:
            other = self.kind.make()
            with _raises(other.passing):
                self.opened(other)
            other.close()
            return
        older, self.target = self.target, self.kind.make()
        self.at = self.opened()
        with _raises((FencedError,)):  # some targets see it by the rows, others by the offsets
            older.write(self.batch(self.at, len(self.changes)), {0: len(self.changes)})
        older.close()
        with _raises((FencedError,)):  # it may have been away, and comes back
            self.opened(older)
        older.close()

    def step_be_killed(self) -> None:
        """A process is killed at any line."""
        target = self.target
        with killed_before(self.random.randrange(1, LINES_MAX), self.code):
            self.write(target, self.at, len(self.changes))
            target.close()
            self.opened(target)
        target.close()
        self.step_restart()

    def step_rebuild(self) -> None:
        """A process builds, and is killed; another one completes it. A sink has the live one, if it may."""
        self.rebuild(killed=True)
        self.rebuild(killed=False)
        with contextlib.suppress(*self.target.passing):
            self.write(self.target, self.at, self.at)
        self.step_restart()

    def rebuild(self, *, killed: bool) -> None:
        """Builds all rows next to the live ones, and puts them in their place."""
        if self.kind.is_alone:
            self.target.close()
        live: Any = self.kind.make()
        new = live.beside("sink", self.rows)
        at = self.opened(new, "sink.rebuild")
        while at < len(self.changes):
            stop = self.random.randint(at + 1, len(self.changes))
            self.write(new, at, stop)
            at = stop
        new.close()
        with killed_before(
            self.random.randrange(1, LINES_MAX) if killed else sys.maxsize, self.code
        ):
            live.switch("sink", self.rows)
        live.close()
        if not killed:
            self.step_restart()
            # Offsets of changes that change nothing may be stored with the next ones.
            assert self.truth(self.at) == self.truth(len(self.changes))

    def step_go_back(self) -> None:
        """Back to what was there before the last rebuild."""
        if self.kind.is_alone:
            self.target.close()
        live: Any = self.kind.make()
        with (
            contextlib.suppress(UserError),  # nothing was built yet
            killed_before(self.random.randrange(1, LINES_MAX), self.code),
        ):
            live.go_back("sink", self.rows)
        live.close()
        self.step_restart()

    def check(self) -> None:
        """Readers find what the changes before the offset come to."""
        if self.kind.is_alone:
            self.target.close()
        if self.kind.is_exact:
            assert self.kind.rows() == self.truth(self.at)
        if self.kind.is_alone:
            self.step_restart()

    def run(self) -> None:
        """Steps by chance; at the end, the target equals the source."""
        steps = [self.step_write, self.step_write, self.step_write_again, self.step_restart]
        steps += [self.step_take_over, self.step_be_killed]
        if self.kind.switches:
            assert isinstance(self.target, Switchable)
            steps += [self.step_rebuild, self.step_go_back]
        for _ in range(self.kind.steps):
            self.change()
            step = self.random.choice(steps)
            print(step.__name__, self.at, len(self.changes))
            step()
            self.check()
        self.write(self.target, self.at, len(self.changes))
        self.target.close()
        assert self.kind.rows() == self.truth(len(self.changes))


class TargetContract:
    """What each target keeps. A subclass defines `make` and `rows`, and says how its target is.

    Attributes:
        code: the beginning of the names of the files with the target's code, in which it is killed.
        is_exact: whether offsets and rows change together, not one after the other.
        is_alone: whether nobody else can open it meanwhile.
        switches: whether it can be rebuilt.
        keeps: whether values stay that an update leaves out: `unchanged = "kept"`.
        steps: of a simulation.
    """

    code: str
    is_exact = True
    is_alone = False
    switches = False
    keeps = False
    steps = 50

    def make(self) -> Target:
        """A new target, each time of the same table, for rows with the columns `id` (the key) and `name`."""
        raise NotImplementedError

    def rows(self) -> dict[int, str | None]:
        """Its rows, `name` by `id`, read by another program."""
        raise NotImplementedError

    def wait(self) -> object:
        """Lets time pass, after which locks of a process that was killed are free."""

    def test_a_target_has_what_the_changes_before_its_offsets_come_to(self) -> None:
        """Whatever happens; at the end, the target equals the source."""
        seed = int(os.environ.get("PENSTOCK_SEED") or secrets.randbits(32))
        print(f"PENSTOCK_SEED={seed}")
        Simulation(self, seed).run()

    def test_a_target_says_what_the_sink_asks(self) -> None:
        """Its name, its table, its pace, whether it keeps offsets, and what it does with unchanged values."""
        target = self.make()
        assert target.name
        assert target.table
        assert target.pace_s >= 0
        assert isinstance(target.keeps_offsets, bool)
        assert target.unchanged in ("kept", "logged", "refused")
        assert (target.unchanged == "kept") == self.keeps
        assert isinstance(target, Switchable) == self.switches
        assert all(issubclass(one, Exception) for one in target.passing)

    def test_a_change_that_leaves_a_value_out_needs_its_row(self) -> None:
        """Else it is refused, and nothing is written. Where it is, the value stays, also written twice."""
        if not self.keeps:
            raise unittest.SkipTest("it keeps no values that an update leaves out")
        one = Simulation(self, 0)
        one.changes += [(1, "a"), (2, "b"), (1, PLACEHOLDER), (3, "c"), (4, "d"), (9, PLACEHOLDER)]
        one.write(one.target, 0, 2)
        one.write(one.target, 2, 4)
        one.write(one.target, 2, 4)
        with _raises((RefusedError,)):
            one.write(one.target, 4 if self.is_exact else 5, 6)
        one.target.close()
        assert self.rows() == {1: "a", 2: "b", 3: "c"}

    def test_offsets_count_where_there_are_no_changes(self) -> None:
        """Such as those of a transaction's markers, at the latest with the next changes."""
        one = Simulation(self, 0)
        one.write(one.target, 0, 0)
        one.changes += [(1, "a"), (2, None)]
        one.write(one.target, 0, 2)
        one.step_restart()
        assert one.at == (2 if one.target.keeps_offsets else 0)
        one.target.close()
        assert self.rows() == {1: "a"}
