"""When the broker looks at what has run out: often while a client may have set a time-out, rarely at rest.

Time-outs are set by requests only. Some time after the last request that may set one, those that have not
run out yet are long ones, to which a second more is nothing. At rest all looks are at whole seconds
of the loop's clock: a process that wakes costs more than what it does then.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["REST_S", "STIRRED_S", "TICK_S", "Pulse", "until_next"]

TICK_S: Final = 0.2
"""How often time-outs are looked at."""
REST_S: Final = 1.0
"""The same at rest."""
STIRRED_S: Final = 10.0
"""How long after the last request that may set a time-out the broker is at rest."""
EARLY_SHARE: Final = 0.01
"""Of a period: timers of event loops may be early, by less than this."""


def until_next(now_s: float, period_s: float) -> float:
    """How long it is until the next multiple of a period, so that those who wait for one wake together."""
    rest_s = period_s - now_s % period_s
    return rest_s if rest_s > EARLY_SHARE * period_s else rest_s + period_s


class Pulse:
    """Paces looks at time-outs. Not thread-safe.

    Args:
        loop: where they are, and whose clock counts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stirred_s = loop.time()
        self._resting: set[asyncio.Future[None]] = set()

    def stir(self) -> None:
        """Something may have set a time-out, or is about to: a resting broker looks now."""
        self._stirred_s = self._loop.time()
        if self._resting:
            for sleeper in self._resting:
                _wake(sleeper)
            self._resting.clear()

    async def pause(self, pause_s: float = REST_S) -> None:
        """Returns when it is time for another look: after `pause_s` at the latest."""
        now_s = self._loop.time()
        if now_s - self._stirred_s < STIRRED_S:
            await asyncio.sleep(min(pause_s, TICK_S))
            return
        sleeper = self._loop.create_future()
        timer = self._loop.call_later(min(pause_s, until_next(now_s, REST_S)), _wake, sleeper)
        self._resting.add(sleeper)
        try:
            await sleeper
        finally:
            timer.cancel()
            self._resting.discard(sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
