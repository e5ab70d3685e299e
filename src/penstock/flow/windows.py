"""Windows of event time over rows: what `window` is given, checked, and what is grouped in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from penstock.core.delta import TIME
from penstock.errors import FlowError
from penstock.flow.aggregates import AggregateCall, check_calls, check_groups
from penstock.flow.algebra import groups
from penstock.flow.checks import check_duration
from penstock.flow.graph import Node, Stateful, timed
from penstock.flow.rolling import RowWindow
from penstock.ops import Window

__all__ = ["Grouped", "Late", "Windowed", "check_window"]

Late: TypeAlias = Literal["drop", "correct"]


def check_window(
    node: Node, window: object, keep: str | timedelta | None, late: Late
) -> tuple[int | None, int]:
    """How long windows are kept, and how long they are corrected: us; None keeps them forever.

    Raises:
        FlowError: rows can't be cut into such windows.
    """
    if not isinstance(window, Window):
        raise _no_window(window)
    if not timed(node):
        raise FlowError(
            "expected rows with an event time; found a table that has no windows. "
            "Window the stream that it was computed from"
        )
    kept_us = None if keep is None else check_duration(keep, "keep", "'7 days'")
    if late not in get_args(Late):
        raise FlowError(f"expected late='drop' or late='correct'; found late={late!r}")
    if late == "correct" and kept_us is None:
        raise FlowError(
            "expected how long windows are corrected, such as keep='1 hour', with late='correct'; "
            "found none"
        )
    return kept_us, kept_us if late == "correct" and kept_us is not None else 0


def _no_window(found: object) -> FlowError:
    if isinstance(found, RowWindow):
        return FlowError(
            "expected a stream for ps.sliding(…) and ps.count_window(…), whose rows stay; found a table. Say "
            ".closed() of one with windows"
        )
    write = f". Write window(ps.tumbling({found!r}))" if isinstance(found, str) else ""
    return FlowError(
        f"expected ps.tumbling(…), ps.hopping(…) or ps.session(…); found {found!r}{write}"
    )


T_co = TypeVar("T_co", covariant=True)


class _Made(Protocol[T_co]):
    def __call__(self, node: Stateful, /) -> T_co: ...


@dataclass(frozen=True)
class Windowed(Generic[T_co]):
    """Rows cut into windows; say next by what to group them."""

    rows: Node
    window: Window
    made: _Made[T_co]
    keep_us: int | None = None
    correct_us: int = 0

    def group_by(self, *keys: str) -> Grouped[T_co]:
        """Groups by the given columns; none puts all rows of a window into one group."""
        check_groups(keys, self.rows.schema)
        return Grouped(self, keys)

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> T_co:
        """The same as `group_by().agg(…)`."""
        return self.group_by().agg(*unnamed, **aggregates)


@dataclass(frozen=True)
class Grouped(Generic[T_co]):
    """Rows in windows and groups; say next what to compute."""

    windowed: Windowed[T_co]
    keys: tuple[str, ...]

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> T_co:
        """Computes aggregates: `agg(n=ps.count(), total=ps.sum("v"))`.

        Args:
            unnamed: there must be none: each is a column, and needs a name.
            aggregates: by the names of their columns.

        Returns:
            A table of `window_start`, `window_end` (where there are windows), the grouping columns and
            the aggregates.
        """
        check_calls(unnamed, aggregates)
        windowed = self.windowed
        for name, call in aggregates.items():
            if call.by == TIME and not timed(windowed.rows):
                raise FlowError(
                    f"expected rows with an event time for {name!r}, the first or last by it; found a table "
                    'that has no windows. Name the order, such as ps.arg_max("price", by="version")'
                )
        node = groups.group(
            windowed.rows,
            self.keys,
            aggregates,
            windowed.window,
            keep_us=windowed.keep_us,
            correct_us=windowed.correct_us,
        )
        return windowed.made(node)
