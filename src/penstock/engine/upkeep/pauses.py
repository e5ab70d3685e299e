"""Pauses that Python makes, kept short while a pipeline runs: garbage collections, and waits of threads.

A full collection looks at each object of the process, and most of them are modules and settings, which
stay. With what an application imports they take 80 ms, while no thread runs. A collection begins whenever
new objects have become a quarter of all; with batches of 20 ms that is every five seconds.

A thread that has something to do waits until the one that runs Python code lets go of the interpreter: by
default for up to 5 ms, which is as long as a small batch. Upkeep and status run next to the batches.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Final

SWITCH_S: Final = 0.0005
"""How long a thread may keep the interpreter while others wait for it."""


@contextlib.contextmanager
def short_pauses() -> Iterator[Callable[[], None]]:
    """Until the block ends, collections leave out what is in memory now, and threads take turns often.

    Gives a function that leaves out what has come since, too.
    """
    is_others, interval_s = gc.get_freeze_count() > 0, sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, SWITCH_S))
    gc.freeze()
    try:
        yield gc.freeze
    finally:
        sys.setswitchinterval(interval_s)
        if not is_others:
            gc.unfreeze()
