"""Columns to partitions, each record once, against our broker and Apache Kafka."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S

from penstock.client import Client, Producer, Reader
from penstock.client.network.connection import Connection
from penstock.errors import BrokerError, FencedError, LimitError, UserError
from penstock.wire.columns import header

pytestmark = pytest.mark.interpreter

N = 1000
BATCH_BYTES = 1000  # about 20 batches: more than a leader remembers of one producer


def values(lo: int, hi: int) -> pa.Array:
    """Distinct values."""
    return pa.array([b"value %06d" % i for i in range(lo, hi)], pa.binary())


def stored(address: str, topic: str, partition: int = 0) -> list[bytes]:
    """Every value in a partition."""
    with Client(address) as client, Reader(address, patience_s=PATIENCE_S) as reader:
        end = client.offsets(topic)[partition]
        chunks = list(reader.read(topic, partition, 0, end))
        return [text for records in chunks for text in records.values().to_pylist()]


@pytest.fixture
def producer(broker) -> Iterator[Producer]:
    """A producer of small batches."""
    with Producer(broker.address, batch_bytes_max=BATCH_BYTES, patience_s=PATIENCE_S) as one:
        yield one


def send(producer: Producer, topic: str, lo: int, hi: int, epoch: int = 0) -> int:
    """Sends values lo to hi - 1 under these very sequence numbers."""
    return producer.send(
        topic,
        0,
        None,
        values(lo, hi),
        np.arange(lo, hi),
        producer_id=501,
        producer_epoch=epoch,
        base_sequence=lo,
    )


class TestSend:
    def test_columns(self, producer, broker, topic):
        """Keys, values, times and headers arrive as they were sent, to the partition named."""
        following = producer.send(
            topic,
            1,
            pa.array(["a", None]),
            pa.array([None, "ü"]),
            np.array([5, 4]),
            headers=[[("why", b"late")], []],
        )
        assert following == 2
        with Reader(broker.address) as reader:
            (records,) = reader.read(topic, 1, 0, 2)
        assert records.keys().to_pylist() == [b"a", None]
        assert records.values().to_pylist() == [None, "ü".encode()]
        assert records.timestamp_ms.tolist() == [5, 4]
        assert [header(records, i) for i in (0, 1)] == [[("why", b"late")], []]

    @pytest.mark.parametrize("acks", ["all", 1])
    def test_acks(self, broker, topic, acks):
        """With either kind of acknowledgement each record is stored once, in order."""
        with Producer(broker.address, acks=acks, batch_bytes_max=BATCH_BYTES) as producer:
            for lo in range(0, N, 250):
                producer.send(topic, 0, None, values(lo, lo + 250), np.arange(250))
        assert stored(broker.address, topic) == values(0, N).to_pylist()

    def test_nothing(self, producer, topic):
        """Sending no rows stores nothing and moves no sequence number."""
        assert send(producer, topic, 7, 7) == 7

    def test_too_large(self, broker, topic):
        """A record over the broker's limit is an error that says what to raise."""
        with (
            Producer(broker.address) as producer,
            pytest.raises(LimitError, match=r"max\.message\.bytes"),
        ):
            producer.send(topic, 0, None, pa.array([bytes(3 << 20)]), np.zeros(1))

    def test_bad_acks(self):
        """Other acknowledgements are refused."""
        with pytest.raises(UserError, match="acks"):
            Producer("localhost", acks=0)  # type: ignore[arg-type]


class TestExactlyOnce:
    def test_the_same_call_again(self, producer, broker, topic):
        """A send that is repeated, by whichever process, stores nothing again."""
        assert send(producer, topic, 0, N) == N
        with Producer(broker.address, batch_bytes_max=BATCH_BYTES) as other:
            assert send(other, topic, 0, N) == N
            assert send(other, topic, N, N + 100) == N + 100
            assert send(producer, topic, 0, N) == N
        assert stored(broker.address, topic) == values(0, N + 100).to_pylist()

    @pytest.mark.parametrize("k", [1, 4, 6, 15])
    def test_stopped_half_way(self, broker, topic, k, monkeypatch):
        """After a process died part-way, the same send stores exactly what was missing."""
        receive = Connection.receive
        produced = 0

        def dying(connection: Connection, *args: object, **options: object) -> memoryview:
            nonlocal produced
            produced += 1
            if produced > k + 2:  # after ApiVersions and Metadata
                raise KeyboardInterrupt
            return receive(connection, *args, **options)

        with Producer(broker.address, batch_bytes_max=BATCH_BYTES) as first:
            monkeypatch.setattr(Connection, "receive", dying)
            with pytest.raises(KeyboardInterrupt):
                send(first, topic, 0, N)
            monkeypatch.undo()
        with Producer(broker.address, batch_bytes_max=BATCH_BYTES) as second:
            assert send(second, topic, 0, N) == N
        assert stored(broker.address, topic) == values(0, N).to_pylist()

    def test_first_batch_travels_alone(self, producer, topic, monkeypatch):
        """No batch is sent ahead before the leader has taken one and so knows what must follow."""
        warm_up = {"producer_id": 502, "producer_epoch": 0, "base_sequence": 0}
        producer.send(topic, 0, None, values(0, 1), np.zeros(1), **warm_up)
        send_request, receive = Connection.send, Connection.receive
        events: list[str] = []

        def note_send(connection: Connection, api: int, *args: object, **options: object) -> int:
            events.append(f"send {api}")
            return send_request(connection, api, *args, **options)

        def note_receive(connection: Connection, *args: object) -> memoryview:
            events.append("receive")
            return receive(connection, *args)

        monkeypatch.setattr(Connection, "send", note_send)
        monkeypatch.setattr(Connection, "receive", note_receive)
        send(producer, topic, 0, N)
        monkeypatch.undo()
        first = events.index("send 0")
        assert events[first + 1] == "receive"
        assert events[first + 2 : first + 7] == ["send 0"] * 5

    @pytest.mark.parametrize("seed", range(3))
    def test_connection_lost(self, producer, broker, topic, seed, monkeypatch):
        """Connections that break before answers arrive neither lose nor double a record."""
        rng = random.Random(seed)
        receive = Connection.receive

        def flaky(connection: Connection, *args: object, **options: object) -> memoryview:
            answer = receive(connection, *args, **options)
            if rng.random() < 0.15:  # the broker has done it, but nobody hears of it
                connection.close()
                raise ConnectionResetError("injected")
            return answer

        monkeypatch.setattr(Connection, "receive", flaky)
        for lo in range(0, N, 250):
            producer.send(topic, 0, None, values(lo, lo + 250), np.arange(250))
        monkeypatch.undo()
        assert stored(broker.address, topic) == values(0, N).to_pylist()

    def test_gap(self, producer, topic):
        """Sequence numbers that don't follow on what is stored are an error that tells both."""
        send(producer, topic, 0, 10)
        with pytest.raises(
            BrokerError, match="to sequence 19; found sequence 9 of epoch 0"
        ) as info:
            send(producer, topic, 20, 30)
        assert not info.value.retriable

    def test_older_owner_is_fenced(self, producer, broker, topic):
        """Once a newer epoch has written, an older one can't."""
        send(producer, topic, 0, 10)
        send(producer, topic, 0, 5, epoch=1)
        with pytest.raises(FencedError, match="newer owner"):
            send(producer, topic, 10, 20)
        assert len(stored(broker.address, topic)) == 15

    def test_sequence_numbers_wrap(self, producer, broker, topic):
        """After sequence number 2^31 - 1 comes 0, also for a send that is repeated."""
        first = 2**31 - 300
        for _ in range(2):
            following = producer.send(
                topic, 0, None, values(0, N), np.arange(N), producer_id=9, base_sequence=first
            )
            assert following == N - 300
        assert stored(broker.address, topic) == values(0, N).to_pylist()


class TestRestart:
    def test_broker_killed_while_writing(self, embedded):
        """A broker that is killed again and again, mid-write, loses and doubles nothing."""
        with Client(embedded.address, patience_s=PATIENCE_S) as client:
            client.create_topic("t", 1, {"retention.ms": "-1"})
        stop = threading.Event()

        def trouble() -> None:
            rng = random.Random(1)
            for _ in range(3):
                stop.wait(0.1 + rng.random() * 0.3)
                embedded.kill()
                embedded.restart()

        thread = threading.Thread(target=trouble)
        thread.start()
        sent = 0
        with Producer(
            embedded.address, batch_bytes_max=BATCH_BYTES, patience_s=PATIENCE_S
        ) as producer:
            while thread.is_alive() or sent == 0:
                producer.send("t", 0, None, values(sent, sent + N), np.arange(N))
                sent += N
        stop.set()
        thread.join()
        assert stored(embedded.address, "t") == values(0, sent).to_pylist()
