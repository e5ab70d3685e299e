"""Transactions of our client, against our broker and Apache Kafka."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until

from penstock.client import Client, Reader, TransactionalProducer
from penstock.client.groups import GroupAdmin
from penstock.client.network.connection import Connection
from penstock.client.producer import Part
from penstock.errors import BrokerError, FencedError, LimitError, UserError

_ids = itertools.count()


def stored(address: str, topic: str) -> list[list[bytes]]:
    """The committed values of both partitions."""
    with Client(address) as client, Reader(address, patience_s=PATIENCE_S) as reader:
        found = []
        for partition, end in client.offsets(topic).items():
            chunks = list(reader.read(topic, partition, 0, end))
            found.append([text for records in chunks for text in records.values().to_pylist()])
        return found


def shows(address: str, topic: str, *wanted: list[bytes]) -> None:
    """Waits until the partitions have these committed values: Kafka shows them after a moment."""
    wait_until(lambda: stored(address, topic) == list(wanted), f"{wanted}")


def send(writer: TransactionalProducer, topic: str, partition: int, *texts: str) -> None:
    values = pa.array([text.encode() for text in texts], pa.binary())
    writer.send(topic, partition, None, values, np.zeros(len(texts), np.int64))


@pytest.fixture
def name() -> str:
    """A new transactional id."""
    return f"writer-{next(_ids)}"


@pytest.fixture(params=[1, 2])
def writer(broker, topic, name, request) -> Iterator[TransactionalProducer]:
    """One that writes in transactions of either version."""
    settings = {"patience_s": PATIENCE_S, "version": request.param}
    with TransactionalProducer(broker.address, name, **settings) as one:
        one.start()
        yield one


def test_records_and_offsets_become_visible_together(writer, broker, topic, name) -> None:
    """Nothing before the commit, everything after it, transaction after transaction."""
    with GroupAdmin(broker.address) as admin:
        for n in range(3):
            send(writer, topic, 0, f"a{n}", f"b{n}")
            send(writer, topic, 1, f"c{n}")
            writer.commit_offsets(name, {(topic, 1): n + 1}, f"note {n}")
            assert stored(broker.address, topic)[1] == [b"c%d" % one for one in range(n)]
            assert admin.committed(name) == ({(topic, 1): n} if n else {})
            writer.commit()
            pairs = [text for one in range(n + 1) for text in (b"a%d" % one, b"b%d" % one)]
            shows(broker.address, topic, pairs, [b"c%d" % one for one in range(n + 1)])
            wait_until(lambda n=n: admin.committed(name) == {(topic, 1): n + 1})
        assert admin.committed_entries(name) == {(topic, 1): (3, "note 2")}


def test_partitions_are_written_together_and_once(writer, broker, topic, monkeypatch) -> None:
    """One request has them all; where its answer is lost, nothing is stored twice."""

    def together(*texts: bytes) -> None:
        values = [pa.array([one, one + b"!"], pa.binary()) for one in texts]
        times = np.zeros(2, np.int64)
        writer.send_together([Part(topic, i, None, one, times) for i, one in enumerate(values)])

    together(b"a", b"b")
    receive, lost = Connection.receive, []

    def loses(connection: Connection, number: int, *rest: object) -> memoryview:
        frame = receive(connection, number, *rest)
        if not lost:
            lost.append(number)
            raise OSError("the answer is lost")
        return frame

    monkeypatch.setattr(Connection, "receive", loses)
    together(b"c", b"d")
    assert lost
    writer.commit()
    shows(broker.address, topic, [b"a", b"a!", b"c", b"c!"], [b"b", b"b!", b"d", b"d!"])


def test_a_commit_whose_answer_is_lost_is_asked_for_again(
    writer, broker, topic, monkeypatch
) -> None:
    """It counts once, and the next transaction follows on it."""
    receive, lost = Connection.receive, []

    def loses(connection: Connection, number: int, *rest: object) -> memoryview:
        frame = receive(connection, number, *rest)
        if not lost:
            lost.append(number)
            raise OSError("the answer is lost")
        return frame

    send(writer, topic, 0, "one")
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "receive", loses)
        writer.commit()
    assert lost
    for text in ("two", "three"):
        send(writer, topic, 0, text)
        writer.commit()
    shows(broker.address, topic, [b"one", b"two", b"three"], [])


def part(topic: str, partition: int, *texts: str) -> Part:
    values = pa.array([text.encode() for text in texts], pa.binary())
    return Part(topic, partition, None, values, np.zeros(len(texts), np.int64))


def commit_ahead(writer: TransactionalProducer, *parts: Part) -> bool:
    """Whether the commit followed its records before they were acknowledged."""
    if (commit := writer.commit_ahead(parts)) is None:
        return False
    wait_until(lambda: commit.is_answered, "the answer")
    commit.finish()
    return True


def test_a_commit_follows_its_records_at_once(writer, broker, topic) -> None:
    """Transaction after transaction, each once; also behind records that were sent before."""
    for n in range(3):
        if n == 1:
            send(writer, topic, 1, "early")
        commit_ahead(writer, part(topic, 0, f"a{n}", f"b{n}"), part(topic, 1, f"c{n}"))
    shows(
        broker.address,
        topic,
        [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"],
        [b"c0", b"early", b"c1", b"c2"],
    )


@pytest.fixture
def eager(embedded, name) -> Iterator[TransactionalProducer]:
    """A writer to our broker, which has told it that it counts; its topics are `ahead` and `small`."""
    with Client(embedded.address) as client:
        client.create_topic("ahead", 2, {"retention.ms": "-1"}, exists_ok=True)
        client.create_topic("small", 2, {"max.message.bytes": "200"}, exists_ok=True)
    settings = {"patience_s": PATIENCE_S, "version": 2}
    with TransactionalProducer(embedded.address, name, **settings) as one:
        one.start()
        assert not commit_ahead(one, part("small", 0, "first"))
        yield one


def test_a_broker_that_counts_is_not_waited_for(eager, embedded) -> None:
    """From the second commit on; a new connection has to be told again."""
    assert commit_ahead(eager, part("small", 0, "second"))
    eager._cluster.close()
    assert not commit_ahead(eager, part("small", 0, "third"))
    assert commit_ahead(eager, part("small", 0, "fourth"))


def test_a_commit_does_not_count_without_a_record_that_is_refused(eager, embedded) -> None:
    """Though it has followed the records before they were refused."""
    before = stored(embedded.address, "ahead"), stored(embedded.address, "small")
    commit = eager.commit_ahead([part("ahead", 0, "fits"), part("small", 1, "x" * 500)])
    assert commit is not None
    with pytest.raises(LimitError, match="batch"):
        commit.finish()
    eager.abort()
    assert (stored(embedded.address, "ahead"), stored(embedded.address, "small")) == before


@pytest.mark.slow
def test_a_commit_ahead_whose_answer_is_lost_is_asked_for_again(eager, embedded) -> None:
    """It counts once, and the next transaction follows on it."""
    [former, _] = stored(embedded.address, "ahead")
    commit = eager.commit_ahead([part("ahead", 0, "one")])
    assert commit is not None
    wait_until(lambda: commit.is_answered, "the answer")
    commit._call.connection.close()
    commit.finish()
    for text in ("two", "three"):
        commit_ahead(eager, part("ahead", 0, text))
    assert stored(embedded.address, "ahead")[0] == [*former, b"one", b"two", b"three"]


def test_an_aborted_transaction_leaves_nothing(writer, broker, topic, name) -> None:
    """Neither records nor offsets; the writer goes on."""
    send(writer, topic, 0, "gone")
    writer.commit_offsets(name, {(topic, 1): 7})
    writer.abort()
    send(writer, topic, 0, "here")
    writer.commit()
    shows(broker.address, topic, [b"here"], [])
    with GroupAdmin(broker.address) as admin:
        assert admin.committed(name) == {}


def test_a_new_writer_ends_what_the_one_before_left(writer, broker, topic, name) -> None:
    """What was open is aborted, and the one before can write nothing any more."""
    send(writer, topic, 0, "open")
    with TransactionalProducer(broker.address, name, patience_s=PATIENCE_S) as second:
        second.start()
        with pytest.raises(FencedError, match="another writer has started"):
            writer.commit()
        send(second, topic, 0, "second")
        second.commit()
    shows(broker.address, topic, [b"second"], [])


def test_another_process_may_end_a_transaction(writer, broker, topic, name) -> None:
    """Whoever knows the identity; once."""
    send(writer, topic, 0, "handed over")
    with TransactionalProducer(broker.address, name, patience_s=PATIENCE_S) as other:
        other.resume(writer.identity)
        other.commit()
        shows(broker.address, topic, [b"handed over"], [])
        other.resume(writer.identity)
        with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
            other.abort()  # it is committed


def test_a_writer_starts_first(broker, topic) -> None:
    """Records without an identity are refused here."""
    with (
        TransactionalProducer(broker.address, "nobody") as writer,
        pytest.raises(UserError, match=r"start\(\)"),
    ):
        send(writer, topic, 0, "x")


@pytest.mark.parametrize("lost", ["last", "first"])
def test_lost_records_keep_a_transaction_from_counting(lost, embedded, name) -> None:
    """Records that were acknowledged before they were durable, and that a crash took: nothing counts."""
    address, topic = embedded.address, "late"
    with Client(address) as client:
        client.create_topic(topic, 2, {"retention.ms": "-1"})
    with TransactionalProducer(address, name, version=2, patience_s=PATIENCE_S) as writer:
        writer.start()
        if lost == "first":
            writer._sequences[topic, 0] = 3
            with pytest.raises(BrokerError, match="Records in between were lost"):
                send(writer, topic, 0, "d")
        else:
            send(writer, topic, 0, "a")
            writer._sequences[topic, 0] += 2
            with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
                writer.commit()
        writer.start()
        send(writer, topic, 1, "b")
        writer.commit()
    assert stored(address, topic) == [[], [b"b"]]
