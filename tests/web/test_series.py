"""From a view's rows to a chart's lines."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.serve.shown.series import key_columns, series


def test_each_key_is_a_line_and_missing_windows_are_null(shared: Any) -> None:
    """A key without a row in a window has null there, whatever the order of rows."""
    table = shared.windows([(2, "b", 5), (0, "a", 1), (1, "a", 2), (0, "b", 3)], "name", "n")
    found = series(table, keys=["name"])
    assert [line["key"] for line in found["series"]] == ["b", "a"]
    assert found["series"][0]["values"] == [3.0, None, 5.0]
    assert found["series"][1]["values"] == [1.0, 2.0, None]
    assert found["windows"][0] == ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]


def test_only_the_largest_keys_and_newest_windows_are_shown(shared: Any) -> None:
    """The answer is bounded by `top` and `windows`; the largest are chosen over the windows shown."""
    rows = [(m, f"k{k}", float(k if m else 100 - k)) for m in range(10) for k in range(20)]
    found = series(shared.windows(rows, "k", "v"), keys=["k"], top=3, windows=4)
    assert [line["key"] for line in found["series"]] == ["k19", "k18", "k17"]
    assert len(found["windows"]) == 4
    assert found["keys_total"] == 20


def test_several_keys_make_one_label_and_null_has_a_name(shared: Any) -> None:
    """Labels join the keys; NULL is shown as such."""
    table = shared.windows([(0, "a", None, 1), (0, None, 2, 4)], "x", "y", "n")
    found = series(table, keys=["x", "y"])
    assert [line["key"] for line in found["series"]] == ["NULL · 2", "a · NULL"]


def test_a_view_without_keys_is_one_line(shared: Any) -> None:
    """All of a window is one point."""
    found = series(shared.windows([(0, 1), (1, 2)], "n"), keys=[])
    assert [line["values"] for line in found["series"]] == [[1.0, 2.0]]


def test_empty_views_and_views_without_numbers_have_no_lines(shared: Any) -> None:
    """There is nothing to draw, and that is no error."""
    assert series(shared.windows([], "n"))["series"] == []
    assert series(pa.table({"a": ["x"]}))["series"] == []


def test_an_unknown_measure_is_refused(shared: Any) -> None:
    """The message names the measures there are."""
    with pytest.raises(UserError, match="among n; found 'm'"):
        series(shared.windows([(0, 1)], "n"), keys=[], measure="m")


def test_keys_are_guessed_where_nobody_says(shared: Any) -> None:
    """Keys are what tells the rows of a window apart, and every text."""
    cores = shared.windows([(0, 0, 5.0), (0, 1, 5.0), (1, 0, 5.0)], "core", "load")
    assert key_columns(cores) == ["core"]
    assert key_columns(shared.windows([(0, 1, "a", 2)], "core", "name", "n")) == ["core", "name"]
    assert key_columns(shared.windows([(0, 1)], "n")) == []
