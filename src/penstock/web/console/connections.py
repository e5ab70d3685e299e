"""Captures, sinks and queues of a log, for the page: what each does, since when, and what helps.

Sinks report next to their groups' offsets (`penstock.sinks`), captures in the topic with their state
(`penstock.capture`). Both are read as plain JSON here: the page shows those of any release.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.client import Client, Reader
from penstock.client.share import ShareClient
from penstock.core.time import instant_text
from penstock.errors import PenstockError
from penstock.follow.listing import listed
from penstock.follow.report import group_of, reported
from penstock.sinks import letters_topic
from penstock.web.states import sink_state, state_of, whole

if TYPE_CHECKING:
    from penstock.web.status import PartState

__all__ = ["all_connections", "capture_state"]

CAPTURE_SUFFIX: Final = ".capture"
CONTROL_SUFFIX: Final = ".capture.control"
QUEUE_LETTERS: Final = "dlq."
LOOKED_BACK: Final = 1_000
"""Records before the end that are read first: a transaction's markers lie after a state."""
STORED_MS: Final = 60_000
"""A capture that stored nothing for so long may be idle or stopped: only its database knows."""


def capture_state(
    name: str, found: Mapping[str, Any] | None, control: str, now_ms: int
) -> PartState:
    """How a capture is, as far as the log knows; like `sink_state`.

    Args:
        name: the capture's.
        found: its stored state; None: it stored none.
        control: the last command to it: `pause`, `resume`, or nothing.
        now_ms: the time, since 1970.
    """
    stored_ms = None if found is None else whole(found.get("stored_ms"))
    if control == "pause":
        reason = "It was paused. The database keeps its log meanwhile, which takes space there."
        return state_of(
            "paused", "warn", stored_ms, reason, f"Resume it: penstock capture resume {name}"
        )
    if found is None:
        reason = "It has stored no position yet: the snapshot isn't complete, or it couldn't begin."
        return state_of("snapshot", "wait", None, reason, "Look at the output of its process.")
    if stored_ms is not None and now_ms - stored_ms <= STORED_MS:
        return state_of("running", "good", stored_ms, "", "")
    reason = "It has stored no new position since: the database is idle, or the capture is stopped."
    advice = f"penstock capture status {name} asks the database."
    return state_of("no changes", "wait", stored_ms, reason, advice)


def sinks(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each sink with its topic, lag, counts and state, by name."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for one in listed(address, "sink", **settings):
        behind_s = one.behind_s
        found.append(
            {
                "name": one.name,
                "group": group_of(one.kind, one.name),
                "topics": one.topics,
                "target": str(one.about.get("target", "")),
                "lag": one.lag,
                "behind_ms": None if behind_s is None else round(behind_s * 1_000),
                "progress": one.about.get("progress"),
                "breaker": str(one.about.get("breaker", "")),
                "last_error": one.last_error,
                "letters_topic": letters_topic(one.name),
                "state": sink_state(one.report, now_ms),
                **{key: whole(one.about.get(key)) for key in ("upserts", "deletes", "dead")},
            }
        )
    return found


def captures(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each capture with its database, tables and state, by name."""
    now_ms = time.time_ns() // 1_000_000
    found_all = []
    with Client(address, **settings) as client, Reader(address, **settings) as reader:
        topics = client.topics()
        for topic in sorted(topics):
            if not topic.endswith(CAPTURE_SUFFIX):
                continue
            name = topic.removesuffix(CAPTURE_SUFFIX)
            stored = _last(client, reader, topic)
            control = f"{name}{CONTROL_SUFFIX}"
            command = _last(client, reader, control) if control in topics else None
            found = None if stored is None else reported(stored)
            if stored is not None and (found is None or "server" not in found):
                continue  # a topic of somebody else's
            about = found or {}
            time_us = whole(about.get("time_us"))
            tables = about.get("tables") or {}
            found_all.append(
                {
                    "name": name,
                    "database": str(about.get("server", "")),
                    "tables": [
                        {"name": table, "topic": one.get("topic"), "rows": one.get("rows")}
                        for table, one in sorted(tables.items())
                    ],
                    "newest": instant_text(time_us) if time_us else None,
                    "owner": str(about.get("owner", "")),
                    "state": capture_state(
                        name, found, (command or b"").decode("utf-8", "replace"), now_ms
                    ),
                }
            )
    return found_all


def queues(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each queue that has workers, with what waits in it, by name."""
    found = []
    with Client(address, **settings) as client, ShareClient(address, **settings) as shares:
        topics = client.topics()
        for group, state in sorted(shares.share_groups().items()):
            waiting: dict[str, int] = {}
            for one in shares.share_offsets(group):
                waiting[one.topic] = waiting.get(one.topic, 0) + max(one.waiting, 0)
            members = shares.share_members(group)
            for topic, count in sorted(waiting.items()):
                letters = f"{QUEUE_LETTERS}{topic}"
                found.append(
                    {
                        "name": topic,
                        "workers": group,
                        "members": members,
                        "waiting": count,
                        "dead": _records(client, letters) if letters in topics else 0,
                        "state": _queue_state(topic, count, members, state),
                    }
                )
    return found


def _queue_state(topic: str, waiting: int, members: int, state: str) -> PartState:
    if waiting and not members:
        reason = f"{waiting:,} jobs wait and no worker is connected."
        return state_of(
            "no workers", "bad", None, reason, f"penstock queue work {topic} -- COMMAND"
        )
    return state_of(state.lower() or "empty", "good" if members else "wait", None, "", "")


def _records(client: Client, topic: str) -> int:
    starts, ends = client.offsets(topic, "earliest"), client.offsets(topic, "latest")
    return sum(end - starts.get(p, 0) for p, end in ends.items())


def _last(client: Client, reader: Reader, topic: str) -> bytes | None:
    """The newest value of a topic's first partition; None where there is none."""
    first, end = client.offsets(topic, "earliest")[0], client.offsets(topic, "latest")[0]
    for begin in (max(first, end - LOOKED_BACK), first):
        newest: bytes | None = None
        for records in reader.read(topic, 0, begin, end, missing="skip"):
            values = records.values()
            if len(values):
                newest = values[-1].as_py()
        if newest is not None:
            return newest
    return None


def all_connections(address: str, **settings: Any) -> dict[str, Any]:
    """Captures, sinks and queues; a part that the broker refuses is an error text and no list."""
    found: dict[str, Any] = {}
    for name, ask in (("captures", captures), ("sinks", sinks), ("queues", queues)):
        try:
            found[name] = ask(address, **settings)
        except PenstockError as error:
            found[name], found[f"{name}_error"] = [], str(error)
    return found
