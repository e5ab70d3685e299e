"""Produce's two readers and two writers: the one for plain requests says what the one for any form says."""

import random
from typing import Any

import pytest

from penstock.broker.protocol import produce
from penstock.broker.protocol.produce import NEWEST, Part
from penstock.log.errors import RecordError
from penstock.wire import batches
from penstock.wire.messages import request_codec, response_codec
from penstock.wire.protocol import ApiKey

TOPIC = bytes(range(16))
PLAIN_AT = 5
"""Where the requests of these tests begin in their frame: whatever comes first is passed over."""


def _frame(records: bytes | None, **changed: Any) -> memoryview:
    part = {"index": 3, "records": records}
    fields: dict[str, Any] = {
        "transactional_id": None,
        "acks": 1,
        "timeout_ms": 30_000,
        "topic_data": [{"topic_id": None, "partition_data": [part]}],
    }
    out = bytearray(PLAIN_AT)
    request_codec(0, NEWEST).write(out, fields | changed)
    return memoryview(out)


def _plain(read: tuple[int, str | None, produce.Request] | None) -> Any:
    if read is None:
        return None
    acks, transactional_id, request = read
    topics = [
        (name, [(one.index, None if one.records is None else bytes(one.records)) for one in parts])
        for name, parts in request
    ]
    return acks, transactional_id, topics


@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 16_000, 70_000])
def test_a_plain_request_is_read_as_any_other(size: int) -> None:
    """The short way finds the same acks, topic, partition and records, whatever their size."""
    frame = _frame(bytes(size))
    short = produce._parse_plain(frame, PLAIN_AT)
    assert short is not None
    assert _plain(short) == _plain(produce.parse(frame, PLAIN_AT, NEWEST))


@pytest.mark.parametrize(
    "changed",
    [
        {"transactional_id": "t"},
        {"topic_data": []},
        {"topic_data": [{"topic_id": None, "partition_data": []}]},
        {"topic_data": 2 * [{"partition_data": [{"index": 0, "records": b"abc"}]}]},
        {"topic_data": [{"partition_data": 2 * [{"index": 0, "records": b"abc"}]}]},
        {"topic_data": [{"partition_data": [{"index": 0, "records": None}]}]},
    ],
)
def test_other_requests_go_the_long_way(changed: dict[str, Any]) -> None:
    """Transactions, several topics or partitions and null records are left to the reader for any form."""
    assert produce._parse_plain(_frame(bytes(80), **changed), PLAIN_AT) is None


def test_the_short_way_never_reads_what_the_long_one_refuses() -> None:
    """Requests that are cut or changed anywhere: where the short way reads one, the long one agrees."""
    chance = random.Random(7)
    whole = _frame(bytes(150))
    agreed = 0
    for _ in range(3000):
        frame = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.randrange(3)):
            if frame:
                frame[chance.randrange(len(frame))] = chance.choice([0, 1, 2, 127, 128, 255])
        try:
            short = produce._parse_plain(memoryview(frame), PLAIN_AT)
        except IndexError:
            continue
        if short is not None:
            assert _plain(short) == _plain(produce.parse(memoryview(frame), PLAIN_AT, NEWEST))
            agreed += 1
    assert agreed > 100


def test_a_plain_answer_is_what_the_codec_writes() -> None:
    """The answer's bytes are those of the described codec, with and without an error."""
    for part in (
        Part(3, None, base_offset=17, append_time_ms=5, start_offset=2),
        Part(0, None, code=87),
        Part(0, None, code=2, message="expected…"),
    ):
        (frame,) = produce.render([(TOPIC, [part])], 99, NEWEST)
        answer = response_codec(0, NEWEST).decode(bytes(frame[9:]))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert int.from_bytes(frame[4:8], "big") == 99
        (topic,) = answer["responses"]
        (found,) = topic["partition_responses"]
        assert topic["topic_id"].bytes == TOPIC
        assert found["index"] == part.index
        assert found["error_code"] == part.code
        assert found["base_offset"] == part.base_offset
        assert found["log_append_time"] == part.append_time_ms
        assert found["log_start_offset"] == part.start_offset
        assert found["error_message"] == part.message


@pytest.mark.parametrize("version", range(8, NEWEST + 1))
def test_record_errors_are_answered(version: int) -> None:
    """Each record at fault with its index and message, as the described codec reads them."""
    errors = [RecordError(1, "expected…"), RecordError(70_000, "")]
    part = Part(3, None, code=87, message="expected…", record_errors=errors)
    name = TOPIC if version >= 13 else b"\2t" if version >= produce.FLEXIBLE_FROM else b"\0\1t"
    (frame,) = produce.render([(name, [part])], 99, version)
    codec = response_codec(0, version)
    answer = codec.decode(bytes(frame[9 if codec.flexible else 8 :]))
    (found,) = answer["responses"][0]["partition_responses"]
    reported = [
        (one["batch_index"], one["batch_index_error_message"]) for one in found["record_errors"]
    ]
    assert reported == [tuple(one) for one in errors]
    assert (found["error_code"], found["error_message"]) == (87, "expected…")


def test_the_records_at_fault_are_reported(raw: Any) -> None:
    """A produce to a compacted topic is told which of its records have no key."""
    config = {"name": "cleanup.policy", "value": "compact"}
    wanted = {"name": "keyed", "num_partitions": 1, "replication_factor": 1, "configs": [config]}
    raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    batch = batches.build([(b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"v")])
    found = raw.produce("keyed", batch)
    assert found["error_code"] == 87
    assert [one["batch_index"] for one in found["record_errors"]] == [1, 3]
    assert raw.produce("keyed", batches.build([(b"k", b"v")]))["record_errors"] == []
