"""What `Stream.join` is given, checked, and made a node of the graph."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias, get_args

from penstock.core.time import DAY_US, duration_text
from penstock.errors import FlowError
from penstock.flow.algebra.joins import near
from penstock.flow.checks import check_duration
from penstock.flow.graph import Node, Stateful, timed
from penstock.flow.joins import On, check_how, check_names_differ, check_on
from penstock.ops.joins.table_join import How

__all__ = ["Within", "interval_join"]

Duration: TypeAlias = str | timedelta
Within: TypeAlias = Duration | tuple[Duration, Duration]
"""How far apart two rows may be; or how far the right one may be before the left one, and after it."""

WITHIN_MAX_US: Final = 3_660 * DAY_US
"""Ten years: what is kept for longer is a table's; and times plus an interval fit 64 bits."""


def interval_join(left: Node, right: Node, *, on: On, within: Within, how: How) -> Stateful:
    """The node of an interval join; see `Stream.join`.

    Raises:
        FlowError: an argument is not what it must be.
        SchemaError: there is no such column.
    """
    check_how(how, get_args(How))
    if not timed(left) or not timed(right):
        raise FlowError(
            "expected rows with an event time to join within an interval; found some without. Window "
            "the stream that they are computed from"
        )
    pairs = check_on(on, left.schema, right.schema)
    if how not in ("semi", "anti"):
        check_names_differ(left.schema, right.schema, pairs)
    before_us, after_us = _within(within)
    return near(left, right, pairs, before_us, after_us, how)


def _within(within: object) -> tuple[int, int]:
    """How far a right row may be before its left row, and how far after it: µs."""
    bounds = within if isinstance(within, tuple) else (within, within)
    if len(bounds) != 2:
        raise FlowError(
            "expected within as a duration, or as two: how far the right row may be before the left one, "
            f"and how far after it, such as within=('0 seconds', '1 hour'); found {within!r}"
        )
    before_us, after_us = (check_duration(one, "within", "'1 hour'") for one in bounds)
    if max(before_us, after_us) > WITHIN_MAX_US:
        raise FlowError(
            f"expected an interval of at most {duration_text(WITHIN_MAX_US)}; found within={within!r}. "
            "Rows are kept that long; join with a table to find them without a limit of time"
        )
    return before_us, after_us
