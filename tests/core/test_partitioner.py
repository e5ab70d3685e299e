"""Kafka's default partitioner."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.partitioner import murmur2_partitions
from penstock.errors import UserError

with warnings.catch_warnings():  # it loads its schemas in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2


@settings(deadline=None)
@given(keys=st.lists(st.none() | st.binary(max_size=40)), n=st.integers(1, 1000))
def test_agrees_with_another_client(keys, n):
    """Each key has the partition that another Kafka client gives it; a null key has none."""
    expected = [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % n for key in keys]
    assert murmur2_partitions(pa.array(keys, pa.binary()), n).tolist() == expected


def test_slices_and_types():
    """Slices, chunked and 64-bit arrays are hashed by their own values."""
    keys = ["a", "bb", None, "dddd", "21"]
    whole = murmur2_partitions(pa.array(keys), 7)
    assert murmur2_partitions(pa.array(keys)[2:], 7).tolist() == whole[2:].tolist()
    chunks = pa.chunked_array([keys[:2], keys[2:]], pa.large_string())
    assert murmur2_partitions(chunks, 7).tolist() == whole.tolist()


def test_mistakes():
    """No partition, and keys that are not text, are refused."""
    with pytest.raises(UserError, match="one partition or more"):
        murmur2_partitions(pa.array(["a"]), 0)
    with pytest.raises(UserError, match="keys as binary or string"):
        murmur2_partitions(pa.array([[1]]), 1)
