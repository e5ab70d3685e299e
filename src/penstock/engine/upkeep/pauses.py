"""Python's garbage collector, kept from stopping a pipeline for a tenth of a second every few seconds.

A full collection looks at each object of the process, and most of them are modules and settings, which
stay. With what an application imports they take 80 ms, while no thread runs. A collection begins whenever
new objects have become a quarter of all; with batches of 20 ms that is every five seconds.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def short_pauses() -> Iterator[Callable[[], None]]:
    """Leaves out of collections what is in memory now, until the block ends.

    Gives a function that leaves out what has come since, too.
    """
    is_others = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield gc.freeze
    finally:
        if not is_others:
            gc.unfreeze()
