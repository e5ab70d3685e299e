"""Views and test runs in a notebook."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.serve.committing import clicks, commit

import penstock as ps
from penstock.serve import Views
from penstock.serve.notebook import CELL_CHARS_MAX, ROWS_SHOWN, table_html


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
