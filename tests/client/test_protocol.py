"""The hand-written messages, and connections to peers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import Client
from penstock.client.network import hot
from penstock.client.network.connection import Connection
from penstock.errors import BrokerError, ProtocolError
from penstock.wire import messages

FETCH_VERSIONS = range(4, 14)
IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in "abt"}
PRODUCE_VERSIONS = range(3, 10)


def answer(api: int, version: int, fields: dict) -> memoryview:
    """A frame as a broker sends it, after the correlation id."""
    codec = messages.response_codec(api, version)
    return memoryview((b"\0" if codec.flexible else b"") + bytes(codec.encode(fields)))


class TestMessages:
    @pytest.mark.parametrize("version", FETCH_VERSIONS)
    def test_fetch_request(self, version):
        """Each version of a Fetch request reads as what was asked for."""
        wanted = [("a", 0, 5), ("b", 1, 6), ("a", 2, 7)]
        data = hot.fetch_request(version, wanted, wait_ms=9, bytes_max=99, isolation=1, ids=IDS)
        found = messages.request_codec(1, version).decode(data)
        assert (found["max_wait"], found["min_bytes"], found["max_bytes"]) == (9, 1, 99)
        assert found["isolation_level"] == 1
        names = {str(one): name for name, one in IDS.items()}
        topics = [
            (
                topic.get("topic") or names[str(topic["topic_id"])],
                part["partition"],
                part["fetch_offset"],
                part["partition_max_bytes"],
            )
            for topic in found["topics"]
            for part in topic["partitions"]
        ]
        assert topics == [("a", 0, 5, 99), ("a", 2, 7, 99), ("b", 1, 6, 99)]
        assert found.get("session_epoch", -1) == -1

    @pytest.mark.parametrize("version", FETCH_VERSIONS)
    def test_fetch_answer(self, version):
        """Each version of a Fetch answer gives each partition's state and where its records lie."""
        part = {
            "partition_index": 3,
            "error_code": 1,
            "high_watermark": 10,
            "last_stable_offset": 10,
            "log_start_offset": 2,
            "aborted_transactions": [{"producer_id": 1, "first_offset": 2}],
            "records": b"records",
        }
        named = {"topic": "t"} if version < hot.FETCH_BY_ID else {"topic_id": IDS["t"]}
        fields = {"responses": [{**named, "partitions": [part, part | {"records": None}]}]}
        frame = answer(1, version, fields)
        error, (one, two) = hot.read_fetch(version, frame)
        assert error == 0
        start = 2 if version >= 5 else -1
        assert one.topic == ("t" if version < hot.FETCH_BY_ID else str(IDS["t"]))
        assert (one.partition, one.error, one.high_watermark) == (3, 1, 10)
        assert one.log_start == start
        assert bytes(frame[one.start : one.end]) == b"records"
        assert two.start == two.end

    @pytest.mark.parametrize("version", PRODUCE_VERSIONS)
    def test_produce(self, version):
        """Each version of Produce carries the batch and gives the partition's answer."""
        parts = hot.produce_request(version, "t", 4, memoryview(b"batch"), acks=-1, timeout_ms=9)
        found = messages.request_codec(0, version).decode(b"".join(parts))
        assert (found["acks"], found["timeout"], found["transactional_id"]) == (-1, 9, None)
        (topic,) = found["topic_data"]
        (part,) = topic["partition_data"]
        assert (topic["name"], part["index"], part["records"]) == ("t", 4, b"batch")
        response = {"index": 4, "error_code": 45, "base_offset": 8, "error_message": "why"}
        fields = {"responses": [{"name": "t", "partition_responses": [response]}]}
        message = "why" if version >= 8 else None
        expected = [hot.Produced("t", 4, 45, 8, message)]
        assert hot.read_produce(version, answer(0, version, fields)) == expected

    def test_metadata(self):
        """Metadata gives nodes, the controller and each topic's leaders."""
        assert messages.request_codec(3, 4).decode(hot.metadata_request(None))["topics"] is None
        found = messages.request_codec(3, 4).decode(hot.metadata_request(["a", "b"]))
        assert [topic["name"] for topic in found["topics"]] == ["a", "b"]
        assert not found["allow_auto_topic_creation"]
        part = {"partition_index": 1, "leader_id": 7, "replica_nodes": [7], "isr_nodes": [7]}
        fields = {
            "brokers": [{"node_id": 7, "host": "h", "port": 9}],
            "controller_id": 7,
            "topics": [{"name": "a", "partitions": [part]}],
        }
        nodes, controller, topics = hot.read_metadata(answer(3, 4, fields))
        assert nodes == {7: ("h", 9)}
        assert controller == 7
        assert topics == {"a": hot.TopicMetadata(0, False, {1: 7})}

    @settings(deadline=None)
    @given(data=st.binary(max_size=200), version=st.sampled_from([4, 7, 11, 12, 13]))
    def test_any_bytes(self, data, version):
        """Any bytes at all are an answer or a protocol error."""
        readers: list[Callable[[], object]] = [
            lambda: hot.read_fetch(version, memoryview(data)),
            lambda: hot.read_produce(min(version, 9), memoryview(data)),
            lambda: hot.read_metadata(memoryview(data)),
        ]
        for read in readers:
            try:
                read()
            except ProtocolError:
                continue

    @pytest.mark.parametrize("version", [4, 12, 13])
    def test_cut_answers(self, version):
        """An answer that is cut anywhere is a protocol error."""
        part = {"partition_index": 0, "high_watermark": 10, "records": b"records"}
        named = {"topic": "t"} if version < hot.FETCH_BY_ID else {"topic_id": IDS["t"]}
        frame = answer(1, version, {"responses": [{**named, "partitions": [part]}]})
        for cut in range(len(frame)):
            with pytest.raises(ProtocolError):
                hot.read_fetch(version, frame[:cut])


@pytest.fixture
def peer() -> Iterator[Callable[[bytes], str]]:
    """A server that answers each connection's first request with given bytes, then closes."""
    server = socket.create_server(("127.0.0.1", 0))
    reply = b""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)
                connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()

    def start(data: bytes) -> str:
        nonlocal reply
        reply = data
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


class TestPeers:
    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            (struct.pack(">ii", -1, 1), "a length of -1"),
            (struct.pack(">ii", 2**31 - 1, 1), "a length of 2147483647"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Is this the address of a Kafka broker"),
            (struct.pack(">ii", 4, 77), "answer to request 1"),
            (struct.pack(">iihi", 10, 1, 0, 5), "found it cut"),
            (struct.pack(">iihi", 10, 1, 0, -5), "count -5"),
            (struct.pack(">iihi", 10, 1, 42, 0), "found error 42"),
        ],
    )
    def test_absurd_answers(self, peer, reply, message):
        """An answer that no broker gives is a protocol error that says what was wrong."""
        with (
            Client(peer(reply), patience_s=1) as client,
            pytest.raises(ProtocolError, match=message),
        ):
            client.topics()

    def test_closed_connection(self, peer):
        """A peer that closes instead of answering is retried, then reported."""
        with (
            Client(peer(b""), patience_s=0.2) as client,
            pytest.raises(BrokerError, match="closed"),
        ):
            client.topics()

    def test_unsupported(self, peer):
        """A broker that lacks a request type is an error that names it."""
        versions = struct.pack(">hihhh", 0, 1, 18, 0, 3)
        reply = struct.pack(">ii", len(versions) + 4, 1) + versions
        with (
            Client(peer(reply)) as client,
            pytest.raises(BrokerError, match="request type 3") as info,
        ):
            client.topics()
        assert info.value.code == 35

    def test_silence(self):
        """A peer that never answers ends in a timeout."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = Connection("127.0.0.1", server.getsockname()[1], "test", 0.1)
            with pytest.raises(TimeoutError):
                connection.versions()
            connection.close()
