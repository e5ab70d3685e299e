"""Row patterns: the matches among the rows of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP
from penstock.errors import FlowError
from penstock.flow.algebra.stateful import stateful
from penstock.flow.graph import Node, Stateful, retracts, row_key, timed
from penstock.ops.keyed.corrected_match import CorrectedMatch
from penstock.ops.keyed.match import Match
from penstock.ops.keyed.partial_match import COLUMNS, PartialMatch
from penstock.ops.keyed.revised_match import RevisedMatch
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import Matcher, RowPattern, parse_pattern
from penstock.patterns.tree import (
    Absent,
    Bounded,
    Choice,
    End,
    Permute,
    Repeat,
    Then,
    parts_of,
)
from penstock.patterns.tree import Node as Part
from penstock.patterns.tree import Sequence as Parts

__all__ = ["ROWS_MAX", "match", "partial"]

ROWS_MAX: Final = 100_000
"""Rows that one attempt at a match may look at, unless a program says less: they are kept, and read again
whenever their key gets another one."""


def match(
    node: Node,
    per: Sequence[str],
    order: Sequence[Ordered],
    pattern: RowPattern,
    *,
    keep: int | None = None,
    timed_out: bool = False,
    correct_us: int = 0,
) -> Stateful:
    """What matches among the rows of each key: of a stream, a stream; of a table, a table.

    Args:
        node: the rows.
        per: the columns of the key; none: all rows are one key's.
        order: of a stream, the order of rows of one instant; of a table, of all, and not empty.
        pattern: what is looked for, and what is given of it.
        keep: how many rows an attempt may look at; None: `ROWS_MAX`, where the pattern is bounded otherwise.
        timed_out: whether attempts of a stream that ran out of time are given, instead of matches.
        correct_us: how far behind the watermark rows of a stream still count, so that they correct matches.

    Raises:
        FlowError: the pattern could keep rows of a stream for ever, or asks for what a stream doesn't have.
        SchemaError: the pattern, a condition or a measure can't be read.
    """
    columns = node.schema.arrow
    tree = parse_pattern(pattern.pattern)
    is_table = retracts(node)
    time: str | None = TIME
    if not is_table:
        _check_stream(node, pattern, tree, keep)
    else:
        assert order, "a table's rows have no other"
        assert not timed_out, "which time would have passed?"
        assert not correct_us, "no row is late"
        time = _time_of(order[0], columns, pattern)
    rows_max = ROWS_MAX if keep is None else keep
    made = [*Matcher(pattern, columns, time, rows_max=rows_max).output]
    if timed_out and pattern.rows == "all":
        made = [field for field in made if field.name not in columns.names]
    is_one = pattern.rows == "one" or timed_out
    keys = [columns.field(name) for name in dict.fromkeys(per) if is_one]
    _check_names(keys, [field.name for field in made])
    common: dict[str, Any] = {
        "input": columns,
        "per": tuple(per),
        "order": tuple(order),
        "pattern": pattern,
        "output": pa.schema([*keys, *made]),
        "rows_max": rows_max,
    }
    key = () if timed_out else _row_key(node, per, pattern)
    if is_table:
        return stateful(RevisedMatch(**common, row_key=key), node)
    if not correct_us:
        return stateful(Match(**common, timed_out=timed_out), node)
    corrected = CorrectedMatch(**common, timed_out=timed_out, correct_us=correct_us, row_key=key)
    return stateful(corrected, node)


def partial(
    node: Node,
    per: Sequence[str],
    order: Sequence[Ordered],
    pattern: RowPattern,
    *,
    keep: int | None = None,
) -> Stateful:
    """How far the open attempt of each key of a stream is: a table of `match`'s arguments."""
    columns = node.schema.arrow
    _check_stream(node, pattern, parse_pattern(pattern.pattern), keep)
    keys = [columns.field(name) for name in dict.fromkeys(per)]
    _check_names(keys, COLUMNS.names)
    operator = PartialMatch(
        input=columns,
        per=tuple(per),
        order=tuple(order),
        pattern=replace(pattern, measures=(), rows="one", unmatched=False),
        output=pa.schema([*keys, *COLUMNS]),
        rows_max=ROWS_MAX if keep is None else keep,
    )
    return stateful(operator, node)


def _is_bounded(part: Part) -> bool:
    """Whether a part of a pattern ends after some rows, or some time."""
    match part:
        case Bounded():
            return True
        case Repeat(most=None):
            return False
        case Then(parts=[first, *others, last]):
            between = all(isinstance(one, Bounded | Absent) for one in others)
            return _is_bounded(first) and between and isinstance(last, Bounded)
        case _:
            return all(map(_is_bounded, parts_of(part)))


def _check_stream(node: Node, pattern: RowPattern, tree: Part, keep: int | None) -> None:
    """Whether a pattern can be decided as a stream goes on."""
    if not timed(node):
        raise FlowError(
            "expected rows with an event time to match in their order; found some without. Match the stream "
            "that they are computed from"
        )
    if any(isinstance(one, End) for one in _all_parts(tree)):
        raise FlowError(
            f"expected a pattern without '$', as a stream has no last row; found {pattern.pattern!r}. Leave "
            "it out, or match a table"
        )
    if pattern.within_us is not None:
        return
    if _ends_in_absence(tree):
        what = "expected a bound of time for a pattern that ends in what doesn't happen; found"
        raise FlowError(
            f"{what} {pattern.pattern!r} without. Say when it is over, such as within='30 minutes'"
        ).but_in_sql(
            f"{what} {pattern.pattern!r} without. Say when it is over: WITHIN INTERVAL '30 minutes'"
        )
    if keep is None and not _is_bounded(tree):
        what = (
            f"expected a bound for a pattern that any number of rows may match; found {pattern.pattern!r} "
            "without, which could keep a key's rows without limit. "
        )
        raise FlowError(
            f"{what}Add within='10 minutes', or keep=1000, the rows that a match may span"
        ).but_in_sql(
            f"{what}Add WITHIN INTERVAL '10 minutes', or KEEP 1000 ROWS behind the pattern"
        )


def _ends_in_absence(part: Part) -> bool:
    match part:
        case Absent():
            return True
        case Bounded():
            return False
        case Then(parts=parts) | Parts(parts=parts):
            return bool(parts) and _ends_in_absence(parts[-1])
        case Choice(parts=parts) | Permute(parts=parts):
            return any(map(_ends_in_absence, parts))
        case _:
            return any(map(_ends_in_absence, parts_of(part)))


def _all_parts(part: Part) -> list[Part]:
    return [part, *(one for below in parts_of(part) for one in _all_parts(below))]


def _time_of(first: Ordered, columns: pa.Schema, pattern: RowPattern) -> str | None:
    """The column of a table that is the time of its rows."""
    if columns.field(first.name).type == TIMESTAMP and not first.descending:
        return first.name
    if pattern.within_us is not None:
        what = (
            "expected a bound of time where rows are in the order of a TIMESTAMP, from the least; found the "
            f"order of {first.name!r}"
        )
        raise FlowError(
            f"{what}. Use order='…' with such a column, or leave within= out"
        ).but_in_sql(f"{what}. Begin ORDER BY with such a column, or leave WITHIN out")
    return None


def _check_names(keys: Sequence[pa.Field], made: Sequence[str]) -> None:
    for field in keys:
        if field.name in made:
            raise FlowError(
                f"expected names that no column of the key has; found {field.name!r} twice. "
                "Rename one: select(…)"
            )


def _row_key(node: Node, per: Sequence[str], pattern: RowPattern) -> tuple[str, ...]:
    """Columns that identify the matches of a table, where something does."""
    if pattern.rows == "all":
        return row_key(node) if pattern.after == "past last row" else ()
    for name, text, _ in pattern.measures:
        if text.replace(" ", "").upper() == "MATCH_NUMBER()":
            return (*per, name)
    return ()
