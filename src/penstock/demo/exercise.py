"""A small pipeline that uses each part once, to record what loads: `python -m penstock.demo.exercise`.

Its arguments are a folder to work in, the JVM's options, and a file for the JVM's process id.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import penstock as ps
from penstock.app import EmbeddedBroker
from penstock.client import Client, Producer
from penstock.engine.spark.session import start_context

EVENTS = 100


def exercise(folder: Path, jvm_options: str) -> int:
    """Runs the pipeline until it has read all events.

    Args:
        folder: for its log and its state.
        jvm_options: to start Spark's JVM with.

    Returns:
        The JVM's process id. It ends after this process.
    """
    broker = EmbeddedBroker(folder)
    address = broker.start()
    try:
        app = ps.App("exercise", directory=folder / "pipeline", log=f"kafka://{address}", cores=2)
        events = app.stream(
            "events",
            "user STRING, v BIGINT, at TIMESTAMP",
            time=ps.event_time("at", lateness="1 second"),
        )
        per_user = events.window(ps.tumbling("1 minute")).group_by("user")
        app.view("per_user", per_user.agg(n=ps.count(), total=ps.sum("v")))
        with Client(address) as client:
            client.create_topic("events", 2)
        spark = start_context(
            "exercise", None, app.directory / "spark", cores=2, jvm_options=jvm_options
        )
        jvm = next(p for p in psutil.Process().children() if "java" in p.name())
        rows: list[int] = []
        _send(address)
        app.run(
            on_progress=lambda batch: rows.append(batch.rows), until=lambda: sum(rows) >= EVENTS
        )
        spark.stop()
        return jvm.pid
    finally:
        broker.stop()


def _send(address: str) -> None:
    values = [
        f'{{"user":"u{i % 7}","v":{i},"at":"2026-01-01T00:00:{i % 60:02}Z"}}' for i in range(EVENTS)
    ]
    producer = Producer(address)
    # As of now: retention would remove older records before a slow machine has read them.
    times = np.full(EVENTS // 2, time.time_ns() // 1_000_000, np.int64)
    for partition in (0, 1):
        producer.send("events", partition, None, pa.array(values[partition::2], pa.binary()), times)
    producer.close()


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(str(exercise(Path(sys.argv[1]), sys.argv[2])))
    os._exit(0)  # Python would wait for the JVM, which is busy with its archive
