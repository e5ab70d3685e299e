"""The first batches of a pipeline don't wait for Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import os, sys, threading
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.client import Producer
from penstock.engine.spark import session
from penstock.serve import Views

folder = Path(sys.argv[1])
is_wanted = threading.Event()
start = session.start_context


def start_when_wanted(*arguments, **options):
    assert is_wanted.wait(120)
    return start(*arguments, **options)


def signed(rows):
    return rows.append_column("by", pa.array([os.getpid()] * len(rows), pa.int64()))


session.start_context = start_when_wanted
app = ps.App("start", directory=folder, cores=2)
numbers = app.stream("numbers", "n BIGINT NOT NULL", partitions=2)
by = numbers.map_batches(signed, "n BIGINT NOT NULL, by BIGINT NOT NULL").group_by("by")
app.view("sums", by.agg(n=ps.count()))
sent, first, seen = 0, {}, {}


def send(*_):
    global sent
    sent += 1
    values = pa.array([b'{"n":1}'], pa.binary())
    with Producer(app.address) as producer:
        producer.send("numbers", sent % 2, None, values, np.zeros(1, np.int64))


def look(progress):
    # Each row that is seen sends another; Spark is begun when the lanes that stand in have done ten.
    seen.update({row["by"]: row["n"] for row in Views(folder).table("sums").to_pylist()})
    if sum(seen.values()) >= 10 and not first:
        first.update(seen)
        is_wanted.set()
    if progress.rows:
        send()


def is_done():
    return len(seen) == 4 and sum(n for by, n in seen.items() if by not in first) >= 10


app.run(on_idle=lambda: sent or send(), on_progress=look, until=is_done)
assert sum(first.values()) == 10 and set(first) < set(seen), (first, seen)
assert all(seen[by] >= n for by, n in first.items()), (first, seen)
rows = Views(folder).table("sums").to_pylist()
assert sum(row["n"] for row in rows) in {sent, sent - 1}, (rows, sent)
assert not any(Path(f"/proc/{by}").exists() for by in seen), seen
"""


def test_lanes_stand_in_until_spark_is_there(tmp_path: Path) -> None:
    """What comes before is computed by other processes, and nothing is lost or done twice when they leave."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "start.penstock")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
