"""A machine that stops at any moment loses what it had not written to its disk: nothing shows.

The seed is in the message of a failure; repeat it with
`PENSTOCK_SETTLING_SEED=… pytest tests/engine/upkeep/test_settling.py`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.effort import rounds

import penstock as ps
from penstock.engine.hosts.local import LocalHost
from penstock.engine.log import Outgoing, Writer
from penstock.engine.runtime import assemble
from penstock.engine.store import Store
from penstock.engine.upkeep import keeper
from penstock.errors import CorruptError
from penstock.serve.views import Snapshot
from penstock.state import LocalStateFiles
from penstock.state.runs import OPEN
from penstock.testing import MemoryLog

SEED = int(os.environ.get("PENSTOCK_SETTLING_SEED", "20261122"))
RUNS = rounds("PENSTOCK_SETTLING_RUNS", quick=4, full=20)
STEPS = 40
NOW_US = 1_767_225_600_000_000


class StopError(Exception):
    """The machine stops."""


class Disk(LocalStateFiles):
    """Files of which those that were not synced may be lost when the machine stops."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, fsync=False)
        self.unsynced: set[str] = set()
        self.stops = 0
        self.cache = Cache(self)

    @property
    def run(self) -> str:
        return f"run {self.stops}"

    def relaxed(self) -> LocalStateFiles:
        return self.cache

    def sync(self, paths: Any) -> None:
        for path in list(paths):
            assert self.exists(path)
            self.unsynced.discard(path)

    def stop(self, chance: random.Random) -> None:
        """The machine stops; of each file that was not synced, anything may be left."""
        for path in sorted(self.unsynced):
            what, at = chance.randrange(4), Path(self._at(path))
            if what == 0:
                self.delete(path)
            elif what < 3 and at.exists():
                data = at.read_bytes()
                at.unlink()  # what is mapped stays as it was
                at.write_bytes(data[: (0, len(data) // 2)[what - 1]])
        self.unsynced.clear()
        self.stops += 1
        OPEN.clear()


class Cache(LocalStateFiles):
    """The same files, written without a sync."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.directory, fsync=False)
        self.disk = disk

    def write(self, path: str, chunks: Any) -> None:
        self.disk.unsynced.add(path)
        super().write(path, chunks)

    def create(self, path: str, data: bytes) -> bool:
        created = super().create(path, data)
        if created:
            self.disk.unsynced.add(path)
        return created


class Topics(MemoryLog):
    """A log that recognises the last batch of a writer alone when it comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[tuple[str, int, int], int] = {}

    def send(self, topic: str, outgoing: Outgoing, writer: Writer) -> None:
        where = topic, outgoing.partition, writer.producer_id
        first = writer.next_sequence.get(outgoing.partition, 0)
        assert first >= self.last.get(where, 0), "an older batch came again"
        self.last[where] = first
        super().send(topic, outgoing, writer)


def program() -> ps.App:
    app = ps.App("settling")
    events = app.stream(
        "events",
        "user STRING NOT NULL, v BIGINT, at TIMESTAMP",
        time=ps.event_time("at", lateness="1 second"),
        partitions=2,
    )
    users = (
        events.window(ps.tumbling("10 seconds")).group_by("user").agg(n=ps.count(), v=ps.sum("v"))
    )
    app.view("users", users)
    app.view("sizes", users.group_by("n").agg(users=ps.count()))
    return app


class Pipeline:
    """Runs the program until the machine stops, and again."""

    def __init__(self, disk: Disk, log: Topics) -> None:
        self.disk, self.log, self.app = disk, log, program()
        self.seen: dict[int, Any] = {}
        self.stops_in_batch = False
        self.start()

    def start(self) -> None:
        self.store = Store(self.disk)
        self.taken_back = self.store.recover()
        job, self.driver = assemble(
            self.app.graph(),
            self.store,
            self.log,
            cores=2,
            open_store=lambda: self.store,
            open_log=lambda: self.log,
            wall_us=lambda: NOW_US,
            relaxed=True,
        )
        assert job.relaxed
        self.host = LocalHost(job, lanes=self.driver.lanes)

    def step(self) -> bool:
        """Runs a batch; a version that is made again must be what readers have seen."""

        def execute(*arguments: Any) -> Any:
            reports = self.host.execute(*arguments)
            if self.stops_in_batch:
                raise StopError
            return reports

        if self.driver.step(execute) is None:
            return False
        number = self.driver.version.number
        found = Snapshot(self.store, self.store.version(number))
        rows = [sorted(map(str, found.table(name).to_pylist())) for name in ("users", "sizes")]
        assert self.seen.setdefault(number, rows) == rows
        return True


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", range(RUNS))
def test_what_a_machine_loses_is_made_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that readers have seen come back as they were, and dead letters are written once."""
    chance = random.Random(f"{SEED} {number}")
    disk, log = Disk(tmp_path), Topics()
    pipeline = Pipeline(disk, log)
    sent: list[str] = []
    bad = 0
    for _ in range(STEPS):
        for _ in range(chance.randrange(4)):
            second = len(sent) // 2
            value = (
                f'{{"user":"u{chance.randrange(3)}","v":1,"at":{NOW_US // 1_000 + 1_000 * second}}}'
            )
            if chance.random() < 0.1:
                value, bad = "no row", bad + 1
            sent.append(value)
            log.append("events", chance.randrange(2), None, value, NOW_US // 1_000)
        monkeypatch.setattr(keeper, "SETTLE_EVERY_S", chance.choice([0.0, 3_600.0, 3_600.0]))
        pipeline.stops_in_batch = chance.random() < 0.05
        try:
            pipeline.step()
        except StopError:
            stops = True
        else:
            stops = chance.random() < 0.1
        if stops:
            disk.stop(chance)
            pipeline.start()
    pipeline.stops_in_batch = False
    while pipeline.step():
        pass
    users = Snapshot(pipeline.store, pipeline.driver.version).table("users")
    letters = [r for r in log.records("settling.dead-letters") if r.value == b"no row"]
    late = sum(pipeline.driver.version.counts.late.values())
    repeat = f"PENSTOCK_SETTLING_SEED={SEED}, run {number}"
    assert sum(users.column("n").to_pylist()) == len(sent) - bad - late, repeat
    assert len(letters) == bad, repeat


def test_a_process_that_ends_loses_nothing(tmp_path: Path) -> None:
    """Where the machine goes on, versions that are not settled stay."""
    disk, log = Disk(tmp_path), Topics()
    pipeline = Pipeline(disk, log)
    log.append("events", 0, None, '{"user":"a","v":1,"at":0}', NOW_US // 1_000)
    assert pipeline.step()
    assert any(path.startswith("versions/") for path in disk.unsynced)
    pipeline.start()
    assert not pipeline.taken_back
    assert pipeline.driver.version.number == 1


def test_whoever_closes_settles(tmp_path: Path) -> None:
    """After an orderly end a machine may stop, and nothing has to be made again."""
    disk, log = Disk(tmp_path), Topics()
    pipeline = Pipeline(disk, log)
    for second in range(1, 6):
        log.append("events", 0, None, f'{{"user":"a","v":1,"at":{second}000}}', NOW_US // 1_000)
        assert pipeline.step()
    pipeline.driver.close()
    disk.stop(random.Random(1))
    pipeline.start()
    assert not pipeline.taken_back
    assert pipeline.driver.version.number == 5
    rows = Snapshot(pipeline.store, pipeline.driver.version).table("users")
    assert rows.column("n").to_pylist() == [5]


def test_a_savepoint_survives_the_machine(tmp_path: Path) -> None:
    """What is pinned is on the disk, though its version need not be."""
    disk, log = Disk(tmp_path), Topics()
    pipeline = Pipeline(disk, log)
    log.append("events", 0, None, '{"user":"a","v":1,"at":0}', NOW_US // 1_000)
    assert pipeline.step()
    pipeline.store.sync(pipeline.driver.version)
    disk.stop(random.Random(0))
    found = Snapshot(Store(disk), pipeline.driver.version).table("users")
    assert found.column("n").to_pylist() == [1]


def test_a_damaged_version_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """A settled version that isn't what was written is reported, whatever has happened to the machine."""
    disk, log = Disk(tmp_path), Topics()
    pipeline = Pipeline(disk, log)
    log.append("events", 0, None, '{"user":"a","v":1,"at":0}', NOW_US // 1_000)
    assert pipeline.step()
    pipeline.driver.close()
    path = "versions/00000000000000000001.json"
    data = disk.read(path)
    disk.write(path, [data[:-1]])
    disk.stop(random.Random(0))
    with pytest.raises(CorruptError, match=path):
        pipeline.start()
