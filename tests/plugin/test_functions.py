"""Functions of another distribution, in SQL, in expressions and as aggregates."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

import penstock as ps
from penstock.errors import FlowError, PenstockError, SetupError
from penstock.sql import SqlFlow

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["Ada Lovelace", "Alan Turing", None, "Edsger Dijkstra", " ", "Grace Hopper"]
SCHEMA = "id BIGINT, team STRING, name STRING, at TIMESTAMP"


def sent(app: SqlFlow) -> ps.testing.Run:
    """A run with people, one minute after the other, and its end."""
    run = ps.testing.run(app, cores=2)
    for i, name in enumerate(NAMES):
        run.send("s", id=i, team="ab"[i % 2], name=name, at=START + timedelta(minutes=i))
        run.step()
    run.settle()
    return run


def rows(run: ps.testing.Run, view: str) -> dict[object, object]:
    """A view of two columns."""
    return {one[0]: one[1] for one in (tuple(row.values()) for row in run.view(view).rows())}


@pytest.mark.usefixtures("plugin")
def test_a_scalar_function_is_one_of_its_row() -> None:
    """In SQL and in Python; NULL gives NULL, and a row that it fails for is a dead letter."""
    app = SqlFlow("people")
    s = app.stream("s", SCHEMA)
    app.view("in_sql", sql="SELECT id, max(initials(name, '.')) AS i FROM s GROUP BY id")
    app.view("in_python", s.select("id", i="INITIALS(name, '.')").group_by("id").agg(i=ps.max("i")))
    run = sent(app)
    expected = {0: "A.L.", 1: "A.T.", 2: None, 3: "E.D.", 5: "G.H."}
    assert rows(run, "in_python") == expected
    assert rows(run, "in_sql") == expected
    assert "string index out of range" in str(run.dead_letters())


@pytest.mark.usefixtures("plugin")
def test_an_aggregate_is_one_of_its_group() -> None:
    """Of groups that are computed again, of windows, in SQL and in Python, with a condition."""
    app = SqlFlow("people")
    s = app.stream("s", SCHEMA, time=ps.event_time("at", lateness="0 seconds"))
    app.view(
        "groups", sql="SELECT team, longest(name) FILTER (WHERE id > 0) AS x FROM s GROUP BY team"
    )
    app.view(
        "windows",
        sql="SELECT window_start, longest(name) AS x FROM TUMBLE(s, at, INTERVAL 3 MINUTES) "
        "GROUP BY window_start",
    )
    app.view("in_python", s.group_by("team").agg(x=ps.aggregate("longest", "name", where="id > 0")))
    run = sent(app)
    assert rows(run, "groups") == {"a": " ", "b": "Edsger Dijkstra"}
    assert rows(run, "in_python") == {"a": " ", "b": "Edsger Dijkstra"}
    windows = {START: "Ada Lovelace", START + timedelta(minutes=3): "Edsger Dijkstra"}
    assert rows(run, "windows") == windows


@pytest.mark.usefixtures("plugin")
def test_a_function_that_does_not_fit_is_reported_when_the_program_is_read() -> None:
    """By its types, and as what it is: an aggregate isn't an expression of a row."""
    app = SqlFlow("people")
    s = app.stream("s", SCHEMA)
    for wrong, message in (
        (lambda: s.select(i="initials(name)"), "initials"),
        (lambda: s.select(i="longest(name)"), "expected an expression over the columns of one row"),
        (lambda: s.group_by("team").agg(x=ps.aggregate("longest", "id")), "a column of STRING"),
        (lambda: ps.aggregate("longst", "name"), r"did you mean 'longest'\?"),
    ):
        with pytest.raises(PenstockError, match=message):
            wrong()


def test_a_function_is_loaded_when_it_is_called(broken) -> None:
    """A column of its name loads nothing; a broken one is named with its distribution."""
    broken("penstock.functions", {"spell": "broken_plugin:SPELL", "lower": "broken_plugin:LOWER"})
    app = SqlFlow("people")
    s = app.stream("s", "spell BIGINT, name STRING")
    s.select(x="spell + length(name)")
    assert "broken_plugin" not in sys.modules
    s.select(x="lower(name)")  # DuckDB's
    assert "broken_plugin" not in sys.modules
    with pytest.raises(
        SetupError, match=r"'spell' of the distribution penstock-broken 0.3 can't be"
    ):
        s.select(x="spell(name)")
    with pytest.raises(FlowError, match="expected an aggregate of an installed plugin"):
        ps.aggregate("longest", "name")
