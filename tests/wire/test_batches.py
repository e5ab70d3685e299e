from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptError, LimitError
from penstock.wire import batches


@settings(deadline=None)
@given(
    values=st.lists(
        st.tuples(st.none() | st.binary(max_size=20), st.binary(max_size=20)), min_size=1
    ),
    codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    base=st.integers(0, 1 << 60),
)
def test_build_round_trip(values: list[tuple[bytes | None, bytes]], codec: str, base: int) -> None:
    """A batch that is built has a header that parses, a right checksum and its records' times."""
    times = [1_000 + 7 * n for n in range(len(values))]
    batch = batches.build(values, timestamps_ms=times, base_offset=base, codec=codec)
    header = batches.parse(batch)
    assert header.fault() is None
    assert header.size == len(batch)
    assert header.record_count == len(values)
    assert header.codec == codec
    assert batches.checksum_matches(batch, 0, header)
    assert list(batches.record_times(batch, 0, header)) == [
        (base + n, time) for n, time in enumerate(times)
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_reads_what_we_build() -> None:
    """Another implementation of the format reads the same records."""
    from kafka.record import MemoryRecords

    batch = batches.build([(b"k", b"v"), (None, b"w")], timestamps_ms=[5, 9], base_offset=3)
    (read,) = MemoryRecords(bytes(batch))
    assert [(one.offset, one.timestamp, one.key, one.value) for one in read] == [
        (3, 5, b"k", b"v"),
        (4, 9, None, b"w"),
    ]


def test_iterate_ends_before_a_torn_batch() -> None:
    """Only whole batches are seen, whatever number of bytes is missing of the last."""
    one = batches.build([(None, b"first")])
    two = batches.build([(None, b"second")], base_offset=1)
    for cut in range(1, len(two) + 1):
        found = list(batches.iterate(bytes(one + two)[: len(one) + len(two) - cut]))
        assert [(at, header.base_offset) for at, header in found] == [(0, 0)]


@given(st.binary(max_size=300))
def test_garbage_is_no_batch(data: bytes) -> None:
    """Random bytes neither crash the iterator nor let it run beyond them."""
    for at, header in batches.iterate(data):
        assert at + header.size <= len(data)


@settings(deadline=None)
@given(data=st.binary(max_size=200), count=st.integers(1, 1 << 30), codec=st.integers(0, 7))
def test_garbage_records_are_an_error(data: bytes, count: int, codec: int) -> None:
    """Records that aren't what the header says are refused, not followed."""
    batch = batches.build([(None, b"")])[: batches.HEADER_BYTES] + data
    struct.pack_into(">i", batch, 8, len(batch) - batches.PREFIX_BYTES)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 57, count)
    try:
        found = list(batches.record_times(batch, 0, batches.parse(batch)))
    except CorruptError:
        return
    assert len(found) <= len(data)


def test_append_time_is_every_records_time() -> None:
    """A stamped batch states the broker's time for all records and still has a right checksum."""
    batch = batches.build([(None, b"a"), (None, b"b")], timestamps_ms=[1, 2])
    batches.stamp_append_time(batch, 0, batches.parse(batch), 77)
    header = batches.parse(batch)
    assert header.is_append_time
    assert batches.checksum_matches(batch, 0, header)
    assert list(batches.record_times(batch, 0, header)) == [(0, 77), (1, 77)]


def test_patch_leaves_the_checksum_right() -> None:
    """Base offset and leader epoch are the broker's to write: the checksum doesn't cover them."""
    batch = batches.build([(None, b"a")])
    batches.patch(batch, 0, 1 << 40, 0)
    header = batches.parse(batch)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 0)
    assert batches.checksum_matches(batch, 0, header)


def test_sequences_wrap() -> None:
    """The sequence after the largest is 0, as in Kafka."""
    batch = batches.build(
        [(None, b"a"), (None, b"b")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=(1 << 31) - 1,
    )
    assert batches.parse(batch).last_sequence == 0


def test_decompression_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that decompresses to more than the limit is refused."""
    monkeypatch.setattr(batches, "DECOMPRESSED_BYTES_MAX", 1 << 16)
    batch = batches.build([(None, bytes(1 << 20))], codec="zstd")
    with pytest.raises(LimitError):
        list(batches.record_times(batch, 0, batches.parse(batch)))


def test_snappy_as_java_frames_it() -> None:
    """Snappy blocks in the framing of Java clients are read too."""
    import cramjam

    plain = batches.build([(b"k", b"v" * 50)], timestamps_ms=[8])
    payload = bytes(plain[batches.HEADER_BYTES :])
    framed = io.BytesIO()
    framed.write(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))
    for block in (payload[:20], payload[20:]):
        compressed = bytes(cramjam.snappy.compress_raw(block))
        framed.write(struct.pack(">i", len(compressed)) + compressed)
    batch = plain[: batches.HEADER_BYTES] + framed.getvalue()
    struct.pack_into(">i", batch, 8, len(batch) - batches.PREFIX_BYTES)
    struct.pack_into(">h", batch, 21, 2)
    assert list(batches.record_times(batch, 0, batches.parse(batch))) == [(0, 8)]
