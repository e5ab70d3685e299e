"""Traces against a dictionary: contents at every step, whatever the pace of merging."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.errors import CorruptError
from penstock.state import Layout, MemoryStateFiles, Trace, Value, Writer, trace, vacuum
from penstock.state.runs import OPEN

LAYOUT = Layout(
    (pa.field("k", pa.string()),),
    (
        Value("$n", pa.int64(), "sum"),
        Value("v", pa.float64(), "sum"),
        Value("m", pa.int64(), "max"),
    ),
    pa.field("tie", pa.int64()),
)


def batch(rows):
    """Rows (window, key, tie, n, v, m) as a sorted, consolidated batch; a hash of two values."""
    columns = [
        [r[0] for r in rows],
        [len(r[1] or "") % 2 for r in rows],
        *[[r[i] for r in rows] for i in (1, 2, 3, 4)],
        [0.0] * len(rows),
        [r[5] for r in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, LAYOUT.schema, strict=True)]
    return LAYOUT.group(pa.RecordBatch.from_arrays(arrays, schema=LAYOUT.schema), whole=False)


def contents(batches):
    out = {}
    for rows in batches:
        for r in rows.to_pylist():
            key = (r["$window"], r["k"], r["tie"])
            assert key not in out, "an identity once"
            out[key] = (r["$n"], r["v"], r["m"])
    return out


ROWS = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from(["", "a", "b", "cc", "dd", None]), st.integers(0, 2),
        st.integers(1, 3), st.integers(-4, 4).map(float), st.one_of(st.none(), st.integers(-3, 3)),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(ROWS, max_size=10), st.integers(1, 4), st.integers(1, 20), st.integers(2, 4),
    st.integers(0, 3), st.integers(1, 30),
)  # fmt: skip
def test_contents_are_the_sum_of_what_was_appended(deltas, fuel, piece, fan_in, drop, chunk_rows):
    """At any pace, after reopening at any version, with windows dropped or not, nothing differs."""
    files, expected, low = MemoryStateFiles(), {}, None
    now = Trace(LAYOUT, files)
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"TINY_ROWS": 1, "FUEL_MIN": 1, "FUEL_PER_ROW": fuel, "FAN_IN": fan_in}
        pieces = {"LINK_ROWS_MIN": 1, "PIECE_ROWS_MIN": piece, "PIECE_ROWS_MAX": piece + 3}
        for name, value in {**sizes, **pieces}.items():
            patch.setattr(trace, name, value)
        patch.setattr("penstock.state.runs.PIECE_ROWS_MAX", piece + 3)
        patch.setattr("penstock.state.runs.LINK_ROWS_MIN", 1)
        for version, rows in enumerate(deltas):
            if version == 5 and drop:
                low = drop
            now = Trace.open(LAYOUT, files, json.loads(json.dumps(now.describe())))
            now = now.append(batch(rows), Writer(files, "t", version, "a"), low_us=low)
            now.check()
            for w, k, tie, n, v, m in rows:
                a, b, c = expected.get((w, k, tie), (0, 0.0, None))
                best = m if c is None else c if m is None else max(c, m)
                expected[w, k, tie] = (a + n, b + v, best)
            expected = {key: x for key, x in expected.items() if low is None or key[0] >= low}
            assert contents(now.scan(chunk_rows=chunk_rows)) == expected
            part = {key: x for key, x in expected.items() if 1 <= key[0] < 3}
            assert contents(now.scan(1, 3)) == part
            kept = [*kept[-1:], now]
            vacuum(files, "t", [t.describe() for t in kept], version)
            wanted = batch(
                [(w, k, 0, 1, 0.0, None) for w, k, _ in sorted(expected, key=repr)] + rows
            )
            which, found = now.lookup(wanted)
            _same_as_lookup(wanted, which, found, expected)
    assert len(now.runs) <= 6 * fan_in * max(1, len(deltas).bit_length())


def test_what_lies_below_goes_without_rows_that_come():
    """Operators raise `low_us` of what they have appended; the next batch lets go, even an empty one."""
    files = MemoryStateFiles()
    now = Trace(LAYOUT, files).append(
        batch([(0, "a", 0, 1, 0.0, None)]), Writer(files, "t", 1, "a")
    )
    assert now.append(batch([]), Writer(files, "t", 2, "a")) is now
    now = replace(now, low_us=1)
    assert now.rows == 1
    assert now.append(batch([]), Writer(files, "t", 3, "a")).rows == 0


def _same_as_lookup(wanted, which, found, expected):
    got = {}
    rows = [r for b in found for r in b.to_pylist()]
    keys = wanted.to_pylist()
    for q, r in zip(which.tolist(), rows, strict=True):
        assert (keys[q]["$window"], keys[q]["k"]) == (r["$window"], r["k"])
        got[q, r["tie"]] = got.get((q, r["tie"]), 0) + r["$n"]
    for q, key in enumerate(keys):
        for tie in range(3):
            n = expected.get((key["$window"], key["k"], tie), (0,))[0]
            assert got.get((q, tie), 0) == n


def ints(values):
    layout = Layout((pa.field("k", pa.int64()),), (Value("$n", pa.int64(), "sum"),))
    values = np.unique(values)
    columns = [0 * values, values * 7919, values, 0 * values + 1]
    return layout, pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=layout.schema)


@pytest.mark.slow
def test_no_append_pays_for_a_big_merge_alone(monkeypatch):
    """The rows written by any append are bounded by the delta times the tiers; so are the runs."""
    for name, value in [
        ("TINY_ROWS", 16),
        ("FUEL_MIN", 16),
        ("PIECE_ROWS_MIN", 64),
        ("LINK_ROWS_MIN", 2**40),
    ]:
        monkeypatch.setattr(trace, name, value)
    rng = np.random.default_rng(3)
    files, written = MemoryStateFiles(), []
    layout, _ = ints(np.zeros(0, np.int64))
    now = Trace(layout, files)
    for version in range(400):
        _, delta = ints(rng.integers(0, 10**9, 100))
        writer = Writer(files, "t", version, "a")
        now = now.append(delta, writer)
        written.append(writer.rows)
    tiers = 8  # 16 * 4**6 > 40,000
    assert max(written) <= 100 * (1 + tiers * 2 * trace.FUEL_PER_ROW)
    assert np.mean(written) <= 100 * (1 + tiers)
    assert len(now.runs) <= 2 * trace.FAN_IN * tiers
    now.check()
    assert sum(len(b) for b in now.scan()) == sum(
        b.num_rows for b in [pa.Table.from_batches(now.scan())]
    )


def test_old_windows_are_linked_not_rewritten(monkeypatch):
    """Pieces that overlap nothing move into a merge's output as they are."""
    for name, value in [("TINY_ROWS", 4), ("PIECE_ROWS_MIN", 16), ("LINK_ROWS_MIN", 4)]:
        monkeypatch.setattr(trace, name, value)
    layout, rows = ints(np.arange(50))
    files = MemoryStateFiles()
    now, total = Trace(layout, files), 0
    for version in range(64):
        delta = rows.set_column(0, "$window", pa.array(np.full(50, version)))
        writer = Writer(files, "t", version, "a")
        now = now.append(delta, writer)
        total += writer.bytes
    assert total == now.bytes
    assert sum(len(b) for b in now.scan()) == 64 * 50


def test_only_windows_that_runs_share_are_merged(monkeypatch):
    """Where each run begins in the last window of the one before, all other windows are linked."""
    sizes = {"TINY_ROWS": 4, "PIECE_ROWS_MIN": 16, "PIECE_ROWS_MAX": 64, "LINK_ROWS_MIN": 4}
    for name, value in sizes.items():
        monkeypatch.setattr(trace, name, value)
    monkeypatch.setattr("penstock.state.runs.LINK_ROWS_MIN", 4)
    layout, rows = ints(np.arange(20))
    files = MemoryStateFiles()
    now, written, windows = Trace(layout, files), 0, 11
    for version in range(27):
        first = version * (windows - 1)
        parts = [
            rows.set_column(0, "$window", pa.array(np.full(20, first + i))) for i in range(windows)
        ]
        parts[0] = parts[0].slice(
            0, 19
        )  # the run before has a row of the window behind all of these
        writer = Writer(files, "t", version, "a")
        now = now.append(pa.concat_batches(parts), writer)
        written += writer.rows
        now.check()
    assert sum(len(b) for b in now.scan()) == 20 * (27 * (windows - 1) + 1) - 1
    assert written <= 27 * (20 * windows + 20)  # a shared window is merged once


def test_pieces_grow_with_the_rows_and_not_with_the_batches(monkeypatch):
    """Pieces at the ends of runs are linked by small merges, and put together by large ones."""
    sizes = {"TINY_ROWS": 4, "PIECE_ROWS_MIN": 128, "PIECE_ROWS_MAX": 2_048, "LINK_ROWS_MIN": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(trace, name, value)
    monkeypatch.setattr(trace, "FUEL_MIN", 64)
    monkeypatch.setattr(trace, "PIECES_PER_MERGE", 4)
    monkeypatch.setattr("penstock.state.runs.LINK_ROWS_MIN", 64)
    layout, rows = ints(np.arange(20))
    files = MemoryStateFiles()
    now, windows, batches = Trace(layout, files), 14, 160
    for version in range(batches):
        parts = [
            rows.set_column(0, "$window", pa.array(np.full(20, version * (windows - 1) + i)))
            for i in range(windows)
        ]
        now = now.append(pa.concat_batches(parts), Writer(files, "t", version, "a"))
    now.check()
    assert sum(len(run.pieces) for run in now.runs) < batches


@pytest.mark.slow
def test_pieces_stay_large_where_a_few_rows_are_late(monkeypatch):
    """A chunk of a merge ends with each input's piece; what is written doesn't."""
    sizes = {"TINY_ROWS": 64, "FUEL_MIN": 64, "PIECE_ROWS_MIN": 256, "LINK_ROWS_MIN": 128}
    for name, value in sizes.items():
        monkeypatch.setattr(trace, name, value)
    rng = np.random.default_rng(3)
    files = MemoryStateFiles()
    now = Trace(ints(np.zeros(0, np.int64))[0], files)
    for version in range(300):
        _, delta = ints(rng.integers(0, 10**9, 100))
        window = np.full(len(delta), version)
        window[: len(delta) // 20] = np.sort(rng.integers(0, version + 1, len(delta) // 20))
        now = now.append(
            delta.set_column(0, "$window", pa.array(window)), Writer(files, "t", version, "a")
        )
    now.check()
    pieces = [piece.rows for run in now.runs for piece in run.pieces]
    assert sum(pieces) > 25_000
    assert np.mean(pieces) > 100


def test_numbers_from_many_pieces_are_one_batch(monkeypatch):
    """A look-up of few rows in many pieces makes no batch for each; of texts it does, of the same rows."""
    for name, value in [("TINY_ROWS", 4), ("PIECE_ROWS_MAX", 16), ("FUEL_MIN", 1)]:
        monkeypatch.setattr(trace, name, value)
    monkeypatch.setattr("penstock.state.runs.PIECE_ROWS_MAX", 16)
    files = MemoryStateFiles()
    now = Trace(LAYOUT, files)
    for i in range(8):
        rows = [(w, "a", i, 1, float(w), None) for w in range(40)]
        now = now.append(batch(rows), Writer(files, "s", i, "0"))
    wanted = Layout(LAYOUT.keys, ())
    places = batch([(w, "a", 0, 1, 0.0, None) for w in (0, 20, 39)]).select(wanted.schema.names)
    which, found = now.lookup(places, ["v", "$n"])
    assert len(found) == 1
    assert sorted(zip(which.tolist(), *found[0].to_pydict().values(), strict=True)) == sorted(
        (number, float(w), 1) for number, w in enumerate((0, 20, 39)) for _ in range(8)
    )
    again, texts = now.lookup(places, ["k", "v"])
    assert len(texts) > 1
    assert again.tolist() == which.tolist()
    assert [v for rows in texts for v in rows["v"].to_pylist()] == found[0]["v"].to_pylist()


def test_vacuum_spares_what_is_needed_and_what_is_being_made():
    """Only files of versions up to the newest that no kept description names are deleted."""
    files = MemoryStateFiles()
    layout, delta = ints(np.arange(20_000))
    now, versions = Trace(layout, files), []
    for version in range(8):
        now = now.append(delta, Writer(files, "t", version, "a"))
        versions.append(now.describe())
    zombie = Writer(files, "t", 7, "b").write(delta).path
    newer = Writer(files, "t", 8, "a").write(delta).path
    gone = vacuum(files, "t", [{"shard": {"x": versions[-1]}}, versions[-2]], 7)
    assert zombie in gone
    assert newer not in gone
    OPEN.clear()
    for description in versions[-2:]:
        Trace.open(layout, files, description).check()


def test_a_description_of_another_format_is_refused():
    """A trace written by a release to come is not guessed at."""
    with pytest.raises(CorruptError, match="format 1"):
        Trace.open(LAYOUT, MemoryStateFiles(), {"format": 2})


def test_a_run_with_other_columns_is_refused():
    """State of a changed definition is found out when it is opened."""
    files = MemoryStateFiles()
    layout, delta = ints(np.arange(5))
    now = Trace(layout, files).append(delta, Writer(files, "t", 0, "a"))
    OPEN.clear()
    other = Trace.open(LAYOUT, files, now.describe())
    with pytest.raises(CorruptError, match="definition has changed"):
        list(other.scan())
