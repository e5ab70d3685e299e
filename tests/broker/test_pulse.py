"""How often the broker looks at time-outs, on a clock that jumps from one timer to the next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.pulse import REST_S, STIRRED_S, TICK_S, Pulse, until_next

BEGUN_S = 1_000.3


class _Jumping(selectors.DefaultSelector):
    """Passes the time instead of waiting."""

    now_s = BEGUN_S

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing would ever happen again"
            self.now_s += timeout
        return found


def _run(program: Callable[[asyncio.AbstractEventLoop, Pulse], Coroutine[Any, Any, None]]) -> None:
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    try:
        loop.run_until_complete(program(loop, Pulse(loop)))
    finally:
        loop.close()


async def _looks(loop: asyncio.AbstractEventLoop, pulse: Pulse, until_s: float) -> list[float]:
    """When somebody looks who has just looked, until then."""
    found: list[float] = []
    while loop.time() < until_s:
        await pulse.pause()
        found.append(loop.time())
    return found


def test_time_outs_are_looked_at_often_and_at_whole_seconds_at_rest() -> None:
    """From the last request on, for as long as a time-out that it has set may be a short one."""

    async def program(loop: asyncio.AbstractEventLoop, pulse: Pulse) -> None:
        rest_s = BEGUN_S + STIRRED_S
        found = await _looks(loop, pulse, rest_s)
        assert len(found) == pytest.approx(STIRRED_S / TICK_S, abs=1)
        found = await _looks(loop, pulse, rest_s + 5 * REST_S)
        assert [one - round(one) for one in found] == pytest.approx([0] * len(found), abs=0.001)
        assert len(found) in {5, 6}

    _run(program)


def test_who_stirs_ends_the_rest_of_all() -> None:
    """All look at once, and often from then on."""

    async def program(loop: asyncio.AbstractEventLoop, pulse: Pulse) -> None:
        await asyncio.sleep(STIRRED_S)
        resting = [asyncio.ensure_future(pulse.pause()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in resting)
        stirred_s = loop.time()
        pulse.stir()
        await asyncio.gather(*resting)
        assert loop.time() == stirred_s
        await pulse.pause()
        assert loop.time() == pytest.approx(stirred_s + TICK_S, abs=0.001)

    _run(program)


def test_what_is_due_is_looked_at_in_time() -> None:
    """At rest, too."""

    async def program(loop: asyncio.AbstractEventLoop, pulse: Pulse) -> None:
        for _ in range(2):
            begun_s = loop.time()
            await pulse.pause(TICK_S / 4)
            assert loop.time() == pytest.approx(begun_s + TICK_S / 4, abs=0.001)
            await asyncio.sleep(STIRRED_S)

    _run(program)


def test_a_pause_that_is_cancelled_leaves_nothing() -> None:
    """Stirring finds nobody who has gone."""

    async def program(loop: asyncio.AbstractEventLoop, pulse: Pulse) -> None:
        await asyncio.sleep(STIRRED_S)
        resting = asyncio.ensure_future(pulse.pause())
        await asyncio.sleep(0)
        resting.cancel()
        await asyncio.gather(resting, return_exceptions=True)
        assert not pulse._resting
        pulse.stir()

    _run(program)


@given(st.floats(0, 1e7), st.sampled_from([0.001, 0.05, 1.0, 3600.0]))
def test_waits_end_at_multiples_of_their_period(now_s: float, period_s: float) -> None:
    """None takes much longer than a period, and none is so short that the same multiple comes twice."""
    pause_s = until_next(now_s, period_s)
    assert 0 < pause_s <= 1.011 * period_s
    part = (now_s + pause_s) / period_s
    assert part == pytest.approx(round(part), rel=1e-9, abs=1e-3)
