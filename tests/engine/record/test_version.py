"""A pipeline's record as values: what a batch makes of a version, and what a file has of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import orjson
import pytest
from tests.engine.record.samples import plan, report, split_report, version

import penstock as ps
from penstock.engine.record.marks import Activity, FoundProducers, Held, Producers
from penstock.engine.record.plan import (
    Begun,
    Plan,
    Repeats,
    Split,
    Switch,
    WriterEntry,
    plan_from_json,
)
from penstock.engine.record.version import (
    Counts,
    OperatorEntry,
    TimeEntry,
    Version,
    ViewEntry,
)
from penstock.errors import PenstockError, SetupError
from penstock.flow.graph import Source

S = 1_000_000


def written(content: dict[str, Any]) -> dict[str, Any]:
    """What a file has of it."""
    return cast(
        "dict[str, Any]", orjson.loads(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS))
    )


FULL = version(
    7,
    epoch=3,
    wall_us=11,
    name="shop",
    offsets={"t": {0: 5, 1: 9}},
    partitions={"t": 2},
    shards=2,
    operators={"a": OperatorEntry({"kind": "x"}, "n", "2 exchanged", {0: {}}, {"t": {1: 4}})},
    views={"v": ViewEntry("a", [{"where": "x"}], ["x"], ["x"], ["x"])},
    program="digest",
    unkeyed=["t"],
    sources={"t": "id"},
    times={"t": TimeEntry("field", "at"), "u": None},
    nodes=["a"],
    outputs={"o": "out"},
    newest_us={"t": {0: 5}},
    watermark_us={"t": 4},
    frontier_us={"a": [4]},
    producers={"t": {0: Producers(("p",), (1,), (2,), (3, 4)), 1: Producers()}},
    held={"t": Held(1, None, None, "partition 1", 5)},
    activity={"t": Activity(1, {0: 2}, {0: 3}, {"p": 4})},
    floors={"t": {0: [[0, 5]]}},
    cut=[("t", 1)],
    topic_ids={"t": "abc"},
    incarnation="i",
    writers={"w": WriterEntry(7, 0, {1: 2})},
    counts=Counts({"t": 1}, {"t": 2}, {"t": 3}, {"t": 4}, {"v": 5}),
    upgrades=["u"],
    switches=2,
    pending=Begun(1, 2, Repeats(6, "i", ["o"]), {"t/0": 1}, {"t/0": 2}, {"t": "a"}, {"t": 1}, {}),
    versions_kept=80,
    run="boot",
)


def test_every_field_of_a_version_is_read_as_it_was_written() -> None:
    """None is left at its default here, so one that is forgotten shows."""
    plain = version()
    assert not [
        one.name
        for one in fields(Version)
        if one.name != "epoch" and getattr(FULL, one.name) == getattr(plain, one.name)
    ]
    assert Version.from_json(written(FULL.to_json())) == FULL
    content = written(plain.to_json())
    assert written(Version.from_json(content).to_json()) == content


def test_a_version_of_the_first_releases_is_read() -> None:
    """It has no more fields than these; what it doesn't say has defaults."""
    known = {"version", "epoch", "wall_us", "name", "offsets", "newest_us", "watermark_us"}
    known |= {"frontier_us", "operators", "writers", "counts", "partitions", "shards", "views"}
    content = {k: one for k, one in written(version(2).to_json()).items() if k in known}
    content["operators"] = {"a": {"spec": {}, "name": "n", "traces": {}}}
    content["views"] = {"v": {"operator": "a", "steps": [], "keys": []}}
    content["counts"] = {what: {} for what in ("rows", "dead", "late", "lost")}
    found = Version.from_json(content)
    assert (found.sources, found.outputs, found.operators["a"].cut) == (None, None, None)
    assert found.counts == Counts()


def test_a_version_of_a_later_format_is_refused() -> None:
    """It says who can read it, and nothing of it is taken for something else."""
    with pytest.raises(SetupError, match="later release of Penstock wrote it"):
        Version.from_json(written(version().to_json()) | {"format": 99})


def test_plans_and_switches_are_read_as_they_were_written() -> None:
    """Either is in place of the other."""
    full = plan(
        3,
        splits=(Split("t", 0, 1, 2, 3, 0, Producers(("p",), (1,), (2,)), [[0, 1]]),),
        writers={"w": WriterEntry(7, 0, {1: 2})},
        activity={"t": Activity(1)},
        repeats=Repeats(2, "i", ["o"], Repeats(1, "i", [])),
        letters={"0": 4},
        outputs={"o": "out"},
    )
    assert plan_from_json(written(full.to_json())) == full
    switch = Switch(4, "digest", "upgrade")
    assert plan_from_json(written(switch.to_json())) == switch


def source(**time: Any) -> Source:
    """The topic `t`, with a time."""
    app = ps.App("p")
    app.stream("t", "k BIGINT, at TIMESTAMP", time=ps.event_time("at", **time)).to("out")
    [found] = app.graph().sources
    return found


def of_two(**more: Any) -> Plan:
    """A plan that reads two partitions of `t`."""
    splits = tuple(Split("t", p, 10 * p, 10 * p + 5, None, p) for p in (0, 1))
    activity = {"t": Activity(100 * S, {0: 0, 1: 90 * S})}
    rest = {"splits": splits, "activity": activity, "writers": {"w": WriterEntry(7, 0, {0: 1})}}
    return plan(8, epoch=4, wall_us=100 * S, program="new", **{**rest, **more})


BEFORE = replace(
    FULL,
    operators={"a": OperatorEntry({}, "n", None, {0: {"n": 0}, 1: {"n": 1}})},
    offsets={"t": {0: 0, 1: 10}, "u": {0: 3}},
    producers={},
    floors={},
)


def test_a_version_follows_from_its_plan_and_reports() -> None:
    """Offsets, traces, sequences and counts move on; what the batch left alone stays; the old one, too."""
    sources = [source()]
    lanes = [
        report(
            sources=[split_report("t", 0, newest_us=9, rows=5, late=2)],
            traces={"a": {0: {"n": 2}}},
            writers={"w": {0: 6}},
            late={"v": 1},
            dead={"t": 3},
        ),
        report(sources=[split_report("t", 1, rows=2, lost=1, end=12)], passed_late={"v": 4}),
    ]
    after = BEFORE.after(of_two(incarnation="j", topic_ids={"x": "y"}), lanes, sources)
    assert (after.number, after.epoch, after.program, after.incarnation) == (8, 4, "new", "j")
    assert after.offsets == {"t": {0: 5, 1: 12}, "u": {0: 3}}
    assert after.cut == [("t", 1)]
    assert after.newest_us == {"t": {0: 9}}
    assert after.operators["a"].traces == {0: {"n": 2}, 1: {"n": 1}}
    assert after.writers == {"w": WriterEntry(7, 0, {0: 6})}
    assert after.counts == Counts({"t": 8}, {"t": 5}, {"t": 5, "v": 4}, {"t": 5}, {"v": 6})
    assert after.topic_ids == {"t": "abc", "x": "y"}
    assert (after.pending, after.run) == (None, None)
    assert (after.upgrades, after.held) == (BEFORE.upgrades, BEFORE.held)
    assert BEFORE.offsets == {"t": {0: 0, 1: 10}, "u": {0: 3}}
    assert BEFORE.operators["a"].traces == {0: {"n": 0}, 1: {"n": 1}}


def test_a_split_without_a_report_makes_no_version() -> None:
    """Its rows would count as read."""
    with pytest.raises(PenstockError, match="expected reports of all splits of batch 8"):
        BEFORE.after(of_two(), [report(sources=[split_report("t", 0)])], [source()])


def test_producers_are_seen_on_the_clock_of_their_partition_and_forgotten_when_passed() -> None:
    """Those with rows are taken over; one that is idle and passed goes, one that is expected stays."""
    marks = Producers(("old", "ahead", "due"), (1, 99 * S, 1), (0, 0, 0))
    before = replace(BEFORE, producers={"t": {1: marks}})
    found = FoundProducers({"new": 50 * S}, None)
    lanes = [report(sources=[split_report("t", p, producers=found if p else None)]) for p in (0, 1)]
    mine = source(lateness="0 seconds", idle="5 seconds", producer="k", expected=["due"])
    after = before.after(of_two(watermark_us={"t": 60 * S}), lanes, [mine])
    [known] = after.producers["t"].values()
    assert known.names == ("ahead", "due", "new")
    assert known.seen_us == (0, 0, 10 * S)
    assert before.producers["t"][1] is marks
