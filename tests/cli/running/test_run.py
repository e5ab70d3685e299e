"""`penstock run` from beginning to end, on Spark: what is told, what is computed, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pytest
from tests.patience import wait_until

from penstock.app.facts import read_facts
from penstock.cli.support.address import find_broker
from penstock.client import Producer
from penstock.errors import PenstockError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PATIENCE_S = 300.0

PROGRAM = """
import penstock as ps

app = ps.App("two")
sales = app.stream("sales", "item STRING, n BIGINT, at TIMESTAMP", time=ps.event_time("at"))


def per_item(stream):
    return stream.window(ps.tumbling("1 minute")).group_by("item").agg(n=ps.sum("n"))


app.view("one", per_item(sales))
app.view("two", per_item(sales))
for name in ("hours", "hours_too"):
    app.view(name, per_item(sales).window(ps.tumbling("1 hour")).agg(most=ps.max("n")))
"""


def rows(directory: Path, view: str) -> list[tuple[object, ...]]:
    """A view's content; none before it is there."""
    try:
        columns = list(Views(directory).table(view).columns[2:])
    except PenstockError:
        return []
    return sorted(zip(*(c.to_pylist() for c in columns), strict=True))


def restarts(directory: Path) -> int | None:
    """How often the run has started Spark again."""
    found = read_facts(directory)
    return None if found is None else found.facts.spark_restarts


def send(address: str, *numbers: int) -> None:
    """Sells tea."""
    values = [{"item": "tea", "n": n, "at": "2026-01-01T00:00:00Z"} for n in numbers]
    with Producer(address, acks="all") as producer:
        bodies = pa.array([orjson.dumps(one) for one in values], pa.binary())
        times = np.full(len(values), 1_767_225_600_000, np.int64)
        producer.send("sales", 0, None, bodies, times)


def kill_java(pid: int) -> None:
    """Kills the JVM of a program, as soon as there is one."""

    def found() -> list[psutil.Process]:
        family = psutil.Process(pid).children(recursive=True)
        return [one for one in family if "java" in one.name()]

    wait_until(found, patience_s=PATIENCE_S)[0].kill()


def test_a_program_goes_on_without_its_jvm(tmp_path: Path) -> None:
    """The address is told; what is built twice is one; a JVM that is killed is started again, twice."""
    (tmp_path / "two.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "penstock.cli", "run", "two.py", "--no-ui"]
    directory = tmp_path / "two.penstock"
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        child = subprocess.Popen(command, cwd=tmp_path, stderr=file, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: b"the log is at" in stderr.read_bytes(), patience_s=PATIENCE_S)
        address = find_broker(None, {}, tmp_path)
        assert f"the log is at {address}" in stderr.read_text()
        send(address, 2, 3)
        wait_until(lambda: rows(directory, "two"), stderr.read_text, patience_s=PATIENCE_S)
        assert rows(directory, "one") == rows(directory, "two") == [("tea", 5)]
        assert rows(directory, "hours") == rows(directory, "hours_too") == [(5,)]
        # A JVM that is killed while it starts is begun anew, and not counted as restarted.
        runs = re.compile(rb"^(live|waiting for events)", re.MULTILINE)
        wait_until(
            lambda: runs.search(stderr.read_bytes()), stderr.read_text, patience_s=PATIENCE_S
        )
        for killed, number, total in ((1, 4, 9), (2, 5, 14)):
            kill_java(child.pid)
            send(address, number)
            for is_there in (
                lambda killed=killed: restarts(directory) == killed,
                lambda total=total: rows(directory, "two") == [("tea", total)],
            ):
                wait_until(is_there, stderr.read_text, patience_s=PATIENCE_S)
        assert rows(directory, "one") == [("tea", 14)]
        assert rows(directory, "hours") == rows(directory, "hours_too") == [(14,)]
        assert sum(one.is_dir() for one in (directory / "spark/tmp").iterdir()) == 1
        child.terminate()
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()
    said = stderr.read_text()
    warnings = [
        line for line in said.splitlines() if line.startswith("WARNING penstock.engine.spark")
    ]
    assert ["It is started again" in line for line in warnings] == [True] * 2
    assert "Traceback" not in said
    assert "py4j" not in said
