from __future__ import annotations

import contextlib
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.broker.handlers import API_TABLE
from penstock.broker.protocol.dispatch import FETCH_VERSIONS, PRODUCE_VERSIONS
from penstock.errors import ProtocolError
from penstock.wire import batches, messages
from penstock.wire.protocol import ApiKey, ErrorCode

Raw = Any
ADVERTISED = [
    (key, version)
    for key, first, last in sorted(
        [(0, *PRODUCE_VERSIONS), (1, *FETCH_VERSIONS)]
        + [(api.key, api.first, api.last) for api in API_TABLE.values()]
    )
    for version in range(first, last + 1)
]


def is_alive(raw: Raw) -> bool:
    """Whether a connection still answers."""
    try:
        return raw.call(ApiKey.API_VERSIONS, 0)["error_code"] == 0
    except OSError:
        return False


# -- versions --------------------------------------------------------------------------------------


def test_who_makes_a_topic_by_asking_finds_it_the_second_time(raw: Raw) -> None:
    """As with Kafka: the first answer is UNKNOWN_TOPIC_OR_PARTITION, which clients retry."""
    for version in (0, 1, 4, 9, 12, 13):
        wanted = [{"name": f"first-use-{version}"}]
        (first,) = raw.call(ApiKey.METADATA, version, topics=wanted)["topics"]
        assert (first["error_code"], first["partitions"]) == (3, [])
        (second,) = raw.call(ApiKey.METADATA, version, topics=wanted)["topics"]
        assert (second["error_code"], len(second["partitions"])) == (0, 1)
    unwanted = {"topics": [{"name": "not-made"}], "allow_auto_topic_creation": False}
    for _ in range(2):
        assert raw.call(ApiKey.METADATA, 9, **unwanted)["topics"][0]["error_code"] == 3


INVALID_UPDATE_VERSION = ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_may_have_the_levels_that_they_have(raw: Raw, version: int) -> None:
    """Each is named in the answers that have a place for it; one that is wrong fails all."""
    levels = {
        one["name"]: one["max_version_level"]
        for one in raw.call(ApiKey.API_VERSIONS, 4)["finalized_features"]
    }
    same = [{"feature": name, "max_version_level": level} for name, level in levels.items()]
    whole = [one | {"upgrade_type": 1} for one in same]
    answer = raw.call(ApiKey.UPDATE_FEATURES, version, feature_updates=whole)
    assert answer["error_code"] == 0
    results = [(one["feature"], one["error_code"]) for one in answer.get("results", [])]
    assert results == ([] if version == 2 else [(name, 0) for name in levels])
    wrong = [
        {"feature": "nope", "max_version_level": 1, "upgrade_type": 1},
        {"feature": "share.version", "max_version_level": 2, "upgrade_type": 1},
        {"feature": "share.version", "max_version_level": -1, "upgrade_type": 1},
        {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2},
        *([same[0] | {"upgrade_type": kind} for kind in (0, 4)] if version else []),
    ]
    for one in wrong:
        answer = raw.call(ApiKey.UPDATE_FEATURES, version, feature_updates=[*whole, one])
        assert answer["error_code"] == INVALID_UPDATE_VERSION
        assert answer["error_message"].startswith("expected ")
        assert not answer.get("results")
    if version:
        for kind in (1, 2, 3):
            one = same[0] | {"upgrade_type": kind}
            assert (
                raw.call(ApiKey.UPDATE_FEATURES, version, feature_updates=[one])["error_code"] == 0
            )


@pytest.mark.quick_cases(33)
@pytest.mark.parametrize(("key", "version"), ADVERTISED)
def test_every_advertised_version_is_answered(raw: Raw, key: int, version: int) -> None:
    """An all-default request of each advertised version gets an answer that decodes."""
    fields: dict[str, Any] = {"acks": 1} if key == 0 else {}
    assert isinstance(raw.call(key, version, **fields), dict)
    assert is_alive(raw)


def test_advertised_versions_are_listed(raw: Raw) -> None:
    """ApiVersions names exactly what is served, and the features that clients go by."""
    answer = raw.call(ApiKey.API_VERSIONS, 3)
    served = answer["api_keys"]
    levels = {one["name"]: one["max_version_level"] for one in answer["finalized_features"]}
    assert levels["transaction.version"] == 2
    pairs = [
        (one["api_key"], version)
        for one in served
        for version in range(one["min_version"], one["max_version"] + 1)
    ]
    assert pairs == ADVERTISED


def test_newer_api_versions_falls_back(raw: Raw) -> None:
    """A client that asks in a version of the future learns in version 0 what there is."""
    raw.socket.sendall(raw.frame(18, 99, b"\xff\xff", flexible=True))
    answer = raw.receive(18, 0)
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert len(answer["api_keys"]) > 20
    assert is_alive(raw)


@pytest.mark.parametrize(("key", "version"), [(99, 0), (24, 6), (0, 2), (0, 14), (3, 14), (1, 3)])
def test_unsupported_requests_close_the_connection(raw: Raw, key: int, version: int) -> None:
    """A request that wasn't advertised closes the connection, as in Kafka."""
    raw.socket.sendall(raw.frame(key, version, bytes(50), flexible=False))
    with pytest.raises(ConnectionError):
        raw.exactly(4)


# -- produce ---------------------------------------------------------------------------------------


def test_produce_errors(raw: Raw, topic: str, make_batch: Callable[..., bytearray]) -> None:
    """Each thing that can be wrong with a batch has its code, and a message where there is room."""
    assert raw.produce("nowhere", make_batch())["error_code"] == 3
    assert raw.produce(topic, make_batch(), partition=9)["error_code"] == 3
    assert raw.produce(topic, b"")["error_code"] == ErrorCode.INVALID_RECORD
    broken = make_batch()
    broken[-1] ^= 1
    answer = raw.produce(topic, broken)
    assert answer["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert "checksum" in answer["error_message"]
    two = make_batch() + make_batch()
    assert raw.produce(topic, two)["error_code"] == ErrorCode.INVALID_RECORD
    large = make_batch(1, 1 << 20)
    assert raw.produce(topic, large)["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    acks = raw.produce(topic, make_batch(), acks=5)
    assert acks["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS
    assert raw.produce(topic, make_batch())["base_offset"] == 0


def test_produce_by_topic_id(raw: Raw, topic: str, make_batch: Callable[..., bytearray]) -> None:
    """Newer clients name topics by their id; an unknown id has an error of its own."""
    known = raw.call(ApiKey.METADATA, 12, topics=[{"name": topic}])["topics"][0]["topic_id"]
    for topic_id, code in ((known, 0), (uuid.uuid4(), ErrorCode.UNKNOWN_TOPIC_ID)):
        part = {"index": 1, "records": bytes(make_batch())}
        data = [{"topic_id": topic_id, "partition_data": [part]}]
        answer = raw.call(ApiKey.PRODUCE, 13, acks=-1, timeout=1000, topic_data=data)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == code


def test_unacknowledged_error_closes_the_connection(
    raw: Raw, topic: str, make_batch: Callable[..., bytearray]
) -> None:
    """With acks=0 there is no answer, so an error can only be told by closing."""
    part = {"index": 0, "records": bytes(make_batch())}
    fields = {"acks": 0, "timeout": 0, "topic_data": [{"name": topic, "partition_data": [part]}]}
    raw.send(0, 9, fields)
    assert is_alive(raw)
    part["records"] = b"nonsense"
    raw.send(0, 9, fields)
    with pytest.raises(ConnectionError):
        raw.exactly(4)


def test_idempotent_retry_is_stored_once(
    raw: Raw, topic: str, make_batch: Callable[..., bytearray]
) -> None:
    """A retried batch gets the offset of the first attempt; a gap and an old epoch are refused."""
    producer = raw.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)["producer_id"]

    def send(sequence: int, epoch: int = 0) -> dict[str, Any]:
        batch = make_batch(2, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        found: dict[str, Any] = raw.produce(topic, batch, acks=-1)
        return found

    assert [send(0)["base_offset"], send(2)["base_offset"], send(0)["base_offset"]] == [0, 2, 0]
    assert send(6)["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, 1)["base_offset"] == 4
    assert send(4)["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH
    asked = [{"name": topic, "partition_indexes": [0]}]
    (active,) = raw.call(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)["topics"][0]["partitions"][0][
        "active_producers"
    ]
    assert (active["producer_id"], active["last_sequence"]) == (producer, 1)


def test_answers_keep_the_order_of_requests(
    raw: Raw, topic: str, make_batch: Callable[..., bytearray]
) -> None:
    """Requests that are sent without waiting are answered in order, whatever each has to wait
    for.
    """
    batch = bytes(make_batch())
    for n in range(20):
        part = {"index": 0, "records": batch}
        data = [{"name": topic, "partition_data": [part]}]
        raw.send(0, 9, {"acks": -1 if n % 2 else 1, "timeout": 1, "topic_data": data})
    raw.send(18, 0, {})
    offsets = [
        raw.receive(0, 9)["responses"][0]["partition_responses"][0]["base_offset"]
        for _ in range(20)
    ]
    assert offsets == list(range(20))
    assert raw.receive(18, 0)["error_code"] == 0


# -- fetch -----------------------------------------------------------------------------------------


def test_fetch_errors(raw: Raw, topic: str) -> None:
    """A wrong place to read from is answered at once, however long the client would wait."""
    assert raw.fetch(topic, 1, max_wait=10_000)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert raw.fetch(topic, -5, max_wait=10_000)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert raw.fetch("nowhere", 0, max_wait=10_000)["error_code"] == 3


def test_fetch_limits(raw: Raw, topic: str, make_batch: Callable[..., bytearray]) -> None:
    """An answer holds whole batches up to the limit, and at least one."""
    batch = make_batch(1, 1000)
    for _ in range(10):
        raw.produce(topic, batch)
    one = len(batch)
    for limit, expected in ((0, 1), (1, 1), (2 * one, 2), (3 * one - 1, 2), (1 << 20, 10)):
        found = raw.fetch(topic, 0, max_bytes=limit)
        assert len(found["records"]) == expected * one
        assert found["high_watermark"] == 10


def test_long_poll_waits_for_enough(
    raw: Raw, address: str, connect: Callable[..., Raw], topic: str, make_batch: Any
) -> None:
    """A fetch waits until there are enough bytes, or until its time is over."""
    batch = make_batch(1, 100)
    with connect(address) as waiting:
        waiting.send_fetch(topic, 0, max_wait=60_000, min_bytes=len(batch) + 1)
        raw.produce(topic, batch)
        raw.produce(topic, batch)
        found = waiting.receive(1, 11)["responses"][0]["partitions"][0]
        assert len(found["records"]) == 2 * len(batch)
        waiting.send_fetch(topic, 2, max_wait=50)
        found = waiting.receive(1, 11)["responses"][0]["partitions"][0]
        assert found["records"] == b""


def test_deleted_topic_ends_a_long_poll(
    raw: Raw, address: str, connect: Callable[..., Raw], topic: str
) -> None:
    """Who waits for a topic that is deleted is told so."""
    with connect(address) as waiting:
        waiting.send_fetch(topic, 0, max_wait=60_000)
        assert is_alive(raw)
        raw.call(ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout=1000)
        found = waiting.receive(1, 11)["responses"][0]["partitions"][0]
        assert found["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_enough_is_not_waited_for(
    raw: Raw, address: str, connect: Callable[..., Raw], topic: str, make_batch: Any
) -> None:
    """A fetch that wants just the bytes that are there, or that come, is answered with them, however
    long it might wait.
    """
    batch = make_batch(1, 100)
    raw.produce(topic, batch)
    with connect(address) as waiting:
        for count in (1, 2):
            waiting.send_fetch(topic, 0, max_wait=600_000, min_bytes=count * len(batch))
            if count == 2:
                raw.produce(topic, batch)
            found = waiting.receive(1, 11)["responses"][0]["partitions"][0]
            assert len(found["records"]) == count * len(batch)


def test_fetch_sessions_are_not_kept(raw: Raw) -> None:
    """A session is never given out, so naming one makes the client begin afresh."""
    answer = raw.call(ApiKey.FETCH, 11, max_bytes=1, session_id=7, session_epoch=3)
    assert answer["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert raw.call(ApiKey.FETCH, 11, max_bytes=1, session_id=0, session_epoch=0)["session_id"] == 0


def test_format_is_looked_at_before_compression(raw: Raw, topic: str) -> None:
    """An old format is the fault that is told, whatever its attributes would mean."""
    batch = batches.build([(None, b"x")], timestamps_ms=[1000], codec="zstd")
    for magic, code in ((2, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (1, ErrorCode.INVALID_RECORD)):
        batch[16] = magic
        part = {"index": 0, "records": bytes(batch)}
        data = [{"name": topic, "partition_data": [part]}]
        answer = raw.call(ApiKey.PRODUCE, 3, acks=1, timeout=1000, topic_data=data)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == code


def test_operations_of_topics_are_reported(raw: Raw, topic: str) -> None:
    """Of those that aren't there, too."""
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    found = raw.call(ApiKey.METADATA, 9, topics=[{"name": topic}, {"name": "missing"}], **fields)[
        "topics"
    ]
    assert [one["topic_authorized_operations"] for one in found] == [3576, 3576]


@pytest.mark.parametrize(
    ("count", "factor", "value", "code"),
    [
        (0, 0, "-2", ErrorCode.INVALID_CONFIG),
        (0, 0, "-1", ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 3, "-1", ErrorCode.INVALID_PARTITIONS),
        (1, 3, "-1", ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_first_fault_of_a_new_topic_is_reported(
    raw: Raw, count: int, factor: int, value: str, code: ErrorCode
) -> None:
    """Of several faults it is the one that Kafka looks for first."""
    wanted = {
        "name": "faulty",
        "num_partitions": count,
        "replication_factor": factor,
        "configs": [{"name": "retention.ms", "value": value}],
    }
    answer = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    assert answer["topics"][0]["error_code"] == code


def test_append_time_topic(raw: Raw, make_batch: Callable[..., bytearray]) -> None:
    """A topic may take the broker's time; the producer is told which."""
    config = {"name": "message.timestamp.type", "value": "LogAppendTime"}
    wanted = {"name": "stamped", "num_partitions": 1, "replication_factor": 1, "configs": [config]}
    raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    stamped = raw.produce("stamped", make_batch())["log_append_time"]
    assert stamped > 1_600_000_000_000
    header = batches.parse(raw.fetch("stamped", 0)["records"])
    assert (header.is_append_time, header.max_timestamp) == (True, stamped)


# -- what no client sends --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 0, 7, (100 << 20) + 1, (1 << 31) - 1])
def test_absurd_frame_lengths_close_the_connection(raw: Raw, size: int) -> None:
    """A frame that can't be a request is not waited for."""
    raw.socket.sendall(struct.pack(">i", size) + bytes(20))
    with pytest.raises(ConnectionError):
        raw.exactly(4)


@pytest.mark.quick_cases(45)
@pytest.mark.parametrize(("key", "version"), ADVERTISED)
def test_random_bodies_do_no_harm(
    address: str, connect: Callable[..., Raw], key: int, version: int
) -> None:
    """Random bodies of each request get an answer or a closed connection; the broker lives on."""
    chance = random.Random(1000 * key + version)
    flexible = messages.request_codec(key, version).flexible
    for _ in range(4):
        size = chance.randrange(80)
        body = bytes(
            chance.choice([0, 1, 2, 127, 128, 255, chance.randrange(256)]) for _ in range(size)
        )
        with connect(address) as raw:
            raw.socket.settimeout(0.02)
            raw.socket.sendall(raw.frame(key, version, body, flexible=flexible))
            with contextlib.suppress(ConnectionError, TimeoutError):
                raw.exactly(4)
    with connect(address) as raw:
        assert is_alive(raw)


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (
            0,
            9,
            {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"records": b"x" * 80}]}]},
        ),
        (1, 12, {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}),
        (3, 12, {"topics": [{"name": "t"}]}),
        (8, 8, {"group_id": "g", "topics": [{"name": "t", "partitions": [{}]}]}),
    ],
)
def test_truncated_requests_close_the_connection(
    address: str, connect: Callable[..., Raw], key: int, version: int, fields: dict[str, Any]
) -> None:
    """A request whose frame ends early, wherever, is refused by closing the connection."""
    codec = messages.request_codec(key, version)
    body = bytes(codec.encode(fields))
    for end in range(0, len(body), 3):
        with connect(address) as raw:
            raw.socket.sendall(raw.frame(key, version, body[:end], flexible=codec.flexible))
            with pytest.raises(ConnectionError):
                raw.exactly(4)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.binary(max_size=100), which=st.sampled_from(ADVERTISED))
def test_decoders_only_raise_protocol_errors(body: bytes, which: tuple[int, int]) -> None:
    """Whatever the bytes, a decoder gives fields that encode again, or a ProtocolError."""
    codec = messages.request_codec(*which)
    try:
        fields = codec.decode(body)
    except ProtocolError:
        return
    assert codec.decode(bytes(codec.encode(fields))) == fields


def test_counts_are_not_believed() -> None:
    """An array that claims more elements than there are bytes is refused without reserving room."""
    codec = messages.request_codec(3, 8)
    with pytest.raises(ProtocolError, match="count"):
        codec.decode(struct.pack(">i", (1 << 31) - 1) + bytes(100))


def test_elements_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of very many tiny elements is refused: each would cost far more than its bytes."""
    monkeypatch.setattr(messages, "ELEMENTS_MAX", 10)
    codec = messages.request_codec(42, 0)
    assert codec.decode(bytes(codec.encode({"groups_names": ["g"] * 10})))
    with pytest.raises(ProtocolError, match="at most"):
        codec.decode(bytes(codec.encode({"groups_names": ["g"] * 11})))


@pytest.mark.parametrize("key", sorted(API_TABLE))
def test_codec_agrees_with_kio(key: int) -> None:
    """Our codec writes the same bytes as kio's own for an all-default answer."""
    import io

    import kio.index
    from kio.serial import entity_reader
    from kio.static.constants import EntityType

    api = API_TABLE[key]
    for version in range(api.first, api.last + 1):
        codec = messages.response_codec(key, version)
        module = kio.index.load_payload_module(key, version, EntityType.response)
        data = bytes(codec.encode({}))
        entity, used = entity_reader(getattr(module, codec.name))(data, 0)
        assert used == len(data)
        from kio.serial import entity_writer

        out = io.BytesIO()
        entity_writer(type(entity))(out, entity)
        assert out.getvalue() == data
