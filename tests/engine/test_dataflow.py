"""What flows between operators: unions, closed rows, corrections, changes and upserts of tables."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.errors import FlowError
from penstock.ops.rows import Unnest

SCHEMA = "user STRING NOT NULL, n BIGINT, at TIMESTAMP"


def events(app: ps.App, topic: str = "events", lateness: str = "0 seconds", **options: Any) -> Any:
    """A stream of events."""
    time = ps.event_time("at", lateness=lateness)
    return app.stream(topic, SCHEMA, time=time, **options)


def records(run: Any, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values of a topic's records."""
    return [(r.key and r.key.decode(), r.value and json.loads(r.value)) for r in run.topic(topic)]


def test_a_union_has_the_rows_of_all_its_streams() -> None:
    """Of two topics, in one window and in one topic; one of them filtered twice."""
    app = ps.App("p")
    one, two = events(app, "one"), events(app, "two")
    both = one.where("n < 10").union(two, one.where("n > 20"))
    app.view("counted", both.group_by("user").agg(n=ps.count(), total=ps.sum("n")))
    both.to("both")
    run = ps.testing.run(app)
    for n in (1, 15, 30):
        run.send("one", user="a", n=n, at="12:00:00")
    run.send("two", user="a", n=100, at="12:00:00")
    assert run.view("counted").rows() == [{"user": "a", "n": 3, "total": 131}]
    assert sorted(value["n"] for _, value in records(run, "both")) == [1, 30, 100]


def test_a_union_of_a_stream_with_what_is_computed_of_it() -> None:
    """A column that is NOT NULL in one of the streams meets one that isn't; the union may have NULLs."""
    app = ps.App("p")
    one = events(app, "one")
    both = one.union(one.select("user", "at", n="-n").select("user", "n", "at"))
    app.view("total", both.group_by("user").agg(n=ps.count("n"), total=ps.sum("n")))
    run = ps.testing.run(app)
    for n in (1, 15):
        run.send("one", user="a", n=n, at="12:00:00")
    assert run.view("total").rows() == [{"user": "a", "n": 4, "total": 0}]


def test_a_union_waits_for_the_slower_stream() -> None:
    """A window is closed when both streams have passed its end."""
    app = ps.App("p")
    both = events(app, "one").union(events(app, "two"))
    both.window(ps.tumbling("1 minute")).agg(n=ps.count()).to("closed")
    run = ps.testing.run(app)
    run.send("one", user="a", n=1, at="12:00:00")
    run.send("one", user="a", n=1, at="12:05:00")
    run.send("two", user="b", n=1, at="12:00:30")
    assert run.topic("closed") == []
    run.send("two", user="b", n=1, at="12:01:00")
    assert [value["n"] for _, value in records(run, "closed")] == [2]


def test_closed_rows_are_a_stream() -> None:
    """Windows of windows: the closed minutes of an hour, each once."""
    app = ps.App("p")
    minutes = events(app).window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())
    closed = minutes.where("n > 1").closed()
    app.view("busy", closed.window(ps.tumbling("1 hour")).group_by("user").agg(m=ps.count()))
    run = ps.testing.run(app)
    for at in ("12:00:01", "12:00:02", "12:01:00", "12:02:00", "12:02:10", "12:03:00"):
        run.send("events", user="a", n=1, at=at)
        run.settle()
    [row] = run.view("busy").rows()
    assert (row["user"], row["m"]) == ("a", 2)


def test_a_late_row_corrects_a_closed_window() -> None:
    """What was written is written again under its key; what is downstream follows; later it is late."""
    app = ps.App("p")
    minutes = (
        events(app)
        .window(ps.tumbling("1 minute"), late="correct", keep="10 minutes")
        .group_by("user")
        .agg(n=ps.count())
    )
    app.view("minutes", minutes)
    app.view("hours", minutes.closed().window(ps.tumbling("1 hour")).agg(n=ps.sum("n")))
    minutes.to("minutes")
    minutes.to("changes", emit="changes")
    run = ps.testing.run(app)
    for at in ("12:00:00", "12:05:00", "12:00:30", "12:20:00", "12:00:40"):
        run.send("events", user="a", n=1, at=at)
        run.settle()
    start = "2000-01-01T12:00:00Z"
    written = [(key, value["n"]) for key, value in records(run, "minutes") if start in str(key)]
    assert [n for _, n in written] == [1, 2]
    assert len({key for key, _ in written}) == 1
    assert [letter.headers["penstock.reason"][:4] for letter in run.dead_letters()] == ["late"]
    [hour] = run.view("hours").rows()
    assert hour["n"] == 3  # of 12:00, twice, and 12:05; 12:20 is open
    kinds = [value["op"] for _, value in records(run, "changes")]
    assert kinds == ["c", "c", "u", "c", "d", "d"]  # both were kept for 10 minutes


def test_a_table_is_written_as_upserts() -> None:
    """Each key's newest row, and a tombstone when it is gone."""
    app = ps.App("p")
    counted = events(app).group_by("user").agg(n=ps.sum("n"))
    counted.where("n < 100").to("counted")
    run = ps.testing.run(app)
    for n in (1, 2, 200):
        run.send("events", user="a", n=n, at="12:00:00")
        run.settle()
    assert records(run, "counted") == [
        ("a", {"user": "a", "n": 1}),
        ("a", {"user": "a", "n": 3}),
        ("a", None),
    ]


event = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.integers(0, 600))


@settings(max_examples=examples(30))
@given(st.lists(st.lists(event, max_size=6), max_size=8), st.sampled_from(["upserts", "changes"]))
def test_changes_add_up_to_the_table(batches: list[list[Any]], emit: Any) -> None:
    """Whoever applies a topic's records has the view, however batches are cut and windows corrected."""
    app = ps.App("p")
    table = (
        events(app)
        .window(ps.tumbling("1 minute"), late="correct", keep="5 minutes")
        .group_by("user")
        .agg(n=ps.count(), best=ps.max("n"))
    )
    app.view("table", events(app).group_by("user", "n").agg(times=ps.count()))
    app.view("windows", table)
    table.to("out", emit=emit)
    events(app).group_by("user", "n").agg(times=ps.count()).to("plain", emit=emit)
    run = ps.testing.run(app)
    sent: Counter[Any] = Counter()
    for batch in batches:
        for user, n, second in batch:
            run.send("events", user=user, n=n, at=f"12:{second // 60:02}:{second % 60:02}")
            sent[user, n] += 1
        run.settle()
    if not sent:
        return
    counted = {(r["user"], r["n"]): r["times"] for r in run.view("table").rows()}
    assert counted == dict(sent)
    kept: dict[Any, Any] = {}
    for key, value in records(run, "plain"):
        after = value if emit == "upserts" else value["after"]
        if emit == "changes":
            assert kept.get(key) == value["before"]
        kept[key] = after
    assert {(r["user"], r["n"]): r["times"] for r in kept.values() if r} == counted


def test_a_restart_in_between_changes_nothing() -> None:
    """A new owner goes on with what is on its way: corrections, unions and closed rows."""
    outs = []
    for restarts in (False, True):
        app = ps.App("p")
        both = events(app, "one").union(events(app, "two"))
        minutes = (
            both.window(ps.hopping("2 minutes", every="1 minute"), late="correct", keep="9 minutes")
            .group_by("user")
            .agg(n=ps.count())
        )
        minutes.closed().window(ps.tumbling("5 minutes")).agg(n=ps.sum("n")).to("sums")
        minutes.to("minutes")
        run = ps.testing.run(app, cores=3)
        for i in range(60):
            topic = ("one", "two")[i % 2]
            run.send(topic, user="ab"[i % 3 > 0], n=i, at=f"12:{(i * 7) % 60:02}:00")
            run.settle()
            if restarts and i % 5 == 0:
                run.restart()
        outs.append([records(run, topic) for topic in ("sums", "minutes")])
    assert outs[0] == outs[1]
    assert outs[0][0]


def test_tables_are_joined_change_by_change() -> None:
    """Two counts side by side, also where one of them isn't there yet; a restart changes nothing."""
    outs = []
    for restarts in (False, True):
        app = ps.App("p")
        views = events(app, "views").group_by("user").agg(views=ps.count(), best=ps.max("n"))
        buys = events(app, "buys").group_by("user").agg(buys=ps.count())
        both = views.join(buys, on="user", how="full")
        app.view("both", both)
        app.view("ratio", both.select("user", ratio="coalesce(buys, 0) / coalesce(views, 0)"))
        app.view("all", both.group_by("buys").agg(users=ps.count()))
        both.to("both")
        run = ps.testing.run(app, cores=3)
        for i in range(30):
            topic = ("views", "views", "buys")[i % 3]
            run.send(topic, user="abcd"[i % 4 if topic == "views" else i % 2], n=i, at="12:00:00")
            run.settle()
            if restarts and i % 7 == 0:
                run.restart()
        kept = dict(records(run, "both"))
        assert sorted(kept.values(), key=lambda row: row["user"]) == run.view("both").rows()
        assert run.view("both").rows()[0] == {"user": "a", "views": 6, "best": 28, "buys": 5}
        assert [row["users"] for row in run.view("all").rows()] == [2, 2]
        outs.append([records(run, "both"), run.view("ratio").rows()])
    assert outs[0] == outs[1]


def test_rows_that_lost_their_key_are_no_upserts() -> None:
    """A table whose key was left out can't be written as upserts, but as changes."""
    app = ps.App("p")
    counted = events(app).group_by("user", "n").agg(times=ps.count())
    with pytest.raises(FlowError, match="identify the table's rows"):
        counted.select("user", "times").to("out")
    counted.select("user", "times").to("out", emit="changes")
    run = ps.testing.run(app)
    run.send("events", user="a", n=1, at="12:00:00")
    run.send("events", user="a", n=2, at="12:00:00")
    assert [value["after"] for _, value in records(run, "out")] == [{"user": "a", "times": 1}] * 2


def test_the_best_of_each_user_follow_their_counts() -> None:
    """Top-n over events and over a table whose rows change; of one group, too."""
    app = ps.App("p")
    stream = events(app)
    app.view("best", stream.top(2, by="n DESC", per="user"))
    counted = stream.group_by("user").agg(total=ps.sum("n"))
    leader = counted.top(1, by=("total DESC", "user"))
    app.view("leader", leader)
    counted.top(1, by="total DESC", per="user").to("per_user")
    run = ps.testing.run(app, cores=2)
    for user, n in (("a", 1), ("a", 5), ("b", 3), ("a", 2), ("b", 9)):
        run.send("events", user=user, n=n, at="12:00:00")
        run.settle()
    assert [(r["user"], r["n"]) for r in run.view("best").rows()] == [
        ("a", 2), ("a", 5), ("b", 3), ("b", 9),
    ]  # fmt: skip
    assert run.view("leader").rows() == [{"user": "b", "total": 12}]
    assert dict(records(run, "per_user"))["a"] == {"user": "a", "total": 8}


def test_distinct_rows_come_and_go() -> None:
    """Of a table's column: a value is there as long as some row has it, and each once."""
    app = ps.App("p")
    totals = events(app).group_by("user").agg(total=ps.sum("n"))
    kinds = totals.select("total").distinct()
    app.view("kinds", kinds)
    kinds.to("kinds")
    run = ps.testing.run(app)
    for user, n in (("a", 1), ("b", 1), ("a", 1), ("b", 1)):
        run.send("events", user=user, n=n, at="12:00:00")
        run.settle()
    assert run.view("kinds").rows() == [{"total": 2}]
    written = [(key, value and value["total"]) for key, value in records(run, "kinds")]
    assert written == [("1", 1), ("2", 2), ("1", None)]


def test_duplicates_go_through_once() -> None:
    """By key within an hour; by the whole row for ever; also after a restart."""
    app = ps.App("p")
    stream = events(app)
    stream.deduplicate("user", within="1 hour").to("hourly")
    app.view("n", stream.deduplicate().group_by("user").agg(n=ps.count()))
    run = ps.testing.run(app, cores=2)
    for at in ("12:00:00", "12:30:00", "12:30:00", "13:30:00", "13:30:00"):
        run.send("events", user="a", n=1, at=at)
        run.settle()
        run.restart()
    assert [value["at"][11:16] for _, value in records(run, "hourly")] == ["12:00", "13:30"]
    assert run.view("n").rows() == [{"user": "a", "n": 3}]


def test_an_array_becomes_rows() -> None:
    """Each element with the row's other columns; empty arrays give none."""
    app = ps.App("p")
    posts = app.stream("posts", "id BIGINT NOT NULL, tags ARRAY<STRING>")
    tags = posts.unnest("tags", name="tag")
    app.view("tags", tags.group_by("tag").agg(posts=ps.count(), newest=ps.max("id")))
    run = ps.testing.run(app)
    for i, some in enumerate((["x", "y"], [], None, ["y", None])):
        run.send("posts", id=i, tags=some)
    assert [tuple(row.values()) for row in run.view("tags").rows()] == [
        ("x", 1, 0), ("y", 2, 3), (None, 1, 3),
    ]  # fmt: skip


def test_operators_that_nobody_sees_are_known_by_what_they_are_for() -> None:
    """Letters of two operators under one topic name it, and what is in between; each is there once."""
    app = ps.App("p")
    stream = events(app)
    first = stream.deduplicate("user", "n", within="1 minute")
    minutes = first.window(ps.tumbling("1 minute")).group_by("user", "n").agg(times=ps.count())
    rows = minutes.closed().select("user", n="CAST(user AS BIGINT) + n")
    users = stream.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.sum("n")).closed()
    rows.union(users.select("user", n="CAST(user AS BIGINT) + n")).to("out")
    run = ps.testing.run(app, cores=3)
    for user, at in (("1", "12:00:00"), ("x", "12:00:01"), ("2", "12:05:00"), ("3", "12:00:00")):
        run.send("events", user=user, n=1, at=at)
        run.settle()
        run.restart()
    letters = run.dead_letters()
    assert [letter.headers["penstock.topic"] for letter in letters].count("out") == 2
    [late] = [one for one in letters if one.headers["penstock.reason"].startswith("late")]
    assert late.headers["penstock.reason"].endswith("for deduplicate for out; and for out")
    assert sorted(value["n"] for _, value in records(run, "out")) == [2, 2]


def test_a_stream_that_nothing_is_made_of_is_not_read() -> None:
    """Its topic is there for whoever writes to it; a program that uses it later reads all of it."""

    def program(*, uses: bool) -> ps.App:
        app = ps.App("p")
        rows = app.stream("rows", "n BIGINT")
        spare = app.stream("spare", "n BIGINT", partitions=2)
        app.view("total", rows.group_by().agg(t=ps.sum("n")))
        if uses:
            app.view("spares", spare.group_by().agg(t=ps.sum("n")))
        return app

    run = ps.testing.run(program(uses=False))
    run.send("spare", n=5)
    run.send("rows", n=1)
    progress = run.step()
    assert progress is not None
    assert (progress.rows, set(progress.sources)) == (1, {"rows"})
    run.change(program(uses=True))
    assert run.view("spares").rows() == [{"t": 5}]
    run.change(program(uses=False))
    run.send("spare", n=5)
    assert run.view("total").rows() == [{"t": 1}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT unnest(generate_series(1, x)) AS y FROM t",
        "SELECT id, e.y FROM t, UNNEST(generate_series(1, x)) AS e(y) WHERE e.y > 0",
        "SELECT e.y // 1 AS y, count(*) AS n FROM t, UNNEST(generate_series(1, x)) AS e(y) GROUP BY 1",
    ],
)
def test_an_array_is_not_kept_with_each_of_its_elements(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory grows with the elements of one record, not with their square, where nobody reads the array."""
    n, made = 3_000, []
    apply = Unnest.apply

    def measured(step: Unnest, *args: Any, **kwargs: Any) -> Any:
        found, refused = apply(step, *args, **kwargs)
        made.append(found.nbytes)
        return found, refused

    monkeypatch.setattr(Unnest, "apply", measured)
    app = ps.App("p")
    app.table("t", "id INT, x INT", key="id")
    app.view("v", sql=query)
    run = ps.testing.run(app, shaken=False)
    run.send("t", id=1, x=n)
    assert len(run.view("v").rows()) == n
    assert n < max(made) < n * n
