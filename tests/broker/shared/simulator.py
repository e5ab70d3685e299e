"""A seeded world for pure coordinators: a clock, a network that is not to be trusted, clients that
die, a coordinator that restarts. No threads, no sleeping: an event follows the other.

    sim = Simulator(seed)                       everything random comes from sim.random
    sim.after(delay_ms, action)                 something will happen; `.cancel()` it
    server = Server(sim, handle)                handle(token, request) is the coordinator's entry
    server.answer(token, fields)                ... which gives each token back exactly once
    link = Link(server)                         a client's connection
    link.call(request, answered, timeout_ms)    answered(fields), or answered(None): broken
    server.restart(handle)                      forgets tokens and breaks all links
    server.jump(ms)                             server.now_ms() is the coordinator's clock
    sim.run(until_ms, check)                    check() after every event
    sim.calm()                                  no faults from now on

What the network does is in `Faults`. Messages of one link arrive in the order in which they were
sent, as on a TCP connection; a message that is lost breaks the link, and what was under way with
it. With `is_ordered=False` they overtake each other, and a copy may come much later: for protocols
that claim to bear that.

A test takes `seeds(...)` and runs its body in `repeatable(seed)`, which says how to run it again
when it fails. PENSTOCK_SEED runs a single one, PENSTOCK_SIMULATIONS sets how many there are.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.effort import rounds

__all__ = ["Event", "Faults", "Link", "Server", "Simulator", "repeatable", "seeds"]

HISTORY: Final = 40
"""Last notes that a failure shows."""
TOKENS_MAX: Final = 10_000
"""More unanswered requests than that are a leak."""

Fields = dict[str, Any]
Answered = Callable[[Fields | None], None]


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong with a message.

    Attributes:
        loss: part of the messages that break their link.
        copies: part of the requests that arrive twice, as when a client sends again.
        delay_ms: how long a message takes.
        slow: part of the messages that take `slow_ms` instead.
        is_ordered: whether messages of a link keep their order.
    """

    loss: float = 0.02
    copies: float = 0.02
    delay_ms: tuple[int, int] = (0, 30)
    slow: float = 0.02
    slow_ms: tuple[int, int] = (100, 8_000)
    is_ordered: bool = True


@dataclass(order=True, slots=True)
class Event:
    """Something that will happen."""

    at_ms: int
    number: int
    action: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """It won't happen."""
        self.is_cancelled = True


class Simulator:
    """A clock and what will happen."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.now_ms = 0
        self.events = 0
        self.history: deque[str] = deque(maxlen=HISTORY)
        self._numbers = itertools.count()
        self._queue: list[Event] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> Event:
        """Has something happen later."""
        event = Event(self.now_ms + max(delay_ms, 0), next(self._numbers), action)
        heapq.heappush(self._queue, event)
        return event

    def note(self, text: str) -> None:
        """Says what happened, for whoever looks into a failure."""
        self.history.append(f"{self.now_ms:>9} {text}")

    def delay_ms(self) -> int:
        """How long a message takes."""
        is_slow = self.random.random() < self.faults.slow
        return self.random.randint(*(self.faults.slow_ms if is_slow else self.faults.delay_ms))

    def run(self, until_ms: int, check: Callable[[], None]) -> None:
        """Lets time pass."""
        try:
            while self._queue and self._queue[0].at_ms <= until_ms:
                event = heapq.heappop(self._queue)
                if not event.is_cancelled:
                    self.now_ms = event.at_ms
                    self.events += 1
                    event.action()
                    check()
            self.now_ms = until_ms
        except BaseException as error:
            error.add_note("\n".join(self.history))
            raise

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.faults = replace(self.faults, loss=0.0, copies=0.0, slow=0.0)


class Server:
    """What clients see of a coordinator. An answer goes to whoever holds the token."""

    def __init__(self, sim: Simulator, handle: Callable[[int, Any], None]) -> None:
        self.sim = sim
        self.is_down = False
        self._handle = handle
        self._skew_ms = 0
        self._tokens = itertools.count(1)
        self._open: dict[int, tuple[Link, int, Answered]] = {}
        self._links: dict[Link, None] = {}  # in order, so that a seed repeats

    def now_ms(self) -> int:
        """The coordinator's clock."""
        return self.sim.now_ms + self._skew_ms

    def jump(self, ms: int) -> None:
        """Sets the coordinator's clock."""
        self.sim.note(f"clock jumps {ms} ms")
        self._skew_ms += ms

    @property
    def unanswered(self) -> set[int]:
        """Tokens of requests that await their answer: the coordinator must hold just these."""
        return set(self._open)

    def answer(self, token: int, fields: Fields) -> None:
        """The coordinator answers."""
        assert token in self._open, f"token {token} was answered twice, or never given out"
        link, era, answered = self._open.pop(token)
        link.carry(era, lambda: answered(fields))

    def restart(self, handle: Callable[[int, Any], None]) -> None:
        """A new coordinator takes over; nobody gets an answer from the old one."""
        self.sim.note("coordinator restarts")
        self._open.clear()
        self._handle = handle
        for link in list(self._links):
            link.break_off()

    def take(self, link: Link, era: int, request: Any, answered: Answered) -> None:
        """A request has arrived."""
        if self.is_down:
            link.break_off()
            return
        token = next(self._tokens)
        self._open[token] = link, era, answered
        assert len(self._open) < TOKENS_MAX, "requests are never answered"
        self._handle(token, request)

    def join(self, link: Link) -> None:
        """A client's link, to be broken by a restart."""
        self._links[link] = None


class Link:
    """One client's connection; after a break it is a new one, and its `era` another."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.era = 0
        self._last_ms = 0
        self._waiting: dict[int, Callable[[], None]] = {}
        self._calls = itertools.count()
        server.join(self)

    def call(self, request: Any, answered: Answered, timeout_ms: int) -> None:
        """Sends a request; `answered` is called once, with None if the link broke or time ran
        out.
        """
        sim, call, era = self.server.sim, next(self._calls), self.era

        def finish(fields: Fields | None) -> None:
            if self._waiting.pop(call, None) is not None:
                timer.cancel()
                answered(fields)

        timer = sim.after(timeout_ms, self.break_off)
        self._waiting[call] = lambda: finish(None)
        self.carry(era, lambda: self.server.take(self, era, request, finish), is_request=True)

    def carry(self, era: int, deliver: Callable[[], None], *, is_request: bool = False) -> None:
        """Takes a message across, or not."""
        sim = self.server.sim
        if sim.random.random() < sim.faults.loss:
            sim.after(sim.delay_ms(), lambda: self.break_off() if era == self.era else None)
            return
        count = 1 + (is_request and sim.random.random() < sim.faults.copies)
        at_ms = sim.now_ms + sim.delay_ms()
        for _ in range(count):
            if sim.faults.is_ordered:
                at_ms = self._last_ms = max(at_ms, self._last_ms)
            else:
                at_ms = sim.now_ms + sim.delay_ms()
            sim.after(at_ms - sim.now_ms, lambda: self._arrive(era, deliver))

    def _arrive(self, era: int, deliver: Callable[[], None]) -> None:
        if era == self.era or not self.server.sim.faults.is_ordered:
            deliver()

    def break_off(self) -> None:
        """The connection is gone, with all that was under way."""
        self.era += 1
        self._last_ms = 0
        for fail in list(self._waiting.values()):
            fail()


def seeds(count: int) -> list[int]:
    """Seeds to run: `count` of them, or as the environment says."""
    single = os.environ.get("PENSTOCK_SEED")
    if single is not None:
        return [int(single)]
    return list(range(rounds("PENSTOCK_SIMULATIONS", quick=count // 3, full=count)))


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Says how to repeat a failure."""
    try:
        yield
    except BaseException as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].partition("[")[0]
        error.add_note(f"repeat with: PENSTOCK_SEED={seed} python -m pytest {test}")
        raise
