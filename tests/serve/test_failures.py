"""What fails when a view is read: counted, with a reason, and passed on."""

from __future__ import annotations

import logging
from pathlib import Path

import orjson
import pytest
from tests.serve.committing import commit

import penstock as ps
from penstock.ops.keyed import query
from penstock.serve import Failure, Views
from penstock.serve.answers import Once
from penstock.serve.changes import changes
from penstock.spark import pins
from penstock.testing import Run
from penstock.web import changes_line

FAILS = (
    "Conversion Error: Could not convert string 'abc' to INT32 when casting from source column s"
)


def texts(sql: str = "SELECT id, s::INT AS n FROM t", *, bad: int = 1) -> Run:
    """A view over the texts 5, 7 and some that are no numbers."""
    app = ps.App("shop")
    app.table("t", "id BIGINT, s STRING", key="id")
    app.view("v", sql=sql)
    run = ps.testing.run(app, shaken=False)
    for i, text in enumerate(["5", "7", *["abc"] * bad]):
        run.send("t", id=i, s=text)
    return run


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The directory of a pipeline with a view in which 3 values of n are NULL."""
    return commit(texts(bad=3), tmp_path / "shop.penstock")


def test_values_that_fail_are_counted_with_the_first_reason() -> None:
    """A value that is NULL because its expression failed is counted, by column, over all shards."""
    run = texts("SELECT id, s::INT AS n, s::INT + 1 AS m, s::DATE AS d FROM t", bad=9)
    found = run.view("v")
    counts = [(one.column, one.kind, one.count) for one in found.failures]
    assert counts == [("n", "values", 9), ("m", "values", 9), ("d", "values", 11)]
    assert found.failures[0] == Failure("v", "values", 9, FAILS, 'CAST("s" AS INT)', "n")
    assert found.failures[0].text == (
        f'9 values of n in the view v are NULL, because `CAST("s" AS INT)` failed. The first error: {FAILS}'
    )


def test_views_in_which_nothing_fails_have_no_failures() -> None:
    """NULL that nothing failed for is no failure."""
    run = texts("SELECT id, nullif(s::INT, 5) AS n FROM t", bad=0)
    assert run.view("v").rows() == [{"id": 0, "n": None}, {"id": 1, "n": 7}]
    assert run.view("v").failures == ()


def test_rows_whose_condition_fails_are_counted() -> None:
    """A row that is left out because the view's condition failed for it is counted."""
    [one] = texts("SELECT id FROM t WHERE s::INT > 5", bad=1).view("v").failures
    assert one.text == (
        f'1 row is missing from the view v, because its condition `CAST("s" AS INT) > 5` failed: {FAILS}'
    )


def test_values_that_a_view_is_computed_from_are_counted() -> None:
    """An expression of a subquery may have no column in the view; its message names none."""
    [one] = texts("SELECT id, n + 1 AS m FROM (SELECT id, s::INT AS n FROM t) x").view("v").failures
    assert one.text.startswith("1 value that the view v is computed from is NULL, because ")


GROUPED = "SELECT s, bit_and(s::BIT) AS b, string_agg(s, ',' ORDER BY id) AS l FROM t GROUP BY s"


def test_groups_of_a_view_that_is_only_read_are_counted() -> None:
    """A group whose query fails is no dead letter where only readers ask for it; it is counted then."""
    run = texts(GROUPED, bad=2)
    [one] = run.view("v").failures
    assert not run.dead_letters()
    assert (one.kind, one.count, one.is_most) == ("groups", 3, False)
    assert one.first in ("s = 5", "s = 7", "s = abc")
    assert one.text.startswith(
        f"The query of the view v failed for 3 of its groups, such as {one.first}; "
    )
    assert "The first error: Conversion Error: Invalid character" in one.text


@pytest.mark.parametrize("calls_max", [500, 8])
def test_of_many_groups_all_that_may_fail_are_counted(
    monkeypatch: pytest.MonkeyPatch, calls_max: int
) -> None:
    """To find each group that fails takes queries, so there is a limit; the message says so."""
    monkeypatch.setattr(query, "CALLS_MAX", calls_max)
    run = texts("SELECT id, bit_and(s::BIT) AS b, mad(id) AS m FROM t GROUP BY id", bad=50)
    [one] = run.view("v").failures
    assert one.is_most is (calls_max == 8)
    assert 50 <= one.count <= 52
    most = "up to " if one.is_most else ""
    assert f"failed for {most}{one.count} of its groups, such as id = " in one.text


def test_the_only_group_of_all_rows_is_counted() -> None:
    """A query without GROUP BY has one group, which has no key."""
    [one] = texts("SELECT bit_and(s::BIT) AS b, mad(id) AS m FROM t").view("v").failures
    assert (one.count, one.first) == (1, "")
    assert one.text.startswith("The query of the view v failed; values that depend on it are NULL")


def test_reading_logs_each_failure_once(shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often a view is read and its pipeline opened, the log has one warning of a failure."""
    for _ in range(2):
        views = Views(shop)
        views.table("v")
        views.sql("SELECT count(n) FROM v")
    [record] = caplog.records
    assert (record.name, record.levelno) == ("penstock.views", logging.WARNING)
    assert record.getMessage().startswith(f"{shop}: 3 values of n in the view v are NULL, because ")


def test_a_failure_of_another_kind_is_said_again() -> None:
    """Values and counts in a reason make no new message; another error does."""
    said: list[str] = []
    once = Once(said.append)
    for reason in ("can't convert 'a'", "can't convert 'b'", "division by zero"):
        once("v", [Failure("v", "values", len(said) + 1, reason, "x", "n")])
    assert [one.rpartition(": ")[2] for one in said] == ["can't convert 'a'", "division by zero"]


def test_readers_may_take_failures_themselves(shop: Path) -> None:
    """Whoever opens views with `report` gets what failed each time, and when nothing did."""
    taken: list[tuple[str, int]] = []
    views = Views(shop, lambda view, failures: taken.append((view, len(failures))))
    views.table("v")
    views.sql("SELECT 1 AS one")
    views.sql("SELECT count(*) FROM v")
    changes(views, "v", None)
    assert taken == [("v", 1)] * 3
    assert [one.count for one in views.failures("v")] == [3]


def test_answers_have_the_failures_of_the_views_they_read(shop: Path) -> None:
    """An answer names what failed in each view that was read for it; of columns alone nothing is read."""
    views = Views(shop)
    found = views.answer("SELECT * FROM v", rows_max=2, memory_bytes_max=1 << 30)
    assert {view: [one.count for one in some] for view, some in found.failures.items()} == {
        "v": [3]
    }
    assert not views.answer("SELECT * FROM v", rows_max=0, memory_bytes_max=1 << 30).failures


def test_changes_have_failures_of_the_shards_that_changed(shop: Path) -> None:
    """Changes of a view warn of what failed in the rows that were compared."""
    answer = changes(Views(shop), "v", None)
    line = orjson.loads(changes_line(answer))
    assert [one.count for one in answer.failures["v"]] == [3]
    assert line["warnings"] == [answer.failures["v"][0].text]
    assert "warnings" not in orjson.loads(changes_line(answer._replace(failures={"v": ()})))


def test_spark_logs_what_fails_where_it_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A task of Spark that reads a view logs what fails in its rows, once for all pins of a state."""
    state = f"{commit(texts(bad=3), tmp_path / 'shop.penstock')}/state"
    part = Views(tmp_path / "shop.penstock").snapshot().part("v")
    for name in ("batches/one", "batches/two"):
        assert sum(map(len, pins.make(state, part, name).read("v"))) == 5
    [record] = caplog.records
    assert record.getMessage().startswith(f"{state}: 3 values of n in the view v are NULL")
