"""Which of some items work fails for: a part that fails is cut in two until it is one item.

For k culprits among n items that takes about 2 k log2(n / k) calls, so a search has a budget. Parts that fail
when it is used up are given whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = ["Calls", "culprits"]

Failure = TypeVar("Failure")


@dataclass
class Calls:
    """How many calls a search, or several together, have left.

    >>> calls = Calls(3)
    >>> calls.take(2), calls.take(2)
    (True, False)
    """

    left: int

    def take(self, count: int) -> bool:
        """Takes some for later use; whether there were as many."""
        if self.left < count:
            return False
        self.left -= count
        return True


def culprits(
    items: np.ndarray,
    failure: Failure,
    failure_of: Callable[[np.ndarray], Failure | None],
    calls: Calls,
) -> Iterator[tuple[np.ndarray, Failure]]:
    """The items that work fails for, in their order: each by itself, or in a part that can't be searched.

    Args:
        items: that work fails for, together.
        failure: how.
        failure_of: does the work for some of the items; None: it succeeds.
        calls: that the search may take.

    >>> bad = lambda some: "odd" if (some % 2).any() else None
    >>> [(one.tolist(), why) for one, why in culprits(np.arange(6), "odd", bad, Calls(99))]
    [([1], 'odd'), ([3], 'odd'), ([5], 'odd')]
    >>> [one.tolist() for one, _ in culprits(np.arange(6), "odd", bad, Calls(2))]
    [[0, 1, 2], [3, 4, 5]]
    """
    if len(items) <= 1 or not calls.take(2):
        yield items, failure
        return
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        found = failure_of(half)
        if found is not None:
            yield from culprits(half, found, failure_of, calls)
