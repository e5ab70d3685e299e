"""A chart for a notebook's cell: a view's windows as lines, in SVG without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeGuard

import pyarrow as pa

from penstock.core.time import instant_us
from penstock.errors import UserError

__all__ = ["chart_html"]

WIDTH: Final = 640
HEIGHT: Final = 160
LINES_MAX: Final = 6  # as many as there are colours below
_COLORS: Final = (
    "#2f7ed8",
    "#d9772b",
    "#2a9d5c",
    "#b24dc4",
    "#c9a400",
    "#d6456b",
)  # on both grounds


def chart_html(table: pa.Table, keys: Sequence[str] | None, measure: str | None) -> str:
    """The lines of the largest keys over the newest windows; nothing where there are fewer than two windows.

    A line has a gap where its key has no row, and where windows are missing.

    Args:
        table: a view's rows.
        keys: the columns whose values are the lines; None guesses.
        measure: the column to draw; None takes the first number.

    Raises:
        UserError: there is no such measure.
    """
    if "window_start" not in table.column_names:
        if measure is not None:
            raise UserError(f"expected a view with windows for a chart of {measure!r}; found none")
        return ""
    from penstock.serve.shown.series import series  # most tables have no windows

    found = series(table, keys=keys, measure=measure, top=LINES_MAX)
    starts = [instant_us(start) for start, _ in found["windows"] if start is not None]
    values = [v for line in found["series"] for v in line["values"] if _is_drawn(v)]
    if len(starts) < 2 or not values:
        return ""
    every_ms, drawn = found["every_ms"], found["measure"]
    assert every_ms is not None, "there are windows"
    assert drawn is not None, "there are values"
    low, high = min(0.0, *values), max(0.0, *values)
    span = (high - low) or 1.0

    def x(i: int) -> float:
        return (starts[i] - starts[0]) / (starts[-1] - starts[0]) * WIDTH

    def y(value: float) -> float:
        return HEIGHT - (value - low) / span * HEIGHT

    shapes = []
    for color, line in zip(_COLORS, found["series"], strict=False):
        shown = {i: value for i, value in enumerate(line["values"]) if _is_drawn(value)}
        for run in _runs(list(shown), starts, every_ms * 1_000):
            points = " ".join(f"{x(i):.1f},{y(shown[i]):.1f}" for i in run)
            if len(run) == 1:
                at = points.split(",")
                shapes.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="2.5" fill="{color}"/>')
            else:
                shapes.append(f'<polyline points="{points}" stroke="{color}"/>')
    name = html.escape(drawn)
    more = found["keys_total"] - len(found["series"])
    legend = [
        f'<span style="color:{color}">●</span> {html.escape(line["key"])}'
        for color, line in zip(_COLORS, found["series"], strict=False)
        if line["key"]
    ] + ([f"and {more:,} more"] if more else [])
    return (
        f'<figure style="margin:.3em .8em"><figcaption><b>{name}</b> by window, '
        f"{low:,.6g} to {high:,.6g} {' '.join(legend)}</figcaption>"
        f'<svg role="img" aria-label="{name} by window" width="{WIDTH}" height="{HEIGHT + 8}" '
        f'viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" fill="none" stroke-width="1.5">'
        f'<path d="M0 0V{HEIGHT}H{WIDTH}" stroke="currentColor" opacity=".3"/>{"".join(shapes)}</svg>'
        f"<br><small>{found['windows'][0][0]} to {found['windows'][-1][0]}</small></figure>"
    )


def _is_drawn(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _runs(shown: list[int], starts: Sequence[int], every_us: float) -> list[list[int]]:
    """The windows that a line joins: of those that have a value, those that follow each other."""
    runs = [shown[:1]] if shown else []
    for before, i in pairwise(shown):
        if i == before + 1 and starts[i] - starts[before] <= every_us:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs
