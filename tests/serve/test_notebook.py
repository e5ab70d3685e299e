"""Views and test runs in a notebook."""

from __future__ import annotations

import datetime as dt
import re
import sys
import types
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.patience import wait_until
from tests.serve.committing import clicks, commit

import penstock as ps
from penstock.errors import UserError
from penstock.serve import Views
from penstock.serve.shown.charts import HEIGHT, WIDTH, chart_html
from penstock.serve.shown.tables import CELL_CHARS_MAX, ROWS_SHOWN, table_html


def test_values_are_exact_and_harmless() -> None:
    """Markup is text; NULL, decimals, bytes and instants read as in SQL; long texts are cut."""
    at = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    table = pa.table(
        {
            "<b>": ["<script>x</script>", None],
            "d": [Decimal("0.10"), None],
            "at": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
            "raw": [b"\xff", b"ok"],
            "long": ["y" * 500, ""],
        }
    )
    text = table_html(table, "a & b")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;" in text
    assert "<b>a &amp; b</b> 2 rows" in text
    assert ">0.10<" in text
    assert ">2026-01-01 10:00:00Z<" in text
    assert text.count("NULL") == 3
    assert "y" * CELL_CHARS_MAX not in text


def test_many_rows_are_counted_and_some_are_shown() -> None:
    """A table of a million rows must not stop a notebook."""
    text = table_html(pa.table({"n": list(range(1_000))}), "many")
    assert f"1,000 rows, the first {ROWS_SHOWN} shown" in text
    assert text.count("<tr>") == 1 + ROWS_SHOWN
    assert "text-align:right" in text


def test_a_repl_shows_columns(tmp_path: Path) -> None:
    """Of committed views, and of a test's view with its number of rows."""
    run = clicks()
    views = Views(commit(run, tmp_path / "shop.penstock"))
    columns = (
        "window_start TIMESTAMP NOT NULL, window_end TIMESTAMP NOT NULL, user STRING NOT NULL, "
        "n BIGINT NOT NULL, ms DOUBLE"
    )
    assert repr(run.view("per_user")) == f"View('per_user': 3 rows of {columns})"
    assert repr(views).splitlines() == [
        f"Views({views.where!r}), version {views.version}",
        f"  per_user ({columns})",
    ]


def test_committed_views_are_shown(tmp_path: Path) -> None:
    """All of one version, each with its name."""
    views = Views(commit(clicks(), tmp_path / "shop.penstock"))
    text = views._repr_html_()
    for name in views.names():
        assert f"<b>{name}</b>" in text
    assert views.snapshot()._repr_html_() == text


def test_a_test_run_is_shown() -> None:
    """A view, and all views of a run; before anything was sent they are empty."""
    app = ps.App("notebook")
    sales = app.stream("sales", "item STRING")
    app.view("n", sales.group_by("item").agg(n=ps.count()))
    run = ps.testing.run(app)
    assert "<b>n</b> 0 rows" in run._repr_html_()
    run.send("sales", item="tea")
    assert "<b>n</b> 1 row<" in run._repr_html_()
    assert run.view("n")._repr_html_() == run._repr_html_()
    with pytest.raises(ps.PenstockError):
        run.view("m")


def lines(text: str) -> list[list[tuple[float, float]]]:
    """The lines of a chart, as points in pixels; a point alone is a line of one."""
    found = re.findall(r'<polyline points="([^"]*)"|<circle cx="([^"]*)" cy="([^"]*)"', text)
    return [
        [tuple(map(float, one.split(","))) for one in (points or f"{x},{y}").split()]  # type: ignore[misc]
        for points, x, y in found
    ]


def test_windows_are_a_chart() -> None:
    """Each key a line from the least value or zero to the greatest, with a gap where windows are missing."""
    rows = [(0, "a", 4), (1, "a", 2), (2, "a", 0), (5, "a", 4), (1, "<b>", 1), (2, "<b>", None)]
    starts = pa.array([row[0] * 60_000_000 for row in rows], pa.timestamp("us", "UTC"))
    names, counts = pa.array([row[1] for row in rows]), pa.array([row[2] for row in rows])
    table = pa.table({"window_start": starts, "name": names, "n": counts})
    text = chart_html(table, ["name"], None)
    assert lines(text) == [
        [(0.0, 0.0), (WIDTH / 5, HEIGHT / 2), (WIDTH * 2 / 5, HEIGHT)],
        [(WIDTH, 0.0)],
        [(WIDTH / 5, HEIGHT * 3 / 4)],
    ]
    assert "&lt;b&gt;" in text
    assert "<b>n</b> by window, 0 to 4 " in text
    assert "1970-01-01T00:00:00Z to 1970-01-01T00:05:00Z" in text
    assert chart_html(table.slice(0, 1), ["name"], None) == "", "one window is no line"
    assert chart_html(table.drop_columns(["window_start"]), ["name"], None) == ""
    assert text in table_html(table, "t", ["name"])
    with pytest.raises(UserError, match="'m'"):
        chart_html(table, ["name"], "m")


def test_a_chart_is_live(tmp_path: Path) -> None:
    """A committed view, a test run and a live cell draw the same lines; a new window makes them longer."""
    run = clicks(90)  # two windows of three users
    views = Views(commit(run, tmp_path / "shop.penstock"))
    live = ps.serve.Live(views, "per_user", measure="ms")
    assert [len(line) for line in lines(live._repr_html_())] == [2, 2, 2]
    assert "<b>ms</b> by window" in live._repr_html_()
    assert lines(run._repr_html_()) == lines(views.snapshot()._repr_html_())
    assert lines(run.view("per_user")._repr_html_()) == lines(run._repr_html_())
    run.send("clicks", user="u1", ms=9.0, at="12:02:00")
    commit(run, tmp_path / "shop.penstock")
    assert [len(line) for line in lines(live._repr_html_())] == [3, 2, 2]
    assert "expected a measure" in ps.serve.Live(views, "per_user", measure="x")._repr_html_()


def test_a_live_table_follows_each_version(tmp_path: Path) -> None:
    """Drawn again for a new version alone, with the rows of then, until it is stopped."""
    run = clicks(20)
    views = Views(commit(run, tmp_path / "shop.penstock"))
    live = ps.serve.Live(views, "SELECT sum(n) AS clicks FROM per_user", every_s=0.1)
    first = live._repr_html_()
    assert ">20<" in first
    drawn: list[str] = []
    thread = live.follow(drawn.append)
    run.send("clicks", user="u9", ms=1.5, at="12:00:30")
    commit(run, tmp_path / "shop.penstock")
    wait_until(lambda: drawn and ">21<" in drawn[-1], "the new version")
    assert len(drawn) == 1
    live.stop()
    thread.join()


def test_a_live_table_is_a_cell_that_is_updated_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One display with an id; what IPython calls is all that is needed of it."""
    shown: list[object] = []
    handle = types.SimpleNamespace(update=shown.append)

    def display(text: str, *, display_id: bool) -> object:
        assert display_id
        shown.append(text)
        return handle

    fake = types.SimpleNamespace(HTML=lambda text: text, display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    run = clicks(6)
    live = ps.serve.Live(
        Views(commit(run, tmp_path / "shop.penstock")), "per_user", every_s=0.1, seconds=None
    )
    live._ipython_display_()
    run.send("clicks", user="u9", ms=1.5, at="12:00:30")
    commit(run, tmp_path / "shop.penstock")
    wait_until(lambda: len(shown) == 2, "the update")
    live.stop()
    assert "u9" not in str(shown[0])
    assert "u9" in str(shown[1])


def test_a_live_table_says_what_is_wrong(tmp_path: Path) -> None:
    """In the cell: no such view, a wrong query; a time that is too short at once."""
    views = Views(commit(clicks(3), tmp_path / "shop.penstock"))
    assert "expected" in ps.serve.Live(views, "SELECT nope FROM per_user")._repr_html_()
    with pytest.raises(UserError, match="every_s"):
        ps.serve.Live(views, "per_user", every_s=0)
