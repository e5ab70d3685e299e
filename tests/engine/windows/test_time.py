"""Event time: corrected clocks, producers, markers, clocks that are ahead, processing time, idleness."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.core.time import instant_us
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.errors import FlowError, SchemaError
from penstock.testing import Run

EPOCH_S = 1_767_225_600
SIZE = 60
AHEAD = 20
DEVICES = ["a", "b", "c", "d"]


@dataclass(frozen=True)
class Options:
    """Of a stream's event time."""

    lateness: int
    by_producer: bool
    expected: tuple[str, ...]
    punctuated: bool

    def app(self, partitions: int) -> ps.App:
        """Counts per window, closed ones to a topic."""
        flow = ps.App("p")
        time = ps.event_time(
            "at",
            lateness=f"{self.lateness} s",
            ahead=f"{AHEAD} s",
            producer="device" if self.by_producer else None,
            expected=self.expected if self.by_producer else (),
            punctuated="marker" if self.punctuated else None,
        )
        schema = "device STRING, marker BOOLEAN, at TIMESTAMP NOT NULL"
        rows = flow.stream("t", schema, time=time, partitions=partitions)
        table = rows.window(ps.tumbling(f"{SIZE} s")).group_by().agg(n=ps.count())
        flow.view("counts", table)
        table.to("closed")
        return flow


def reference(
    log: list[list[dict[str, Any]]], options: Options
) -> tuple[dict[int, int], list[tuple[int, int]], float]:
    """Counts by window, late rows (partition, offset), and the watermark: one pass over each partition."""
    counts: dict[int, int] = {}
    late, all_marks = [], []
    seen: set[Any] = set()
    for partition, rows in enumerate(log):
        marks: dict[Any, float] = {}
        for offset, row in enumerate(rows):
            who = row["device"] if options.by_producer else None
            if who not in marks:
                anywhere = not marks or (who in options.expected and options.by_producer)
                marks[who] = float("-inf") if anywhere else min(marks.values())
            start = row["at"] // SIZE * SIZE
            if start + SIZE <= marks[who] - options.lateness:
                late.append((partition, offset))
            else:
                counts[start] = counts.get(start, 0) + 1
            if row["marker"] or not options.punctuated:
                believed = row["at"] - row["recorded"] <= AHEAD
                marks[who] = max(marks[who], row["at"] if believed else row["recorded"])
        seen |= marks.keys()
        all_marks.append(min(marks.values(), default=float("-inf")))
    if options.by_producer and not seen.issuperset(options.expected):
        all_marks.append(float("-inf"))
    return counts, late, min(all_marks) - options.lateness


rows = st.lists(
    st.fixed_dictionaries(
        {
            "device": st.sampled_from([*DEVICES, None]),
            "marker": st.sampled_from([True, False, False, None]),
            "at": st.integers(0, 600),
            "recorded": st.integers(0, 600),
        }
    ),
    max_size=30,
)
options_of = st.builds(
    Options,
    lateness=st.sampled_from([0, 30, 200]),
    by_producer=st.booleans(),
    expected=st.lists(st.sampled_from(DEVICES), max_size=2, unique=True).map(tuple),
    punctuated=st.booleans(),
)


def send(run: Run, partition: int, row: dict[str, Any]) -> None:
    """Appends a row; its times are in seconds after the epoch."""
    value = {**row, "at": (EPOCH_S + row["at"]) * 1_000}
    at_ms = (EPOCH_S + row["recorded"]) * 1_000
    run.send_raw("t", orjson.dumps(value), partition=partition, timestamp_ms=at_ms)


def closed(run: Run) -> list[int]:
    """The windows that were closed, in seconds after the epoch."""
    values = [orjson.loads(record.value or b"") for record in run.topic("closed")]
    starts = [datetime.fromisoformat(value["window_start"]) for value in values]
    return sorted(int(start.timestamp()) - EPOCH_S for start in starts)


def letters(run: Run) -> list[tuple[int, int]]:
    """The dead letters' origins."""
    found = [letter.headers for letter in run.dead_letters()]
    return sorted((int(h["penstock.partition"]), int(h["penstock.offset"])) for h in found)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(log=st.lists(rows, min_size=1, max_size=3), options=options_of, seed=st.integers(0, 2**32))
def test_any_split_gives_the_reference(
    log: list[list[dict[str, Any]]], options: Options, seed: int
) -> None:
    """Late rows and closed windows are those of one pass, however the log is cut and whoever takes over."""
    if options.expected:  # a producer that is expected writes to one partition
        placed: list[list[dict[str, Any]]] = [[] for _ in log]
        for row in (row for part in log for row in part):
            placed[DEVICES.index(row["device"] or "a") % len(log)].append(row)
        log = placed
    counts, late, watermark = reference(log, options)
    run = ps.testing.run(options.app(len(log)))
    chance = random.Random(seed)
    left = [list(part) for part in log]
    while any(left):
        partition = chance.choice([p for p, part in enumerate(left) if part])
        send(run, partition, left[partition].pop(0))
        if chance.random() < 0.3:
            run.step()
        if chance.random() < 0.05:
            run.restart()
    view = {int(r["window_start"].timestamp()) - EPOCH_S: r["n"] for r in run.view("counts").rows()}
    assert view == counts
    assert letters(run) == late
    assert closed(run) == sorted(start for start in counts if start + SIZE <= watermark)


def counted(time: Any, schema: str = "device STRING, at TIMESTAMP", partitions: int = 1) -> ps.App:
    """Counts per minute of a stream."""
    app = ps.App("p")
    rows = app.stream("t", schema, time=time, partitions=partitions)
    table = rows.window(ps.tumbling("1 minute")).group_by().agg(n=ps.count())
    app.view("counts", table)
    table.to("closed")
    return app


def held_by(run: Run) -> Any:
    """Who holds the watermark, after all that was sent."""
    run.settle()
    held = run.store.version(run.store.newest_version()).held.get("t")
    return held and held.text


def test_a_device_whose_clock_is_wrong() -> None:
    """What a device's clock says is put right by the difference between its sending and our receiving."""
    app = ps.App("p")
    time = ps.event_time("occurred", sent="sent", lateness="1 minute")
    rows = app.stream("t", "occurred TIMESTAMP, sent TIMESTAMP", time=time)
    app.view("counts", rows.window(ps.tumbling("1 minute")).agg(n=ps.count()))
    app.view("first", rows.group_by().agg(at=ps.first("occurred")))
    run = ps.testing.run(app)
    received_us = instant_us("2026-01-01T12:00:30Z")
    for clock in ("1999-12-31", "2031-05-05"):  # 20 s before it was sent, whatever the clock says
        value = {"occurred": f"{clock}T00:00:00Z", "sent": f"{clock}T00:00:20Z"}
        run.send_raw("t", orjson.dumps(value), timestamp_ms=received_us // 1_000)
    run.send_raw("t", b'{"occurred":0}', timestamp_ms=received_us // 1_000)
    [row] = run.view("counts").rows()
    assert (f"{row['window_start']:%Y-%m-%dT%H:%M}", row["n"]) == ("2026-01-01T12:00", 2)
    [letter] = run.dead_letters()
    assert "'occurred' and 'sent'" in letter.headers["penstock.reason"]


def test_received_may_be_a_column() -> None:
    """A gateway's own time of receiving counts instead of the record's; the expression says the same."""
    schema = "occurred TIMESTAMP, sent TIMESTAMP, received TIMESTAMP"
    app = ps.App("p")
    time = ps.event_time("occurred", sent="sent", received="received")
    rows = app.stream("t", schema, time=time)
    at = ps.corrected_time("occurred", "sent", "received")
    rows.select(at=at).to("corrected")
    app.view("counts", rows.window(ps.tumbling("1 second")).agg(n=ps.count()))
    run = ps.testing.run(app)
    run.send("t", occurred="01:00:00.25", sent="01:00:05.75", received="12:00:10.5")
    [record] = run.topic("corrected")
    assert record.value == b'{"at":"2000-01-01T12:00:05Z"}'
    [row] = run.view("counts").rows()
    assert f"{row['window_start']:%H:%M:%S}" == "12:00:05"


def test_a_slow_producer_holds_the_watermark_until_it_is_idle() -> None:
    """Windows wait for the producer that is behind, which is named; once it is idle they don't."""
    run = ps.testing.run(counted(ps.event_time("at", producer="device", expected=["a", "b"])))
    run.send("t", device="a", at="12:05:00")
    assert held_by(run) == "producer 'b', of which nothing was read"
    run.send("t", device="b", at="12:00:10")
    run.send("t", device="a", at="12:06:00")
    run.send("t", device="b", at="12:00:20")
    assert held_by(run) == "producer 'b' in partition 0"
    assert run.topic("closed") == []
    assert run.dead_letters() == []
    for _ in range(7):  # a goes on, b doesn't
        run.send("t", device="a", at="12:06:00")
        run.advance("10 seconds")
    assert held_by(run) is None
    assert len(run.topic("closed")) == 2
    run.send("t", device="b", at="12:00:30")
    assert len(run.dead_letters()) == 1, "what was closed stays closed"


def test_an_expected_producer_that_never_comes() -> None:
    """It holds the watermark for as long as it may be idle, and no longer."""
    run = ps.testing.run(counted(ps.event_time("at", producer="device", expected=["z"])))
    for at in ("12:00:00", "12:10:00"):
        run.send("t", device="a", at=at)
    assert run.topic("closed") == []
    for _ in range(7):
        run.send("t", device="a", at="12:10:00")
        run.advance("10 seconds")
    assert len(run.topic("closed")) == 1


def test_idle_producers_are_forgotten() -> None:
    """What is kept of producers that are gone doesn't grow."""
    run = ps.testing.run(counted(ps.event_time("at", producer="device")))
    for minute in range(30):
        run.send("t", device=f"d{minute}", at=f"12:{minute:02}:00")
        run.advance("40 seconds")
    known = run.store.version(run.store.newest_version()).producers["t"][0].names
    assert 1 <= len(known) <= 3


def test_a_clock_that_is_ahead_makes_nobody_late() -> None:
    """A row far ahead of its record's timestamp counts, and the watermark stays with the records."""
    run = ps.testing.run(counted(ps.event_time("at")))
    ms = instant_us("2000-01-01T12:00:00Z") // 1_000
    for second, at in enumerate(("12:00:00", "20:00:00", "12:00:01", "12:00:59", "12:02:01")):
        value = orjson.dumps({"device": "a", "at": f"2000-01-01T{at}Z"})
        run.send_raw("t", value, timestamp_ms=ms + 1_000 * second + 120_000 * (second == 4))
    assert run.dead_letters() == []
    assert sorted(row["n"] for row in run.view("counts").rows()) == [1, 1, 3]
    assert len(run.topic("closed")) == 1


@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62), -1])
def test_timestamps_beyond_time(timestamp_ms: int) -> None:
    """A record with a timestamp that is none is a dead letter, and doesn't wrap into another time."""
    run = ps.testing.run(counted(ps.event_time()))
    run.send_raw("t", b'{"device":"a"}', timestamp_ms=timestamp_ms)
    run.settle()
    assert len(run.dead_letters()) == (timestamp_ms != -1)


def test_markers_alone_move_the_watermark() -> None:
    """However far rows are, only a marker closes what lies before it."""
    time = ps.event_time("at", punctuated="device = 'end' AND at IS NOT NULL")
    run = ps.testing.run(counted(time))
    for at in ("12:00:00", "18:00:00", "12:00:30"):
        run.send("t", device="a", at=at)
    assert run.topic("closed") == []
    run.send("t", device="end", at="12:30:00")
    assert len(run.topic("closed")) == 1
    assert run.dead_letters() == []
    run.send("t", device="a", at="12:00:59")
    assert len(run.dead_letters()) == 1


def test_a_marker_condition_that_fails_is_no_marker() -> None:
    """A row for which the condition can't be computed is a row like others."""
    time = ps.event_time("at", punctuated="CAST(device AS INT) = 1")
    run = ps.testing.run(counted(time))
    for device, at in (("one", "12:00:00"), ("x", "13:00:00"), ("1", "12:10:00")):
        run.send("t", device=device, at=at)
    assert len(run.topic("closed")) == 1
    assert run.dead_letters() == []


def test_producers_by_header() -> None:
    """A record's header may tell its producer; without it, a row is one of the others."""
    run = ps.testing.run(counted(ps.event_time("at", producer=ps.header("who"))))
    for who, at in (("a", "12:00:00"), ("b", "12:00:00"), (None, "12:00:01"), ("a", "13:00:00")):
        headers = () if who is None else (("who", who.encode()),)
        value = orjson.dumps({"at": f"2000-01-01T{at}Z"})
        run.send_raw("t", value, headers=headers)
    assert held_by(run) == "producer 'b' in partition 0"
    run.send_raw("t", b'{"at":"2000-01-01T12:30:00Z"}', headers=(("who", b"b"),))
    assert held_by(run) == "other producers in partition 0"
    assert run.topic("closed") == []


def test_processing_time_closes_windows_by_the_clock() -> None:
    """Rows happen when they are processed, however old they say they are; silence closes windows, too."""
    run = ps.testing.run(counted(ps.processing_time()), now="2026-01-01T12:00:10Z")
    run.send("t", device="a", at="1970-01-01T00:00:00Z")
    run.settle()
    run.advance("20 seconds")
    run.send("t", device="b", at="2100-01-01T00:00:00Z")
    [row] = run.view("counts").rows()
    assert (f"{row['window_start']:%H:%M:%S}", row["n"]) == ("12:00:00", 2)
    assert run.topic("closed") == []
    run.advance("40 seconds")
    assert len(run.topic("closed")) == 1
    assert run.dead_letters() == []


def test_a_repeated_batch_has_the_same_processing_time() -> None:
    """A batch that was planned before a crash gives its rows the time of the plan."""
    run = ps.testing.run(counted(ps.processing_time()), now="2026-01-01T12:00:10Z")
    run.send("t", device="a")
    plan = run._driver._new_plan(0)
    assert plan is not None
    run.store.write_plan(plan)
    run._clock_us += 3_600_000_000
    run.restart()
    [row] = run.view("counts").rows()
    assert f"{row['window_start']:%H:%M}" == "12:00"


def test_a_clock_that_goes_back() -> None:
    """Processing time doesn't: rows are in a window that is open."""
    run = ps.testing.run(counted(ps.processing_time()), now="2026-01-01T12:05:00Z")
    run.send("t", device="a")
    run.settle()
    run._clock_us -= 240_000_000
    run.send("t", device="b")
    [row] = run.view("counts").rows()
    assert (f"{row['window_start']:%H:%M}", row["n"]) == ("12:05", 2)
    assert run.dead_letters() == []


@pytest.mark.parametrize("every", [1, 3])
def test_restarts_do_not_begin_idleness_anew(every: int) -> None:
    """A partition that brings nothing is idle after a while, however often the pipeline restarts."""
    run = ps.testing.run(counted(ps.event_time("at"), partitions=2))
    for at in ("12:00:00", "12:10:00"):
        run.send("t", device="a", at=at, partition=0)
    run.settle()
    for _ in range(40 // every):
        for _ in range(every):
            run.advance("10 seconds")
        run.restart()
    assert len(run.topic("closed")) == 1
    before = run.store.newest_version()
    run.advance("10 minutes")
    assert run.store.newest_version() == before, "rest costs nothing"


def test_progress_says_who_holds() -> None:
    """The partition that is behind is named in a batch's report, and in what explains the pipeline."""
    run = ps.testing.run(counted(ps.event_time("at"), partitions=2))
    run.send("t", device="a", at="12:00:00", partition=0)
    run.step()
    run.send("t", device="a", at="12:00:00", partition=0)
    progress = run.step()
    assert progress is not None
    assert progress.sources["t"].held_by == "partition 1"
    version = run.store.version(run.store.newest_version())
    text = explain(compile_graph(run._graph, {"t": 2}, 2), version)
    assert "2 partitions, held by partition 1" in text


def test_it_is_known_since_when_a_partition_holds() -> None:
    """Since it was first seen to be behind; again where it comes further and still is behind."""
    run = ps.testing.run(counted(ps.event_time("at", idle="1 hour"), partitions=2))
    run.send("t", device="a", at="12:00:00", partition=1)
    run.send("t", device="a", at="12:10:00", partition=0)
    run.settle()

    def held() -> Any:
        found = run.store.version(run.store.newest_version())
        assert found.held["t"].text == "partition 1"
        return found.held["t"].since_us, found.wall_us

    first, _ = held()
    run.advance("10 seconds")
    run.send("t", device="a", at="12:11:00", partition=0)
    run.restart()
    run.settle()
    since, now = held()
    assert since == first < now
    run.advance("10 seconds")
    run.send("t", device="a", at="12:00:30", partition=1)
    run.settle()
    since, now = held()
    assert first < since <= now


def declared(**time: Any) -> Callable[[], Any]:
    def declare() -> Any:
        return ps.App("p").stream("t", "at TIMESTAMP, x BIGINT", time=ps.event_time(**time))

    return declare


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (declared(sent="at"), "occurred"),
        (declared(column="at", received="at"), "sent="),
        (declared(column="at", sent="x"), "TIMESTAMP"),
        (declared(column="at", producer="y"), "'y'"),
        (declared(column="at", expected=["a"]), "producer="),
        (declared(column="at", producer="x", expected="abc"), "list"),
        (declared(column="at", punctuated="x + 1"), "condition"),
        (declared(column="at", punctuated="random() < x"), "random"),
        (declared(column="at", lateness="99999999999 days"), "10,000 years"),
        (lambda: ps.App("p").table("t", "k INT", key="k", time=ps.event_time(producer="k")), "table"),
    ],
)  # fmt: skip
def test_wrong_declarations(declare: Callable[[], Any], message: str) -> None:
    """What can't be an event time is refused where it is declared."""
    with pytest.raises((FlowError, SchemaError), match=message):
        declare()
