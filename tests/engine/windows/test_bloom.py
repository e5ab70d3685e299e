"""Bloom filters in programs: has this user been seen before?"""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.errors import FlowError, SchemaError
from penstock.serve import Snapshot
from penstock.sql import SqlFlow

VISITS = "page STRING, name STRING, at TIMESTAMP"


def asked(run: Any, query: str) -> Any:
    """What a query over the newest version gives."""
    return Snapshot(run.store, run.store.version(run.store.newest_version())).sql(query).to_pylist()


def test_filters_are_asked_in_conditions_and_queries() -> None:
    """In a view over them, in a query of the view, with a condition of their own, after a restart."""
    app = ps.App("shop")
    visits = app.stream("visits", VISITS, time=ps.event_time("at", lateness="1 hour"))
    pages = visits.group_by("page").agg(
        seen=ps.bloom_filter_agg("name", capacity=1_000, error=0.0001),
        bots=ps.bloom_filter_agg("name", capacity=10, where="name LIKE 'bot%'"),
    )
    app.view("pages", pages)
    app.view("of_ann", pages.where("might_contain(seen, 'ann')").select("page"))
    run = ps.testing.run(app, cores=2)
    at = "2026-01-01T10:10:00Z"
    for name in ("ann", "bob", "bot 1"):
        run.send("visits", page="home", name=name, at=at)
    run.send("visits", page="cart", name="bob", at=at)
    assert run.view("of_ann").rows() == [{"page": "home"}]
    run.restart()
    run.send("visits", page="cart", name="ann", at=at)
    assert sorted(row["page"] for row in run.view("of_ann").rows()) == ["cart", "home"]
    names = "(VALUES ('ann'), ('bob'), ('bot 1'), ('eve')) t(n)"
    query = f"SELECT page, n FROM pages, {names} WHERE might_contain({{}}, n) ORDER BY page, n"
    seen = [tuple(row.values()) for row in asked(run, query.format("seen"))]
    home = [("home", "ann"), ("home", "bob"), ("home", "bot 1")]
    assert seen == [("cart", "ann"), ("cart", "bob"), *home]
    assert asked(run, query.format("bots")) == [{"page": "home", "n": "bot 1"}]


def test_filters_in_sql() -> None:
    """In windows they are kept up by change, elsewhere a group is computed again; both take FILTER."""
    app = SqlFlow("shop")
    app.stream("visits", VISITS, time=ps.event_time("at", lateness="1 hour"))
    agg = "bloom_filter_agg(name, 100, 0.0001) FILTER (WHERE page = 'home') AS seen"
    hours = f"SELECT window_start, {agg} FROM TUMBLE(visits, at, INTERVAL 1 HOUR) GROUP BY 1"
    app.view("hours", sql=hours)
    app.view("all_time", sql=f"SELECT {agg} FROM visits")
    app.view("ann", sql="SELECT might_contain(seen, 'ann') AS seen FROM hours")
    run = ps.testing.run(app)
    for page, name in (("home", "ann"), ("cart", "bob")):
        run.send("visits", page=page, name=name, at="2026-01-01T10:10:00Z")
    assert run.view("ann").rows() == [{"seen": True}]
    for view in ("hours", "all_time"):
        query = (
            f"SELECT might_contain(seen, 'ann') AS a, might_contain(seen, 'bob') AS b FROM {view}"
        )
        assert asked(run, query) == [{"a": True, "b": False}]
    assert asked(run, "SELECT a.seen = h.seen AS same FROM all_time a, hours h") == [{"same": True}]
    with pytest.raises(SchemaError, match="kept up by change"):
        app.view("odd", sql=hours.replace("100, 0.0001", "50 + 50, 0.0001"))


def test_a_value_that_is_no_filter_is_a_dead_letter() -> None:
    """The other rows of its batch count."""
    app = ps.App("shop")
    stream = app.stream("filters", "k STRING, f BINARY")
    app.view("each", stream.select("k", seen="might_contain(f, 1)").group_by("k").agg(n=ps.count()))
    run = ps.testing.run(app)
    run.send("filters", k="a", f="bm8=")
    run.send("filters", k="a", f=None)
    assert run.view("each").rows() == [{"k": "a", "n": 1}]
    [letter] = run.dead_letters()
    assert "expected a Bloom filter" in str(letter.headers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "expected a capacity"),
        ({"capacity": True}, "expected a capacity"),
        ({"capacity": 10, "error": 0}, "expected an error of 1e-12 to 0.5"),
        ({"capacity": 10**9}, "8 MiB, which takes 7001403 values"),
    ],
)
def test_filters_of_odd_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    """When the program is written, with what was expected."""
    with pytest.raises(FlowError, match=message):
        ps.bloom_filter_agg("name", **options)
