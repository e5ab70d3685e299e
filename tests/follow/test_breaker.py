"""The circuit breaker of sinks."""

from __future__ import annotations

from penstock.follow.breaker import Breaker


def test_a_circuit_opens_lets_one_attempt_through_and_closes() -> None:
    """Pauses double up to a limit, and begin anew after it was closed for as long as the longest."""
    now = 0.0
    one = Breaker(1.0, 5.0, clock=lambda: now, jitter=lambda low, high: high)
    assert one.state == "closed"
    one.attempt()
    assert one.state == "closed"
    assert [one.fail() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert one.state == "open"
    one.attempt()
    assert one.state == "half-open"
    assert one.fail() == 5.0
    assert one.state == "open"
    one.attempt()
    one.succeed()
    assert one.state == "closed"
    now = 5.0
    assert one.fail() == 5.0
    one.attempt()
    one.succeed()
    now = 10.5
    assert one.fail() == 1.0
