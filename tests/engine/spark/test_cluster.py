"""The same program on a Spark cluster: a master and a worker of their own, on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyspark
import pytest

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer
from penstock.engine.spark.java import java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EVENTS, USERS = 60_000, 20_000
PATIENCE_S = 300.0

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


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _daemon(folder: Path, name: str, *arguments: str, says: str) -> Iterator[None]:
    """One of Spark's own daemons, once it has said so; with its children, it ends with the test."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *arguments]
    log = folder / f"{name}.log"
    env = os.environ | {"JAVA_HOME": str(java_home(folder)), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder / "work")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while says not in log.read_text():
            assert process.poll() is None, log.read_text()[-2_000:]
            assert time.monotonic() < deadline, log.read_text()[-2_000:]
            time.sleep(0.1)
        yield
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


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
    master = f"spark://127.0.0.1:{_free_port()}"
    host, _, port = master.removeprefix("spark://").partition(":")
    deploy = "org.apache.spark.deploy"
    address = (f"{deploy}.master.Master", "--host", host, "--port", port, "--webui-port", "0")
    work = (f"{deploy}.worker.Worker", "-c", "2", "-m", "1500m", "--webui-port", "0", master)
    with (
        BrokerProcess(tmp_path / "log") as broker,
        _daemon(tmp_path, "master", *address, says="I have been elected leader"),
        _daemon(tmp_path, "worker", *work, says="Successfully registered with master"),
    ):
        _send(broker.address)
        (tmp_path / "state").mkdir()
        state = (tmp_path / "state").as_uri()
        program = tmp_path / "far.py"
        program.write_text(PROGRAM)
        given = (tmp_path / "far", broker.address, master, state, EVENTS)
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
