"""Row patterns in programs: streams, tables, what runs out of time, restarts, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.errors import FlowError, SchemaError

EVENTS = "user STRING, kind STRING, n BIGINT, at TIMESTAMP"


def events(app: ps.App, lateness: str = "0 seconds") -> ps.Stream:
    """A stream of them."""
    return app.stream("events", EVENTS, time=ps.event_time("at", lateness=lateness))


def logins(app: ps.App) -> Any:
    """Three failures and a success within ten minutes."""
    return events(app).match(
        "fail{3,} ok",
        by="user",
        within="10 minutes",
        fail="kind = 'fail'",
        ok="kind = 'ok'",
        measures={"first": "FIRST(fail.n)", "last": "ok.n", "fails": "count(fail.*)"},
    )


def values(run: ps.testing.Run, topic: str) -> list[dict[str, Any]]:
    """The rows of a topic."""
    return [json.loads(record.value or b"") for record in run.topic(topic)]


def send(run: ps.testing.Run, user: str, kinds: str, minute: int = 0, n: int = 0) -> None:
    """Rows of one user, a second apart: f is a failure, o is ok, others are visits."""
    for i, kind in enumerate(kinds):
        name = {"f": "fail", "o": "ok"}.get(kind, "visit")
        run.send("events", user=user, kind=name, n=n + i, at=f"12:{minute:02}:{i:02}")


def test_a_match_outlives_a_new_owner() -> None:
    """What was matched before a restart is not matched again, and counts for what comes after it."""
    app = ps.App("p")
    logins(app).to("found")
    run = ps.testing.run(app)
    send(run, "ann", "ff")
    run.restart()
    send(run, "ann", "ffo", minute=1, n=2)
    run.restart()
    send(run, "bob", "v", minute=2)
    assert values(run, "found") == [{"user": "ann", "first": 0, "last": 4, "fails": 4}]


def test_a_changed_pattern_is_matched_from_the_first_row_on() -> None:
    """After an upgrade, matches are those of the new pattern; others keep their open attempts."""

    def program(within: str) -> ps.App:
        app = ps.App("p")
        rows = events(app)
        terms: dict[str, Any] = {"by": "user", "a": "kind = 'fail'", "b": "kind = 'ok'"}
        terms["measures"] = {"first": "a.n", "last": "b.n"}
        changed = rows.match("a -> b", within=within, **terms)
        app.view("changed", changed.group_by("first").agg(last=ps.max("last")))
        kept = rows.match("a b", **terms)
        app.view("kept", kept.group_by("first").agg(last=ps.max("last")))
        return app

    run = ps.testing.run(program("1 minute"))
    send(run, "ann", "f", n=1)
    send(run, "ann", "o", minute=5, n=2)
    send(run, "bob", "f", minute=6, n=3)
    send(run, "cid", "v", minute=7)
    assert (run.view("changed").rows(), len(run.view("kept").rows())) == ([], 1)
    assert run.change(program("10 minutes"))
    send(run, "bob", "o", minute=8, n=4)
    send(run, "cid", "v", minute=9)
    both = [{"first": 1, "last": 2}, {"first": 3, "last": 4}]
    for view in ("changed", "kept"):
        assert sorted(run.view(view).rows(), key=str) == both


def test_what_runs_out_of_time_is_a_stream_of_its_own() -> None:
    """When ten minutes have passed, three failures are given, with NULL for the success."""
    app = ps.App("p")
    found = logins(app)
    found.to("found")
    found.timed_out.where("fails >= 3").to("left")
    run = ps.testing.run(app)
    send(run, "ann", "fff")
    send(run, "bob", "v", minute=10)
    assert values(run, "left") == []
    send(run, "bob", "vv", minute=10)
    assert values(run, "left") == [{"user": "ann", "first": 0, "last": None, "fails": 3}]
    assert values(run, "found") == []


def test_an_absence_with_a_bound_of_its_own_is_certain_when_that_is_over() -> None:
    """Such a pattern needs no other bound: its time is over though no row of the key comes."""
    app = ps.App("p")
    found = events(app).match(
        "a -> !b within 5 minutes",
        by="user",
        a="kind = 'fail'",
        b="kind = 'ok'",
        measures={"n": "a.n"},
    )
    found.to("found")
    run = ps.testing.run(app)
    send(run, "ann", "f", n=1)
    send(run, "bob", "f", minute=4, n=2)
    send(run, "bob", "o", minute=5)
    assert values(run, "found") == []
    send(run, "cid", "vv", minute=5)
    assert values(run, "found") == [{"user": "ann", "n": 1}]


def test_a_view_says_how_far_each_key_is() -> None:
    """`.partial` has the open attempt of each key; it goes when that matches or runs out of time."""
    app = ps.App("p")
    app.view("partial", logins(app).partial)
    run = ps.testing.run(app)
    send(run, "ann", "fff")
    send(run, "bob", "vf", minute=1)
    send(run, "cid", "v", minute=2)
    found = {row["user"]: (row["rows"], row["reached"]) for row in run.view("partial").rows()}
    assert found == {"ann": (3, "fail"), "bob": (1, "fail")}
    send(run, "ann", "o", minute=3)
    send(run, "cid", "v", minute=4)
    assert [row["user"] for row in run.view("partial").rows()] == ["bob"]
    send(run, "cid", "v", minute=30)
    assert run.view("partial").rows() == []


def test_windows_follow_matches() -> None:
    """A match happens when it is certain, so windows behind it count it there and close."""
    app = ps.App("p")
    windows = logins(app).window(ps.tumbling("1 minute")).group_by("user")
    windows.agg(found=ps.count()).to("counts")
    run = ps.testing.run(app)
    send(run, "ann", "fffo")
    send(run, "ann", "fffo", minute=1)
    send(run, "bob", "v", minute=3)
    assert [(row["window_start"][14:16], row["found"]) for row in values(run, "counts")] == [
        ("00", 1),
        ("01", 1),
    ]


def test_late_rows_are_dead_letters() -> None:
    """A row behind the watermark takes part in no match."""
    app = ps.App("p")
    logins(app).to("found")
    run = ps.testing.run(app)
    send(run, "bob", "v", minute=2)
    run.settle()
    send(run, "ann", "f")
    run.settle()
    [letter] = run.dead_letters()
    assert b"late" in str(letter.headers).encode()


def test_late_rows_retract_what_they_change() -> None:
    """With correct=, a late row takes its place among the others, and a topic gets the change."""
    app = ps.App("p")
    found = events(app).match(
        "a b",
        by="user",
        correct="1 hour",
        a="kind = 'fail'",
        b="kind = 'ok'",
        measures={"first": "a.n", "last": "b.n"},
    )
    found.to("found")
    app.view("last", found.group_by("user").agg(last=ps.max("last"), found=ps.count()))
    run = ps.testing.run(app)
    send(run, "ann", "f", n=1)
    send(run, "ann", "o", minute=2, n=2)
    send(run, "bob", "v", minute=9)
    assert run.view("last").rows() == [{"user": "ann", "last": 2, "found": 1}]
    send(run, "ann", "v", minute=1, n=3)
    assert run.view("last").rows() == []
    ops = [row["op"] for row in values(run, "found")]
    assert ops == ["c", "d"]
    assert run.dead_letters() == []


def test_a_table_follows_its_matches() -> None:
    """Matches come and go with rows, as upserts under the key and their number."""
    app = ps.App("p")
    rows = app.table("rows", "k STRING, i INT, v INT", key=("k", "i"))
    found = rows.match(
        "a b+",
        by="k",
        order="i",
        a="v = 1",
        b="v > LAST(a.v)",
        measures={"n": "MATCH_NUMBER()", "last": "LAST(b.i)"},
    )
    app.view("found", found)
    found.to("found")
    run = ps.testing.run(app)
    for i, v in enumerate([1, 2, 3, 1, 5]):
        run.send("rows", k="x", i=i, v=v)
    assert run.view("found").rows() == [
        {"k": "x", "n": 1, "last": 2},
        {"k": "x", "n": 2, "last": 4},
    ]
    run.send("rows", k="x", i=3, v=4)
    assert run.view("found").rows() == [{"k": "x", "n": 1, "last": 4}]
    gone = [json.loads(record.key or b"") for record in run.topic("found") if not record.value]
    assert gone == [{"k": "x", "n": 2}]


def test_rows_of_a_match_are_given_with_their_columns() -> None:
    """rows="all" gives each row of a match; with unmatched rows, each row of the stream."""
    app = ps.App("p")
    rows = events(app)
    names = {"what": "CLASSIFIER()", "number": "MATCH_NUMBER()"}
    terms: dict[str, Any] = {"by": "user", "a": "kind = 'fail'", "b": "kind = 'ok'"}
    rows.match("a b", rows="all", measures=names, **terms).to("all")
    rows.match("a b", rows="all, unmatched too", measures=names, **terms).to("every")
    run = ps.testing.run(app)
    send(run, "ann", "vfovv")
    shown = [(row["n"], row["what"], row["number"]) for row in values(run, "all")]
    assert shown == [(1, "a", 1), (2, "b", 1)]
    every = {row["n"]: row["what"] for row in values(run, "every")}
    assert every == {0: None, 1: "a", 2: "b", 3: None}


def test_all_matches_of_a_row_come_when_the_last_is_certain() -> None:
    """Without a skip, each way to match is given; windows behind them count all."""
    app = ps.App("p")
    found = events(app).match(
        "a b*",
        by="user",
        after="no skip",
        within="1 minute",
        a="kind = 'fail'",
        b="kind = 'ok'",
        measures={"rows": "count(*)"},
    )
    found.window(ps.tumbling("1 second")).agg(n=ps.count()).to("counts")
    run = ps.testing.run(app)
    for second, kind in enumerate(["fail", "ok", "ok", "visit"]):
        run.send("events", user="ann", kind=kind, n=0, at=f"12:00:{second:02}")
        run.settle()
    send(run, "bob", "v", minute=5)
    assert [row["n"] for row in values(run, "counts")] == [3]


def test_a_plan_shows_the_pattern() -> None:
    """`penstock explain` has the pattern, its conditions, bounds and measures."""
    app = ps.App("p")
    logins(app).to("found")
    text = explain(compile_graph(app.graph(), {"events": 1}, 1), None)
    assert "match by user" in text
    assert "fail{3,} ok" in text
    assert "fail as kind = 'fail'" in text
    assert "within 10 minutes" in text


REFUSED = [
    ({"pattern": "a b+"}, "keep=1000"),
    ({"pattern": "a -> b"}, "within='10 minutes'"),
    ({"pattern": "a b $"}, "no last row"),
    ({"pattern": "a !b"}, "within='30 minutes'"),
    ({"pattern": "a b", "c": "n = 1"}, "variables a, b"),
    ({"pattern": "a b", "define": {"a": "n = 1"}, "a": "n = 2"}, "one definition of 'a'"),
    ({"pattern": "a b", "keep": 0}, r"keep="),
    ({"pattern": "a b", "within": "0 seconds"}, "longer than nothing"),
    ({"pattern": "a b", "rows": "some"}, "'all, unmatched too'"),
    ({"pattern": "a b", "by": ()}, "measures="),
    ({"pattern": "a b", "after": ""}, "'past last row'"),
    ({"pattern": "a b", "measures": {"user": "LAST(n)"}}, "'user'"),
]
UNREAD = [
    ({"pattern": "a b", "by": "nobody"}, "nobody"),
    ({"pattern": "a (b"}, "expected"),
    ({"pattern": "a b", "a": "nothing > 1"}, "nothing"),
    ({"pattern": "a b", "measures": {"x": "LAST(b.nothing)"}}, "nothing"),
]


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [(FlowError, *one) for one in REFUSED] + [(SchemaError, *one) for one in UNREAD],
)
def test_what_cant_be_is_refused(
    error: type[Exception], arguments: dict[str, Any], message: str
) -> None:
    """A pattern without a bound, names that aren't there: found when the program is read."""
    rows = events(ps.App("p"))
    with pytest.raises(error, match=message):
        rows.match(**{"by": "user", **arguments})


def test_a_pattern_of_a_table_needs_an_order() -> None:
    """Rows of a table have no order of their own; for a bound of time, it is by a time."""
    rows = ps.App("p").table("rows", "k STRING, i INT", key=("k", "i"))
    with pytest.raises(FlowError, match="order='at'"):
        rows.match("a b", by="k", order=())
    with pytest.raises(FlowError, match="TIMESTAMP"):
        rows.match("a b", by="k", order="i", within="1 hour")
