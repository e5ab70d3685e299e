"""A pipeline whose Spark cluster is another machine: a network namespace with a master and a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.engine.spark.daemons import PATIENCE_S, master, worker
from tests.namespaces import other_machine
from tests.patience import wait_until

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer
from penstock.errors import QueryError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
EVENTS = 1_000

PROGRAM = """
import sys
from pathlib import Path
import penstock as ps

name, folder, log, spark, goes = sys.argv[1:]
app = ps.App(
    name,
    log=f"kafka://{log}",
    spark=spark,
    state=(Path(folder) / name).as_uri(),
    directory=Path(folder) / f"{name}.penstock",
    cores=1,
)
events = app.stream("events", "user STRING NOT NULL")
app.view("per_user", events.group_by("user").agg(n=ps.count()))
rows = []
app.run(
    on_progress=lambda batch: rows.append(batch.rows),
    until=lambda: sum(rows) >= 1_000 and Path(goes).exists(),
)
"""


def _send(address: str) -> None:
    with Client(address) as client, Producer(address) as producer:
        client.create_topic("events", 1, {"retention.ms": "-1"})
        values = pa.array([b'{"user": "u%d"}' % (n % 4) for n in range(EVENTS)])
        producer.send("events", 0, None, values, np.full(EVENTS, 1_767_225_600_000, np.int64))


def test_two_pipelines_share_a_cluster_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers reach the driver by the way to the master, and each pipeline takes the cores of its lanes."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    program, goes = tmp_path / "program.py", tmp_path / "goes"
    program.write_text(PROGRAM)
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, spark: str, log: str) -> subprocess.Popen[bytes]:
        (tmp_path / name).mkdir()
        given = map(str, (name, tmp_path, log, spark, goes))
        with (tmp_path / f"{name}.txt").open("wb") as output:
            one = subprocess.Popen(
                [sys.executable, str(program), *given], stdout=output, stderr=output
            )
        running.append(one)
        return one

    def counted(name: str) -> dict[str, int]:
        try:
            rows = ps.serve.Views((tmp_path / name).as_uri()).table("per_user")
        except QueryError:
            return {}
        return dict(zip(rows["user"].to_pylist(), rows["n"].to_pylist(), strict=True))

    wanted = {f"u{n}": EVENTS // 4 for n in range(4)}
    with (
        other_machine() as other,
        BrokerProcess(
            tmp_path / "log", listen=f"{other.here}:0", arguments=["--allow-remote"]
        ) as broker,
        master(tmp_path, other.there, other.within) as spark,
        worker(tmp_path, spark, memory="3g", host=other.there, within=other.within),
    ):
        _send(broker.address)
        try:
            for name in ("one", "two"):  # the first one stays
                process = start(name, spark, broker.address)

                def has_all(name: str = name, process: subprocess.Popen[bytes] = process) -> bool:
                    assert process.poll() is None, (tmp_path / f"{name}.txt").read_text()[-3_000:]
                    return counted(name) == wanted

                wait_until(has_all, f"the view of {name}", patience_s=PATIENCE_S)
            goes.touch()
            for one in running:
                assert one.wait(PATIENCE_S) == 0
        finally:
            for one in running:
                one.kill()
                one.wait()
