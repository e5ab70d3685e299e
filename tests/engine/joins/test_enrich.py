"""Streams enriched from tables, from records to topics."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps

CLICKS = "user STRING, n BIGINT, at TIMESTAMP"
USERS = "id STRING, name STRING, since TIMESTAMP"


def clicks(app: ps.App, **options: Any) -> Any:
    """A stream of events."""
    return app.stream("clicks", CLICKS, time=ps.event_time("at", **options))


def users(app: ps.App, *, partitions: int = 1, **options: Any) -> Any:
    """A table of a topic."""
    time = ps.event_time("since", **options)
    return app.table("users", USERS, key="id", time=time, partitions=partitions)


def written(run: Any, topic: str, *names: str) -> list[Any]:
    """Some columns of a topic's rows, in the order of n."""
    rows = sorted((json.loads(r.value) for r in run.topic(topic)), key=lambda row: row["n"])
    return [tuple(row[name] for name in names) for row in rows]


def test_rows_meet_the_table_as_it_is() -> None:
    """Each once; what the table becomes later changes nothing of it. The table may be computed."""
    app = ps.App("p")
    table = users(app).where("name <> 'no'").select("id", "name")
    stream = clicks(app)
    stream.enrich(table, on={"user": "id"}, how="left").to("left")
    stream.enrich(table, on={"user": "id"}).where("n > 1").to("inner")
    counts = stream.group_by("user").agg(c=ps.count())
    stream.enrich(counts, on="user").to("counted")
    run = ps.testing.run(app)
    for n, (user, name) in enumerate([("a", "x"), ("b", "no"), ("a", "y"), ("a", None)]):
        if name is None:
            run.send_raw("users", None, key=user)
        else:
            run.send("users", id=user, name=name, since="12:00:00")
        run.send("clicks", user=user, n=n, at="11:00:00")
        run.settle()
        run.restart()
    run.send("clicks", n=9, at="11:00:00")
    assert written(run, "left", "user", "name") == [
        ("a", "x"),
        ("b", None),
        ("a", "y"),
        ("a", None),
        (None, None),
    ]
    assert written(run, "inner", "user", "name") == [("a", "y")]
    assert written(run, "counted", "user", "c") == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_rows_meet_the_version_of_their_time() -> None:
    """They are held until the table's watermark has passed it, and no longer. A change that is late for them
    still counts in the table's view.
    """
    app = ps.App("p")
    table = app.view("users", users(app))
    clicks(app).enrich(table, on={"user": "id"}, how="left", as_of="event time").to("out")
    run = ps.testing.run(app)
    run.send("clicks", user="a", n=1, at="12:00:30")
    run.send("clicks", user="a", n=2, at="12:01:30")
    run.send("clicks", user="b", n=3, at="12:02:30")
    assert written(run, "out", "n") == []
    run.send("users", id="a", name="x", since="12:01:00")
    assert written(run, "out", "n", "name") == [(1, None)]
    run.restart()
    run.send("users", id="a", name="y", since="12:02:00")
    assert written(run, "out", "n", "name") == [(1, None), (2, "x")]
    run.send("users", id="b", name="z", since="12:01:59")  # late: rows of that time are out
    run.send("users", id="c", name="z", since="12:03:00")
    assert written(run, "out", "n", "name") == [(1, None), (2, "x"), (3, None)]
    [letter] = run.dead_letters()
    assert letter.headers["penstock.reason"].startswith("late")
    names = [(row["id"], row["name"]) for row in run.view("users").rows()]
    assert names == [("a", "y"), ("b", "z"), ("c", "z")]


def test_an_idle_table_holds_nobody() -> None:
    """After its idle timeout rows flow, as they come and the last one too; also where it has no rows."""
    for known in (True, False):
        app = ps.App("p")
        table = users(app, partitions=2, idle="30 seconds")
        out = clicks(app, lateness="10 seconds").enrich(
            table, on={"user": "id"}, how="left", as_of="event time"
        )
        out.to("out")
        app.view("minutes", out.window(ps.tumbling("1 minute")).agg(n=ps.count()))
        run = ps.testing.run(app)
        if known:
            run.send("users", id="a", name="x", since="12:00:00", partition=0)
        run.send("clicks", user="a", n=1, at="12:00:30")
        run.advance("20 seconds")
        assert written(run, "out", "n") == []
        run.send("clicks", user="a", n=2, at="12:00:40")
        run.advance("20 seconds")
        assert written(run, "out", "n") == [(1,), (2,)]
        run.send("clicks", user="a", n=3, at="12:00:35")
        name = "x" if known else None
        assert written(run, "out", "n", "name") == [(1, name), (2, name), (3, name)]
        run.send("users", id="a", name="y", since="12:00:50", partition=0)
        run.send("clicks", user="a", n=4, at="12:00:55")
        run.settle()
        assert len(written(run, "out", "n")) == 3, "it is awake"
        run.advance("2 minutes")
        assert written(run, "out", "n", "name")[3:] == [(4, "y")]
        assert run.dead_letters() == []
        assert [row["n"] for row in run.view("minutes").rows()] == [4]


def test_an_idle_topic_of_a_union_holds_nobody() -> None:
    """A window is closed when the other stream has passed its end; unrelated topics don't follow."""
    app = ps.App("p")
    time = ps.event_time("at", idle="30 seconds")
    one, two, three = (app.stream(name, CLICKS, time=time) for name in ("one", "two", "three"))
    one.union(two).window(ps.tumbling("1 minute")).agg(n=ps.count()).to("both")
    three.window(ps.tumbling("1 minute")).agg(n=ps.count()).to("alone")
    run = ps.testing.run(app)
    for topic in ("two", "three"):
        run.send(topic, n=1, at="12:00:10")
    run.settle()
    run.advance("20 seconds")
    for at in ("12:00:00", "12:05:00"):
        run.send("one", n=1, at=at)
    assert run.topic("both") == []
    run.advance("20 seconds")
    assert [value for (value,) in written(run, "both", "n")] == [2]
    run.send("three", n=1, at="12:00:20")
    run.send("two", n=1, at="12:00:20")
    run.settle()
    [letter] = run.dead_letters()
    assert letter.headers["penstock.topic"] == "two"


click = st.tuples(st.just("clicks"), st.sampled_from("ab"), st.integers(0, 40))
change = st.tuples(st.just("users"), st.sampled_from("abc"), st.integers(0, 40))


@settings(max_examples=examples(20))
@given(
    st.lists(st.one_of(click, change), max_size=24),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_replay_gives_the_same(log: list[Any], partitions: int, seed: int, is_left: bool) -> None:
    """Whatever the interleaving of topics, batches and restarts, and as a search through the log says."""
    how: Any = "left" if is_left else "inner"
    by_topic: dict[str, list[tuple[int, Any]]] = {"clicks": [], "users": []}
    for i, (topic, key, second) in enumerate(log):
        by_topic[topic].append((i, (key, second)))
    wanted = []
    for n, (user, second) in by_topic["clicks"]:
        known = [(s, i) for i, (key, s) in by_topic["users"] if key == user and s <= second]
        name = str(max(known)[1]) if known else None
        wanted += [(n, name)] if known or is_left else []
    for attempt in (0, 1):
        chance = random.Random(seed * 2 + attempt)
        app = ps.App("p")
        table = users(app, partitions=partitions, lateness="1 hour")
        stream = clicks(app, lateness="1 hour")
        table = table.select("id", "name", label="name || '!'")
        stream.enrich(table, on={"user": "id"}, how=how, as_of="event time").to("out")
        run = ps.testing.run(app, cores=2)
        left = {topic: list(rows) for topic, rows in by_topic.items()}
        while any(left.values()):
            topic = chance.choice([topic for topic, rows in left.items() if rows])
            i, (key, second) = left[topic].pop(0)
            at = f"12:00:{second:02}"
            if topic == "clicks":
                run.send("clicks", user=key, n=i, at=at)
            else:
                run.send("users", id=key, name=str(i), since=at)
            if chance.random() < 0.3:
                run.settle()
            if chance.random() < 0.1:
                run.restart()
        for partition in range(partitions):
            run.send("users", id="z", name="", since="14:00:00", partition=partition)
        assert written(run, "out", "n", "name") == wanted
        assert all(label == name and name for name, label in _labels(run))
        assert run.dead_letters() == []


def _labels(run: Any) -> list[Any]:
    found = written(run, "out", "name", "label")
    return [(f"{name}!", label) for name, label in found if name is not None]


def test_what_is_enriched_is_checked() -> None:
    """Each message says what was expected, what was found and what to do."""
    app = ps.App("p")
    stream, table = clicks(app), users(app)
    on = {"user": "id"}
    minutes = stream.window(ps.tumbling("1 minute"), late="correct", keep="1 hour")
    corrected = minutes.group_by("user").agg(c=ps.count()).closed()
    wrong: list[tuple[Any, str]] = [
        (lambda: stream.enrich(stream, on=on), "expected a table"),
        (lambda: stream.enrich(users(ps.App("q")), on=on), "app 'p'"),
        (lambda: stream.enrich(table, on={"n": "id"}), "one type"),
        (lambda: stream.enrich(table, on=on, how="full"), "how='full'"),
        (lambda: stream.enrich(table, on=on, as_of="now"), "as_of='now'"),
        (lambda: corrected.enrich(table, on=on), "rows stay"),
        (
            lambda: stream.enrich(table.select("id", n="name"), on=on),
            r"select\(…, table_n='n'\)",
        ),
        (
            lambda: stream.enrich(table.where("name > ''"), on=on, as_of="event time"),
            "Filter what enrich",
        ),
        (
            lambda: stream.enrich(
                table.select("id", k="name"), on={"user": "k"}, as_of="event time"
            ),
            r"key \(id\) in on=",
        ),
        (
            lambda: stream.enrich(table.select(k="id"), on={"user": "k"}, as_of="event time"),
            "stay as it is",
        ),
        (
            lambda: stream.enrich(
                stream.group_by("user").agg(c=ps.count()), on="user", as_of="event time"
            ),
            'emit="changes"',
        ),
    ]
    for call, text in wrong:
        with pytest.raises(ps.PenstockError, match=text):
            call()
