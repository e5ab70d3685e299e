"""The windowed aggregate against a naive recomputation, at every step, however the input is cut."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import few_rows

from penstock.core.keys import hash_columns
from penstock.errors import CorruptError, FlowError, SchemaError
from penstock.ops import (
    LATE,
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    Window,
    WindowedAggregate,
)
from penstock.ops.lateness import first_open, marks_before
from penstock.ops.windows import NOTHING_YET_US
from penstock.state import MemoryStateFiles, trace, vacuum

TS = pa.timestamp("us", "UTC")
INPUT = pa.schema([("k", pa.string()), ("j", pa.int32()), ("x", pa.int64()), ("v", pa.float64()),
                   ("s", pa.string()), ("at", TS)])  # fmt: skip
LATENESS = 7


@pytest.fixture(autouse=True, scope="module")
def _small_runs():
    """Runs, pieces and fuel so small that a few rows make many merges."""
    with pytest.MonkeyPatch.context() as patch:
        few_rows(patch)
        yield


def aggregates():
    k, x, v, s = (Column(n, INPUT.field(n).type) for n in ("k", "x", "v", "s"))
    return (
        Aggregate("n", "count"), Aggregate("nx", "count", x), Aggregate("sx", "sum", x),
        Aggregate("sv", "sum", v), Aggregate("ax", "avg", x), Aggregate("av", "avg", v),
        Aggregate("lo", "min", v), Aggregate("hi", "max", x), Aggregate("least", "min", s),
        Aggregate("most", "max", s), Aggregate("nk", "count", k),
    )  # fmt: skip


def windows_of(t, window):
    if window.kind == "none":
        return [0]
    first = (t - window.offset_us) // window.every_us * window.every_us + window.offset_us
    return [
        w
        for w in range(first, first - window.size_us - window.every_us, -window.every_us)
        if w <= t < w + window.size_us
    ]


def reference(counted, window):
    """The view, recomputed from all rows that count: (window, key) -> the aggregates of INPUT."""
    groups = defaultdict(Counter)
    for w, row, weight in counted:
        groups[w, row[0], row[1]][row] += weight
    view = {}
    for group, rows in groups.items():
        all_rows = list(rows.elements())
        if all_rows:
            column = [[r[i] for r in all_rows if r[i] is not None] for i in range(6)]
            k, _, x, v, s, _ = column
            exact = [Fraction(a) for a in v]
            view[group] = (
                len(all_rows), len(x), sum(x) if x else None,
                float(sum(exact)) if v else None, sum(x) / len(x) if x else None,
                float(sum(exact)) / len(v) if v else None,
                min(v, default=None), max(x, default=None), min(s, default=None),
                max(s, default=None), len(k),
            )  # fmt: skip
    return view


def as_view(table, window):
    rows = table.to_pydict()
    start = np.zeros(len(table), np.int64)
    if window.kind != "none":
        start = table["window_start"].cast(pa.int64()).to_numpy()
        end = table["window_end"].cast(pa.int64()).to_numpy()
        assert (end - start == window.size_us).all()
        rows.pop("window_start"), rows.pop("window_end")
    rows.pop("$weight", None)
    rows.pop("$time", None)
    out = Counter()
    for w, row, weight in zip(start, zip(*rows.values(), strict=True), weights(table), strict=True):
        out[(int(w), *row)] += weight
    return {k: n for k, n in out.items() if n}


def weights(table):
    return table["$weight"].to_pylist() if "$weight" in table.column_names else [1] * len(table)


def flat(view):
    return {(*group, *row): 1 for group, row in view.items()}


def to_table(rows, weight=None):
    table = pa.Table.from_arrays(
        [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(INPUT)], schema=INPUT
    )
    if weight is None:
        return table
    return table.append_column("$weight", pa.array(weight, pa.int64()))


def weak(columns, rows):
    return hash_columns(columns, rows) % 2


class Pipeline:
    """One operator on some shards, run as an engine would: partials, cut, blobs, step, reopen."""

    def __init__(self, spec, shards=1, hash_=None):
        spec = json.loads(json.dumps(WindowedAggregate(spec).to_spec()))
        self.op = WindowedAggregate.from_spec(spec)
        if hash_ is not None:
            self.op = WindowedAggregate(self.op.spec, hash=hash_)
        self.files = MemoryStateFiles()
        self.version = 0
        self.states = [self.op.empty(self.files) for _ in range(shards)]
        self.changed = Counter()
        self.final = Counter()

    def step(self, parts, watermark=NO_TIME):
        shards = [[] for _ in self.states]
        for part in parts:
            for shard, piece in zip(shards, part.cut(len(shards)), strict=True):
                shard.append(self.op.traits.ports[0].parcels.parse(piece.to_bytes()))
        again = []
        for i, (state, mine) in enumerate(zip(self.states, shards, strict=True)):
            steps = [
                self.op.step(
                    self.op.open(self.files, json.loads(json.dumps(state.describe()))),
                    [mine],
                    Context(self.files, f"s/{i}", self.version, (watermark,), attempt),
                )
                for attempt in ("0", "1")
            ]
            step, retried = steps
            if step.changes is not None:
                assert step.changes.equals(retried.changes)
                self.changed.update(as_view(step.changes, self.op.spec.window))
            if step.closed is not None:
                assert step.closed.equals(retried.closed)
                self.final.update(as_view(step.closed, self.op.spec.window))
            retried.state.check()
            same = [repr(self.op.read(made.state).to_pydict()) for made in steps]
            assert same[0] == same[1]
            again.append(retried.state)
        self.states = again
        vacuum(self.files, "s", [s.describe() for s in self.states], self.version)
        self.version += 1

    def view(self, lo=None, hi=None):
        out = Counter()
        for state in self.states:
            out.update(as_view(self.op.read(state, lo, hi), self.op.spec.window))
        return dict(out)


floats = st.sampled_from([0.1, 0.2, -0.3, 1e9, -1e9, 1.0, 2.5, None, 1e-7])
row = st.tuples(
    st.sampled_from(["a", "bb", "", None]),
    st.sampled_from([1, 2, None]),
    st.sampled_from([None, -5, 0, 3, 2**40]),
    floats,
    st.sampled_from([None, "x", "yy", ""]),
    st.integers(-30, 60),
)
window = st.one_of(
    st.builds(Window, st.just("tumbling"), st.integers(1, 20), offset_us=st.integers(0, 30)),
    st.builds(
        lambda a, b, o: Window("hopping", max(a, b), min(a, b), o),
        st.integers(1, 20), st.integers(1, 20), st.integers(0, 30),
    ),
    st.just(Window("none")),
)  # fmt: skip
batches = st.lists(st.lists(st.tuples(st.integers(0, 1), row), max_size=10), max_size=6)


def judged(rows, window):
    """The naive judge: what counts, as (window, row, 1); how many are late; partly late."""
    greatest = [None, None]
    counted, late, partly = [], 0, 0
    for partition, r in rows:
        t = r[5]
        of = windows_of(t, window)
        mark = -math.inf if greatest[partition] is None else greatest[partition] - LATENESS
        opened = [w for w in of if window.kind == "none" or w + window.size_us > mark]
        counted += [(w, r, 1) for w in opened]
        late += not opened
        partly += 0 < len(opened) < len(of)
        greatest[partition] = t if greatest[partition] is None else max(t, greatest[partition])
    return counted, late, partly


@settings(max_examples=examples(16), deadline=None)
@given(batches, window, st.integers(1, 3), st.booleans(), st.booleans())
def test_inserts_equal_a_recomputation_at_every_step(batches, window, shards, is_weak, changes):
    """View, changes, finals and late counts equal those of a from-scratch recomputation."""
    closes = window.kind != "none"
    spec = AggregateSpec(
        (Column("k", pa.string()), Column("j", pa.int32())), window, aggregates(), "at",
        changes=changes, closed=closes,
    )  # fmt: skip
    run = Pipeline(spec, shards, weak if is_weak else None)
    newest, late, partly = [NOTHING_YET_US, NOTHING_YET_US], 0, 0
    seen = []
    for batch in batches:
        plan = NO_TIME if NOTHING_YET_US in newest else min(newest) - LATENESS
        parts = []
        for partition in (0, 1):
            rows = [r for p, r in batch if p == partition]
            for chunk in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                table = to_table(chunk)
                times = table["at"].cast(pa.int64()).to_numpy()
                marks, newest[partition] = marks_before(times, newest[partition], LATENESS)
                opened = first_open(times, np.maximum(marks, plan), window)
                if opened is not None:
                    late += np.count_nonzero(opened == LATE)
                    partly += np.count_nonzero((opened > window.firsts(times)) & (opened != LATE))
                parts.append(run.op.partials(table, opened))
        run.step(parts, plan)
        seen += [(p, r) for partition in (0, 1) for p, r in batch if p == partition]
        counted, late_, partly_ = judged(seen, window)
        expected = reference(counted, window)
        assert (late, partly) == (late_, partly_)
        assert run.view() == flat(expected)
        assert run.view(-10, 20) == flat({g: r for g, r in expected.items() if -10 <= g[0] < 20})
        if changes:
            assert {k: n for k, n in run.changed.items() if n} == run.view()
        if closes:
            closed = {g: r for g, r in expected.items() if g[0] + window.size_us <= plan}
            assert dict(run.final) == flat(closed)


@settings(max_examples=examples(16), deadline=None)
@given(batches, window, st.booleans(), st.integers(0, 2**16))
def test_retractions_equal_a_recomputation_and_cancel_out(batches, window, is_weak, seed):
    """Rows come and go; the view follows; and when all are taken back nothing is left."""
    rng = np.random.default_rng(seed)
    spec = AggregateSpec(
        (Column("k", pa.string()), Column("j", pa.int32())), window, aggregates(), "at",
        retracts=True, changes=True,
    )  # fmt: skip
    run = Pipeline(spec, 2, weak if is_weak else None)
    alive: Counter = Counter()

    def feed(deltas):
        rows, count = [r for r, _ in deltas], [n for _, n in deltas]
        half = len(rows) // 2
        run.step(
            [
                run.op.partials(to_table(rows[:half], count[:half])),
                run.op.partials(to_table(rows[half:], count[half:])),
            ]
        )
        for r, n in deltas:
            alive[r] += n
        counted = [(w, r, n) for r, n in alive.items() for w in windows_of(r[5], window)]
        assert run.view() == flat(reference(counted, window))
        assert {k: n for k, n in run.changed.items() if n} == run.view()

    for batch in batches:
        deltas = [(r, int(rng.integers(1, 4))) for _, r in batch]
        for r, n in sorted(alive.items(), key=repr):
            if n and rng.random() < 0.5:
                deltas.append((r, -int(rng.integers(1, n + 1))))
        feed(deltas)
    feed([(r, -n) for r, n in alive.items() if n])
    assert run.view() == {}


@pytest.mark.slow
def test_equals_duckdb_on_a_larger_stream(monkeypatch):
    """Counts, sums, averages, extremes and windows are those of DuckDB over the same rows."""
    for name, value in [("TINY_ROWS", 500), ("PIECE_ROWS_MIN", 1000), ("PIECE_ROWS_MAX", 3000)]:
        monkeypatch.setattr(trace, name, value)
    monkeypatch.setattr("penstock.state.runs.PIECE_ROWS_MAX", 3000)
    rng = np.random.default_rng(7)
    n = 20_000
    table = pa.table(
        {
            "k": rng.choice(["a", "b", "c", None], n),
            "j": pa.array(rng.integers(0, 40, n), pa.int32()),
            "x": pa.array(rng.integers(-(10**9), 10**9, n), mask=rng.random(n) < 0.1),
            "v": pa.array(np.round(rng.normal(0, 1e3, n), 3), mask=rng.random(n) < 0.1),
            "s": rng.choice(["x", "yy", "zzz"], n),
            "at": pa.array(rng.integers(-(10**9), 10**9, n), TS),
        },
        schema=INPUT,
    )
    window = Window("hopping", 60_000_000, 20_000_000)
    spec = AggregateSpec(
        (Column("k", pa.string()), Column("j", pa.int32())), window, aggregates(), "at"
    )
    run = Pipeline(spec, 2)
    for at in range(0, n, 5_000):
        run.step(
            [
                run.op.partials(table.slice(at, 2_500)),
                run.op.partials(table.slice(at + 2_500, 2_500)),
            ]
        )
    view = pa.concat_tables([run.op.read(state) for state in run.states])
    with duckdb.connect() as connection:
        expected = connection.sql("""
            WITH t AS (SELECT *, epoch_us("at") AS us FROM "table"),
            w AS (SELECT *, us - (us % 20000000 + 20000000) % 20000000 - h * 20000000 AS w
                  FROM t, (SELECT unnest([0, 1, 2]) AS h))
            SELECT make_timestamptz(w) AS window_start, make_timestamptz(w + 60000000) AS window_end, k, j,
                   count(*) AS n, count(x) AS nx, sum(x)::BIGINT AS sx, fsum(v) AS sv, avg(x) AS ax,
                   favg(v) AS av, min(v) AS lo, max(x) AS hi, min(s) AS least, max(s) AS most,
                   count(k) AS nk
            FROM w GROUP BY ALL ORDER BY 1, k, j""").to_arrow_table()
    got = view.sort_by([("window_start", "ascending"), ("k", "ascending"), ("j", "ascending")])
    assert got.num_rows == expected.num_rows > 10_000
    for name in got.column_names:
        ours, theirs = got[name].combine_chunks(), expected[name].combine_chunks()
        if name in ("sv", "ax", "av"):
            a, b = ours.fill_null(0.5).to_numpy(), theirs.fill_null(0.5).to_numpy()
            assert ours.null_count == theirs.null_count
            assert np.allclose(a, b, rtol=1e-12)
        else:
            assert ours.to_pylist() == theirs.to_pylist(), name


def small(**options):
    window = options.pop("window", Window("tumbling", 10))
    return AggregateSpec(
        (Column("k", pa.string()),), window, (Aggregate("sx", "sum", Column("x", pa.int64())),), "at",
        **options,
    )  # fmt: skip


def put(op, state, rows, version, watermark=NO_TIME):
    table = to_table([("a", 1, x, None, None, t) for x, t in rows])
    context = Context(state.traces["groups"].files, "s", version, (watermark,))
    return op.step(state, [[op.partials(table)]], context)


def test_retention_drops_old_windows_by_the_versions_watermark():
    """Windows whose end is `keep_us` behind are gone from reads at once and from files in time."""
    op = WindowedAggregate(small(keep_us=20, closed=True))
    state = op.empty(MemoryStateFiles())
    finals = []
    for version in range(30):
        t = version * 10
        step = put(op, state, [(1, t), (2, t + 3)], version, t - 5)
        state = step.state
        finals += step.closed["window_start"].cast(pa.int64()).to_pylist()
        shown = op.read(state)["window_start"].cast(pa.int64()).to_pylist()
        assert shown == [w for w in range(0, t + 10, 10) if w + 10 > t - 5 - 20]
        state.check()
    assert finals == list(range(0, 280, 10))
    assert state.rows <= 10


def test_a_changed_or_missing_state_file_is_refused():
    """Truncated, flipped and deleted run files are CorruptErrors that say how to go on."""
    from penstock.state.runs import OPEN

    op = WindowedAggregate(small())
    for damage in ("truncate", "flip", "delete"):
        files = MemoryStateFiles()
        state = put(op, op.empty(files), [(1, 1), (2, 25)], 0).state
        (path,) = files.list("s")
        data = bytearray(files.read(path))
        if damage == "delete":
            files.delete(path)
        else:
            data[len(data) // 2] ^= 4
            files.write(path, [data[:-8] if damage == "truncate" else data])
        OPEN.clear()
        with pytest.raises(CorruptError, match="rebuilt"):
            op.read(op.open(files, state.describe()))


def test_rows_that_do_not_fit_the_spec_are_refused():
    """Wrong types, missing weights' declarations, NULL times and keys are SchemaErrors."""
    op = WindowedAggregate(small())
    rows = to_table([("a", 1, 1, None, None, 1)])
    with pytest.raises(SchemaError, match="insert-only"):
        op.partials(to_table([("a", 1, 1, None, None, 1)], [1]))
    with pytest.raises(SchemaError, match="'x' as int64; found string"):
        op.partials(rows.set_column(2, "x", pa.array(["1"])))
    with pytest.raises(SchemaError, match="NULLs in 'at'"):
        op.partials(rows.set_column(5, "at", pa.array([None], TS)))
    strict = WindowedAggregate(
        AggregateSpec((Column("k", pa.string(), True),), Window("none"), (Aggregate("n", "count"),))
    )
    with pytest.raises(SchemaError, match="NOT NULL"):
        strict.partials(to_table([(None, 1, 1, None, None, 1)]))


def test_specs_that_make_no_sense_are_refused():
    """A FlowError says what a window, an aggregate or a name should have been."""
    x, s = Column("x", pa.int64()), Column("s", pa.string())
    for make, message in [
        (lambda: Window("hopping", 10, 20), "at most their size"),
        (lambda: Window("tumbling", 0), "above zero"),
        (lambda: Aggregate("a", "sum", s), "numbers for sum"),
        (lambda: Aggregate("a", "sum"), "found none"),
        (lambda: Aggregate("a", "median", x), "one of the aggregates"),
        (
            lambda: AggregateSpec((s,), Window("none"), (Aggregate("s", "count"),)),
            "names that differ",
        ),
        (
            lambda: AggregateSpec((), Window("tumbling", 5), (Aggregate("n", "count"),)),
            "event-time",
        ),
        (lambda: AggregateSpec((), Window("none"), (), keep_us=5), "windows that close"),
    ]:
        with pytest.raises(FlowError, match=message):
            make()


def test_floats_that_are_equal_in_sql_are_one_key():
    """-0.0 and 0.0 are one group, and so are all NaNs; infinities stay in sums."""
    spec = AggregateSpec(
        (Column("v", pa.float64()),), Window("none"),
        (Aggregate("n", "count"), Aggregate("sv", "sum", Column("v", pa.float64()))),
    )  # fmt: skip
    run = Pipeline(spec)
    nan, odd = math.nan, float(np.array([0x7FF8000000000123]).view(np.float64)[0])
    values = [0.0, -0.0, nan, odd, math.inf, math.inf]
    run.step([run.op.partials(to_table([("a", 1, 1, v, None, 0) for v in values]))])
    out = run.op.read(run.states[0]).sort_by("v").to_pydict()
    assert out["n"] == [2, 2, 2]
    assert out["v"][:2] == [0.0, math.inf]
    assert out["sv"][:2] == [0.0, math.inf]


def test_many_chunks_of_one_batch_combine_before_a_step():
    """Partials of chunks, combined on the map side or given to a step one by one, are the same."""
    op = WindowedAggregate(small(changes=True))
    tables = [to_table([("ab"[i % 2], 1, i, None, None, i % 30)]) for i in range(20)]
    parts = [op.partials(table) for table in tables]
    files = MemoryStateFiles()
    one = op.step(op.empty(files), [parts], Context(files, "one", 0, (NO_TIME,)))
    two = op.step(
        op.empty(files),
        [[op.traits.ports[0].parcels.combine(parts)]],
        Context(files, "two", 0, (NO_TIME,)),
    )
    assert op.read(one.state).equals(op.read(two.state))
    assert one.changes.equals(two.changes)
    assert op.step(one.state, [[]], Context(files, "one", 1, (NO_TIME,))).changes.num_rows == 0
