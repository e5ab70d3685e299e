"""Share partitions on disk: a journal of what changed, one JSON record per change.

    DATA/share/state.journal
    ["w", group, topic, index, start, end, letters, producer, runs]     all of a partition's state
    ["d", group, topic, index, start, end, letters, producer, runs]     some runs of its window
    ["x", group, topic, index]                                          it is forgotten

    run = [first, last, state, count, until, letter, reason]

`topic` is the topic's id in hexadecimal digits, so that a new topic of an old name starts again;
`letters` is the number of the next dead letter, `producer` the producer id that writes them (-1:
none yet), `until` a time of the wall clock (ms) before which an available record is not handed out.
Acquisitions are not written: after a restart no record is acquired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.broker.share.model import Change, Run, State
from penstock.log.disk.files import LogFiles
from penstock.log.disk.journal import Journal

__all__ = ["Entry", "Key", "ShareJournal", "reached_in"]

REWRITE_BYTES_MIN: Final = 16 << 20
"""A journal is rewritten when it is larger than this and mostly obsolete."""
RUN_BYTES: Final = 60
"""What a run takes in the journal, as a rule; for the decision to rewrite."""


class Key(NamedTuple):
    """A partition as a group's."""

    group: str
    topic_id: str
    partition: int


class Entry(NamedTuple):
    """A partition's entry in the journal; `change` is None where it is forgotten."""

    key: Key
    change: Change | None
    producer_id: int = -1


class ShareJournal:
    """The journal of all share partitions.

    Args:
        files: where.
        wall_minus_now_ms: how far the wall clock is ahead of the clock of the state machines.
    """

    def __init__(self, files: LogFiles, wall_minus_now_ms: int) -> None:
        self.journal = Journal(files, "share/state.journal")
        self._ahead_ms = wall_minus_now_ms

    def entries(self, now_ms: int) -> Iterable[Entry]:
        """Everything that was written, in order."""
        for body in self.journal:
            yield self._parse(json.loads(body), now_ms)

    def write(self, key: Key, change: Change, producer_id: int) -> None:
        """Appends a change; durable after the journal's next sync.

        Raises:
            StorageError: the disk is full or failed; nothing is written.
        """
        self.journal.append(self._body(key, change, producer_id))

    def forget(self, key: Key) -> None:
        """Appends that a partition is no longer the group's."""
        self.journal.append(_dump(["x", *key]))

    def compact(self, live: Iterable[tuple[Key, Change, int]]) -> None:
        """Rewrites the journal if most of it is obsolete. No sync may be under way."""
        if self.journal.size <= REWRITE_BYTES_MIN:
            return
        kept = list(live)
        if self.journal.size > 2 * RUN_BYTES * sum(3 + len(one[1].runs) for one in kept):
            self.journal.rewrite(self._body(*one) for one in kept)

    def _body(self, key: Key, change: Change, producer_id: int) -> bytes:
        runs: list[list[Any]] = []
        for run in change.runs:
            is_delayed = run.state is State.AVAILABLE and run.until_ms
            until = run.until_ms + self._ahead_ms if is_delayed else 0
            one: list[Any] = [run.first, run.last, int(run.state), run.count]
            if until or run.letter >= 0:
                one += [until, run.letter, run.reason]
            runs.append(one)
        kind = "w" if change.is_whole else "d"
        head = [kind, *key, change.start_offset, change.end_offset, change.next_letter, producer_id]
        return _dump([*head, runs])

    def _parse(self, body: list[Any], now_ms: int) -> Entry:
        kind, group, topic_id, index, *rest = body
        key = Key(group, topic_id, index)
        if kind == "x":
            return Entry(key, None)
        start, end, next_letter, producer_id, runs = rest
        found = [self._run(one, now_ms) for one in runs]
        return Entry(key, Change(start, end, next_letter, found, kind == "w"), producer_id)

    def _run(self, row: list[Any], now_ms: int) -> Run:
        first, last, state, count, *rest = row
        until, letter, reason = rest or (0, -1, "")
        until_ms = max(until - self._ahead_ms, now_ms + 1) if until else 0
        return Run(first, last, State(state), count, until_ms, letter=letter, reason=reason)


def reached_in(bodies: Iterable[bytes]) -> dict[tuple[str, int], tuple[int, str]]:
    """Up to where partitions once were, by topic id and number, according to a journal, and the group that
    was given records up to there.
    """
    ends: dict[Key, int] = {}
    for kind, group, topic_id, index, *rest in map(json.loads, bodies):
        key = Key(group, topic_id, index)
        if kind == "x":
            ends.pop(key, None)
        else:
            ends[key] = rest[1]
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for key, end in ends.items():
        place = key.topic_id, key.partition
        found[place] = max(found.get(place, (0, "")), (end, key.group))
    return found


def _dump(body: list[Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
