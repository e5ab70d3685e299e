"""The contract of targets (`targets/contract.py`): the same simulation for each kind.

A source's changes are written in any cuts, again, by a process that takes over, and by one that is killed at
any line of the target's code. What readers find is what the changes before the target's offsets come to.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.effort import rounds
from tests.sinks import kinds
from tests.sinks.kinds import Kind

import penstock.sinks
from penstock.errors import UserError
from penstock.sinks import TARGETS, Rows
from penstock.sinks.targets.lake.folders import Folder
from penstock.sinks.testing import COLUMNS, Simulation, TargetContract, killed_before

STEPS = rounds("PENSTOCK_TARGET_STEPS", quick=15, full=30)


@pytest.fixture(params=kinds.KINDS)
def kind(request) -> Kind:
    """A new target of each kind."""
    return kinds.kind(request.param, request)


# A process that ends leaves files open, which the one of the tests reports.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.+_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
class TestContract(TargetContract):
    """What other distributions check of their targets, for each of ours."""

    @pytest.fixture(autouse=True)
    def case(self, kind: Kind) -> None:
        """The kind says how it is."""
        for name in ("code", "is_exact", "is_alone", "switches", "keeps", "make", "rows", "wait"):
            setattr(self, name, getattr(kind, name))
        self.steps = STEPS * kind.steps // 100


def test_each_kind_keeps_to_the_contract() -> None:
    """A new one is made in `kinds.py`. What HTTP servers got can't be read again: test_forwarding.py."""
    missing = {one.name for one in TARGETS.own()} - kinds.KINDS.keys() - {"http"}
    assert not missing, f"expected in tests/sinks/kinds.py a function for each of {sorted(missing)}"


WRITER = """
import resource, sys
import numpy as np
import pyarrow as pa
from penstock.core.schema import Schema
from penstock.sinks import from_address
from penstock.sinks.merging import Merging
from penstock.sinks.targets.contract import Batch, Rows
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
