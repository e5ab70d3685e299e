"""How a pipeline is: one state, since when, why, and what to do. Pure: a function of what is known.

The page, the terminal and `penstock ui` say the same, because they ask here. What can't be known is
never called well: a state is `live` only where the log has answered just now, and the views have what it
holds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.time import instant_text

if TYPE_CHECKING:
    from penstock.app import Facts  # loads the engine

__all__ = ["Health", "State", "judge"]

SECOND_US: Final = 1_000_000
SILENT_US: Final = 10 * SECOND_US  # facts are written every other second
LOG_SILENT_US: Final = (
    5 * SECOND_US
)  # the log is asked every second; after 2 s without it that fails
LOG_SLOW_US: Final = 15 * SECOND_US  # without a failure: the process that asks may be slow as well
BEHIND_US: Final = 5 * SECOND_US  # batches follow each other within less
STALLED_US: Final = 20 * SECOND_US  # a batch takes less, unless the last ones took long as well
STALLED_TIMES: Final = 4  # as long as the slowest of the last batches
STALLED_MAX_US: Final = 120 * SECOND_US  # however long those took
QUIET_US: Final = 10 * SECOND_US  # without an event, after which a pipeline waits for one
SLOW_START_US: Final = 60 * SECOND_US  # Spark takes 5 to 20 s
GATHERING_US: Final = 5 * SECOND_US  # it is said every second that tasks are waited for


class State(enum.Enum):
    """How a pipeline is."""

    STARTING = "starting"
    BACKFILLING = "backfilling"
    WAITING = "waiting for events"
    LIVE = "live"
    BEHIND = "behind"
    STALLED = "stalled"
    LOG_UNREACHABLE = "log unreachable"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"

    @property
    def level(self) -> str:
        """`good`, `wait` (it will pass), `bad` (somebody must look) or `off`."""
        match self:
            case State.LIVE | State.WAITING:
                return "good"
            case State.STARTING | State.BACKFILLING | State.BEHIND | State.STOPPING:
                return "wait"
            case State.STALLED | State.LOG_UNREACHABLE | State.FAILED | State.KILLED:
                return "bad"
            case State.STOPPED | State.UNKNOWN:
                return "off"


@dataclass(frozen=True)
class Health:
    """A state.

    Attributes:
        state: which.
        since_us: since when, microseconds since 1970 UTC; None: nobody knows.
        reason: what is so.
        advice: what to do; empty where there is nothing.
    """

    state: State
    since_us: int | None
    reason: str
    advice: str = ""


def judge(facts: Facts | None, now_us: int, *, alive: bool = True) -> Health:
    """How a pipeline is.

    Args:
        facts: what it has said last; None: it has never said anything.
        now_us: the wall clock.
        alive: whether a process stands behind the facts.
    """
    if facts is None:
        return Health(
            State.UNKNOWN,
            None,
            "No process has reported here: none has run since this state was written, or it runs "
            "elsewhere.",
            "Its last version answers queries. To continue the pipeline: penstock run FILE.",
        )
    return (
        _over(facts, alive=alive)
        or _silent(facts, now_us)
        or _stopping(facts)
        or _backfilling(facts, now_us)
        or _starting(facts, now_us)
        or _log(facts, now_us)
        or _engine(facts, now_us)
        or _reading(facts, now_us)
    )


def _over(facts: Facts, *, alive: bool) -> Health | None:
    again = f"Start it again: {facts.command}" if facts.command else "Start it again"
    if facts.ended_us is not None:
        if facts.error is not None:
            return Health(
                State.FAILED, facts.ended_us, facts.error, f"Committed data is safe. {again}."
            )
        return Health(State.STOPPED, facts.ended_us, "It was stopped.", f"{again}.")
    if not alive:
        return Health(
            State.KILLED,
            facts.said_us,
            f"Its process ({facts.pid} on {facts.machine}) ended without reporting: it was killed, or the "
            "machine went down.",
            f"Committed data is safe. {again}.",
        )
    return None


def _silent(facts: Facts, now_us: int) -> Health | None:
    if now_us - facts.said_us <= SILENT_US:
        return None
    return Health(
        State.STALLED,
        facts.said_us,
        f"Its process ({facts.pid} on {facts.machine}) runs, but has not reported since "
        f"{_clock(facts.said_us)}.",
        f"If it was suspended, resume it: kill -CONT {facts.pid}. Otherwise end it and start it again: "
        "committed data is safe.",
    )


def _stopping(facts: Facts) -> Health | None:
    if facts.stopping_us is None:
        return None
    return Health(
        State.STOPPING,
        facts.stopping_us,
        "The batch in flight ends first.",
        f"If it takes too long, end the process: kill -9 {facts.pid}. Committed data is safe.",
    )


def _log(facts: Facts, now_us: int) -> Health | None:
    """Whether the log answers."""
    heard_us = facts.answered_us or facts.asked_us
    patience_us = LOG_SILENT_US if facts.log_error else LOG_SLOW_US
    if heard_us is None or now_us - heard_us <= patience_us:
        return None
    ever = (
        "has not answered since"
        if facts.answered_us
        else "has never answered. It was first asked at"
    )
    because = f" ({facts.log_error})" if facts.log_error else ""
    if facts.embedded:
        advice = "The pipeline restarts its broker automatically; if it can't, the broker's log says why."
    else:
        advice = (
            f"Check that a broker runs at {facts.log} (log=… of the program). The pipeline continues by "
            "itself when the log answers, and ends after some minutes otherwise; committed data is safe."
        )
    reason = f"The log at {facts.log} {ever} {_clock(heard_us)}{because}."
    return Health(State.LOG_UNREACHABLE, heard_us, reason, advice)


def _backfilling(facts: Facts, now_us: int) -> Health | None:
    """Before a changed program has what is new in it."""
    if facts.backfill is None:
        return None
    if (unreachable := _log(facts, now_us)) is not None:
        return unreachable
    if facts.looked_us is not None and now_us - facts.looked_us > STALLED_MAX_US:
        if (gathering := _gathering(facts, now_us)) is not None:
            return gathering
        return Health(
            State.STALLED,
            facts.looked_us,
            f"No batch of the backfill has ended since {_clock(facts.looked_us)}: {facts.backfill}.",
            f"{_hangs(facts)} The backfill continues where it was, and the previous views answer.",
        )
    return Health(
        State.BACKFILLING,
        facts.backfill_us,
        f"New views are being computed from the log: {facts.backfill}.",
        "The previous views answer until then. If it is stopped, it continues where it was.",
    )


def _starting(facts: Facts, now_us: int) -> Health | None:
    """Before the engine has looked at the log for the first time."""
    if facts.looked_us is not None:
        return None
    if (unreachable := _log(facts, now_us)) is not None:
        return unreachable
    if facts.log is None:
        since_us, what = facts.started_us, "Its log is being opened."
    elif facts.spark_us is None:
        since_us, what = facts.started_us, "Spark is being started."
    else:
        since_us, what = (
            facts.spark_us,
            "Spark runs; its tasks are starting for the first batch.",
        )
    advice = _slow_start(facts, since_us, now_us)
    return Health(State.STARTING, facts.started_us, f"{what}{_waiting(facts)}", advice)


def _slow_start(facts: Facts, since_us: int, now_us: int) -> str:
    if now_us - since_us <= SLOW_START_US:
        return ""
    return f"This takes long. Spark's log is {facts.directory}/spark/spark.log{_warning(facts)}."


def _gathering(facts: Facts, now_us: int) -> Health | None:
    """Whether no batch ends because Spark, or a part of it, is still being started: the engine gives up
    itself if that takes too long.
    """
    assert facts.looked_us is not None, "else it is starting"
    if facts.gathering_us is not None and now_us - facts.gathering_us <= GATHERING_US:
        what = "Spark starts its tasks."
    elif facts.spark_us is None and now_us - facts.looked_us <= STALLED_MAX_US:
        what = "Spark is being started; batches are slow meanwhile."
    else:
        return None
    advice = _slow_start(facts, facts.looked_us, now_us)
    return Health(State.STARTING, facts.looked_us, f"{what}{_waiting(facts)}", advice)


def _engine(facts: Facts, now_us: int) -> Health | None:
    """Whether the engine looks at the log, or ends batches."""
    assert facts.looked_us is not None, "it has started"
    slowest_us = round(facts.slowest_ms * 1_000)
    patience_us = min(STALLED_MAX_US, max(STALLED_US, STALLED_TIMES * slowest_us))
    # While the log was away there was nothing to look at.
    if now_us - max(facts.looked_us, facts.answering_us or 0) <= patience_us:
        return None
    if (gathering := _gathering(facts, now_us)) is not None:
        return gathering
    usual = f" (they took {facts.slowest_ms / 1_000:.1f} s at most)" if facts.slowest_ms else ""
    return Health(
        State.STALLED,
        facts.looked_us,
        f"No batch has ended since {_clock(facts.looked_us)}{usual}.{_waiting(facts)}",
        f"{_hangs(facts)} Committed data is safe.",
    )


def _reading(facts: Facts, now_us: int) -> Health:
    """Whether the views have what the log holds."""
    if facts.behind_us is not None and now_us - facts.behind_us > BEHIND_US:
        return Health(
            State.BEHIND,
            facts.behind_us,
            f"Records that were in the log at {_clock(facts.behind_us)} are not yet in the views."
            f"{_waiting(facts)}",
            "It catches up unless more comes in than it can read; then give it more cores "
            "(ps.App(cores=…)).",
        )
    if facts.read_us is None or now_us - facts.read_us > QUIET_US:
        return _quiet(facts)
    since_us = facts.abreast_us or facts.looked_us
    return Health(State.LIVE, since_us, "The views have what the log holds.")


def _quiet(facts: Facts) -> Health:
    topics = ", ".join(facts.topics)
    if facts.read_us is not None:
        since_us = facts.read_us
        reason = f"The views have what the log holds. The last event came at {_clock(since_us)}."
    else:
        since_us = facts.spark_us or facts.started_us
        reason = (
            "The views have what the log holds. No event has come since the pipeline was started."
        )
    example = f"penstock produce {facts.topics[0]}" if facts.topics else "penstock produce"
    return Health(
        State.WAITING, since_us, reason, f"Send events to {topics} at {facts.log}: {example}"
    )


def _hangs(facts: Facts) -> str:
    return (
        f"Spark or one of its tasks hangs or is suspended{_warning(facts)}. Spark's log is "
        f"{facts.directory}/spark/spark.log. If it doesn't continue, stop the pipeline and start it again."
    )


def _waiting(facts: Facts) -> str:
    lag = sum((facts.lag or {}).values())
    return f" {lag:,} record{' waits' if lag == 1 else 's wait'} in the log." if lag else ""


def _warning(facts: Facts) -> str:
    return f". Its last warning: {facts.warning}" if facts.warning else ""


def _clock(us: int) -> str:
    """An instant for a sentence; the day is that of the state's `since`."""
    return f"{instant_text(us // SECOND_US * SECOND_US)[11:19]} UTC"
