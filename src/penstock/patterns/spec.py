"""The whole clause of a row pattern, as plain values: what an operator keeps in its spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RowPattern"]


@dataclass(frozen=True)
class RowPattern:
    """A row pattern, with all that belongs to it.

    Attributes:
        pattern: its canonical text (`penstock.patterns.pattern_text`).
        defines: the condition of each variable; one that has none is any row.
        subsets: names of several variables.
        measures: the columns of a match: name, expression, and whether it is of all rows of the match or
            of those up to the row itself. The latter differs only where each row of a match is put out.
        after: where the next match is looked for: `past last row`, `next row`, `first x`, `last x`; `x` is
            `last x`. With `no skip` each way to match is a match, not only the preferred one from each row.
        within_us: the time from the first row of a match to its last row, at most; None is any.
        rows: whether a match is one row, or each of its rows is one.
        empty: whether matches without a row are put out.
        unmatched: whether rows that are of no match are put out, with NULL for measures.
    """

    pattern: str
    defines: tuple[tuple[str, str], ...] = ()
    subsets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    measures: tuple[tuple[str, str, Literal["running", "final"]], ...] = ()
    after: str = "past last row"
    within_us: int | None = None
    rows: Literal["one", "all"] = "one"
    empty: Literal["show", "omit"] = "show"
    unmatched: bool = False
