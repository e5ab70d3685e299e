"""Bloom filters: functions of the rows that forget no value, in every kind of window.

The reference is a filter written out in Python: Spark's hashes, value by value, bit by bit.
`tests/spark/test_reads.py` compares with Spark's own.
"""

from __future__ import annotations

import random
import struct
from collections import Counter, defaultdict
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.sketches.bloom import BITS_MAX, Shape, bits_of, filters, read_head, shape_of
from penstock.duck import connection
from penstock.errors import FlowError
from penstock.ops import (
    Aggregate,
    AggregateSpec,
    Column,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.ops.rolling.sliding import Sliding

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("s", pa.string())])
K, V, S = (Column(name, INPUT.field(name).type) for name in INPUT.names)
SHAPE = Shape(3, 4)
NUMBERS = Aggregate("numbers", "bloom_filter_agg", V, None, (SHAPE.words, SHAPE.hashes))
TEXTS = Aggregate("texts", "bloom_filter_agg", S, None, (2, 7))
LOW = 0xFFFF_FFFF


def murmur(data: bytes, h: int) -> int:
    """Spark's hash of 32 bits."""

    def turned(x: int, by: int) -> int:
        return (x << by | x >> 32 - by) & LOW

    def mixed(h: int, k: int) -> int:
        h ^= turned(k * 0xCC9E2D51 & LOW, 15) * 0x1B873593 & LOW
        return (turned(h, 13) * 5 + 0xE6546B64) & LOW

    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        h = mixed(h, word)
    for (byte,) in struct.iter_unpack("b", data[whole:]):
        h = mixed(h, byte & LOW)
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & LOW
    h = (h ^ h >> 13) * 0xC2B2AE35 & LOW
    return h ^ h >> 16


def reference(values: Any, shape: Shape) -> bytes:
    """The filter of some numbers and texts."""
    bits = [0] * shape.bits
    for value in values:
        data = value.encode() if isinstance(value, str) else struct.pack("<q", value)
        h1 = murmur(data, 0)
        h2 = murmur(data, h1)
        for i in range(1, shape.hashes + 1):
            h = (h1 + i * h2) & LOW
            bits[(~h & LOW if h >> 31 else h) % shape.bits] = 1
    words = [
        sum(bit << i for i, bit in enumerate(bits[at : at + 64])) for at in range(0, len(bits), 64)
    ]
    return struct.pack(f">iii{len(words)}Q", 1, shape.hashes, len(words), *words)


row = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-3, 9),
    st.none() | st.sampled_from(["", "x", "äöü", "abcd", "abcdefgh-ÿ"]),
)
batches = st.lists(st.lists(st.tuples(st.integers(0, 30), row), max_size=10), max_size=5)


@settings(max_examples=examples(24), deadline=None)
@given(batches, st.sampled_from(["tumbling", "hopping", "none"]), st.integers(1, 3), st.integers())
def test_a_filter_is_that_of_all_rows(batches: Any, kind: Any, shards: int, seed: int) -> None:
    """However rows were batched, cut and merged, filters have the bytes of the rows at once."""
    window = Window(kind, 20, 10) if kind != "none" else Window("none")
    spec = AggregateSpec((K,), window, (NUMBERS, TEXTS), None if kind == "none" else "$time")
    run = Contract(WindowedAggregate(spec), shards=shards, chance=random.Random(seed))
    groups: dict[Any, tuple[set[int], set[str]]] = defaultdict(lambda: (set(), set()))
    for batch in batches:
        for t, (k, number, word) in batch:
            starts = {
                "none": [0],
                "tumbling": [t // 20 * 20],
                "hopping": [t // 10 * 10, t // 10 * 10 - 10],
            }
            for start in starts[kind]:
                numbers, words = groups[start, k]
                numbers.update([] if number is None else [number])
                words.update([] if word is None else [word])
        run.step([delta(INPUT, [one for _, one in batch], times=[t for t, _ in batch])])
        assert run.view() == run.total()
        found = {}
        for *place, k, numbers, words in run.view():
            start = int(pa.scalar(place[0]).cast(pa.int64()).as_py()) if place else 0
            found[start, k] = numbers, words
        wanted = {
            key: (reference(n, SHAPE), reference(w, Shape(2, 7))) for key, (n, w) in groups.items()
        }
        assert found == wanted


def test_filters_are_merged_in_sessions_and_sliding_windows() -> None:
    """They are put together from parts, so every window takes them."""
    times, values = [0, 5, 8, 40, 45], [1, 2, 1, 1, 3]
    sessions = Contract(
        SessionAggregate(AggregateSpec((K,), Window("session", 10), (NUMBERS,), "$time"))
    )
    sliding = Contract(Sliding(INPUT, ("k",), (NUMBERS,), ("v",), 6))
    for at, value in zip(times, values, strict=True):
        batch = delta(INPUT, [("a", value, None)], times=[at])
        sessions.step([batch], [at])
        sliding.step([batch], [at])
    two, other = reference([1, 2], SHAPE), reference([1, 3], SHAPE)
    assert {found[-1] for found in sessions.view()} == {two, other}
    sliding.step([delta(INPUT, [], times=[])], [100])
    one = reference([1], SHAPE)
    sets = Counter(found[-1] for found in sliding.total().elements())
    assert sets == {one: 2, two: 2, other: 1}


def test_filters_of_tables_are_refused() -> None:
    """A bit doesn't know how many values set it: the message says so."""
    with pytest.raises(FlowError, match="without retractions"):
        WindowedAggregate(AggregateSpec((K,), Window("none"), (NUMBERS,), retracts=True))


@pytest.mark.parametrize("shape", [None, 7, (0, 1), (1, 65), (BITS_MAX // 64 + 1, 1)])
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    """A filter has words and hashes, and not too many."""
    with pytest.raises(FlowError, match=r"words and|hashes"):
        Aggregate("f", "bloom_filter_agg", V, None, shape)


def test_errors_are_as_frequent_as_was_said() -> None:
    """Of values that aren't there, the share that was asked for is taken for values that are."""
    con = connection()
    for error in (0.1, 0.01, 0.001):
        query = (
            f"WITH f AS (SELECT bloom_filter_agg(x, 20000, {error}) AS f FROM range(20000) AS t(x)) "
            "SELECT count(*) FILTER (y < 20000 AND might_contain(f, y)), "
            "count(*) FILTER (y >= 20000 AND might_contain(f, y)) FROM f, range(70000) AS r(y)"
        )
        [(known, wrong)] = con.sql(query).fetchall()
        assert known == 20_000
        assert 0.5 * error < wrong / 50_000 < 1.5 * error


@pytest.mark.parametrize(
    ("type_", "values", "others"),
    [
        ("BIGINT", "(1), (-5), (9000000000)", "(2), (5)"),
        ("DOUBLE", "('1.5'), ('-0.0'), ('nan'), ('inf'), ('1e300')", "('1.25'), ('-inf'), ('1')"),
        ("DECIMAL(38, 2)", "(1.50), (100000000000000000000.25)", "(1.25), (7)"),
        ("VARCHAR", "(''), ('a'), ('äöü'), ('abcdefghi')", "('b'), ('ab')"),
        ("BLOB", "(''), ('\\xAA'), ('\\xAA\\xBB\\xCC\\xDD\\xEE')", "('\\xAB')"),
        ("BOOLEAN", "(true)", "(false)"),
        ("DATE", "('2026-01-01')", "('2026-01-02')"),
        ("TIMESTAMPTZ", "('2026-01-01 12:00:00Z')", "('2026-01-01 13:00:00Z')"),
        ("UUID", "('00000000-0000-0000-0000-000000000001')",
         "('00000000-0000-0000-0000-000000000002')"),
    ],
)  # fmt: skip
def test_values_of_all_types_are_found_again(type_: str, values: str, others: str) -> None:
    """Also as texts, bytes, dates and doubles that are hardly numbers; NULL is no value."""
    con = connection()
    made = (
        f"SELECT bloom_filter_agg(x::{type_}, 100, 1e-9) AS f FROM (VALUES {values}, (NULL)) t(x)"
    )
    for some, expected in ((values, True), (others, False)):
        asked = f"SELECT DISTINCT might_contain(f, y::{type_}) FROM f, (VALUES {some}) t(y)"
        query = f"WITH f AS ({made}) {asked}"
        assert con.sql(query).fetchall() == [(expected,)]


def test_numbers_are_found_whatever_their_type() -> None:
    """5 of a BIGINT column is 5.0, and 5 of a DOUBLE column is 5; -0.0 is 0."""
    con = connection()
    query = (
        "SELECT might_contain(f, 5.0), might_contain(f, 5::TINYINT), might_contain(f, '-0.0'::DOUBLE) "
        "FROM (SELECT bloom_filter_agg(x::{}, 10, 1e-9) AS f FROM range(6) t(x))"
    )
    for type_ in ("BIGINT", "DOUBLE", "DECIMAL(9, 3)", "INTEGER"):
        assert con.sql(query.format(type_)).fetchall() == [(True, True, True)]


def test_functions_of_filters_in_sql() -> None:
    """They are NULL of NULL; of no rows a filter is empty; what is no filter is an error."""
    con = connection()
    query = "SELECT bloom_filter_agg(x, 100, 0.05) FROM range({}) t(x)"
    shape = shape_of(100, 0.05)
    for n in (0, 1, 90):
        assert con.sql(query.format(n)).fetchall() == [(reference(range(n), shape),)]
    nothing = "SELECT might_contain(NULL, 1), might_contain(bloom_filter_agg(x, 9, 0.1), NULL)"
    assert con.sql(f"{nothing} FROM range(3) t(x)").fetchall() == [(None, None)]
    for odd in ("'no filter'::BLOB", "''::BLOB", "unhex('000000010000000200000001')"):
        with pytest.raises(duckdb.Error, match="expected a Bloom filter"):
            con.sql(f"SELECT might_contain({odd}, 1)").fetchall()
    for capacity, error in ((0, 0.1), (5, 0), (5, 1)):
        with pytest.raises(duckdb.Error, match="expected a capacity of 1"):
            con.sql(
                f"SELECT bloom_filter_agg(x, {capacity}, {error}) FROM range(3) t(x)"
            ).fetchall()
    with pytest.raises(duckdb.Error, match="8 MiB"):
        con.sql("SELECT bloom_filter_agg(x, 1000000000, 0.01) FROM range(3) t(x)").fetchall()


def test_filters_of_many_groups_are_refused_before_they_overflow() -> None:
    """A column has 2 GiB at most: the message says what to do."""
    nothing = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="Give a capacity that a group needs"):
        filters(Shape(BITS_MAX // 64, 7), nothing, nothing, nothing, 300)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(max_size=12), max_size=20), st.integers(1, 9), st.integers(1, 20))
def test_bits_are_those_of_the_reference(values: list[str], words: int, hashes: int) -> None:
    """Of texts of all lengths, their last bytes signed as in Java; and the head is read again."""
    shape = Shape(words, hashes)
    many = [np.full(len(values), one, np.int64) for one in (shape.bits, shape.hashes)]
    bits = np.unique(bits_of(pa.array(values, pa.string()), *many))
    made = np.zeros(words, np.int64)
    np.bitwise_or.at(made, bits >> 6, np.left_shift(np.int64(1), bits & 63))
    numbers = np.arange(words)
    [found] = filters(shape, np.zeros(words, np.int64), numbers, made, 1).to_pylist()
    assert found == reference(values, shape)
    assert read_head(found[:12], len(found)) == shape
