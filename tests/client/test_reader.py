"""Ranges of partitions as columns, against our broker and Apache Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient
from tests.patience import PATIENCE_S, wait_until

from penstock.client import Client, Producer, Reader
from penstock.client.network.connection import Connection
from penstock.errors import BrokerError, LimitError
from penstock.wire import columns
from penstock.wire.columns import header

pytestmark = pytest.mark.interpreter

N = 3000
BATCH_BYTES = 5000


@pytest.fixture
def reader(broker) -> Iterator[Reader]:
    """A reader."""
    with Reader(broker.address, patience_s=PATIENCE_S) as one:
        yield one


@pytest.fixture
def hasty(broker) -> Iterator[Reader]:
    """A reader with little patience."""
    with Reader(broker.address, patience_s=1.5) as one:
        yield one


def value(i: int) -> bytes:
    """What record i holds."""
    return b"value %d" % i * (i % 7)


def fill(address: str, topic: str, n: int = N, **options) -> None:
    """Writes n records to partition 0."""
    with Producer(address, batch_bytes_max=BATCH_BYTES, **options) as producer:
        values = pa.array([value(i) for i in range(n)], pa.binary())
        producer.send(topic, 0, pa.array([str(i) for i in range(n)]), values, 1000 + np.arange(n))


def read(reader: Reader, topic: str, lo: int, hi: int, **options) -> list[tuple]:
    """Offset, key and value of each record read."""
    rows = []
    for records in reader.read(topic, 0, lo, hi, **options):
        assert len(records)
        batch = records.to_arrow()
        columns = (batch[name].to_pylist() for name in ("offset", "key", "value"))
        rows += list(zip(*columns, strict=True))
    return rows


def expected(lo: int, hi: int) -> list[tuple]:
    """What `fill` wrote between two offsets."""
    return [(i, b"%d" % i, value(i)) for i in range(lo, hi)]


class TestRanges:
    @pytest.mark.parametrize("chunk_bytes", [1, 10_000, 16 << 20])
    def test_exactly_the_range(self, reader, broker, topic, chunk_bytes):
        """Whatever the chunks and the batches' edges, exactly the range is read, in order."""
        fill(broker.address, topic)
        edges = [0, 1, 99, 250, 251, 1024, N - 1, N]
        for lo in edges:
            for hi in edges:
                if hi - lo < 1200 or chunk_bytes > 1:
                    found = read(reader, topic, lo, hi, chunk_bytes=chunk_bytes)
                    assert found == expected(lo, hi)

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compressions(self, reader, broker, topic, codec):
        """Compressed batches are read, and another client reads those written here."""
        fill(broker.address, topic, 500, compression=codec)
        assert read(reader, topic, 10, 490) == expected(10, 490)
        settings = {"bootstrap.servers": broker.address, "group.id": "other"}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(500, timeout=PATIENCE_S)
        consumer.close()
        found = [(m.offset(), m.key(), m.value() or b"") for m in messages]
        assert found == expected(0, 500)

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_written_by_another_client(self, reader, broker, topic, codec):
        """What librdkafka writes is read: nulls, headers, and each compression."""
        producer = ConfluentProducer(
            {"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 50}
        )
        for i in range(100):
            headers = [("n", b"%d" % i), ("none", None)]
            text = None if i == 50 else value(i) * 9
            producer.produce(topic, text, None, 0, timestamp=5000 + i, headers=headers)
        assert producer.flush(PATIENCE_S) == 0
        rows = []
        for records in reader.read(topic, 0, 0, 100):
            for i, text in enumerate(records.values().to_pylist()):
                rows.append((text, int(records.timestamp_ms[i]), header(records, i)))
            assert records.keys().null_count == len(records)
        assert rows == [
            (None if i == 50 else value(i) * 9, 5000 + i, [("n", b"%d" % i), ("none", None)])
            for i in range(100)
        ]

    def test_records_stay_valid(self, reader, broker, topic):
        """Records that are held while reading goes on keep their bytes."""
        fill(broker.address, topic)
        held = list(reader.read(topic, 0, 0, N, chunk_bytes=10_000))
        assert len(held) > 3
        values = [text for records in held for text in records.values().to_pylist()]
        assert values == [value(i) for i in range(N)]

    def test_reads_side_by_side(self, reader, broker, topic):
        """Two reads through one reader, turn by turn, don't disturb one another."""
        fill(broker.address, topic)
        found: list[list[int]] = [[], []]
        ranges = [reader.read(topic, 0, lo, N, chunk_bytes=10_000) for lo in (0, 700)]
        while ranges:
            for i, one in enumerate(list(ranges)):
                records = next(one, None)
                if records is None:
                    ranges.remove(one)
                else:
                    found[0 if records.offset[0] == len(found[0]) else 1] += records.offset.tolist()
                    assert i < 2
        assert sorted(found[0] + found[1]) == sorted([*range(N), *range(700, N)])

    def test_abandoned_read(self, reader, broker, topic):
        """A read that is given up half-way leaves the reader fit for the next."""
        fill(broker.address, topic)
        for _ in range(5):
            one = reader.read(topic, 0, 0, N, chunk_bytes=10_000)
            next(one)
            one.close()
        assert read(reader, topic, 0, N) == expected(0, N)


class TestEdges:
    def test_waits_for_records(self, reader, broker, topic):
        """Where the log does not reach far enough yet, the reader waits for it."""
        timer = threading.Timer(0.3, fill, (broker.address, topic, 10))
        timer.start()
        assert read(reader, topic, 0, 10) == expected(0, 10)
        timer.join()

    def test_gives_up(self, hasty, broker, topic):
        """Where records don't come, patience ends in an error that says how far the log goes."""
        fill(broker.address, topic, 10)
        with pytest.raises(BrokerError, match="up to offset 12; found that it ends at 10"):
            read(hasty, topic, 5, 12)

    def test_beyond_the_end(self, reader, broker, topic):
        """An offset that was never written is an error that tells the log's bounds."""
        fill(broker.address, topic, 10)
        with pytest.raises(BrokerError, match="the log goes from 0 to 10") as info:
            read(reader, topic, 50, 60)
        assert info.value.code == 1

    def test_removed_offsets(self, reader, broker, topic):
        """Offsets that were removed are an error, or are skipped where that is asked for."""
        fill(broker.address, topic, 500)
        admin = AdminClient({"bootstrap.servers": broker.address})
        (removal,) = admin.delete_records([TopicPartition(topic, 0, 200)]).values()
        try:
            removal.result(PATIENCE_S)
        except KafkaException as e:
            pytest.skip(f"this broker does not remove records on request: {e}")
        with pytest.raises(BrokerError, match="the log goes from 200 to 500"):
            read(reader, topic, 100, 300)
        assert read(reader, topic, 100, 300, missing="skip") == expected(200, 300)
        assert read(reader, topic, 100, 150, missing="skip") == []

    def test_unknown_partition(self, reader, topic):
        """A partition that isn't there is an error that names those that are."""
        with pytest.raises(BrokerError, match=r"has partitions \[0, 1\]"):
            list(reader.read(topic, 7, 0, 1))

    def test_connection_lost(self, reader, broker, topic, monkeypatch):
        """Connections that break at any moment don't show in what is read."""
        fill(broker.address, topic)
        receive = Connection.receive
        calls = 0

        def flaky(connection: Connection, *args: object, **options: object) -> memoryview:
            nonlocal calls
            calls += 1
            if calls % 5 == 0:
                connection.close()
            return receive(connection, *args, **options)

        monkeypatch.setattr(Connection, "receive", flaky)
        assert read(reader, topic, 0, N, chunk_bytes=20_000) == expected(0, N)
        assert calls > 6


class TestRestart:
    def test_broker_killed_while_reading(self, embedded):
        """A read goes on where it was when the broker comes back."""
        with Producer(embedded.address, batch_bytes_max=BATCH_BYTES) as producer:
            with Client(embedded.address) as client:
                client.create_topic("t", 1, {"retention.ms": "-1"})
            values = pa.array([value(i) for i in range(N)], pa.binary())
            producer.send("t", 0, None, values, np.arange(N))
        waits: list[str] = []
        with Reader(
            embedded.address, patience_s=PATIENCE_S, on_wait=lambda what, _: waits.append(what)
        ) as reader:
            seen = 0
            for records in reader.read("t", 0, 0, N, chunk_bytes=10_000):
                assert records.offset.tolist() == list(range(seen, seen + len(records)))
                if seen == 0:
                    embedded.kill()
                    timer = threading.Timer(0.5, embedded.restart)
                    timer.start()
                    time.sleep(0.1)
                seen += len(records)
            timer.join()
        assert seen == N
        assert "read partition 0 of topic 't'" in waits


def test_what_unpacks_to_very_much_is_read_in_parts(broker, reader, topic, monkeypatch):
    """A chunk of many small batches may hold more than memory does; a single batch may not."""
    fill(broker.address, topic, compression="zstd")
    sizes = [len(value(i)) for i in range(N)]
    monkeypatch.setattr(columns, "DECOMPRESSED_BYTES_MAX", 5 * BATCH_BYTES)
    assert sum(sizes) > 2 * columns.DECOMPRESSED_BYTES_MAX
    parts = list(reader.read(topic, 0, 10, N - 10))
    assert len(parts) > 2
    assert [records.next_offset for records in parts[:-1]] == [int(p.offset[0]) for p in parts[1:]]
    assert read(reader, topic, 10, N - 10) == expected(10, N - 10)
    monkeypatch.setattr(columns, "DECOMPRESSED_BYTES_MAX", BATCH_BYTES // 2)
    with pytest.raises(LimitError, match="DECOMPRESSED_BYTES_MAX"):
        read(reader, topic, 0, N)


def test_only_what_was_committed_is_read(broker, client, topic):
    """Aborted transactions are left out, and an open one ends what there is to read."""
    producer = ConfluentProducer(
        {"bootstrap.servers": broker.address, "transactional.id": topic, "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_S)
    for n in range(6):
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, b"%d-%d" % (n, i), partition=0)
        producer.flush(PATIENCE_S)
        if n % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    wanted = [b"%d-%d" % (n, i) for n in (0, 2, 4) for i in range(3)]
    # Kafka writes markers after its answer
    wait_until(lambda: client.offsets(topic)[0] >= 24, "all markers")
    end = client.offsets(topic)[0]
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(PATIENCE_S)
    assert client.offsets(topic)[0] == client.end_offsets_many([topic])[topic][0] == end
    assert not client.wait_for_data({(topic, 0): end}, 0.2)
    with Reader(broker.address, patience_s=PATIENCE_S) as reader:
        for chunk_bytes in (1, 1 << 20):
            parts = list(reader.read(topic, 0, 0, end, chunk_bytes=chunk_bytes))
            assert [value for one in parts for value in one.values().to_pylist()] == wanted
        producer.commit_transaction(PATIENCE_S)
        parts = list(reader.read(topic, 0, end, end + 1))
        assert [value for one in parts for value in one.values().to_pylist()] == [b"open"]
