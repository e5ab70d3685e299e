"""`penstock run` from beginning to end, on Spark: what is told, what is computed, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pytest
from tests.patience import wait_until

from penstock.cli.support.address import find_broker
from penstock.client import Producer
from penstock.errors import PenstockError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PATIENCE_S = 600.0

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


def test_a_program_from_its_start_to_a_killed_jvm(tmp_path: Path) -> None:
    """The address is told; what is built twice is one; a JVM that is gone is one message."""
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
        values = [{"item": "tea", "n": n, "at": "2026-01-01T00:00:00Z"} for n in (2, 3)]
        with Producer(address, acks="all") as producer:
            bodies = pa.array([orjson.dumps(one) for one in values], pa.binary())
            times = np.full(len(values), 1_767_225_600_000, np.int64)
            producer.send("sales", 0, None, bodies, times)
        wait_until(lambda: rows(directory, "two"), stderr.read_text, patience_s=PATIENCE_S)
        assert rows(directory, "one") == rows(directory, "two") == [("tea", 5)]
        assert rows(directory, "hours") == rows(directory, "hours_too") == [(5,)]
        [java] = [
            one
            for one in psutil.Process(child.pid).children(recursive=True)
            if "java" in one.name()
        ]
        java.kill()
        assert child.wait(PATIENCE_S) == 1
    finally:
        child.kill()
        child.wait()
    said = stderr.read_text()
    [error] = [line for line in said.splitlines() if line.startswith("error: ")]
    for part in ("java) has ended", "Nothing is lost", "run the pipeline again"):
        assert part in error
    assert "Traceback" not in said
    assert "py4j" not in said
