"""Rows that end work in a way that nobody foresaw: found, left out, and made dead letters.

What is known to fail for a row (an expression, a decoder) gives its reason row by row. This is for the
rest: a function of the user's that raises, a limit of a library, a fault of ours. Work that fails `TRIES`
times is tried on halves of its rows, down to single ones; the rows for which it fails are left out, and the
pipeline continues with the others. Work is a function of its rows, so an attempt that is repeated leaves out
the same ones.

Errors of the machine (memory, disks, the network) and of stored data are no row's fault, and pass.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.errors import PenstockError, UserError
from penstock.expr import EvaluationError
from penstock.expr.halves import Calls, culprits
from penstock.ops.rows import Refused

__all__ = ["TRIES", "Guard", "described_fault", "is_of_rows"]

TRIES: Final = 3
"""Times that work may fail with all its rows before they are looked at by halves."""
CALLS_MAX: Final = 2_000
"""Calls that a search may take. Beyond it, parts that fail are left out whole: a function that fails for all
of a million rows would take two million calls."""
_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


def is_of_rows(error: Exception) -> bool:
    """Whether an error may be the fault of some rows, and not of the machine or of stored data."""
    if isinstance(error, PenstockError):
        return isinstance(error, UserError)  # a function of the user's, or what it gave
    return not isinstance(error, OSError | MemoryError)


def described_fault(error: Exception) -> str:
    """An error as a dead letter's reason: with its place, where it is no message of ours."""
    if isinstance(error, PenstockError | EvaluationError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


@dataclass
class Guard:
    """Has work done on rows, without those for which it fails.

    Attributes:
        stops: whether an error ends the batch instead, as `on_error="stop"` asks.
    """

    stops: bool

    def __call__(
        self, what: str, work: Callable[[pa.Table], Result], rows: pa.Table
    ) -> tuple[Result, list[Refused]]:
        """What work gives of the rows, and those that it fails for.

        Args:
            what: does the work, for the log.
            work: a function of rows, which may be called with some of them.
            rows: to work on.
        """
        found: list[Result] = []

        def on(index: np.ndarray | None) -> None:
            some = rows if index is None else rows.take(vectors.from_int64(index))
            found[:] = [work(some)]

        bad, reasons = self.search(what, on, len(rows))
        if not len(bad):
            return found[0], []
        left_out = rows.take(vectors.from_int64(bad))
        return found[0], [Refused(left_out, pa.array(reasons, pa.string()))]

    def search(
        self, what: str, on: Callable[[np.ndarray | None], Any], count: int
    ) -> tuple[np.ndarray, list[str]]:
        """The items without which work succeeds; the last call of `on` was with the others.

        Args:
            what: does the work, for the log.
            on: works on some items: int64[n], ascending; None is all.
            count: of all items.

        Returns:
            int64[n], ascending: the items that work fails for; and why.
        """
        error = _error_of(on, None, stops=self.stops)
        if error is None:
            return np.zeros(0, np.int64), []
        for _ in range(TRIES - 1):
            again = _error_of(on, None, stops=self.stops)
            if again is None:
                return np.zeros(0, np.int64), []
            error = again
        bad: dict[int, str] = {}
        error_of = functools.partial(_error_of, on, stops=False)
        for items, one in culprits(np.arange(count), error, error_of, Calls(CALLS_MAX)):
            reason = described_fault(one)
            if len(items) > 1:
                reason = f"one of {len(items)} rows fails, or more: {reason}"
            bad |= dict.fromkeys(items.tolist(), reason)
        rest = np.setdiff1d(np.arange(count), np.array(sorted(bad), np.int64))
        last = _error_of(on, rest, stops=self.stops)
        if last is not None and len(rest):  # it fails for rows together that it takes one by one
            together = f"fails for it together with others: {described_fault(last)}"
            bad |= dict.fromkeys(rest.tolist(), together)
            on(rest[:0])
        elif last is not None:
            raise last  # without any row, too: no row is to blame
        order = sorted(bad)
        _LOG.error(
            "expected %s to work; found that it fails for %d of %d rows, which are dead letters now. The "
            "others are used. The first: %s",
            *(what, len(bad), count, bad[order[0]] if order else described_fault(error)),
        )
        return np.array(order, np.int64), [bad[one] for one in order]


def _error_of(
    on: Callable[[np.ndarray | None], Any], items: np.ndarray | None, *, stops: bool
) -> Exception | None:
    """What work fails with that may be the fault of rows; raises all else."""
    try:
        on(items)
    except Exception as error:
        if stops or not is_of_rows(error):
            raise
        return error
    return None
