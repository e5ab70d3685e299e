"""Record batches to columns and back."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptError, LimitError, UserError
from penstock.wire import columns
from penstock.wire.codecs import CODECS
from penstock.wire.columns import decode, encode, header, scan

with warnings.catch_warnings():  # it loads its schemas in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

# One record at offset 5 and time 1000: key "k", value "v", header "h" = "x".
GOLDEN = bytes.fromhex(
    "0000000000000005"  # base offset
    "0000003e"  # length: 49 of the header, 13 of the record
    "ffffffff"  # leader epoch
    "02"  # magic
    "85d4936f"  # CRC-32C of what follows
    "0000"  # attributes
    "00000000"  # last offset delta
    "00000000000003e8"  # base timestamp
    "00000000000003e8"  # maximum timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000001"  # records
    "18"  # length 12
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "026b"  # key of 1 byte
    "0276"  # value of 1 byte
    "02"  # 1 header
    "02680278"  # name of 1 byte, value of 1 byte
)

INT64 = st.integers(-(2**63), 2**63 - 1)
DATA = st.none() | st.binary(max_size=200) | st.just(b"\xc3\xa9\xf0\x9f\x98\x80")
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
ROWS = st.lists(st.tuples(DATA, DATA, INT64, HEADERS), max_size=60)
PLAIN_ROWS = [(b"k%d" % i if i % 3 else None, b"v" * (i % 50), 1000 + i) for i in range(500)]


def binary(values: list[bytes | None]) -> pa.Array:
    """A binary array."""
    return pa.array(values, pa.binary())


def encode_rows(rows, **options):
    """Encodes (key, value, time, …) rows."""
    keys, values, times = ([row[i] for row in rows] for i in range(3))
    return encode(binary(keys), binary(values), np.array(times, np.int64), **options)


def rows_of(records: columns.Records) -> list[tuple]:
    """Key, value and time of each record."""
    batch = records.to_arrow()
    times = records.timestamp_ms.tolist()
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == times
    return list(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), times, strict=True))


def patch(batch: bytes, at: int, data: bytes) -> bytes:
    """A batch with other bytes at a place after the checksum, and the checksum that fits."""
    changed = bytearray(batch)
    changed[at : at + len(data)] = data
    changed[17:21] = columns.crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


class TestGolden:
    def test_encode(self):
        """Encoding gives the bytes that the format's description spells out."""
        (batch,) = encode(
            binary([b"k"]), binary([b"v"]), np.array([1000]), base_offset=5, headers=[[("h", b"x")]]
        )
        assert bytes(batch).hex() == GOLDEN.hex()

    def test_decode(self):
        """Decoding those bytes gives the record's key, value, offset, time and headers."""
        records = decode(GOLDEN)
        (row,) = records.to_arrow().to_pylist()
        assert (row["key"], row["value"], row["offset"]) == (b"k", b"v", 5)
        assert row["timestamp"].timestamp() == 1.0
        assert header(records, 0) == [("h", b"x")]
        assert records.next_offset == 6

    def test_kafka_python_agrees(self):
        """Another implementation reads the golden bytes in the same way."""
        batch = MemoryRecords(GOLDEN).next_batch()
        assert batch.validate_crc()
        (record,) = batch
        found = (record.offset, record.timestamp, record.key, record.value, record.headers)
        assert found == (5, 1000, b"k", b"v", [("h", b"x")])


class TestRoundTrip:
    @settings(deadline=None)
    @given(rows=ROWS, codec=st.sampled_from(list(CODECS)), size=st.integers(1, 2000))
    def test_any_rows(self, rows, codec, size):
        """Whatever the rows, the compression and the batch size, decoding undoes encoding."""
        batches = encode_rows(
            rows, headers=[row[3] for row in rows], compression=codec, batch_bytes_max=size
        )
        records = decode(b"".join(batches))
        assert rows_of(records) == [row[:3] for row in rows]
        assert records.offset.tolist() == list(range(len(rows)))
        assert [header(records, i) for i in range(len(rows))] == [row[3] for row in rows]
        assert records.next_offset == len(rows)

    @settings(deadline=None)
    @given(rows=ROWS, lo=st.integers(0, 60), n=st.integers(0, 60))
    def test_slices_of_arrays(self, rows, lo, n):
        """Slices of Arrow arrays, whose buffers begin before them, encode as their own values."""
        keys, values, times = ([row[i] for row in rows] for i in range(3))
        part = slice(lo, lo + n)
        batches = encode(binary(keys)[part], binary(values)[part], np.array(times, np.int64)[part])
        assert rows_of(decode(b"".join(batches))) == [row[:3] for row in rows[part]]

    def test_kafka_python_reads(self):
        """Another implementation reads what is encoded here."""
        data = b"".join(encode_rows(PLAIN_ROWS, batch_bytes_max=2000, compression="gzip"))
        found = []
        records = MemoryRecords(data)
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            found += [(r.key, r.value, r.timestamp) for r in batch]
        assert found == PLAIN_ROWS

    @pytest.mark.parametrize("codec", [0, 1])
    def test_kafka_python_writes(self, codec):
        """What another implementation encodes is read here."""
        builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 20)
        for key, value, time in PLAIN_ROWS:
            builder.append(timestamp=time, key=key, value=value, headers=[("a", b"b")])
        builder.close()
        records = decode(bytes(builder.buffer()))
        assert rows_of(records) == PLAIN_ROWS
        assert header(records, 499) == [("a", b"b")]

    def test_strings_chunks_and_large_types(self):
        """Strings, chunked arrays and arrays with 64-bit offsets are taken as they are."""
        values = pa.chunked_array([["é", None], ["", "z"]], pa.large_string())
        (batch,) = encode(pa.array(["a", "b", "c", "d"]), values, np.arange(4))
        found = rows_of(decode(batch))
        assert [row[1] for row in found] == ["é".encode(), None, b"", b"z"]
        assert [row[0] for row in found] == [b"a", b"b", b"c", b"d"]

    def test_without_keys(self):
        """Without keys every key is null."""
        (batch,) = encode(None, binary([b"a", b"b"]), np.zeros(2, np.int64))
        assert decode(batch).keys().null_count == 2

    def test_nothing(self):
        """No rows encode to no batch, and no bytes decode to no record."""
        assert encode(None, binary([]), np.empty(0, np.int64)) == []
        records = decode(b"")
        assert len(records) == 0
        assert records.to_arrow().num_rows == 0


class TestBatches:
    def test_boundaries_depend_on_the_input_alone(self):
        """The same input gives the same bytes, and each batch but an oversized record's fits."""
        one, two = (encode_rows(PLAIN_ROWS, batch_bytes_max=1000) for _ in range(2))
        assert [bytes(b) for b in one] == [bytes(b) for b in two]
        assert len(one) > 5
        assert all(len(batch) <= 1000 for batch in one)

    def test_oversized_record_stands_alone(self):
        """A record over the limit has a batch to itself."""
        batches = encode(None, binary([b"a", b"b" * 5000, b"c"]), np.zeros(3), batch_bytes_max=500)
        assert [len(decode(batch)) for batch in batches] == [1, 1, 1]

    def test_sequences_wrap(self):
        """After sequence number 2^31 - 1 comes 0, within a producer's run of batches."""
        batches = encode_rows(
            PLAIN_ROWS,
            producer_id=7,
            producer_epoch=3,
            base_sequence=2**31 - 100,
            batch_bytes_max=1000,
        )
        data = b"".join(batches)
        first = 0
        for batch in MemoryRecords(data):
            assert (batch.producer_id, batch.producer_epoch) == (7, 3)
            assert batch.base_sequence == (2**31 - 100 + first) % 2**31
            first += batch.records_count

    def test_torn_tail_is_left_out(self):
        """However a buffer is cut, exactly the whole batches before the cut are decoded."""
        batches = [bytes(b) for b in encode_rows(PLAIN_ROWS[:60], batch_bytes_max=400)]
        data = b"".join(batches)
        ends = np.cumsum([len(b) for b in batches])
        counts = np.cumsum([len(decode(b)) for b in batches])
        for cut in range(len(data) + 1):
            whole = int(np.searchsorted(ends, cut, side="right"))
            records = decode(data[:cut])
            assert len(records) == (counts[whole - 1] if whole else 0)
            assert scan(data[:cut]).whole_bytes == (ends[whole - 1] if whole else 0)

    def test_control_batches_are_passed_over(self):
        """A transaction marker gives no record but counts in the next offset."""
        first, marker, last = (
            bytes(encode_rows(PLAIN_ROWS[:2], base_offset=i)[0]) for i in (0, 2, 4)
        )
        records = decode(first + patch(marker, 21, b"\x00\x30") + last)
        assert records.offset.tolist() == [0, 1, 4, 5]
        assert records.next_offset == 6

    def test_transactional_batches_are_read(self):
        """Records of a transaction are given like others."""
        (batch,) = encode_rows(PLAIN_ROWS[:2])
        assert rows_of(decode(patch(bytes(batch), 21, b"\x00\x10"))) == PLAIN_ROWS[:2]

    def test_log_append_time(self):
        """Where the broker stamps batches, each record has the batch's maximum timestamp."""
        (batch,) = encode_rows(PLAIN_ROWS[:3])
        stamped = patch(patch(bytes(batch), 21, b"\x00\x08"), 35, (77).to_bytes(8, "big"))
        assert decode(stamped).timestamp_ms.tolist() == [77, 77, 77]

    def test_empty_batch(self):
        """A batch that compaction emptied gives no record but moves the next offset."""
        (batch,) = encode_rows(PLAIN_ROWS[:3], base_offset=10)
        emptied = patch(bytes(batch)[:61], 57, bytes(4))
        emptied = emptied[:8] + (49).to_bytes(4, "big") + emptied[12:]
        records = decode(emptied)
        assert (len(records), records.next_offset) == (0, 13)


class TestRecords:
    def test_slice(self):
        """A slice shares the buffer, and reading on from its next offset leaves nothing out."""
        records = decode(b"".join(encode_rows(PLAIN_ROWS, base_offset=100)))
        part = records.slice(10, 20)
        assert rows_of(part) == PLAIN_ROWS[10:20]
        assert part.next_offset == 120
        assert part.buffer is records.buffer
        assert records.slice(490, 500).next_offset == 600
        assert len(records.slice(20, 10)) == 0

    def test_between(self):
        """Trimming to offsets keeps exactly those at or after the first and before the second."""
        records = decode(b"".join(encode_rows(PLAIN_ROWS, base_offset=100)))
        assert records.between(90, 103).offset.tolist() == [100, 101, 102]
        assert records.between(0, 10**6) is records
        assert len(records.between(700, 800)) == 0

    def test_order_check(self):
        """Batches that don't ascend, or that lie before what was asked for, are refused."""
        one, two = (bytes(encode_rows(PLAIN_ROWS[:3], base_offset=i)[0]) for i in (10, 13))
        scan(one + two).check_order(12)
        with pytest.raises(CorruptError, match="base offset 10"):
            scan(two + one).check_order(0)
        with pytest.raises(CorruptError, match="base offset 10"):
            scan(one + two).check_order(13)

    def test_arrow_limit(self, monkeypatch):
        """More bytes than an Arrow array holds are refused with what to do."""
        data = b"".join(encode_rows(PLAIN_ROWS[:20]))
        monkeypatch.setattr(columns, "ARROW_BYTES_MAX", 10)
        assert decode(data).slice(0, 3).values().to_pylist() == [b"", b"v", b"vv"]
        with pytest.raises(LimitError, match="Slice the records"):
            decode(data).values()


class TestMistakes:
    def test_lengths_differ(self):
        """Columns of different lengths are refused."""
        with pytest.raises(UserError, match="expected keys for each of 1 values; found 2"):
            encode(binary([b"a", b"b"]), binary([b"a"]), np.zeros(1))
        with pytest.raises(UserError, match="expected a timestamp for each"):
            encode(None, binary([b"a"]), np.zeros(2))

    def test_types(self):
        """A column that is neither binary nor string is refused."""
        with pytest.raises(UserError, match="expected values as binary or string; found list"):
            encode(None, pa.array([[1]]), np.zeros(1))

    def test_codec(self):
        """An unknown compression is refused with the known ones named."""
        with pytest.raises(UserError, match="gzip"):
            encode(None, binary([b"a"]), np.zeros(1), compression="brotli")
