"""Recursive tables."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.sql import recursion
from penstock.testing import Run

UP = (
    "WITH RECURSIVE up(id, top) AS (SELECT id, parent FROM t UNION{} "
    "SELECT up.id, n.parent FROM up JOIN t AS n ON n.id = up.top) SELECT id, top FROM up"
)
DOUBLED = (
    "WITH RECURSIVE r AS (SELECT x FROM s UNION ALL SELECT r.x FROM r, (VALUES (1), (2)) AS w(y)) "
    "SELECT x FROM r"
)


def reason(run: Run) -> str:
    """Why the only dead letter of a run is one."""
    [letter] = run.dead_letters()
    assert letter.headers["penstock.topic"].startswith("v")
    return str(letter.headers["penstock.reason"])


def test_a_cycle_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the view, the recursive table and a row; when the cycle is gone, so is the fault."""
    monkeypatch.setattr(recursion, "STEPS_MAX", 20)
    app = ps.App("cycle")
    app.table("t", "id STRING, parent STRING", key="id")
    app.view("v", sql=UP.format(" ALL")).to("out", emit="changes")
    app.view("n", sql="SELECT count(*) AS n FROM t")
    run = ps.testing.run(app, shaken=False)
    run.send("t", id="a", parent=None)
    run.send("t", id="b", parent="a")
    rows = [("a", None), ("b", "a"), ("b", None)]
    assert [tuple(row.values()) for row in run.view("v").rows()] == rows
    run.send("t", id="a", parent="b")
    run.settle()
    assert "the recursion of up to end within 20 steps" in reason(run)
    assert "such as {'id': " in reason(run)
    assert run.view("n").rows() == [{"n": 2}]
    run.send("t", id="a", parent=None)
    assert [tuple(row.values()) for row in run.view("v").rows()] == rows


def test_rows_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each step doubles them, long before the steps reach theirs."""
    monkeypatch.setattr(recursion, "ROWS_MAX", 1_000)
    app = ps.App("doubled")
    app.stream("s", "x BIGINT")
    app.view("v", sql=DOUBLED).to("out", emit="changes")
    run = ps.testing.run(app, shaken=False)
    run.send("s", x=1)
    run.settle()
    assert "the recursion of r to end within 10000 steps and 1000 rows" in reason(run)


def test_with_union_a_cycle_ends_by_itself() -> None:
    """A row that was there isn't a new one."""
    app = ps.App("cycle")
    app.table("t", "id STRING, parent STRING", key="id")
    app.view("v", sql=UP.format(""))
    run = ps.testing.run(app, shaken=False)
    run.send("t", id="a", parent="b")
    run.send("t", id="b", parent="a")
    assert len(run.view("v").rows()) == 4


def test_a_row_that_fails_in_a_recursion_is_null_there() -> None:
    """The other rows' recursions are as ever."""
    app = ps.App("p")
    app.table("t", "id BIGINT, s STRING", key="id")
    app.view(
        "v",
        sql="WITH RECURSIVE r(id, n) AS (SELECT id, s::INT FROM t UNION ALL "
        "SELECT id, n - 1 FROM r WHERE n > 4) SELECT * FROM r",
    )
    run = ps.testing.run(app)
    for i, text in enumerate(("5", "abc")):
        run.send("t", id=i, s=text)
    found = [(row["id"], row["n"]) for row in run.view("v").rows()]
    assert found == [(0, 4), (0, 5), (1, None)]
