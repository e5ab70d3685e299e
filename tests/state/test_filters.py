"""Filters in front of pieces: keys that aren't there are told without a look at the file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.keys import hash_columns
from penstock.core.sketches.blocks import filter_of, may_have
from penstock.state import MemoryStateFiles, Trace, Writer, kernels
from penstock.state.bag import Bag
from penstock.state.trace import FILTER_ROWS_MIN

BAG = Bag(pa.schema([("k", pa.int64())]), ("k",))


def rows(keys: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    """Keys as rows, and their hashes."""
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([column], names=["k"]), hash_columns([column])


def filled(keys: np.ndarray, parts: int) -> Trace:
    """A trace of some keys, appended in some parts."""
    made = Trace(BAG.layout, MemoryStateFiles())
    for version, part in enumerate(np.array_split(keys, parts)):
        batch, hashes = rows(part)
        writer = Writer(made.files, "t", version, "a")
        made = made.append(BAG.delta(batch, hashes, None, None), writer)
    return made


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True),
    st.lists(st.integers(0, 60), max_size=40),
    st.integers(1, 4),
)
def test_a_look_up_finds_the_same_with_filters(
    keys: list[int], asked: list[int], parts: int
) -> None:
    """Whatever is there and isn't, over several runs, each key with its own rows."""
    made = filled(np.array(keys), parts)
    wanted = BAG.wanted(*rows(np.array(asked, np.int64)), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.state.trace.TINY_ROWS", 1)
        patch.setattr("penstock.state.trace.FILTER_ROWS_MIN", 1)
        found = made.lookup(wanted, mostly_absent=True)
    plain = made.lookup(wanted)
    assert found[0].tolist() == plain[0].tolist()
    assert pa.Table.from_batches(found[1], BAG.layout.schema).equals(
        pa.Table.from_batches(plain[1], BAG.layout.schema)
    )
    there = {row["k"] for one in found[1] for row in one.to_pylist()}
    assert there == set(keys) & set(asked)


def test_keys_that_are_not_there_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of new keys, fewer than one in a hundred are looked for in the file."""
    made = filled(np.arange(2 * FILTER_ROWS_MIN), 1)
    searched: list[int] = []

    def find(windows: np.ndarray, *others: np.ndarray) -> int:
        searched.append(len(windows))
        return int(original(windows, *others))

    original = kernels.find
    monkeypatch.setattr(kernels, "find", find)
    new = BAG.wanted(*rows(np.arange(10**6, 10**6 + 20_000)), None)
    assert made.lookup(new, mostly_absent=True)[1] == []
    assert sum(searched) < 200
    known = BAG.wanted(*rows(np.arange(5_000)), None)
    assert len(made.lookup(known, mostly_absent=True)[0]) == 5_000


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 3_000), st.integers(0, 2**32), st.sampled_from([1, 64, 4_096]))
def test_a_filter_knows_its_hashes(many: int, seed: int, share: int) -> None:
    """None is denied, and few others are taken for one, also of a small range, as a piece has them."""
    chance = np.random.default_rng(seed)
    begin, end = -(2**63), -(2**63) + 2**64 // share - 1
    hashes = chance.integers(begin, end, many)
    made = filter_of(hashes)
    assert may_have(made, hashes).all()
    others = chance.integers(begin, end, 1_000)
    assert may_have(made, others).sum() <= 30
