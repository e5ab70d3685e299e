"""A pipeline whose state is cut anew right after its process was killed in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock.engine import runtime
from penstock.engine.hosts.local import LocalHost
from penstock.engine.plan import Settings
from penstock.engine.runtime import Watcher, run_pipeline
from penstock.engine.store import Store
from penstock.engine.tasks import Job
from penstock.serve import Views
from penstock.testing import MemoryLog

ROWS = 40


class Killed(BaseException):
    """The process is gone."""


class Host:
    """Runs batches in this thread instead of on Spark; may die once lanes have written."""

    dies = False

    def __init__(self, _: object, job: Job, *, lanes: int, **__: object) -> None:
        self.local = LocalHost(job, lanes=lanes)

    def run(self, steps: Any, on_progress: Any, until: Callable[[], bool], *_: object) -> None:
        while not until():
            progress = steps.step(self.execute)
            if progress is not None:
                on_progress(progress)

    def execute(self, *arguments: Any) -> Any:
        reports = self.local.execute(*arguments)
        if Host.dies and any(report.writers for report in reports):
            raise Killed
        return reports


NO_SPARK: Any = SimpleNamespace(is_here=False)


class Upto(Watcher):
    """Ends a run at a version."""

    def __init__(self, store: Store, version: int) -> None:
        self.store, self.version = store, version

    def is_over(self) -> bool:
        return self.store.newest_version() >= self.version


def program() -> ps.App:
    app = ps.App("p")
    events = app.stream("events", "user STRING NOT NULL, v BIGINT", partitions=2)
    table = events.group_by("user").agg(n=ps.count(), total=ps.sum("v"))
    app.view("per_user", table)
    table.to("changes", emit="changes", partitions=1)
    return app


def test_other_shards_right_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that was begun is ended by the shards that began it; then state is cut. Nothing is twice."""
    log = MemoryLog()
    monkeypatch.setattr(runtime, "SparkHost", Host)
    monkeypatch.setattr(runtime, "KafkaLog", lambda _: log)
    monkeypatch.setattr(runtime, "open_log", lambda _: log)
    graph, store = program().graph(), runtime.open_store(str(tmp_path / "state"))
    log.ensure_topic("events", 2)

    def run(shards: int | None, upto: int, *, dies: bool = False) -> None:
        monkeypatch.setattr(Host, "dies", dies)
        run_pipeline(
            graph,
            Settings(tmp_path, cores=2, shards=shards),
            "nowhere",
            NO_SPARK,
            Upto(store, upto),
        )

    for number in range(ROWS):
        body = b'{"user":"u%d","v":%d}' % (number % 7, number)
        log.append("events", number % 2, None, body, 1_767_225_600_000)
        if number == ROWS // 2:
            run(None, 1)
    with pytest.raises(Killed):
        run(None, 2, dies=True)
    run(3, 3)  # version 2 is the batch that was begun, 3 has the state on other shards
    log.append("events", 0, None, b'{"user":"u0","v":1}', 1_767_225_600_000)
    run(3, 4)
    assert [store.version(number).shards for number in (1, 2, 3)] == [2, 2, 3]
    rows = {row["user"]: row["n"] for row in Views(tmp_path).table("per_user").to_pylist()}
    assert sum(rows.values()) == ROWS + 1
    changed = [record.value for record in log.records("changes")]
    assert len(changed) == len(set(changed)) == 7 + 7 + 1
