"""Functions that are told a table beside their rows: the table of each row's own time, on every shard."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

import penstock as ps
from penstock.core.delta import DELETED, OFFSET
from penstock.core.keys import hash_columns
from penstock.errors import FlowError
from penstock.ops import NO_TIME
from penstock.ops.keyed.process import Process
from penstock.ops.keyed.rules import Rules
from penstock.state.layout import hashes

TS = pa.timestamp("us", "UTC")
INPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
RULE = pa.schema([("id", pa.int64()), ("factor", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("told", pa.string()), ("at", TS)])
STATE = pa.schema([("k", pa.string()), ("total", pa.int64()), ("wake", TS)])
PAUSE, LATENESS = 20, 15
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def us(value: dt.datetime) -> int:
    """An instant as microseconds."""
    return (value - EPOCH) // dt.timedelta(microseconds=1)


def text_of(rules: pa.Table) -> str:
    """The table as text."""
    return str(sorted((row["id"], row["factor"]) for row in rules.to_pylist()))


def sums(rows: pa.Table, state: pa.Table, until: dt.datetime, rules: pa.Table) -> Any:
    """Sums of each key, with the table as it is told; some time after a row, the sum again."""
    kept = {row["k"]: row for row in state.to_pylist()}
    text, out = text_of(rules), []

    def wake(row: Any, end: dt.datetime) -> None:
        if row["wake"] is not None and row["wake"] < end:
            out.append((row["k"], -row["total"], text, row["wake"]))
            row["wake"] = None

    for row in rows.to_pylist():
        one = kept.setdefault(row["k"], {"k": row["k"], "total": 0, "wake": None})
        wake(one, row["$time"] + dt.timedelta(microseconds=1))
        one["total"] += row["n"]
        one["wake"] = row["$time"] + dt.timedelta(microseconds=PAUSE)
        out.append((row["k"], one["total"], text, row["$time"]))
    for one in kept.values():
        wake(one, until)
    columns = [pa.array([one[i] for one in out], f.type) for i, f in enumerate(OUTPUT)]
    return pa.table(columns, OUTPUT.names), pa.Table.from_pylist(list(kept.values()), STATE)


class WithFunction(Contract):
    """A spec has no function: it is put in again."""

    def __init__(self, rules: Rules, **options: Any) -> None:
        made = Process(INPUT, ("k",), OUTPUT, "at", STATE, "wake", "told", rules=rules)
        super().__init__(made, timed=True, **options)
        whole = Process(INPUT, ("k",), OUTPUT, "at", STATE, "wake", "told", sums, rules=rules)
        self.operator = whole


def as_of(changes: list[Any], at: int) -> str:
    """The table at a time: changes of (time, offset, id, factor), None deletes."""
    table: dict[int, int] = {}
    for time, _, id_, factor in sorted(changes, key=lambda one: one[:2]):
        if time <= at:
            table.pop(id_, None)
            if factor is not None:
                table[id_] = factor
    return str(sorted(table.items()))


def naive(rows: list[Any], changes: list[Any], until: int) -> Counter[Any]:
    """All rows and changes in time, sorted, at once."""
    found: Counter[Any] = Counter()
    total: Counter[str] = Counter()
    wake: dict[str, int] = {}

    def pause(k: str, before: int) -> None:
        if k in wake and wake[k] < before:
            at = wake.pop(k)
            found[at, k, -total[k], as_of(changes, at), at] += 1

    for at, k, n in sorted(rows):
        if at < until:
            pause(k, at + 1)
            total[k] += n
            wake[k] = at + PAUSE
            found[at, k, total[k], as_of(changes, at), at] += 1
    for k in list(wake):
        pause(k, until)
    return found


row = st.tuples(st.integers(-40, 150), st.sampled_from("abc"), st.integers(1, 3))
change = st.tuples(st.integers(-40, 150), st.integers(0, 2), st.sampled_from([None, 1, 2, 3]))
batches_of = st.lists(
    st.tuples(st.lists(row, max_size=6), st.lists(change, max_size=4)), max_size=7
)


@settings(max_examples=examples(60), deadline=None)
@given(batches_of, st.integers(1, 3), st.integers())
def test_a_row_meets_the_table_of_its_time(batches: Any, shards: int, seed: int) -> None:
    """In any order and cut, late ones left out; timers meet the table of the time they are set to."""
    run = WithFunction(Rules(RULE, ("id",), timed=True), shards=shards, chance=random.Random(seed))
    newest, there, changed = [NO_TIME, NO_TIME], [], []
    instants: set[Any] = set()
    offset = 0
    changes_schema = pa.schema([*RULE, (OFFSET, pa.int64()), (DELETED, pa.bool_())])

    def marked(port: int, at: int) -> int:
        mark = newest[port] - LATENESS if newest[port] > NO_TIME else NO_TIME
        newest[port] = max(newest[port], at)
        return mark

    for rows_, changes in batches:
        rows, rules_ = [], []
        for at, k, n in rows_:
            if (at, k) not in instants:
                instants.add((at, k))
                rows.append(((k, n), at, marked(0, at)))
        for at, id_, factor in changes:
            offset += 1
            rules_.append(((id_, factor, offset, factor is None), at, marked(1, at)))
        there += [(at, k, n) for (k, n), at, mark in rows if at >= mark]
        changed += [(at, o, i, f) for (i, f, o, _), at, mark in rules_ if at >= mark]
        frontiers = [one - LATENESS if one > NO_TIME else NO_TIME for one in newest]
        tables = [
            delta(schema, [one[0] for one in some], times=[one[1] for one in some],
                  marks=[one[2] for one in some])
            for schema, some in ((INPUT, rows), (changes_schema, rules_))
        ]  # fmt: skip
        run.step(tables, frontiers)
        found = Counter({(t, k, n, s, us(at)): c for (t, k, n, s, at), c in run.total().items()})
        assert found == naive(there, changed, min(frontiers))
    for state in run.states:
        assert state.traces["rules"].rows <= 3 * (1 + len(changed))


def test_versions_lie_under_the_hash_of_their_key() -> None:
    """As in states that are there: a change must meet the versions of before."""
    run = WithFunction(Rules(RULE, ("id",), timed=True))
    changes_schema = pa.schema([*RULE, (OFFSET, pa.int64()), (DELETED, pa.bool_())])
    rows = [(n, n, n, False) for n in (7, 8)]
    table = delta(changes_schema, rows, times=[1, 1], marks=[NO_TIME] * 2)
    run.step([delta(INPUT, [], times=[], marks=[]), table], [0, 0])
    [state] = run.states
    [kept] = state.traces["rules"].scan()
    assert sorted(hashes(kept)) == sorted(hash_columns([pa.array([7, 8])], 2))


@pytest.mark.slow
def test_versions_that_no_row_asks_for_go() -> None:
    """A table that changes for ever doesn't grow for ever."""
    run = WithFunction(Rules(RULE, ("id",), timed=True))
    changes_schema = pa.schema([*RULE, (OFFSET, pa.int64()), (DELETED, pa.bool_())])
    nothing = delta(INPUT, [], times=[], marks=[])
    for n in range(300):
        table = delta(changes_schema, [(1, n, n, n % 7 == 0)], times=[n], marks=[NO_TIME])
        run.step([nothing, table], [n, n])
    [state] = run.states
    assert len(run.operator.rules.bag.sum(list(state.traces["rules"].scan()))) <= 2


@settings(max_examples=examples(30), deadline=None)
@given(batches_of, st.integers(1, 3), st.integers())
def test_a_table_as_it_is(batches: Any, shards: int, seed: int) -> None:
    """Rows meet what the table was made of up to their batch, and what was taken back is gone."""
    run = WithFunction(Rules(RULE, (), timed=False), shards=shards, chance=random.Random(seed))
    table: Counter[Any] = Counter()
    at = 0
    for rows_, changes in batches:
        come = Counter((id_, factor or 0) for _, id_, factor in changes)
        gone = Counter({one: 1 for one in table if run.chance.random() < 0.5})
        table = table + come - gone
        moved = [*((one, n) for one, n in come.items()), *((one, -n) for one, n in gone.items())]
        rows = [(k, n) for _, k, n in rows_]
        times = list(range(at, at + len(rows)))
        at += len(rows)
        run.changes.clear()
        run.step(
            [
                delta(INPUT, rows, times=times, marks=[NO_TIME] * len(rows)),
                delta(RULE, [one for one, _ in moved], weights=[n for _, n in moved]),
            ],
            [at, NO_TIME],
        )
        assert {text for _, _, _, text, _ in run.changes} <= {str(sorted(table.elements()))}
        assert sum(run.changes.values()) >= len(rows)


def alerts(rows: pa.Table, state: pa.Table, until: dt.datetime, rules: pa.Table) -> Any:
    """Readings above the limit of their kind."""
    limits = {rule["kind"]: rule["most"] for rule in rules.to_pylist()}
    out = [
        {"sensor": one["sensor"], "v": one["v"], "at": one["at"]}
        for one in rows.to_pylist()
        if one["v"] > limits.get(one["kind"], 1e9)
    ]
    schema = pa.schema([("sensor", pa.string()), ("v", pa.float64()), ("at", TS)])
    return pa.Table.from_pylist(out, schema), state


def app_of(as_of: Any = "event time", computed: bool = False) -> ps.App:
    """Readings, and limits that change."""
    app = ps.App("p")
    at = ps.event_time("at", lateness="0 s")
    readings = app.stream(
        "readings", "sensor STRING NOT NULL, kind STRING, v DOUBLE, at TIMESTAMP", time=at
    )
    limits = app.table("limits", "kind STRING, most DOUBLE, at TIMESTAMP", key="kind", time=at)
    if computed:
        limits = limits.where("most > 0")
    readings.process(
        alerts,
        per="sensor",
        schema="sensor STRING, v DOUBLE, at TIMESTAMP",
        time="at",
        state="n BIGINT",
        broadcast=limits,
        as_of=as_of,
    ).to("alerts")
    return app


@pytest.mark.parametrize("cores", [1, 3])
def test_rules_change_while_events_flow(cores: int) -> None:
    """Each reading is judged by the limit of its own time, whichever is read first, over restarts."""
    found = []
    limits = [("heat", 50, "12:00:00"), ("heat", 80, "12:10:00"), ("cold", 1, "12:20:00")]
    readings = [(f"s{minute % 5}", 60, f"12:{minute:02}:00") for minute in range(1, 25)]
    for first in (True, False):
        run = ps.testing.run(app_of(), cores=cores)
        for part in (first, not first):
            if part:
                for kind, most, at in limits:
                    run.send("limits", kind=kind, most=most, at=at)
            else:
                for sensor, v, at in readings:
                    run.send("readings", sensor=sensor, kind="heat", v=v, at=at)
            run.settle()
            run.restart()
        run.send("limits", kind="cold", most=2, at="12:30:00")
        found.append(sorted(record.value or b"" for record in run.topic("alerts")))
        assert run.dead_letters() == []
    assert found[0] == found[1]
    assert len(found[0]) == 9  # from 12:01 to 12:09


def test_a_computed_table_is_taken_as_it_is() -> None:
    """It has no times of its own; the message says what to do."""
    with pytest.raises(FlowError, match=r"for a broadcast as of the event time.*as_of=None"):
        app_of(computed=True)
    run = ps.testing.run(app_of(as_of=None, computed=True), cores=2)
    run.send("limits", kind="heat", most=50, at="12:00:00")
    run.settle()
    for n in range(4):
        run.send("readings", sensor=f"s{n}", kind="heat", v=60, at=f"12:0{n}:00")
    run.settle()
    run.restart()
    run.send("limits", kind="heat", most=-1, at="12:01:00")  # filtered out: there is no limit
    run.settle()
    run.send("readings", sensor="s9", kind="heat", v=70, at="12:09:00")
    run.send("readings", sensor="s9", kind="heat", v=70, at="12:10:00")
    assert len(run.topic("alerts")) == 3  # the fourth waited until the limit was gone


def test_what_can_be_broadcast() -> None:
    """A table of the same app, and a time that there is."""
    app = ps.App("p")
    stream = app.stream("s", "k STRING NOT NULL, at TIMESTAMP", time=ps.event_time("at"))
    how = {"per": "k", "schema": "at TIMESTAMP", "time": "at", "state": "n BIGINT"}
    with pytest.raises(FlowError, match="broadcast= as a table"):
        stream.process(alerts, broadcast=stream, **how)  # type: ignore[arg-type]
    other = ps.App("q").table("t", "id INT", key="id")
    with pytest.raises(FlowError, match="reads another's topic"):
        stream.process(alerts, broadcast=other, **how)  # type: ignore[arg-type]
    mine = app.table("t", "id INT", key="id")
    with pytest.raises(FlowError, match="as_of='event time', or None"):
        stream.process(alerts, broadcast=mine, as_of="now", **how)  # type: ignore[arg-type]
