"""A broker whose log has something of everything that the console shows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
RECORDS = 120
LATE = (
    "late: its event time is 2026-01-01T00:00:00Z, the watermark was already "
    "2026-01-01T01:00:00Z, and no window that it is in is open"
)


@dataclass(frozen=True)
class Log:
    """A broker."""

    address: str


@contextmanager
def filled_log(directory: Path) -> Iterator[Log]:
    """Two partitions of JSON records a second apart, some odd ones, and a group that is behind."""
    with BrokerProcess(directory) as broker:
        with Client(broker.address) as client:
            client.create_topic("clicks", 2, {"retention.ms": "-1"})
            client.create_topic("odd", 1, {"retention.ms": "-1"})
            client.create_topic("empty", 1)
        with Producer(broker.address, acks="all") as producer:
            for p in (0, 1):
                ids = range(p, RECORDS, 2)
                values = [json.dumps({"id": i, "user": f"user-{i % 7}"}).encode() for i in ids]
                keys = pa.array([b"k%d" % i for i in ids], pa.binary())
                times = np.array([NOW_MS + 1_000 * i for i in ids], np.int64)
                headers = [[("trace", b"t%d" % i)] for i in ids]
                body = pa.array(values, pa.binary())
                producer.send("clicks", p, keys, body, times, headers=headers)
            odd = [b"\xff\x00", None, b"x" * 30_000, b'{"n": 12345678901234567890}', b"<b>bold</b>"]
            times = np.full(len(odd), NOW_MS, np.int64)
            producer.send("odd", 0, None, pa.array(odd, pa.binary()), times)
        with Client(broker.address) as client:
            client.commit("audit", {("clicks", 0): 10, ("clicks", 1): 60})
        yield Log(broker.address)


def write_connections(log: Log) -> None:
    """What sinks, captures and a queue's workers leave in a log, in several states."""
    now_ms = time.time_ns() // 1_000_000
    with Client(log.address) as client:
        for name, phase, trouble in (
            ("clicks.visits", "following", ""),
            ("clicks.archive", "failed", "the table has no column ms"),
        ):
            report = {"phase": phase, "trouble": trouble, "since_ms": now_ms - 9_000}
            report |= {"target": "visits.sqlite", "upserts": 60, "deletes": 3, "dead": 0}
            report |= {"at_ms": now_ms + 3_600_000}
            client.commit(f"penstock.sink.{name}", {("clicks", 0): 40}, json.dumps(report))
        compact = {"cleanup.policy": "compact"}
        for topic in ("shop.capture", "shop.capture.control", "shop.public.users"):
            client.create_topic(topic, 1, compact)
    users = {"topic": "shop.public.users", "since": 1, "rows": 12, "oid": 1}
    state = {"server": "postgresql://ann@db/shop", "time_us": NOW_MS * 1_000, "owner": "host 7"}
    state |= {"stored_ms": now_ms, "tables": {"public.users": users}}
    with Producer(log.address, acks="all") as producer:
        for topic, value in (
            ("shop.capture", json.dumps(state)),
            ("shop.capture.control", "pause"),
        ):
            body = pa.array([value.encode()], pa.binary())
            producer.send(topic, 0, pa.array([b"state"]), body, np.array([now_ms], np.int64))


def write_letters(log: Log, origin: str) -> str:
    """Three dead letters, the last of them late; the topic that they are in."""
    topic = f"{origin}.dead-letters"
    with Client(log.address) as client:
        client.create_topic(origin)
        client.create_topic(topic, 1, {"retention.ms": "-1"})
    reasons = ["no such field: usr", "no such field: usr", LATE]
    values = [b'{"usr": 1}', b'{"usr": 2}', b'{"at": "2026-01-01T00:00:00Z"}']
    headers = [
        [
            ("penstock.reason", reason.encode()),
            ("penstock.topic", origin.encode()),
            ("penstock.partition", b"0"),
            ("penstock.offset", b"%d" % i),
        ]
        for i, reason in enumerate(reasons)
    ]
    with Producer(log.address, acks="all") as producer:
        times = np.full(3, NOW_MS, np.int64)
        producer.send(topic, 0, None, pa.array(values, pa.binary()), times, headers=headers)
    return topic
