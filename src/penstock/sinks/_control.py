"""What is done with sinks from outside: they are paused, looked at, and their tables rebuilt.

A sink may run anywhere, so it is controlled by a record of the log: the newest one of `NAME.sink.control`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa

from penstock.client import Client, Producer
from penstock.client.groups import GroupAdmin
from penstock.core.names import unknown
from penstock.errors import LimitError, SetupError, UserError
from penstock.sinks._report import sink_phase
from penstock.sinks._sink import GROUP_PREFIX, Followed, Sink, control_topic
from penstock.sinks._targets.contract import Switchable, Target
from penstock.wire.positions import Position

__all__ = ["go_back", "pause", "rebuild", "resume", "status", "wait_for"]

LOOK_S: Final = 0.1
"""Between two looks whether a sink has passed a position."""
NO_SINKS: Final = "Start one: penstock sink TOPIC TARGET"


def pause(address: str, name: str, **settings: Any) -> None:
    """Pauses a sink within a second or so, also one that starts later; its offsets stay.

    Args:
        address: the broker's.
        name: the sink's.
        settings: as of `penstock.client.Client`.

    Raises:
        UserError: no sink of this name has ever run.
    """
    _tell(address, name, "pause", settings)


def resume(address: str, name: str, **settings: Any) -> None:
    """Lets a paused sink continue. Arguments and errors as of `pause`."""
    _tell(address, name, "resume", settings)


def _tell(address: str, name: str, what: Literal["pause", "resume"], settings: Any) -> None:
    known = [one["name"] for one in status(address, **settings)]
    if name not in known:
        raise UserError(unknown("sink", name, known, NO_SINKS))
    topic = control_topic(name)
    with Client(address, **settings) as client, Producer(address, **settings) as producer:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"}, exists_ok=True)
        now_ms = np.array([time.time_ns() // 1_000_000])
        key = pa.array([b"command"], pa.binary())
        producer.send(topic, 0, key, pa.array([what.encode()], pa.binary()), now_ms)


def status(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each sink that has run with a log, by name.

    Returns:
        `name`, `topic`, `phase` (of `Followed`, or `silent`: it was killed, or hangs), `breaker`, the state
        of its circuit breaker, `lag` in records, `behind_s`, seconds since the target last had all of them,
        `progress`, the part of the topic's records that is in the target, from 0 to 1, `upserts`, `deletes`,
        `dead` and `retries` since it began, `target`, `trouble`, `last_error`, and `reported_ms`, the time
        of its last report since 1970.
    """
    found = []
    with GroupAdmin(address, **settings) as admin:
        for one in admin.list_groups():
            if not one.name.startswith(GROUP_PREFIX):
                continue
            positions = admin.positions(one.name)
            told = max(map(_report, positions), key=lambda r: r.get("at_ms", 0), default={})
            names = ("upserts", "deletes", "dead", "retries", "target", "breaker", "progress")
            counts = {name: told.get(name) for name in names}
            lag = sum(p.lag for p in positions)
            found.append(
                {
                    "name": one.name.removeprefix(GROUP_PREFIX),
                    "topic": next((p.topic for p in positions), ""),
                    "phase": sink_phase(told, time.time_ns() // 1_000_000),
                    "lag": lag,
                    "behind_s": _behind_s(told) if lag else 0.0,
                    **counts,
                    "trouble": told.get("trouble", ""),
                    "last_error": told.get("trouble") or told.get("last_error", ""),
                    "reported_ms": told.get("at_ms"),
                }
            )
    return sorted(found, key=lambda one: str(one["name"]))


def _report(position: Any) -> dict[str, Any]:
    try:
        told = orjson.loads(position.metadata)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _behind_s(told: dict[str, Any]) -> float | None:
    at_ms, behind_ms = told.get("at_ms"), told.get("behind_ms")
    if not isinstance(at_ms, int) or not isinstance(behind_ms, int):
        return None
    return (behind_ms + max(time.time_ns() // 1_000_000 - at_ms, 0)) / 1_000


def wait_for(address: str, name: str, token: str, timeout: float = 10.0, **settings: Any) -> None:
    """Waits until a sink's target has what was written to its topic.

    The offsets that a sink commits to the log, once a second, are behind those in its target, never ahead.

    Args:
        address: the broker's.
        name: the sink's.
        token: where the written records are, `topic-partition:offset`, with commas between several.
        timeout: in seconds.
        settings: as of `penstock.client.Client`.

    Raises:
        UserError: the token is none, or is of another topic; no sink of this name has ever run.
        LimitError: the sink hasn't passed it in time.
    """
    positions, deadline = Position.parse_all(token), time.monotonic() + timeout
    with Client(address, **settings) as client:
        while True:
            offsets: dict[str, dict[str, int]] = {}
            for (topic, partition), offset in client.committed(GROUP_PREFIX + name).items():
                offsets.setdefault(topic, {})[str(partition)] = offset
            if not offsets:
                known = [one["name"] for one in status(address, **settings)]
                raise UserError(unknown("sink", name, known, NO_SINKS))
            if all(one.is_in(offsets) for one in positions):
                return
            if time.monotonic() >= deadline:
                raise LimitError(
                    f"expected the sink {name!r} to have written {token} within {timeout:g} s; found that it "
                    "has not. Ask again, or see whether it runs: penstock sink status"
                )
            time.sleep(LOOK_S)


def rebuild(sink: Sink) -> Followed:
    """Rebuilds a sink's table from the topic, next to the live one, and puts it in its place.

    The live one stays as it is, and is written by its sink, until `TABLE__new` has all that the topic has.
    Then that takes its place, with its offsets; the old one is `TABLE__old` until the next time. A sink that
    runs continues with the new one by itself. If this is killed, the next one continues.

    Args:
        sink: as the live one is, with what the new table should have.

    Raises:
        UserError: the target has nothing that can take another one's place.
        SetupError: the target is away.
    """
    target = _switchable(sink)
    with _reported(target):
        new = target.beside(sink.name, sink.rows)
    done = sink.beside(new, f"{sink.name}.rebuild").run(until=lambda done: done.lag == 0)
    with _reported(target):
        target.switch(sink.name, sink.rows)
    return done


def go_back(sink: Sink) -> None:
    """Puts `TABLE__old` back in its place, with its offsets, and the live table aside in turn.

    Raises:
        UserError: there is no such table.
        SetupError: the target is away.
    """
    target = _switchable(sink)
    with _reported(target):
        target.go_back(sink.name, sink.rows)


def _switchable(sink: Sink) -> Switchable:
    target = sink.target
    if not isinstance(target, Switchable):
        raise UserError(
            "expected a target in which one table, index or directory can take the place of another; found "
            f"{target.name}: topics and URLs have names that their readers know. Let a sink with another "
            "name=… write another one, and read that"
        )
    return target


@contextlib.contextmanager
def _reported(target: Target) -> Iterator[None]:
    """Transient errors are reported to the one who waits.

    Raises:
        SetupError: the target can't be reached, or another process holds what is needed.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *target.passing)):
            raise
        raise SetupError(
            f"expected to read and write {target.name}; found: {str(error).strip()}. Run this again, it "
            "continues. A file that one process at a time can open is free while its sink is paused"
        ) from None
    finally:
        target.close()
