"""Damaged and malicious record batches: an error or whole records, never a crash or a hang."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.errors import CorruptError, LimitError
from penstock.wire import columns, compression
from penstock.wire.codecs import CODECS
from penstock.wire.columns import decode, encode
from penstock.wire.compression import compress, decompress

VALUES = pa.array([b"value %d" % i * (i % 9) for i in range(40)], pa.binary())
HEADERS = [[("name", b"value")] if i % 4 == 0 else [] for i in range(40)]
VALID = {
    codec: b"".join(
        encode(
            VALUES, VALUES, np.arange(40), headers=HEADERS, compression=codec, batch_bytes_max=900
        )
    )
    for codec in CODECS
}
BODY = 61


def signed(data: bytes) -> bytes:
    """A single batch with the length and the checksum that fit."""
    batch = bytearray(data)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = columns.crc32c(batch[21:]).to_bytes(4, "big")
    return bytes(batch)


def batch_of(body: bytes, count: int = 1, codec: int = 0) -> bytes:
    """A batch at offset 9 whose records are these bytes."""
    head = bytearray(
        encode(None, pa.array([b""], pa.binary()), np.zeros(1), base_offset=9)[0][:BODY]
    )
    head[21:23] = codec.to_bytes(2, "big")
    head[23:27] = (max(count - 1, 0) & 0x7FFFFFFF).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big", signed=True)
    return signed(bytes(head) + body)


def consume(data: bytes, *, verify_crc: bool) -> None:
    """Decodes; whatever comes out must lie within its buffer and be readable."""
    try:
        records = decode(data, verify_crc=verify_crc)
    except (CorruptError, LimitError):
        return
    for start, length in (
        (records.key_start, records.key_length),
        (records.value_start, records.value_length),
    ):
        assert (start >= 0).all()
        assert (start + np.maximum(length, 0) <= len(records.buffer)).all()
    records.to_arrow().validate(full=True)
    for i in range(len(records)):
        columns.header(records, i)


@settings(deadline=None, max_examples=examples(300))
@given(
    codec=st.sampled_from(list(CODECS)),
    flips=st.lists(st.integers(0, 2**20), min_size=1, max_size=8),
    cut=st.none() | st.integers(0, 2**12),
    verify=st.booleans(),
)
def test_flipped_bits(codec, flips, cut, verify):
    """Any flipped bits and any cut give an error or well-formed records."""
    data = bytearray(VALID[codec])
    for flip in flips:
        at = flip % (len(data) * 8)
        data[at // 8] ^= 1 << (at % 8)
    consume(bytes(data[:cut]), verify_crc=verify)


@settings(deadline=None, max_examples=examples(200))
@given(
    body=st.binary(max_size=120),
    count=st.integers(-5, 30),
    codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
)
def test_arbitrary_bodies(body, count, codec):
    """Any bytes under a valid header give an error or well-formed records."""
    consume(batch_of(body, count, codec), verify_crc=True)


@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes(data):
    """Any bytes at all give an error or well-formed records."""
    consume(data, verify_crc=False)


def test_each_flip_after_the_checksum_is_detected():
    """With checksums verified, any one flipped bit that they cover is an error."""
    data = bytes(encode(None, VALUES[:2], np.arange(2))[0])
    for at in range(17 * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << (at % 8)
        with pytest.raises(CorruptError, match="base offset 0"):
            decode(damaged)


ENDLESS = b"\xff" * 40
HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # the varint of 2^63 - 1
HOSTILE = {
    "a count far over the bytes": batch_of(b"\x0c\x00\x00\x00\x01\x01\x00", 2**31 - 1),
    "a count over the records": batch_of(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 3)[:-1] + b"\x00",
    "a count under the records": batch_of(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 1),
    "a negative count": batch_of(b"\x0c\x00\x00\x00\x01\x01\x00", -1),
    "an endless varint": batch_of(ENDLESS),
    "a huge record": batch_of(HUGE + bytes(20)),
    "a negative record": batch_of(b"\x01" + bytes(20)),
    "a huge key": batch_of(b"\x24\x00\x00\x00" + HUGE + bytes(5)),
    "a negative key": batch_of(b"\x0c\x00\x00\x00\x03\x01\x00"),
    "a huge value": batch_of(b"\x24\x00\x00\x00\x01" + HUGE + bytes(4)),
    "a huge number of headers": batch_of(b"\x24\x00\x00\x00\x01\x01" + HUGE + bytes(3)),
    "a negative number of headers": batch_of(b"\x0c\x00\x00\x00\x01\x01\x01"),
    "a huge header": batch_of(b"\x26\x00\x00\x00\x01\x01\x02" + HUGE + bytes(3)),
    "bytes after the last header": batch_of(b"\x0e\x00\x00\x00\x01\x01\x00\x00"),
    "an offset past the last": batch_of(b"\x0c\x00\x00\x04\x01\x01\x00"),
    "the same offset twice": batch_of(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2),
    "an unknown codec": batch_of(bytes(20), 1, 7),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_batches(name):
    """Each way to lie about a length or a count is an error that names the batch."""
    data = HOSTILE[name]
    with pytest.raises(CorruptError, match="base offset 9"):
        decode(signed(data))


def test_header_lies():
    """A length below a header's, another magic and impossible offsets are errors."""
    good = batch_of(b"\x0c\x00\x00\x00\x01\x01\x00")
    for at, data in ((8, (48).to_bytes(4, "big")), (8, b"\xff" * 4), (16, b"\x01"), (0, b"\x80")):
        damaged = bytearray(good)
        damaged[at : at + len(data)] = data
        with pytest.raises(CorruptError, match="base offset"):
            decode(damaged)
    last = bytearray(good)
    last[:8] = (2**63 - 1).to_bytes(8, "big")
    with pytest.raises(CorruptError, match="offsets"):
        decode(last)


class TestCompression:
    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_round_trip(self, codec):
        """Each codec unpacks what it packed, at sizes around its blocks' limits."""
        for size in (1, 1000, 32 << 10, (32 << 10) + 1, 3_000_000):
            data = bytes(i % 251 for i in range(997)) * (size // 997 + 1)
            packed = np.frombuffer(compress(codec, data[:size]), np.uint8)
            assert bytes(decompress(codec, packed)) == data[:size]

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_bombs(self, codec):
        """A small input that stands for far more than the limit is refused."""
        packed = np.frombuffer(compress(codec, bytes(8 << 20)), np.uint8)
        with pytest.raises(LimitError, match="DECOMPRESSED_BYTES_MAX"):
            decompress(codec, packed, bytes_max=1 << 20)

    def test_limit_covers_all_batches_together(self, monkeypatch):
        """The limit is on what one decode unpacks, not on each batch alone."""
        data = b"".join(
            encode(None, pa.array([bytes(100_000)] * 9, pa.binary()), np.arange(9),
                   compression="zstd", batch_bytes_max=150_000)
        )  # fmt: skip
        monkeypatch.setattr(columns, "DECOMPRESSED_BYTES_MAX", 500_000)
        with pytest.raises(LimitError):
            decode(data)

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_garbage(self, codec):
        """Bytes that no codec made are an error."""
        with pytest.raises(CorruptError, match="expected"):
            decompress(codec, np.frombuffer(b"\xffgarbage that is not compressed", np.uint8))

    def test_raw_snappy(self):
        """Snappy as one raw block, as librdkafka writes it, is read as well."""
        raw = np.frombuffer(bytes(compression._cramjam.snappy.compress_raw(b"abc" * 99)), np.uint8)
        assert bytes(decompress(2, raw)) == b"abc" * 99

    def test_snappy_lies(self):
        """A snappy block that reaches past the end is an error."""
        packed = bytearray(compress(2, b"abc" * 99))
        packed[16:20] = b"\x7f\xff\xff\xff"
        with pytest.raises(CorruptError, match="snappy block within"):
            decompress(2, np.frombuffer(packed, np.uint8))

    def test_lz4_blocks_are_independent(self):
        """Kafka's Java client refuses lz4 frames whose blocks depend on one another."""
        assert compress(3, b"abc")[4] & 0x20
