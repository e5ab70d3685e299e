"""Hashes of keys: stable and well mixed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.keys import hash_columns, shards_of
from penstock.errors import SchemaError


def test_hashes_are_what_they_were():
    """State on disk is sorted by these numbers: they may never change."""
    columns = [
        pa.array([None, 1, 2**40], pa.int64()),
        pa.array(["a", None, "bbbbbbbbbbbb"]),
    ]
    assert hash_columns(columns).tolist() == [
        -3624719121031704590, -4330454271750491644, 7132413546273016546,
    ]  # fmt: skip
    assert hash_columns([pa.array([0.0, -0.0, float("nan"), -float("nan")])]).tolist() == [
        hash_columns([pa.array([x])])[0] for x in (0.0, 0.0, np.nan, np.nan)
    ]


def test_numbers_hash_by_value_not_by_width():
    """An INT that becomes a BIGINT, a chunked or a sliced column keep their hashes."""
    values = [3, -1, None, 7]
    wide = hash_columns([pa.array(values, pa.int64())])
    assert (hash_columns([pa.array(values, pa.int32())]) == wide).all()
    assert (hash_columns([pa.chunked_array([values[:2], values[2:]], pa.int16())]) == wide).all()
    assert (hash_columns([pa.array([9, *values], pa.int64()).slice(1)]) == wide).all()
    text = pa.array(["zz", "a", None, "b" * 20])
    assert (hash_columns([text.slice(1)]) == hash_columns([pa.array(text.to_pylist()[1:])])).all()
    assert (hash_columns([text]) == hash_columns([text.cast(pa.large_string())])).all()


def test_hashes_spread_over_shards_and_tell_columns_apart():
    """Sequential keys fill shards evenly; NULL, 0 and '' differ; the order of columns matters."""
    hashes = hash_columns([pa.array(np.arange(100_000))])
    assert len(np.unique(hashes)) == 100_000
    counts = np.bincount(shards_of(hashes, 7))
    assert counts.max() - counts.min() < 800
    a, b = pa.array([1]), pa.array([2])
    assert hash_columns([a, b]) != hash_columns([b, a])
    empty = [(None, pa.int64()), (0, pa.int64()), ("", pa.string()), (0.0, pa.float64())]
    assert len({int(hash_columns([pa.array([x], t)])[0]) for x, t in empty}) == 4
    assert hash_columns([], 3).tolist() == [0, 0, 0]


def test_lists_structs_and_maps_hash_by_their_values():
    """Wherever they lie, whatever lies under their NULLs; a NULL inside is a value."""
    both = pa.struct([("a", pa.int64()), ("b", pa.string())])
    cases = {
        pa.list_(pa.string()): [None, [], [None], [""], ["a", None], ["a"], ["a", "b"], ["ab"]],
        both: [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": ""}],
        pa.map_(pa.string(), pa.int64()): [
            None,
            [],
            [("a", None)],
            [("a", 1)],
            [("a", 1), ("b", 2)],
        ],
        pa.list_(both): [None, [None], [{"a": None, "b": None}], [{"a": 1, "b": "x"}, None]],
    }
    for type_, values in cases.items():
        column = pa.array(values, type_)
        found = hash_columns([column])
        assert len(set(found.tolist())) == len(values)
        assert (hash_columns([pa.array([*values, *values], type_).slice(2, len(values))]) ==
                np.roll(found, -2)).all()  # fmt: skip
    hidden = pa.array(["x" * 9, "a"]).filter(pa.array([True, True]))
    under = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *hidden.buffers()[1:]])
    made = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), under)
    assert made.to_pylist() == [[None, "a"]]
    assert hash_columns([made]) == hash_columns([pa.array([[None, "a"]])])
    zeros = pa.array([[0.0], [-0.0]])
    assert len(set(hash_columns([zeros]).tolist())) == 1


def test_what_has_no_values_is_no_key():
    """A type that can't be a key is refused by name."""
    with pytest.raises(SchemaError, match="null"):
        hash_columns([pa.nulls(1)])
