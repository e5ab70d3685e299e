"""A circuit breaker: after an error that passes, nothing is sent for a while; then one attempt is made.

    closed --error--> open --the pause is over--> half-open --a write succeeds--> closed
                        <------------error------------'

Each pause is twice as long as the one before, up to a limit. A circuit that was closed for as long as the
longest pause begins with the shortest one again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, Literal

__all__ = ["CIRCUITS", "Breaker", "Circuit"]

Circuit = Literal["closed", "open", "half-open"]
CIRCUITS: Final[tuple[Circuit, ...]] = ("closed", "open", "half-open")
JITTER: Final = (0.5, 1.0)
"""What a pause is multiplied by: sinks that lost the same server don't return at once."""


class Breaker:
    """The state of a connection to a target.

    Args:
        first_s: the first pause, in seconds.
        longest_s: the longest one.
        clock: monotonic, in seconds.
        jitter: a number between two others.
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._clock, self._jitter = clock, jitter
        self._pause_s, self._closed_at = first_s, clock()
        self.state: Circuit = "closed"

    def fail(self) -> float:
        """Opens the circuit; the seconds to wait before `attempt`."""
        if self.state == "closed" and self._clock() - self._closed_at > self._longest_s:
            self._pause_s = self._first_s
        self.state = "open"
        pause_s = self._pause_s * self._jitter(*JITTER)
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return pause_s

    def attempt(self) -> None:
        """Lets one attempt through, if the circuit is open."""
        if self.state == "open":
            self.state = "half-open"

    def succeed(self) -> None:
        """Closes the circuit."""
        if self.state != "closed":
            self.state, self._closed_at = "closed", self._clock()
