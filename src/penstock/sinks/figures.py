"""What a sink says that it has done, and does now, as JSON."""

from __future__ import annotations

from typing import TypedDict

from penstock.follow.breaker import Circuit

__all__ = ["FollowingFigures", "SinkFigures"]


class FollowingFigures(TypedDict):
    """What `penstock.sinks.body.Following` adds to what all followers say; see `Followed`.

    Attributes:
        topic: that it follows.
        letters_topic: where its dead letters are.
        source: the topic.
        target: without a password.
        lag: records that are in the log and not in the target; None: not known.
        progress: the part of the topic's records that is in the target; None: not known.
        records: those that went through.
        upserts: rows written.
        deletes: keys deleted.
        dead: records that are dead letters.
        behind_ms: since the target last had all of them; None: not known.
    """

    topic: str
    letters_topic: str
    source: str
    target: str
    lag: int | None
    progress: float | None
    records: int
    upserts: int
    deletes: int
    dead: int
    behind_ms: int | None


class SinkFigures(FollowingFigures):
    """What `penstock.sinks.Sink.figures` gives; see `penstock.follow.report.Doing`.

    Attributes:
        phase: one of `penstock.follow.report.PHASES`.
        since_ms: when the phase began, in milliseconds since 1970.
        at_ms: when this was said.
        breaker: the circuit breaker's state.
        trouble: why it waits, or has failed.
        last_error: the last error.
        retries: how often it tried again.
    """

    phase: str
    since_ms: int
    at_ms: int
    breaker: Circuit
    trouble: str
    last_error: str
    retries: int
