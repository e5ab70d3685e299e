"""The table of a changelog, checked against a dictionary."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.core.delta import DELETED, PLACEHOLDER
from penstock.core.schema import JSON
from penstock.ops import Upserts

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("j", pa.int64(), nullable=False),
        pa.field("n", pa.float64(), nullable=False),
        pa.field("tags", pa.list_(pa.int64())),
    ]
)
change = st.tuples(
    st.sampled_from(["a", "b", "ccccccccc", ""]),
    st.integers(0, 1),
    st.sampled_from([None, None, 0.0, -0.0, 1.5]),
    st.sampled_from([None, (), (1,), (1, 2)]),
)


def batch(rows: list[Any]) -> pa.Table:
    """Changes; no number is a deletion."""
    gone = [n is None for _, _, n, _ in rows]
    made = delta(SCHEMA, [(k, j, n, None if n is None else t) for k, j, n, t in rows])
    return made.append_column(DELETED, pa.array(gone, pa.bool_()))


@settings(max_examples=examples(60))
@given(st.lists(st.lists(change, max_size=8), max_size=8), st.integers(1, 3), st.integers(0, 9))
def test_the_last_change_of_a_key_counts(batches: list[Any], shards: int, seed: int) -> None:
    """However batches are cut; what is given adds up to the table, and is no more than it takes."""
    run = Contract(Upserts(SCHEMA, ("k", "j")), shards=shards, chance=random.Random(seed))
    truth: dict[Any, Any] = {}
    for rows in batches:
        before = Counter(truth.values())
        for k, j, n, tags in rows:
            truth.pop((k, j), None)
            if n is not None:
                truth[k, j] = (k, j, n, tags)
        changed = run.changes.copy()
        run.step([batch(rows)])
        after = Counter(truth.values())
        assert run.total() == after
        assert run.view() == after
        given_ = sum(abs(run.changes[r] - changed[r]) for r in {*run.changes, *changed})
        wanted = sum(((before - after) + (after - before)).values())
        assert given_ == wanted


def test_a_change_that_comes_to_nothing_gives_nothing() -> None:
    """A row that comes and goes within a batch, and one that is what it was."""
    operator = Upserts(SCHEMA, ("k", "j"))
    run = Contract(operator)
    run.step([batch([("a", 0, 1.5, None)])])
    parcel = operator.prepare(
        0, batch([("a", 0, 2.0, None), ("a", 0, 1.5, None), ("b", 0, 1.0, ())])
    )
    assert len(np.unique(parcel.parcel.hashes)) == 2
    before = run.changes.copy()
    run.step(
        [batch([("a", 0, 2.0, None), ("a", 0, 1.5, None), ("b", 1, 1.0, ()), ("b", 1, None, None)])]
    )
    assert run.changes == before


LARGE = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("y", pa.binary()),
        pa.field("l", pa.list_(pa.int32())),
        pa.field("w", pa.list_(pa.string())),
        pa.field("m", pa.map_(pa.string(), pa.string())),
        pa.field("j", JSON),
    ]
)
P = PLACEHOLDER
UNCHANGED: tuple[Any, ...] = (P, P.encode(), [*P.encode()], [P], [(P, P)], f'"{P}"')
VALUES = [
    ("a", b"a", [1], ["a"], [("a", "b")], "{}"),
    (None,) * 6,
    ("b", b"", [], [], [], "[1]"),
    UNCHANGED,
]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.one_of(st.none(), *[st.lists(st.integers(0, 3), min_size=6, max_size=6)] * 3),
            ),
            max_size=8,
        ),
        max_size=6,
    ),
    st.integers(0, 9),
)
def test_an_unchanged_large_value_is_that_of_before(batches: list[Any], seed: int) -> None:
    """Of all its forms and however batches are cut; where no row is there, the placeholder stays."""
    run = Contract(Upserts(LARGE, ("k",)), shards=2, chance=random.Random(seed))
    truth: dict[int, Any] = {}
    for changes in batches:
        rows, gone = [], []
        for k, picked in changes:
            gone.append(picked is None)
            row = [VALUES[n][i] for i, n in enumerate(picked or [1] * 6)]
            rows.append((k, *row))
            old = truth.pop(k, None)
            if picked is not None:
                kept = UNCHANGED if old is None else old
                truth[k] = [kept[i] if n == 3 else row[i] for i, n in enumerate(picked)]
        run.step([delta(LARGE, rows).append_column(DELETED, pa.array(gone, pa.bool_()))])
        expected = counted(delta(LARGE, [(k, *row) for k, row in truth.items()]))
        assert run.view() == expected
        assert run.total() == expected
