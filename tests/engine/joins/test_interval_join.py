"""Streams joined within an interval, through whole pipelines."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, get_args

import pytest

import penstock as ps
from penstock.ops.joins.table_join import How

SEARCH = "session STRING, query STRING, at TIMESTAMP"
CLICK = "session STRING, url STRING, clicked TIMESTAMP"


def streams(app: ps.App, **options: Any) -> tuple[ps.Stream, ps.Stream]:
    """Searches, and clicks on what they found."""
    searches = app.stream("searches", SEARCH, time=ps.event_time("at", lateness="0 s"), **options)
    clicks = app.stream("clicks", CLICK, time=ps.event_time("clicked", lateness="0 s"), **options)
    return searches, clicks


def values(run: Any, topic: str) -> list[dict[str, Any]]:
    """What a topic's records say."""
    return [json.loads(record.value) for record in run.topic(topic)]


def test_a_search_meets_its_clicks_within_an_hour() -> None:
    """The pair comes at once; a search without a click as soon as the clicks have passed its hour."""
    app = ps.App("p")
    searches, clicks = streams(app)
    joined = searches.join(clicks, on="session", within="1 hour", how="left")
    assert joined.schema.text == (
        "session STRING, query STRING, at TIMESTAMP, url STRING, clicked TIMESTAMP"
    )
    joined.select("session", "query", "url").to("outcomes")
    run = ps.testing.run(app)
    run.send("searches", session="a", query="shoes", at="12:00:00")
    run.send("searches", session="b", query="hats", at="12:00:00")
    run.send("clicks", session="a", url="/1", clicked="12:59:00")
    pair = {"session": "a", "query": "shoes", "url": "/1"}
    assert values(run, "outcomes") == [pair]
    run.send("clicks", session="z", url="/2", clicked="13:00:00")
    assert values(run, "outcomes") == [pair]
    run.send("clicks", session="b", url="/3", clicked="13:00:00")  # the last moment
    hat = {"session": "b", "query": "hats", "url": "/3"}
    assert Counter(map(str, values(run, "outcomes"))) == Counter(map(str, [pair, hat]))
    run.send("searches", session="c", query="socks", at="12:30:00")
    run.send("clicks", session="z", url="/4", clicked="13:30:00.000001")
    sock = {"session": "c", "query": "socks", "url": None}
    assert sock in values(run, "outcomes")
    assert len(values(run, "outcomes")) == 3


def test_windows_over_a_join_wait_for_rows_without_a_partner() -> None:
    """A window over a left join counts them, though they come an interval later."""
    app = ps.App("p")
    searches, clicks = streams(app)
    joined = searches.join(clicks, on="session", within=("0 s", "10 minutes"), how="left")
    counted = joined.window(ps.tumbling("5 minutes")).agg(n=ps.count(), clicked=ps.count("url"))
    counted.select("n", "clicked").to("counted")
    run = ps.testing.run(app)
    for second in range(0, 3_600, 60):
        at = f"{12 + second // 3600}:{second // 60 % 60:02}:00"
        run.send("searches", session=f"s{second}", query="q", at=at)
        run.send("clicks", session=f"s{second}" if second % 120 else "none", url="u", clicked=at)
        run.settle()
    found = values(run, "counted")
    assert (
        len(found) == 9
    )  # 60 minutes, less the ten that a click may come later, less the open one
    assert all(row["n"] == 5 for row in found)
    assert {row["clicked"] for row in found} == {2, 3}


def test_a_stream_meets_itself() -> None:
    """Each row with all of its key near it, itself included."""
    app = ps.App("p")
    searches, _ = streams(app)
    again = searches.select("session", other="query", later="at")
    once = searches.join(again, on="session", within="1 minute")
    once.where("at < later").select("query", "other").to("next")
    same = searches.join(searches, on=("session", "query", "at"), within="0 seconds", how="semi")
    same.to("same")
    run = ps.testing.run(app)
    for query, at in (("a", "12:00:00"), ("b", "12:00:50"), ("c", "12:01:40")):
        run.send("searches", session="s", query=query, at=at)
        run.settle()
    assert [(row["query"], row["other"]) for row in values(run, "next")] == [("a", "b"), ("b", "c")]
    assert [row["query"] for row in values(run, "same")] == ["a", "b", "c"]


def test_corrections_of_one_side_correct_the_pairs() -> None:
    """A join of closed windows that late rows correct gives records of before and after."""
    app = ps.App("p")
    searches, clicks = streams(app)
    busy = (
        clicks.window(ps.tumbling("1 minute"), late="correct", keep="10 minutes")
        .group_by("session")
        .agg(clicks=ps.count())
    )
    joined = searches.join(busy.closed(), on="session", within="3 minutes")
    joined.select("session", "query", "clicks").to("joined")
    run = ps.testing.run(app)
    run.send("searches", session="a", query="shoes", at="12:00:30")
    run.send("searches", session="z", query="", at="13:00:00")
    for at in ("12:00:10", "12:02:00", "12:00:20", "12:30:00"):
        run.send("clicks", session="a", url="/", clicked=at)
        run.settle()
    changes = [
        (row["op"], *(side and side["clicks"] for side in (row["before"], row["after"])))
        for row in values(run, "joined")
    ]
    assert changes == [("c", None, 1), ("d", 1, None), ("c", None, 2), ("c", None, 1)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", get_args(How))
def test_a_restart_and_other_batches_change_no_row(how: How) -> None:
    """A new owner goes on with what waits; in some batches or in one, the rows are the same."""
    found = []
    for every in (3, 1_000):
        app = ps.App("p")
        searches, clicks = streams(app, partitions=2)
        searches.join(clicks, on="session", within="9 minutes", how=how).to("out")
        run = ps.testing.run(app, cores=3)
        for i in range(40):
            at = f"{12 + i // 15}:{(i * 4) % 60:02}:00"
            run.send("searches", session=f"{i % 5}", query=f"{i}", at=at, partition=i % 2)
            run.send("clicks", session=f"{i * 3 % 7}", url=f"{i}", clicked=at, partition=i % 2)
            if i % every == 0:
                run.settle()
                run.restart()
        for topic, time in (("searches", "at"), ("clicks", "clicked")):
            for partition in (0, 1):
                run.send(topic, session=None, **{time: "23:00:00"}, partition=partition)
        found.append(Counter(map(str, values(run, "out"))))
        assert not run.dead_letters()
    assert found[0] == found[1]
    assert len(found[0]) > 10
