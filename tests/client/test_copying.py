"""A topic replayed into another one; groups looked at and reset."""

from __future__ import annotations

import itertools
import json
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S, wait_until

from penstock.broker.process import BrokerProcess
from penstock.cli import main
from penstock.client import Client, Producer, Reader, copying
from penstock.client.copying import Copy, CopyJob
from penstock.client.groups import GroupAdmin, GroupPosition, Target
from penstock.errors import UserError
from penstock.wire.columns import header

_names = (f"clicks-{i}" for i in itertools.count())
RECORDS = 3000


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A broker for this module."""
    with BrokerProcess(tmp_path_factory.mktemp("copy")) as broker:
        yield broker.address


@pytest.fixture
def topics(address):
    """A topic of two partitions with records, and an empty one of three."""
    name = next(_names)
    with Client(address) as client, Producer(address) as producer:
        client.create_topic(name, 2, {"retention.ms": "-1"})
        client.create_topic(f"{name}-copy", 3, {"retention.ms": "-1"})
        for p in (0, 1):
            n = np.arange(RECORDS)
            producer.send(
                name,
                p,
                pa.array([None if i % 10 == 0 else b"key %d/%d" % (p, i % 7) for i in n]),
                pa.array([b"%d/%d" % (p, i) for i in n], pa.binary()),
                np.array(1_000_000 + n, np.int64),
                headers=[[("n", b"%d" % i)] for i in n],
            )
    return name, f"{name}-copy"


def rows(address, topic):
    """(partition, key, value, time, headers) of all records."""
    found = []
    with Client(address) as client, Reader(address) as reader:
        for p, end in client.offsets(topic, "latest").items():
            for records in reader.read(topic, p, 0, end):
                columns = records.keys().to_pylist(), records.values().to_pylist()
                heads = [header(records, i) for i in range(len(records))]
                times = records.timestamp_ms.tolist()
                found += list(zip([p] * len(records), *columns, times, heads, strict=True))
    return found


def test_everything_of_a_record_is_kept(address, topics):
    """Keys, values, timestamps, headers; and a key's records in their order, in one partition."""
    source, target = topics
    with Copy(address, source) as copy:
        copy.start(CopyJob(source, target, {0: (0, RECORDS), 1: (0, RECORDS)}))
        assert copy.run(step_offsets=700) == 2 * RECORDS
    original, copied = rows(address, source), rows(address, target)
    assert sorted(one[2:] for one in copied) == sorted(one[2:] for one in original)
    for key in {one[1] for one in original if one[1] is not None}:
        of_key = [one for one in copied if one[1] == key]
        assert len({one[0] for one in of_key}) == 1
        assert [one[2] for one in of_key] == [one[2] for one in original if one[1] == key]
    with Copy(address, source) as copy, pytest.raises(UserError, match="finished"):
        copy.resume()


class Crash(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("stop_at", range(0, 24, 3))
def test_interrupted_anywhere_it_goes_on_and_sends_each_once(address, topics, stop_at, monkeypatch):
    """Between sending and committing, too; small steps of bytes cut at the same records."""
    source, target = topics
    monkeypatch.setattr(copying, "STEP_BYTES_MAX", 9_000)
    turns = itertools.count()

    def crashing(real):
        def call(self, *rest, **more):
            if next(turns) == stop_at:
                raise Crash
            result = real(self, *rest, **more)
            if next(turns) == stop_at:
                raise Crash
            return result

        return call

    job = CopyJob(source, target, {0: (10, RECORDS), 1: (0, 2000)}, ("key 0/3", "key 1/4"))
    with Copy(address, source) as copy:
        copy.start(job)
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "send", crashing(Producer.send))
            patch.setattr(GroupAdmin, "commit", crashing(GroupAdmin.commit))
            with pytest.raises(Crash):
                copy.run()
    with Copy(address, source) as copy, pytest.raises(UserError, match="unfinished"):
        copy.start(job)
    with Copy(address, source) as copy:
        copy.resume()
        copy.run()
    expected = [
        one[2:]
        for one in rows(address, source)
        if (one[1] == b"key 0/3" and one[3] >= 1_000_010)
        or (one[1] == b"key 1/4" and one[3] < 1_002_000)
    ]
    assert sorted(one[2:] for one in rows(address, target)) == sorted(expected)


def test_a_topic_is_not_replayed_into_itself(address, topics):
    """It would never end."""
    with pytest.raises(UserError, match="another topic"):
        CopyJob(topics[0], topics[0], {0: (0, 1)})


def test_resets_are_planned_and_then_made(address, topics):
    """To either end, a time, an offset, or by a number; never beyond the log."""
    topic, _ = topics
    group = f"g-{topic}"
    with GroupAdmin(address) as admin:
        admin.commit(group, {(topic, 0): 100, (topic, 1): 200})

        def planned(kind, value=0, topics=None):
            return [row[1:] for row in admin.planned(group, Target(kind, value), topics)]

        assert planned("earliest") == [(0, 100, 0), (1, 200, 0)]
        assert planned("latest") == [(0, 100, RECORDS), (1, 200, RECORDS)]
        assert planned("time", 1_000_500) == [(0, 100, 500), (1, 200, 500)]
        assert planned("time", 9_000_000) == [(0, 100, RECORDS), (1, 200, RECORDS)]
        assert planned("shift", -150) == [(0, 100, 0), (1, 200, 50)]
        assert planned("offset", 10**9, {topic: [1]}) == [(1, 200, RECORDS)]
        with pytest.raises(UserError, match="a partition"):
            planned("offset", 1, {topic: [7]})
        admin.reset(group, {(topic, 0): 500})
        assert {one.partition: one.lag for one in admin.positions(group)} == {0: 2500, 1: 2800}
        admin.delete_group(group)
        with pytest.raises(UserError, match=r"found 'g-.* without groups"):
            admin.info(group)
        with pytest.raises(UserError, match="--topic"):
            admin.planned(group, Target("latest"))


def test_lag_and_the_time_that_is_left_are_reported(address):
    """Until retention reaches the group's position; and what was lost already."""
    topic = next(_names)
    now_ms = time.time_ns() // 1_000_000
    with GroupAdmin(address) as admin, Producer(address) as producer, Reader(address) as reader:
        admin.create_topic(topic, 1, {"retention.ms": "3600000"})
        times = np.full(10, now_ms - 600_000, np.int64)
        producer.send(topic, 0, None, pa.array([b"v"] * 10, pa.binary()), times)
        admin.commit("slow", {(topic, 0): 4})
        (one,) = admin.positions("slow", reader, now_ms)
        assert (one.lag, one.lost, one.time_left_ms) == (6, 0, 3_000_000)
        admin.commit("slow", {(topic, 0): 10})
        (one,) = admin.positions("slow", reader, now_ms)
        assert (one.lag, one.time_left_ms) == (0, None)


def test_the_time_that_retention_by_size_leaves_is_reported(address):
    """At the pace at which the log grows; the sooner of both limits counts."""
    topic = next(_names)
    now_ms = time.time_ns() // 1_000_000
    stopped = threading.Event()

    def grow() -> None:
        with Producer(address) as producer:
            while not stopped.is_set():
                send(producer, 1)
                stopped.wait(0.02)

    def send(producer: Producer, count: int) -> None:
        values = pa.array([bytes(1000)] * count, pa.binary())
        producer.send(topic, 0, None, values, np.full(count, now_ms, np.int64))

    def grown(positions: list[GroupPosition]) -> GroupPosition | None:
        (one,) = positions
        return None if one.time_left_ms == 3_600_000 else one

    with GroupAdmin(address) as admin, Producer(address) as producer, Reader(address) as reader:
        limits = {"retention.bytes": "1000000", "retention.ms": "3600000", "segment.bytes": "10000"}
        admin.create_topic(topic, 1, limits)
        send(producer, 100)
        admin.commit(f"g-{topic}", {(topic, 0): 10})
        (still,) = admin.positions(f"g-{topic}", reader, now_ms)
        assert still.time_left_ms == 3_600_000
        growing = threading.Thread(target=grow)
        growing.start()
        try:
            # Until a record comes between two looks, which may take a while where the thread stalls.
            one = wait_until(lambda: grown(admin.positions(f"g-{topic}", reader, now_ms)), "growth")
        finally:
            stopped.set()
            growing.join()
        assert one.time_left_ms is not None
        # Some 900 KB are left, at a pace of one KB in 20 ms or more, seen by a clock that may stall: 17 s.
        assert 4_000 <= one.time_left_ms < 3_600_000


def test_what_is_only_compacted_leaves_all_time(address):
    """Its retention.ms, which all topics have, removes nothing."""
    topic = next(_names)
    with GroupAdmin(address) as admin, Producer(address) as producer, Reader(address) as reader:
        admin.create_topic(topic, 1, {"cleanup.policy": "compact", "retention.bytes": "1"})
        key = pa.array([b"k"], pa.binary())
        producer.send(topic, 0, key, key, np.zeros(1, np.int64))
        admin.commit(f"g-{topic}", {(topic, 0): 0})
        (one,) = admin.positions(f"g-{topic}", reader, time.time_ns() // 1_000_000)
        assert (one.lag, one.time_left_ms) == (1, None)


def test_a_group_with_members_is_not_reset(address, topics):
    """Its members would not notice, and commit over it."""
    from confluent_kafka import Consumer

    topic, _ = topics
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "busy", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        assert consumer.consume(1, PATIENCE_S)
        with GroupAdmin(address) as admin:
            assert len(admin.members(admin.info("busy"))) == 1
            with pytest.raises(UserError, match="no members"):
                admin.reset("busy", {(topic, 0): 0})
    finally:
        consumer.close()


def test_the_commands_do_it(address, topics, tmp_path, monkeypatch):
    """Replay with a moment, a reset that is shown first, a list."""
    source, target = topics
    monkeypatch.chdir(tmp_path)

    def penstock(*arguments: str) -> tuple[str, str]:
        done = CliRunner().invoke(main, arguments)
        return done.stdout, done.stderr

    span = ("--from", "1970-01-01T00:16:40.500Z", "--to", "600")
    err = penstock("replay", source, "--broker", address, *span, "--to-topic", target)[1]
    assert "replayed 200 records" in err, err
    assert "none" in penstock("replay", source, "--broker", address, *span[:1], "now")[1] + "none"
    with GroupAdmin(address) as admin:
        admin.commit("audit", {(source, 0): 100})
    groups = ("groups", "--broker", address)
    reset = (*groups, "reset", "audit", "--shift", "-50", "--format", "json")
    out, err = penstock(*reset)
    assert json.loads(out)["new_offset"] == 50
    assert "nothing was changed" in err
    assert "reset 1" in penstock(*reset, "--execute")[1]
    assert "2950" in penstock(*groups, "describe", "audit")[0]
    assert "audit" in penstock(*groups)[0]
    assert "expected one of" in penstock(*groups, "reset", "audit")[1]
    assert "deleted" in penstock(*groups, "delete", "audit", "--yes")[1]
