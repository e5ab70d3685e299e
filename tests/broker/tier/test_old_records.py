"""Replays out of an Iceberg table: the records are those of the log, once, whatever is interrupted."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.wire.columns import Records, encode, header

pytest.importorskip("pyiceberg", reason="needs penstock[iceberg]")

from pyiceberg.catalog import load_catalog

from penstock.broker import BrokerProcess
from penstock.broker.tier.tables import Chunk, HistoryTable
from penstock.client import Client, Producer, Reader, copying
from penstock.client.copying import Copy, CopyJob
from penstock.client.groups import GroupAdmin
from penstock.client.tables.history import TopicTable, catalog_loader, open_table
from penstock.client.tables.old_records import OldRecords
from penstock.core.schema import Schema
from penstock.errors import CorruptError, UserError
from penstock.wire.protocol import ApiKey

COUNT = 400
TIME_MS = 1_700_000_000_000

# pyiceberg's SQL catalog leaves its connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
_names = (f"old_{n}" for n in itertools.count())


class World:
    """A broker, a catalog, and topics whose table ends somewhere within the log."""

    def __init__(self, directory: Path, address: str, connect: Callable[[str], Any]) -> None:
        self.address, self.connect = address, connect
        self.uri, warehouse = f"sqlite:///{directory}/catalog.db", directory / "warehouse"
        warehouse.mkdir()
        self.catalog = load_catalog("penstock", uri=self.uri, warehouse=warehouse.as_uri())

    def topic(self, chance: random.Random, schema: Schema | None = None) -> str:
        """A topic of two partitions with any records, the first of them in its table."""
        name = next(_names)
        settings = {"retention.ms": "-1", "penstock.iceberg.table": f"shop.{name}"}
        if schema is not None:
            settings["penstock.schema"] = schema.text
        with Client(self.address) as client, self.connect(self.address) as raw:
            client.create_topic(name, 2, settings)
            client.create_topic(f"{name}-copy", 3, {"retention.ms": "-1"})
            table = HistoryTable(self.catalog, f"shop.{name}", schema, str(client.topic_id(name)))
            for partition in (0, 1):
                start, upto = 0, chance.randint(0, COUNT)
                old: list[Chunk] = []
                while start < COUNT:
                    batch = _batch(chance, start, chance.randint(1, 30))
                    assert raw.produce(name, batch.data, partition=partition)["error_code"] == 0
                    if batch.end <= upto:
                        old.append(Chunk(partition, start, batch.end, batch.data))
                    start = batch.end
                table.append(old[: len(old) // 3])
                table.append(old[len(old) // 3 :])
        return name

    def history(self, topic: str) -> TopicTable:
        return open_table(self.address, topic, catalog_loader(self.uri, None))

    def rows(self, topic: str) -> list[tuple[Any, ...]]:
        """Everything of a topic's records but their offsets."""
        with Client(self.address) as client, Reader(self.address) as reader:
            ends = client.offsets(topic, "latest")
            return [
                (partition, *one[1:])
                for partition, end in sorted(ends.items())
                for one in _rows(reader.read(topic, partition, 0, end, missing="skip"))
            ]


def _batch(chance: random.Random, start: int, count: int) -> Chunk:
    """Records with and without keys, values and headers."""

    def some(choices: list[Any]) -> list[Any]:
        return [chance.choice(choices) for _ in range(count)]

    headers = [[], [], [("a", b"1"), ("é", None), ("a", b"")]]
    (data,) = encode(
        pa.array(some([None, b"", b"k1", b"k2", "schlüssel".encode()]), pa.binary()),
        pa.array(some([None, b"", b"\0\xff", b'{"a": 1}', b"x" * 300]), pa.binary()),
        np.array(some([TIME_MS + start, TIME_MS, 0]), np.int64),
        headers=some(headers) if chance.random() < 0.5 else None,
        base_offset=start,
    )
    return Chunk(0, start, start + count, bytes(data))


def _rows(chunks: Iterator[Records]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for one in chunks:
        columns = one.offset.tolist(), one.keys().to_pylist(), one.values().to_pylist()
        heads = [header(one, row) for row in range(len(one))]
        found += zip(*columns, one.timestamp_ms.tolist(), heads, strict=True)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: Any) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("old") / "data") as one:
        yield one


@pytest.fixture
def world(tmp_path: Path, broker: BrokerProcess, connect: Callable[[str], Any]) -> Iterator[World]:
    made = World(tmp_path, broker.address, connect)
    yield made
    made.catalog.close()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_table_are_those_of_the_log(world: World, seed: int) -> None:
    """Wherever the table ends, and however a stretch is cut: offset, key, value, time, headers."""
    chance = random.Random(seed)
    topic = world.topic(chance)
    history = world.history(topic)
    with Reader(world.address) as reader, Reader(world.address) as tail:
        old = OldRecords(history, tail)
        for _ in range(6):
            partition = chance.randrange(2)
            start, end = sorted((chance.randint(0, COUNT), chance.randint(0, COUNT)))
            expected = _rows(reader.read(topic, partition, start, end))
            found, at = [], start
            while at < end:  # in steps, as a replay does, some of which are given up half-way
                to = min(at + chance.randint(1, 90), end)
                step = _rows(old.read(topic, partition, at, to))
                if step and chance.random() < 0.3:
                    to = chance.choice(step)[0]
                    step = [one for one in step if one[0] < to]
                found += step
                at = to
            assert found == expected


class Crash(BaseException):
    """The process ended here."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("stop_at", [1, 4, 9, 14])
def test_an_interrupted_replay_sends_each_record_once(
    world: World, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between sending and committing, too, and where the table has grown meanwhile."""
    topic = world.topic(random.Random(stop_at))
    monkeypatch.setattr(copying, "STEP_BYTES_MAX", 9_000)
    turns = itertools.count()

    def crashing(real: Any) -> Any:
        def call(self: Any, *rest: Any, **more: Any) -> Any:
            if next(turns) == stop_at:
                raise Crash
            result = real(self, *rest, **more)
            if next(turns) == stop_at:
                raise Crash
            return result

        return call

    spans = {0: (0, COUNT), 1: (7, COUNT - 5)}
    with Copy(world.address, topic) as copy:
        copy.read_from(world.history(topic))
        copy.start(CopyJob(topic, f"{topic}-copy", spans))
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "send", crashing(Producer.send))
            patch.setattr(GroupAdmin, "commit", crashing(GroupAdmin.commit))
            with pytest.raises(Crash):
                copy.run(step_offsets=90)
    with Copy(world.address, topic) as copy:
        copy.resume()
        with pytest.raises(UserError, match="--iceberg-catalog again"):
            copy.run()
        later = world.history(topic)
        later.covered = dict.fromkeys(later.covered, 0) | {0: later.covered.get(0, 0) // 2}
        copy.read_from(later)
        copy.run(step_offsets=90)
    with Reader(world.address) as reader:
        expected = [
            one[1:]
            for partition, span in spans.items()
            for one in _rows(reader.read(topic, partition, *span))
        ]
    assert sorted(map(repr, expected)) == sorted(
        repr(one[1:]) for one in world.rows(f"{topic}-copy")
    )


@pytest.mark.slow
def test_decoded_values_are_refused(world: World) -> None:
    """Of decoded values the bytes can't be made again: that is said, and nothing is sent."""
    topic = world.topic(random.Random(3), Schema.parse("a BIGINT"))
    with Copy(world.address, topic) as copy:
        with pytest.raises(UserError, match=r"byte for byte.*to read the log"):
            copy.read_from(world.history(topic))
        copy.start(CopyJob(topic, f"{topic}-copy", {0: (0, COUNT)}))
        with pytest.raises(UserError, match="from the log alone"):
            copy.read_from(world.history(world.topic(random.Random(4))))


@pytest.mark.slow
def test_tables_that_are_not_the_topics_are_refused(world: World) -> None:
    """No table named, none in the catalog, another topic's, and one that was rewritten."""
    with Client(world.address) as client:
        client.create_topic("bare", 1)
        with pytest.raises(UserError, match=r"penstock\.iceberg\.table"):
            world.history("bare")
        client.create_topic("early", 1, {"penstock.iceberg.table": "shop.early"})
        with pytest.raises(UserError, match="committed yet"):
            world.history("early")
        HistoryTable(world.catalog, "shop.early", None, "another")
        with pytest.raises(UserError, match="another topic's"):
            world.history("early")
        table = HistoryTable(world.catalog, "shop.mixed", None, "mixed")
        table.append([_batch(random.Random(1), 0, 20)])
        own = world.catalog.load_table("shop.mixed")
        own.append(own.scan().to_arrow().slice(5, 3))
        history = TopicTable(world.catalog.load_table("shop.mixed"), world.address, "bare", None)
        with pytest.raises(CorruptError, match="rewritten"):
            list(history.records(0, 0, 20))


@pytest.mark.slow
def test_the_command_is_killed_resumed_and_outlives_the_log(world: World, tmp_path: Path) -> None:
    """`penstock replay --iceberg-catalog`, SIGKILL, `--resume`: also records the log has lost."""
    topic = world.topic(random.Random(8))
    original = world.rows(topic)
    history = world.history(topic)
    lost = {partition: history.covered.get(partition, 0) * 2 // 3 for partition in (0, 1)}
    assert sum(lost.values()) > 50
    with world.connect(world.address) as raw:
        parts = [{"partition_index": p, "offset": upto} for p, upto in lost.items()]
        raw.call(
            ApiKey.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": parts}], timeout_ms=1000
        )
    assert len(world.rows(topic)) == len(original) - sum(lost.values())

    def penstock(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli", "replay", "--broker", world.address]
        return subprocess.Popen(
            [*command, *arguments], stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )

    catalog = "--iceberg-catalog", world.uri
    with penstock(topic, "--to-topic", f"{topic}-copy", "--rate", "150", *catalog) as first:
        assert first.stderr is not None
        name = first.stderr.readline().split()[-1]
        time.sleep(0.5)
        first.send_signal(signal.SIGKILL)
    with penstock("--resume", name, *catalog) as second:
        assert "replayed" in second.communicate()[1]
    found = sorted(repr(one[1:]) for one in world.rows(f"{topic}-copy"))
    assert found == sorted(repr(one[1:]) for one in original)
