"""The loops in Python do what the compiled ones do, with any bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.kernels import Kernel
from penstock.wire import columns, kernels, plain
from penstock.wire.columns import decode, encode, scan
from penstock.wire.headers import header_values, raw_headers

DATA = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2)
ROWS = st.lists(
    st.tuples(DATA, DATA, st.integers(-(2**63), 2**63 - 1), HEADERS), min_size=1, max_size=30
)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function with the compiled loops, then with those in Python."""

    def both(call: Any) -> tuple[Any, Any]:
        found = []
        for is_plain in (False, True):
            monkeypatch.setattr(plain, "takes", lambda _, chosen=is_plain: chosen)
            try:
                found.append(call())
            except Exception as error:
                found.append((type(error), str(error)))
        return found[0], found[1]

    return both


def shown(records: columns.Records) -> list[Any]:
    """All that records are."""
    data = [records.keys().to_pylist(), records.values().to_pylist()]
    places = (records.offset, records.timestamp_ms, records.key_start, records.value_start)
    lengths = (records.key_length, records.value_length)
    return [*data, *(one.tolist() for one in (*places, *lengths))]


def encoded(rows: Sequence[Any], **options: Any) -> bytes:
    """Rows as record batches."""
    keys, values = (pa.array([row[i] for row in rows], pa.binary()) for i in (0, 1))
    times = np.array([row[2] for row in rows], np.int64)
    return b"".join(encode(keys, values, times, headers=[row[3] for row in rows], **options))


@settings(max_examples=examples(150), deadline=None)
@given(rows=ROWS, size=st.sampled_from([100, 900_000]), codec=st.sampled_from(["none", "zstd"]))
def test_records_are_encoded_and_decoded_alike(rows: Any, size: int, codec: str) -> None:
    """The same bytes, and the same records of them."""
    with pytest.MonkeyPatch.context() as patched:
        found = []
        for is_plain in (False, True):
            patched.setattr(plain, "takes", lambda _, chosen=is_plain: chosen)
            data = encoded(rows, batch_bytes_max=size, compression=codec)
            found.append((data, shown(decode(data)), scan(data).table.tolist()))
        assert found[0] == found[1]


def test_damaged_batches_are_refused_alike(loops: Any) -> None:
    """Changed and cut bytes: both find the same records, or the same fault."""
    chance = random.Random(5)
    rows = [
        (b"k%d" % n if n % 3 else None, b"v" * n if n % 4 else None, n, [("h", None)] * (n % 3))
        for n in range(12)
    ]
    whole = encoded(rows, batch_bytes_max=150)
    refused = 0
    for _ in range(1500):
        data = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.randrange(3)):
            if data:
                data[chance.randrange(len(data))] = chance.choice([0, 1, 127, 128, 255])
        compiled, in_python = loops(
            lambda: shown(decode(bytes(data), verify_crc=False))  # noqa: B023 - called at once
        )
        assert compiled == in_python
        refused += isinstance(compiled, tuple)
    assert refused > 200


def test_headers_are_found_alike(loops: Any) -> None:
    """The last value of a name, all headers as they stand, or the same fault, whatever the bytes are."""
    chance = random.Random(7)
    sets = [
        [],
        [("h", b"x")],
        [("h", None), ("other", b"")],
        [("h", b"1"), ("h", b"22"), ("hh", b"3")],
    ]
    rows = [(None, b"v" * n if n % 2 else None, n, chance.choice(sets)) for n in range(12)]
    records = decode(encoded(rows))
    found = []
    for _ in range(1000):
        data = records.buffer.copy()
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 127, 128, 255])
        odd = replace(records, buffer=data)
        for name in ("h", ""):
            compiled, in_python = loops(
                lambda: header_values(odd, name).to_pylist() if name else str(raw_headers(odd))  # noqa: B023 - called at once
            )
            assert compiled == in_python
            found.append(isinstance(compiled, tuple))
    assert 100 < sum(found) < len(found) - 100


def test_values_outside_the_buffer_are_refused_alike(loops: Any) -> None:
    """Places that can't be are an error, never other bytes."""
    buffer = np.frombuffer(b"abcdef", np.uint8)
    for start, length in ((0, 7), (6, 1), (-1, 2), (2, 4), (3, -1), (0, 0)):
        compiled, in_python = loops(
            lambda at=start, n=length: columns.gather_column(
                buffer, np.array([at], np.int64), np.array([n], np.int32)
            ).to_pylist()
        )
        assert compiled == in_python


def test_the_first_bytes_of_a_process_need_no_compiled_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until there have been many, or the loops are loaded."""
    monkeypatch.setattr(plain._Done, "bytes", 0)
    monkeypatch.setattr(kernels, "decode_records", Kernel(lambda: None, about=""))
    assert plain.takes(plain.BYTES_MAX - 10)
    assert not plain.takes(11)
    assert plain.takes(10)
    assert not plain.takes(1)
    monkeypatch.setattr(plain._Done, "bytes", 0)
    monkeypatch.setattr(kernels, "decode_records", lambda: None)
    assert not plain.takes(1)
