"""Dead letters as columns: equal to letters that are made one by one, at the cost of their bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, instant_text
from penstock.engine.letters import letters as module
from penstock.engine.letters.box import letters_outgoing
from penstock.engine.letters.letters import Letters, headers_of
from penstock.engine.letters.reasons import Reasons, instant_texts
from penstock.wire.columns import decode, encode
from penstock.wire.headers import header_pairs

instants = st.one_of(
    st.sampled_from([INSTANT_MIN_US, INSTANT_MAX_US, 0, -1, 1_000_000]),
    st.integers(INSTANT_MIN_US, INSTANT_MAX_US),
    st.integers(-(2**63), 2**63 - 1),
)


@settings(max_examples=examples(60))
@given(st.lists(instants, max_size=5))
def test_instants_are_written_alike(times_us: list[int]) -> None:
    """As columns as one by one: with and without microseconds, and beyond what ISO 8601 can name."""
    texts = instant_texts(np.array(times_us, np.int64)).to_pylist()
    assert texts == [instant_text(one) for one in times_us]


notes = st.one_of(
    st.tuples(st.just("late"), st.lists(st.integers(0, 9), max_size=6), st.sampled_from("xyz")),
    st.tuples(st.just("partly"), st.lists(st.integers(0, 9), max_size=6), st.just("")),
    st.tuples(st.just("other"), st.lists(st.integers(0, 9), max_size=6), st.sampled_from("pq")),
)


@settings(max_examples=examples(100))
@given(st.lists(notes, max_size=5))
def test_reasons_are_those_of_a_dictionary(noted: list[Any]) -> None:
    """Names of operators add up, another reason replaces what was known, and late records count once."""
    found, expected, partly = Reasons(), {}, set[int]()
    for kind, offsets, name in noted:
        at = np.array(offsets, np.int64)
        if kind == "partly":
            found.note_partly(at)
            partly |= set(offsets)
        elif kind == "other":
            found.note(at, name)
            expected |= dict.fromkeys(offsets, name)
        else:
            found.note_late(at, at * 1_000_000, at + 7, name)
            for offset in dict.fromkeys(offsets):
                late = f"late: its event time is {instant_text(offset * 1_000_000)}, the watermark "
                late += (
                    f"was already {instant_text(offset + 7)}, and what it belongs to was closed; "
                )
                late += f"for {name}"
                known = expected.get(offset)
                expected[offset] = late if known is None else f"{known}; and for {name}"
        assert found.offsets.tolist() == sorted(expected)
        assert found.texts.to_pylist() == [expected[one] for one in sorted(expected)]
        assert found.late() == len(expected.keys() | partly)


part = st.one_of(st.none(), st.binary(max_size=12))


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(part, part, st.text(max_size=12)), min_size=1, max_size=8), st.integers())
def test_a_letter_says_what_its_record_was(some: list[Any], seed: int) -> None:
    """Key and value as they were, or their beginnings; why, and where it comes from."""
    keys, values, texts = (list(column) for column in zip(*some, strict=True))
    n = len(some)
    times = np.arange(n) * 10
    [batch] = encode(
        pa.array(keys, pa.binary()), pa.array(values, pa.binary()), times, base_offset=100
    )
    rows = np.random.default_rng(abs(seed)).permutation(n)
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in [("PART_BYTES_MAX", 8), ("CUT_BYTES", 3), ("REASON_CHARS_MAX", 9)]:
            patch.setattr(module, name, limit)
        reasons = pa.array(texts, pa.string())
        parts = [
            Letters.of_records(decode(batch), half, reasons.take(pa.array(half)))
            for half in (rows[: n // 2], rows[n // 2 :])
        ]
    sent = letters_outgoing("t/3", Letters.joined(parts), partitions=2, wall_us=50_000)
    assert sent.partition == 1
    assert sent.timestamps_ms.tolist() == [min(at, 50) for at in times.tolist()]

    def cut(one: bytes | None) -> bytes | None:
        return one[:3] if one is not None and len(one) > 8 else one

    assert sent.keys is not None
    assert sent.keys.to_pylist() == [cut(key) for key in keys]
    assert sent.values.to_pylist() == [cut(value) for value in values]
    for i, pairs in enumerate(sent.header_pairs()):
        sizes = [len(keys[i] or b""), len(values[i] or b"")]
        reason = texts[i] if len(texts[i]) <= 9 else texts[i][:9] + "…"
        assert pairs == [
            ("penstock.reason", reason.encode()),
            ("penstock.topic", b"t"),
            ("penstock.partition", b"3"),
            ("penstock.offset", str(100 + i).encode()),
            *([("penstock.cut", str(sum(sizes)).encode())] if max(sizes) > 8 else []),
        ]


def test_the_longest_reason_fits_into_a_header() -> None:
    """Of characters of four bytes each."""
    values = pa.array([b"v"], pa.binary())
    reasons, rows = (
        pa.array(["\N{GRINNING FACE}" * 5_000]),
        pa.table({"identity": ["1f"], "node": ["n"]}),
    )
    letters = Letters.of_rows(values, values, 0, reasons, rows)
    [raw] = headers_of(letters, "t", "0").to_pylist()
    headers = dict(header_pairs(raw))
    assert (headers["penstock.identity"], headers["penstock.node"]) == (b"1f", b"n")
    reason = headers["penstock.reason"]
    assert reason is not None
    assert reason.decode() == "\N{GRINNING FACE}" * module.REASON_CHARS_MAX + "…"


def test_a_flood_makes_no_object_for_each_letter() -> None:
    """Ten times as many late records take as many calls, to the last column."""
    calls = []
    for n in (1_000, 10_000):
        values = pa.array([b'{"x": 1}'] * n, pa.binary())
        [*batches] = encode(None, values, np.arange(n), batch_bytes_max=1 << 30)
        records = decode(b"".join(bytes(batch) for batch in batches))
        times = np.arange(n) * 1_000
        count = 0

        def note(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        letters_outgoing("t/0", letters_of(records, times), partitions=1, wall_us=0)
        sys.setprofile(note)
        try:
            letters_outgoing("t/0", letters_of(records, times), partitions=1, wall_us=0)
        finally:
            sys.setprofile(None)
        calls.append(count)
    assert 0 < calls[1] <= 1.2 * calls[0]


def letters_of(records: Any, times: np.ndarray) -> Letters:
    reasons = Reasons()
    reasons.note_late(records.offset, times, times + 1, "windows")
    rows = np.searchsorted(records.offset, reasons.offsets)
    return Letters.joined([Letters.of_records(records, rows, reasons.texts)])
