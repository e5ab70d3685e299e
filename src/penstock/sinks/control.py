"""What is done with sinks from outside: they are paused, looked at, and waited for.

A sink may run anywhere, so it is controlled by a record of the log: the newest one of `NAME.sink.control`.
"""

from __future__ import annotations

import time
from typing import Any, Final

from penstock.client import Client
from penstock.core.names import unknown
from penstock.errors import LimitError, UserError
from penstock.follow.control import COMMAND, Command, control_topic, send
from penstock.follow.listing import forget as forget_reports
from penstock.follow.listing import listed
from penstock.follow.report import ENDED, group_of
from penstock.sinks.names import KIND
from penstock.wire.positions import Position

__all__ = ["drop", "forget", "pause", "resume", "status", "wait_for"]

LOOK_S: Final = 0.1
"""Between two looks whether a sink has passed a position."""
NO_SINKS: Final = "Start one: penstock sink TOPIC TARGET"


def pause(address: str, name: str, **settings: Any) -> None:
    """Pauses a sink within a second or so, also one that starts later; its offsets stay.

    Args:
        address: the broker's.
        name: the sink's.
        settings: as for `penstock.client.Client`.

    Raises:
        UserError: no sink of this name has ever run.
    """
    _command(address, name, "pause", settings)


def resume(address: str, name: str, **settings: Any) -> None:
    """Lets a paused sink continue. Arguments and errors as for `pause`."""
    _command(address, name, "resume", settings)


def _command(address: str, name: str, what: Command, settings: dict[str, Any]) -> None:
    known = [one.name for one in listed(address, KIND, **settings)]
    if name not in known:
        raise UserError(unknown("sink", name, known, NO_SINKS))
    send(address, KIND, name, COMMAND, what.encode(), **settings)


def drop(address: str, name: str, **settings: Any) -> None:
    """Forgets a sink that has ended: it is no longer listed or paused. Its table and dead letters stay.

    A target keeps its offsets, so that a sink of this name and target continues. HTTP keeps none: there it
    begins again with the topic's first record.

    Args:
        address: the broker's.
        name: the sink's.
        settings: as for `penstock.client.Client`.

    Raises:
        UserError: no sink of this name has ever run, or it runs.
    """
    phases = {one.name: one.phase for one in listed(address, KIND, **settings)}
    if name not in phases:
        raise UserError(unknown("sink", name, phases, NO_SINKS))
    if phases[name] not in ENDED:
        raise UserError(
            f"expected a sink that has ended; found that {name!r} is {phases[name]}. Stop its process first"
        )
    forget(address, name, **settings)


def forget(address: str, name: str, **settings: Any) -> None:
    """Deletes what the log has of a sink, but for its dead letters."""
    forget_reports(address, KIND, name, **settings)
    with Client(address, **settings) as client:
        client.delete_topic(control_topic(KIND, name), missing_ok=True)


def status(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each sink that has run with a log, by name.

    Returns:
        `name`, `topic`, `phase` (of `Followed`, or `silent`: it was killed, or hangs), `breaker`, the state
        of its circuit breaker, `lag` in records, `behind_s`, seconds since the target last had all of them,
        `progress`, the part of the topic's records that is in the target, from 0 to 1, `upserts`, `deletes`,
        `dead` and `retries` since it began, `target`, `trouble`, `last_error`, and `reported_ms`, the time
        of its last report since 1970.
    """
    names = ("upserts", "deletes", "dead", "retries", "target", "breaker", "progress")
    return [
        {
            "name": one.name,
            "topic": next(iter(one.topics), ""),
            "phase": one.phase,
            "lag": one.lag,
            "behind_s": one.behind_s,
            **{name: one.about.get(name) for name in names},
            "trouble": one.about.get("trouble", ""),
            "last_error": one.last_error,
            "reported_ms": one.about.get("at_ms"),
        }
        for one in listed(address, KIND, **settings)
    ]


def wait_for(address: str, name: str, token: str, timeout: float = 10.0, **settings: Any) -> None:
    """Waits until a sink's target has what was written to its topic.

    The offsets that a sink commits to the log, once a second, are behind those in its target, never ahead.

    Args:
        address: the broker's.
        name: the sink's.
        token: where the written records are, `topic-partition:offset`, with commas between several.
        timeout: in seconds.
        settings: as for `penstock.client.Client`.

    Raises:
        UserError: the token is none, or is of another topic; no sink of this name has ever run.
        LimitError: the sink hasn't passed it in time.
    """
    positions, deadline = Position.parse_all(token), time.monotonic() + timeout
    with Client(address, **settings) as client:
        while True:
            offsets: dict[str, dict[str, int]] = {}
            for (topic, partition), offset in client.committed(group_of(KIND, name)).items():
                offsets.setdefault(topic, {})[str(partition)] = offset
            if not offsets:
                known = [one.name for one in listed(address, KIND, **settings)]
                raise UserError(unknown("sink", name, known, NO_SINKS))
            if all(one.is_in(offsets) for one in positions):
                return
            if time.monotonic() >= deadline:
                raise LimitError(
                    f"expected the sink {name!r} to have written {token} within {timeout:g} s; found that it "
                    "has not. Ask again, or see whether it runs: penstock sink status"
                )
            time.sleep(LOOK_S)
