"""Topics, offsets, groups and producers' state, against our broker and Apache Kafka."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until

from penstock.client import Client, Lag, Producer
from penstock.client.network.cluster import Cluster
from penstock.client.network.connection import wait_for_any
from penstock.errors import BrokerError, UserError

pytestmark = pytest.mark.interpreter


def produce(address: str, topic: str, n: int, partition: int = 0, first_ms: int = 1000) -> None:
    """Writes n records, one each millisecond."""
    with Producer(address) as producer:
        values = pa.array([b"%d" % i for i in range(n)], pa.binary())
        producer.send(topic, partition, None, values, first_ms + np.arange(n))


class TestTopics:
    def test_create_and_delete(self, client):
        """A topic is there with its partitions once it was created, and gone once deleted."""
        assert client.create_topic("made", 3, {"retention.ms": "1000000"})
        assert client.topics()["made"] == 3
        assert client.partitions("made") == [0, 1, 2]
        assert client.delete_topic("made")
        assert "made" not in client.topics()

    def test_existing(self, client, topic):
        """Creating a topic that exists is an error, or nothing where that is allowed."""
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            client.create_topic(topic, 2)
        assert not client.create_topic(topic, 2, exists_ok=True)

    def test_missing(self, client):
        """A topic that isn't there is an error that names it and says what to do."""
        with pytest.raises(BrokerError, match=r"know topic 'nope'.*Create it first"):
            client.partitions("nope")
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            client.end_offsets_many(["nope"])
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            client.ranges_many(["nope"])
        assert not client.delete_topic("nope", missing_ok=True)
        with pytest.raises(BrokerError, match="delete topic 'nope'"):
            Client(client._cluster._seeds[0][0] + f":{client._cluster._seeds[0][1]}",
                   patience_s=0.1).delete_topic("nope")  # fmt: skip


class TestOffsets:
    def test_earliest_and_latest(self, client, broker, topic):
        """The log's first offset is 0 and its next one the number of records written."""
        produce(broker.address, topic, 7, partition=1)
        assert client.offsets(topic, "earliest") == {0: 0, 1: 0}
        assert client.offsets(topic) == {0: 0, 1: 7}
        assert client.offsets(topic, partitions=[1]) == {1: 7}

    def test_of_many_topics_in_few_requests(self, client, broker, monkeypatch):
        """The first and next offsets of all topics take as many requests as those of one."""
        names = [f"many-{n}" for n in range(20)]
        for name in names:
            client.create_topic(name, 2)
        produce(broker.address, "many-3", 5, partition=1)
        client.ranges_many(names[:1])
        calls: list[object] = []
        call = Cluster.call
        monkeypatch.setattr(Cluster, "call", lambda *asked: calls.append(asked[2]) or call(*asked))
        found = client.ranges_many(names)
        assert len(calls) <= 3
        assert found["many-3"] == {0: (0, 0), 1: (0, 5)}
        assert set(found) == set(names)

    def test_by_time(self, client, broker, topic):
        """By time: the first record at that time or later; the end where there is none."""
        produce(broker.address, topic, 10, first_ms=1_700_000_000_000)
        assert client.offsets(topic, 1_700_000_000_004) == {0: 4, 1: 0}
        assert client.offsets(topic, 1_800_000_000_000) == {0: 10, 1: 0}

    def test_many_topics(self, client, broker, topic):
        """The end offsets of several topics come together."""
        produce(broker.address, topic, 3)
        client.create_topic("other", 1, exists_ok=True)
        assert client.end_offsets_many([topic, "other"]) == {topic: {0: 3, 1: 0}, "other": {0: 0}}
        assert client.end_offsets_many([]) == {}

    def test_partitions_that_are_known(self, client, broker, topic, monkeypatch):
        """They are not asked again, but where a broker refuses one of them."""
        asked = []
        refresh = client._cluster.refresh
        monkeypatch.setattr(
            client._cluster, "refresh", lambda names: (asked.append(names), refresh(names))[1]
        )
        assert client.end_offsets_many([topic], partitions_age_s=3_600) == {topic: {0: 0, 1: 0}}
        assert asked
        asked.clear()
        produce(broker.address, topic, 3)
        assert client.end_offsets_many([topic], partitions_age_s=3_600) == {topic: {0: 3, 1: 0}}
        assert not asked
        client.end_offsets_many([topic])
        assert asked
        client.create_topic("smaller", 2)
        assert client.end_offsets_many(["smaller"], partitions_age_s=3_600)["smaller"].keys() == {
            0, 1
        }  # fmt: skip
        client.delete_topic("smaller")
        client.create_topic("smaller", 1)
        assert client.end_offsets_many(["smaller"], partitions_age_s=3_600) == {"smaller": {0: 0}}


class Bell:
    """Something else to attend to; it may be fatal."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.times = error, 0
        self._read, self._write = socket.socketpair()

    def ring(self) -> None:
        self._write.send(b"!")

    def filenos(self) -> list[int]:
        return [self._read.fileno()]

    def attend(self) -> None:
        self._read.recv(1)
        self.times += 1
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self._read.close()
        self._write.close()


@pytest.fixture
def bell():
    """That rings only when it is told to."""
    found = Bell()
    yield found
    found.close()


class TestAside:
    """What is attended to while the log has nothing new."""

    @pytest.mark.parametrize("wait", ["ends_past", "wait_for_data"])
    def test_a_wait_goes_on_after_it(self, client, broker, topic, bell, wait):
        """And ends with the record that is waited for."""
        bell.ring()
        bell.ring()

        def follow() -> None:
            wait_until(lambda: bell.times == 2, "what happens aside")
            produce(broker.address, topic, 1)

        thread = threading.Thread(target=follow)
        thread.start()
        found = getattr(client, wait)({(topic, 0): 0}, PATIENCE_S, bell)
        thread.join()
        assert found in ({(topic, 0): 1}, True)
        assert bell.times == 2

    @pytest.mark.parametrize("wait", ["ends_past", "wait_for_data"])
    def test_it_may_end_the_wait(self, client, broker, topic, bell, wait):
        """What is asked next is answered, not what was waited for."""
        bell.error = RuntimeError("stop")
        bell.ring()
        with pytest.raises(RuntimeError, match="stop"):
            getattr(client, wait)({(topic, 0): 0}, PATIENCE_S, bell)
        produce(broker.address, topic, 1)
        assert client.end_offsets_many([topic]) == {topic: {0: 1, 1: 0}}

    def test_a_wait_has_an_end(self, client, topic, bell):
        """Where nothing happens."""
        assert client.ends_past({(topic, 0): 0}, 0.05, bell) == {(topic, 0): 0}
        assert not client.wait_for_data({(topic, 0): 0}, 0.05, bell)
        assert wait_for_any((), 0.05, bell) == []
        assert not bell.times


class TestWaiting:
    def test_data_is_there(self, client, broker, topic):
        """Where there is a record already, waiting ends at once."""
        produce(broker.address, topic, 3, partition=1)
        begun = time.monotonic()
        assert client.wait_for_data({(topic, 0): 0, (topic, 1): 2}, PATIENCE_S)
        assert time.monotonic() - begun < PATIENCE_S / 2

    def test_nothing_comes(self, client, broker, topic):
        """Where none comes, waiting ends after the time given."""
        produce(broker.address, topic, 3)
        begun = time.monotonic()
        assert not client.wait_for_data({(topic, 0): 3}, 0.3)
        assert time.monotonic() - begun > 0.2

    def test_data_comes(self, client, broker, topic):
        """A record that comes while waiting ends it."""
        client.wait_for_data({(topic, 0): 0}, 0)
        timer = threading.Timer(0.3, produce, (broker.address, topic, 1))
        begun = time.monotonic()
        timer.start()
        assert client.wait_for_data({(topic, 0): 0, (topic, 1): 0}, PATIENCE_S)
        assert time.monotonic() - begun < PATIENCE_S / 2
        timer.join()

    def test_position_beyond_the_log(self, client, topic):
        """A position that the log doesn't have is an error, not an endless wait."""
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            client.wait_for_data({(topic, 0): 99}, 1)

    def test_the_ends_come_with_the_first_record(self, client, broker, topic):
        """One request waits for a record and tells how far each partition reaches."""
        produce(broker.address, topic, 3, partition=1)
        places = (topic, 0), (topic, 1)
        assert client.ends_past(dict.fromkeys(places, 0), PATIENCE_S) == {
            places[0]: 0,
            places[1]: 3,
        }
        assert client.ends_past({places[0]: 0, places[1]: 3}, 0) == {places[0]: 0, places[1]: 3}
        timer = threading.Timer(0.1, produce, (broker.address, topic, 1))
        timer.start()
        assert client.ends_past({places[0]: 0}, PATIENCE_S) == {places[0]: 1}
        timer.join()

    def test_a_position_beyond_the_log_has_no_end(self, client, topic):
        """Whoever looks is told to ask for the ends themselves."""
        assert client.ends_past({(topic, 0): 99}, PATIENCE_S) is None


class TestGroups:
    def test_commit(self, client, broker, topic):
        """Committed offsets are kept per group and partition, and give its lag."""
        produce(broker.address, topic, 10)
        group = f"group-{topic}"
        assert client.committed(group) == {}
        client.commit(group, {(topic, 0): 4, (topic, 1): 0})
        client.commit(group, {(topic, 0): 6})
        assert client.committed(group) == {(topic, 0): 6, (topic, 1): 0}
        assert client.committed(group, ["other"]) == {}
        assert client.lag(group) == {(topic, 0): Lag(6, 10), (topic, 1): Lag(0, 0)}
        assert group in client.groups()


class TestProducers:
    def test_ids_differ(self, client):
        """Each producer id is given out once."""
        ids = {client.init_producer_id() for _ in range(3)}
        assert len(ids) == 3
        assert all(epoch == 0 for _, epoch in ids)

    def test_last_sequence(self, client, broker, topic):
        """The leader tells each producer's last sequence number."""
        with Producer(broker.address) as producer:
            for i in range(2):
                values = pa.array([b"v"] * 5, pa.binary())
                producer.send(
                    topic, 1, None, values, np.arange(5), producer_id=900, base_sequence=5 * i
                )
        assert client.describe_producers(topic, [0, 1]) == {0: {}, 1: {900: 9}}
        assert client.producer_states(topic, [1])[1][900].epoch == 0


class TestAbsence:
    def test_no_broker(self):
        """Where nothing answers, patience ends in an error with the address and what to do."""
        waits: list[float] = []
        client = Client("127.0.0.1:1", patience_s=0.2, on_wait=lambda _, s: waits.append(s))
        with pytest.raises(BrokerError, match=r"no broker answering at 127.0.0.1:1.*Check") as info:
            client.topics()
        assert info.value.retriable
        assert waits

    def test_restart(self, embedded):
        """A client goes on with a broker that was killed and started again."""
        with Client(embedded.address, patience_s=PATIENCE_S) as client:
            client.create_topic("kept", 1, {"retention.ms": "-1"})
            produce(embedded.address, "kept", 3)
            embedded.kill()
            timer = threading.Timer(0.3, embedded.restart)
            timer.start()
            assert client.offsets("kept") == {0: 3}
            timer.join()

    def test_addresses(self):
        """Addresses that aren't host:port are refused with an example."""
        for text in ("", "host:", "host:0", "host:70000", "a:1,,b:2", ":9"):
            with pytest.raises(UserError, match=r"127.0.0.1:9092"):
                Client(text)
