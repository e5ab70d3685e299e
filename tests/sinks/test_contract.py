"""The contract of targets (`_targets/contract.py`): the same simulation for each kind.

A source's changes are written in any cuts, again, by a process that takes over, and by one that is killed at
any line of the target's code. What readers find is what the changes before the target's offsets come to.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.sinks import kinds
from tests.sinks.kinds import Kind

import penstock.sinks
from penstock.core.delta import PLACEHOLDER
from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.sinks._merging import Merging
from penstock.sinks._targets.contract import Batch, Rows, Switchable
from penstock.sinks._targets.lake.folders import Folder

CODE = str(Path(penstock.sinks.__file__).parent / "_targets")
COLUMNS = Schema.parse("id BIGINT NOT NULL, name STRING")
STEPS = rounds("PENSTOCK_TARGET_STEPS", quick=15, full=30)
LINES_MAX = 300
"""Before which line a process is killed, at most; a write, a switch or an opening has fewer."""


@pytest.fixture(params=kinds.NAMES)
def kind(request, tmp_path: Path) -> Kind:
    """A new target of each kind."""
    return kinds.kind(request.param, request, tmp_path)


KEPT = PLACEHOLDER
"""A name that an update leaves out."""


class Killed(BaseException):
    """A process has ended."""


@contextlib.contextmanager
def killed_before(line: int) -> Iterator[None]:
    """Ends what runs before a line of the targets' code; not even what cleans up runs from then on."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            seen += 1
            if seen >= line:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except Killed:
        pass
    finally:
        sys.settrace(before)


class Simulation:
    """A source with one partition, and the sink's process."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.random = kind, random.Random(seed)
        self.rows = Rows(f"topic{seed}", COLUMNS, ("id",))
        self.changes: list[tuple[int, str | None]] = []
        self.target = kind.make()
        self.at = self.opened()

    def opened(self, target: Any = None, sink: str = "sink") -> int:
        return (target or self.target).open(sink, self.rows).get(0, 0)

    def change(self) -> None:
        """Rows appear, change, and go; `name` is never NULL, which stands for a row that is gone."""
        for _ in range(self.random.randrange(12)):
            id_, chance = self.random.randrange(8), self.random.random()
            name: str | None = f"v{len(self.changes)}"
            if chance < 0.3:
                name = None
            elif chance < 0.5 and self.kind.keeps and id_ in self.truth(len(self.changes)):
                name = KEPT
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
        newest: dict[int, str] = {}
        for id_, name in self.changes[:stop]:
            if name is None:
                newest.pop(id_, None)
            elif name != KEPT:
                newest[id_] = name
        return newest

    def write(self, target: Any, start: int, stop: int) -> None:
        target.write(self.batch(start, stop), {0: stop})

    def step_write(self) -> None:
        stop = self.random.randint(self.at, len(self.changes))
        self.write(self.target, self.at, stop)
        self.at = stop

    def step_write_again(self) -> None:
        """As after an answer that was lost."""
        start = self.random.randint(max(self.at - 10, 0), self.at)
        self.write(self.target, start, self.at)

    def step_restart(self) -> None:
        self.target.close()
        self.kind.wait()
        self.target = self.kind.make()
        self.at = self.opened()

    def step_take_over(self) -> None:
        if self.kind.is_alone:
            other = self.kind.make()
            with pytest.raises(other.passing):
                self.opened(other)
            other.close()
            return
        older, self.target = self.target, self.kind.make()
        self.at = self.opened()
        with pytest.raises(FencedError):  # some targets see it by the rows, others by the offsets
            older.write(self.batch(self.at, len(self.changes)), {0: len(self.changes)})
        older.close()
        with pytest.raises(FencedError):  # it may have been away, and comes back
            self.opened(older)
        older.close()

    def step_be_killed(self) -> None:
        target = self.target
        with killed_before(self.random.randrange(1, LINES_MAX)):
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
        if self.kind.is_alone:
            self.target.close()
        live = self.kind.make()
        new = live.beside("sink", self.rows)
        at = self.opened(new, "sink.rebuild")
        while at < len(self.changes):
            stop = self.random.randint(at + 1, len(self.changes))
            self.write(new, at, stop)
            at = stop
        new.close()
        with killed_before(self.random.randrange(1, LINES_MAX) if killed else sys.maxsize):
            live.switch("sink", self.rows)
        live.close()
        if not killed:
            self.step_restart()
            # Offsets of changes that change nothing may be stored with the next ones.
            assert self.truth(self.at) == self.truth(len(self.changes))

    def step_go_back(self) -> None:
        if self.kind.is_alone:
            self.target.close()
        live = self.kind.make()
        with (
            contextlib.suppress(UserError),  # nothing was built yet
            killed_before(self.random.randrange(1, LINES_MAX)),
        ):
            live.go_back("sink", self.rows)
        live.close()
        self.step_restart()

    def check(self) -> None:
        if self.kind.is_alone:
            self.target.close()
        if self.kind.is_exact:
            assert self.kind.rows() == self.truth(self.at)
        if self.kind.is_alone:
            self.step_restart()


# A process that ends leaves files open, which the one of the tests reports.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.+_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
def test_a_target_has_what_the_changes_before_its_offsets_come_to(kind: Kind, seed: int) -> None:
    """Whatever happens; at the end, the target equals the source."""
    one = Simulation(kind, seed)
    steps = [one.step_write, one.step_write, one.step_write_again, one.step_restart]
    steps += [one.step_take_over, one.step_be_killed]
    if kind.switches:
        assert isinstance(one.target, Switchable)
        steps += [one.step_rebuild, one.step_go_back]
    for _ in range(STEPS * kind.steps // 100):
        one.change()
        step = one.random.choice(steps)
        print(step.__name__, one.at, len(one.changes))
        step()
        one.check()
    one.write(one.target, one.at, len(one.changes))
    one.target.close()
    assert kind.rows() == one.truth(len(one.changes))


WRITER = """
import resource, sys
import numpy as np
import pyarrow as pa
from penstock.core.schema import Schema
from penstock.sinks import from_address
from penstock.sinks._merging import Merging
from penstock.sinks._targets.contract import Batch, Rows
rows = Rows("topic", Schema.parse("id BIGINT NOT NULL, name STRING"), ("id",))
target = from_address(*sys.argv[1:])
def write(at, size):
    text = np.random.default_rng(at).bytes(size).hex()
    upserts = pa.RecordBatch.from_pylist([{"id": at, "name": text}], rows.nothing().schema)
    none = rows.nothing().select(["id"]).slice(0, 0)
    target.write(Batch(upserts, none, np.array([at]), np.zeros(0, np.int64), 0), {0: at + 1})
target.open("sink", rows)
write(0, 10)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
try:
    write(1, 1_000_000)
except target.passing:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    target.close()
    assert target.open("sink", rows) == {0: 1}
    write(1, 1_000_000)
    target.close()
    print("it passed")
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "kind", ["sqlite", "duckdb", "tantivy", "iceberg", "delta", "parquet"], indirect=True
)
def test_a_file_that_cannot_be_written_is_waited_for(kind: Kind) -> None:
    """As where the disk is full: a limit of the process's files stands for that. Nothing is there in part."""
    command = [sys.executable, "-c", WRITER, kind.address, kind.table]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "it passed\n", done.stderr
    assert sorted(kind.rows()) == [0, 1]


def test_a_directory_is_free_wherever_who_had_it_was_killed(tmp_path: Path) -> None:
    """What has it says so, before it has it and until it is free."""
    for line in range(1, 40):
        one, other = (Folder(tmp_path / "users") for _ in range(2))
        with killed_before(line):
            one.take()
            one.let_go()
        one.let_go()
        other.take()
        other.let_go()


def test_a_directory_that_is_built_takes_no_place(tmp_path: Path) -> None:
    """Who builds would write on into the one before."""
    one = Folder(tmp_path / "users")
    building = Folder(one.beside())
    building.take()
    with pytest.raises(BlockingIOError, match="users__new is written to by another process"):
        one.switch()
    building.let_go()
    one.switch()
    assert not one.new.exists()


def test_of_two_that_switch_at_once_one_does(tmp_path: Path, monkeypatch) -> None:
    """The other one finds nothing that was built: it would put the live one aside, and drop that before."""
    path, rows = tmp_path / "target.db", Rows("topic", COLUMNS, ("id",))
    one, other = (penstock.sinks.sqlite(path, table="users") for _ in range(2))
    for target, sink in ((one, "sink"), (one.beside("sink", rows), "sink.rebuild")):
        target.open(sink, rows)
        target.close()
    move = one._move

    def late(*arguments: Any, **more: Any) -> None:
        other.switch("sink", rows)
        move(*arguments, **more)

    monkeypatch.setattr(one, "_move", late)
    with pytest.raises(UserError, match="Rebuild it first"):
        one.switch("sink", rows)
    one.connect()
    names = [name for name in ("users", "users__new", "users__old") if one.columns_of(name)]
    one.close()
    assert names == ["users", "users__old"]


def test_nothing_is_put_in_the_place_of_the_live_one_before_it_was_built(kind: Kind) -> None:
    """The message says what to do first."""
    if not kind.switches:
        pytest.skip("it can't be built anew")
    one = Simulation(kind, 0)
    one.target.close()
    target = kind.make()
    with contextlib.closing(target), pytest.raises(UserError, match="Rebuild it first"):
        target.switch("sink", one.rows)
    with contextlib.closing(target), pytest.raises(UserError, match="Only what a rebuild has"):
        target.go_back("sink", one.rows)
