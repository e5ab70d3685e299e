"""Theta sketches in programs: how many users two pages share, and how many a day has."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.duck import connection
from penstock.errors import FlowError, SchemaError
from penstock.serve import Snapshot
from penstock.sql import SqlFlow

VISITS = "page STRING, name STRING, at TIMESTAMP"


def visit(run: Any, page: str, names: range, at: str) -> None:
    """Sends a visit of each name."""
    for i in names:
        run.send("visits", page=page, name=f"u{i}", at=at)


def size(sketch: Any) -> int:
    """About how many values a sketch has."""
    [(found,)] = connection().execute("SELECT theta_sketch_estimate(?::BLOB)", [sketch]).fetchall()
    return int(found)


def test_sketches_answer_for_sets_and_for_longer_windows() -> None:
    """Set operations of two conditions; hours put together to a day; also after a restart."""
    app = ps.App("shop")
    visits = app.stream("visits", VISITS, time=ps.event_time("at", lateness="1 hour"))
    hours = visits.window(ps.tumbling("1 hour"))
    funnel = hours.agg(
        home=ps.theta_sketch_agg("name", where="page = 'home'"),
        cart=ps.theta_sketch_agg("name", where="page = 'cart'"),
    )
    app.view(
        "funnel",
        funnel.select(
            both="theta_sketch_estimate(theta_intersection(home, cart))",
            lost="theta_sketch_estimate(theta_difference(home, cart))",
            either="theta_sketch_estimate(theta_union(home, cart))",
        ),
    )
    pages = hours.group_by("page").agg(users=ps.theta_sketch_agg("name"))
    days = pages.closed().window(ps.tumbling("1 day")).group_by("page")
    app.view("days", days.agg(users=ps.theta_union_agg("users")))
    run = ps.testing.run(app, cores=2)
    visit(run, "home", range(50), "2026-01-01T10:10:00Z")
    visit(run, "cart", range(40, 60), "2026-01-01T10:20:00Z")
    run.restart()
    visit(run, "home", range(30, 80), "2026-01-01T12:10:00Z")
    visit(run, "home", range(1), "2026-01-03T12:10:00Z")
    found = [tuple(row.values()) for row in run.view("funnel").rows()]
    assert sorted(found) == [(0, 1, 1), (0, 50, 50), (10, 40, 60)]
    sizes = {row["page"]: size(row["users"]) for row in run.view("days").rows()}
    assert sizes == {"cart": 20, "home": 80}
    query = "SELECT theta_sketch_estimate(theta_union_agg(users)) AS n FROM days"
    shown = Snapshot(run.store, run.store.version(run.store.newest_version()))
    assert shown.sql(query).to_pylist() == [{"n": 80}]


def test_a_value_that_is_no_sketch_is_a_dead_letter() -> None:
    """The other rows of its batch count."""
    app = ps.App("shop")
    stream = app.stream("sketches", "k STRING, s BINARY")
    app.view("all", stream.group_by("k").agg(users=ps.theta_union_agg("s")))
    app.view(
        "each", stream.select("k", n="theta_sketch_estimate(s)").group_by("k").agg(n=ps.sum("n"))
    )
    run = ps.testing.run(app)
    [(made,)] = (
        connection().sql("SELECT base64(theta_sketch_agg(x)) FROM range(9) AS t(x)").fetchall()
    )
    for value in (made, "bm8=", None):
        run.send("sketches", k="a", s=value)
    assert run.view("each").rows() == [{"k": "a", "n": 9}]
    [row] = run.view("all").rows()
    assert size(row["users"]) == 9
    [letter] = run.dead_letters()
    assert "expected a theta sketch" in str(letter.headers)


def test_sketches_in_sql() -> None:
    """In windows they are kept up by change, elsewhere a group is computed again; both take FILTER."""
    app = SqlFlow("shop")
    app.stream("visits", VISITS, time=ps.event_time("at", lateness="1 hour"))
    sizes = (
        "theta_sketch_estimate(theta_sketch_agg(name)) AS n, theta_sketch_estimate(theta_intersection("
        "theta_sketch_agg(name) FILTER (WHERE page = 'home'), "
        "theta_sketch_agg(name) FILTER (WHERE page = 'cart'))) AS both"
    )
    cut = "FROM TUMBLE(visits, at, INTERVAL 1 HOUR) GROUP BY window_start"
    app.view("hours", sql=f"SELECT window_start, {sizes} {cut}")
    app.view("total", sql=f"SELECT {sizes} FROM visits")
    app.view(
        "rolled",
        sql="SELECT theta_sketch_estimate(theta_union_agg(s)) AS n FROM "
        f"(SELECT window_start, theta_sketch_agg(name) AS s {cut})",
    )
    run = ps.testing.run(app, cores=2)
    visit(run, "home", range(50), "2026-01-01T10:10:00Z")
    visit(run, "cart", range(40, 60), "2026-01-01T10:20:00Z")
    visit(run, "cart", range(55, 70), "2026-01-01T11:20:00Z")
    found = [(row["n"], row["both"]) for row in run.view("hours").rows()]
    assert sorted(found) == [(15, 0), (60, 10)]
    assert run.view("total").rows() == [{"n": 70, "both": 10}]
    assert run.view("rolled").rows() == [{"n": 70}]


def test_what_sketches_are_not_of() -> None:
    """Messages say what is expected."""
    app = ps.App("shop")
    visits = app.stream("visits", VISITS, time=ps.event_time("at"))
    with pytest.raises(FlowError, match="BINARY column of theta sketches"):
        visits.group_by("page").agg(users=ps.theta_union_agg("name"))
    with pytest.raises(SchemaError, match="aggregate"):
        visits.select(n="theta_sketch_agg(name)")
    table = visits.group_by("page").agg(n=ps.count())
    with pytest.raises(FlowError, match="without retractions"):
        app.view("x", table.group_by("n").agg(pages=ps.theta_sketch_agg("page")))
