"""The same program on a Spark cluster: a master and a worker of their own, on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.engine.spark.daemons import PATIENCE_S, master, worker

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EVENTS, USERS = 60_000, 20_000

PROGRAM = """
import sys
import penstock as ps

directory, address, spark, state, wanted = sys.argv[1:]
app = ps.App("far", directory=directory, log=f"kafka://{address}", spark=spark, state=state)
events = app.stream(
    "events",
    "user STRING NOT NULL, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
    time=ps.event_time("at", lateness="1 second"),
)
windows = events.window(ps.tumbling("1 minute")).group_by("user")
app.view("per_user", windows.agg(n=ps.count(), total=ps.sum("v")))
rows = []
app.run(on_progress=lambda batch: rows.append(batch.rows), until=lambda: sum(rows) >= int(wanted))
"""


def _send(address: str) -> None:
    values = [
        b'{"user":"user-%012d","v":%d,"at":"2026-01-01T00:00:%02dZ"}' % (i % USERS, i, i % 60)
        for i in range(EVENTS)
    ]
    with Client(address) as client:
        client.create_topic("events", 2, {"retention.ms": "-1"})
    producer = Producer(address)
    times = np.full(EVENTS // 2, 1_767_225_600_000, np.int64)
    for partition in (0, 1):
        producer.send("events", partition, None, pa.array(values[partition::2], pa.binary()), times)
    producer.close()


def test_a_cluster_gives_the_same_view(tmp_path: Path) -> None:
    """Two addresses are all that changes."""
    with (
        BrokerProcess(tmp_path / "log") as broker,
        master(tmp_path) as spark,
        worker(tmp_path, spark),
    ):
        _send(broker.address)
        (tmp_path / "state").mkdir()
        state = (tmp_path / "state").as_uri()
        program = tmp_path / "far.py"
        program.write_text(PROGRAM)
        given = (tmp_path / "far", broker.address, spark, state, EVENTS)
        done = subprocess.run(
            [sys.executable, str(program), *map(str, given)],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        assert not (tmp_path / "far" / "spark" / "exchange").exists(), "machines share no folder"
        rows = ps.serve.Views(state).table("per_user")
    expected = {f"user-{u:012d}": sum(range(u, EVENTS, USERS)) for u in range(USERS)}
    assert dict(zip(rows["user"].to_pylist(), rows["total"].to_pylist(), strict=True)) == expected
    assert set(rows["n"].to_pylist()) == {EVENTS // USERS}
