"""What `window` is given, checked."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from penstock.errors import FlowError
from penstock.flow.checks import check_duration
from penstock.flow.graph import Node, timed
from penstock.flow.rolling import RowWindow
from penstock.ops import Window

__all__ = ["Late", "check_window"]

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
