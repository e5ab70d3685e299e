"""Grouping of unsorted rows, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.vectors import Vector
from penstock.state.kernels import grouping


def reference(w: Vector, h: Vector, order: Vector | None, tie: Vector | None) -> tuple[list, list]:
    none = np.zeros(len(w), np.int64)
    columns = [w, h, none if order is None else order, none if tie is None else tie]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    firsts: dict[tuple, int] = {}
    for i, row in enumerate(rows):
        firsts.setdefault(row, i)
    ranked = sorted(firsts)
    number = {row: i for i, row in enumerate(ranked)}
    return [number[row] for row in rows], [firsts[row] for row in ranked]


WINDOWS = {"one": 1, "few": 7, "hundreds": 300, "each its own": 10**12}
HASHES = {"spread": 2**63 - 1, "few": 5, "thousands": 4_000, "low bits": 2**20}


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("hashes", HASHES)
@pytest.mark.parametrize("ties", ["none", "few", "many", "ordered"])
def test_grouping(windows: str, hashes: str, ties: str) -> None:
    rng = np.random.default_rng([len(windows), len(hashes), len(ties)])
    for n in (0, 1, 300, 10_000):
        w = rng.integers(-WINDOWS[windows], WINDOWS[windows], n)
        h = rng.integers(-HASHES[hashes], HASHES[hashes], n)
        h = h[rng.integers(0, max(1, n // 2), n)] if n else h  # so that some come again
        tie = order = None
        if ties != "none":
            tie = rng.integers(-3, 3 if ties == "few" else 10**6, n)
        if ties == "ordered":
            assert tie is not None
            order = tie % 7  # it follows from the tie
        ids, first = grouping.group(w, h, order, tie)
        wanted_ids, wanted_first = reference(w, h, order, tie)
        assert ids.tolist() == wanted_ids
        assert first.tolist() == wanted_first


def test_one_bucket_of_large_groups() -> None:
    """A heavy key among many rare ones, whose hashes share their uppermost bits."""
    h = np.r_[np.full(20_000, 7), np.arange(10_000), np.full(20_000, 9_999)]
    w = np.zeros(len(h), np.int64)
    ids, first = grouping.group(w, h, None, None)
    wanted_ids, wanted_first = reference(w, h, None, None)
    assert ids.tolist() == wanted_ids
    assert first.tolist() == wanted_first


def test_a_heavy_key_among_hashes_that_are_spread() -> None:
    """The buckets that it lies in, and the ones after them, are grouped otherwise than the rest."""
    rng = np.random.default_rng(11)
    h = rng.integers(-(2**63), 2**63 - 1, 60_000)
    h[rng.random(len(h)) < 0.2] = h[0]
    w = np.sort(rng.integers(0, 3, len(h)))
    ids, first = grouping.group(w, h, None, None)
    wanted_ids, wanted_first = reference(w, h, None, None)
    assert ids.tolist() == wanted_ids
    assert first.tolist() == wanted_first
