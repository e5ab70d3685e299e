"""How long tests wait for what must come.

What takes milliseconds takes minutes on a machine that is busy enough. Waiting for a condition costs
nothing where it comes soon, so patience is long; only what must *not* come is waited for briefly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 120.0
POLL_S: Final = 0.02


def wait_until(
    condition: Callable[[], object], what: object = "it", *, patience_s: float = PATIENCE_S
) -> Any:
    """Asks until the answer is true, and gives it; `what` was waited for, a function says more."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        description = what() if callable(what) else what
        assert time.monotonic() < deadline, f"expected {description} within {patience_s:g} s"
        time.sleep(POLL_S)
    return found


async def until(condition: Callable[[], object], what: object = "it") -> None:
    """Likewise, in an event loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        description = what() if callable(what) else what
        assert time.monotonic() < deadline, f"expected {description} within {PATIENCE_S:g} s"
        await asyncio.sleep(POLL_S)
