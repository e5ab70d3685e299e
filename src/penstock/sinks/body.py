"""What a sink does while it is followed: records of a topic are read, and written to the target.

    invariant: the target has what the records before its offsets come to, and of no other record anything

Offsets are written in the target's own transaction, so it says itself how far it is; the group's offsets
in the log only show the lag. (Of a target that can't keep any, they are the ones that count.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock.client import Client, Producer
from penstock.core.names import hint
from penstock.errors import SetupError
from penstock.follow.follower import Body
from penstock.follow.report import Doing
from penstock.formats.changelog import ChangelogDecoder, Changes
from penstock.formats.registered import RegisteredChangelog
from penstock.sinks.checks import check_key
from penstock.sinks.figures import FollowingFigures
from penstock.sinks.letters import Letters
from penstock.sinks.merging import Merging
from penstock.sinks.names import KIND, letters_topic
from penstock.sinks.targets.contract import Batch, RefusedError, Rows, Sorting, Target
from penstock.wire.columns import Records

__all__ = ["STEP_OFFSETS", "Followed", "Following"]

SORTED_MAX: Final = 1_000
"""Changes among which the target finds those that it refuses in one transaction, where it can do so. Of more,
the halves are transactions: mostly few are refused, and locks aren't held for long.
"""
STEP_OFFSETS: Final = 50_000
"""Records of a transaction of the target, at most; less where a sink's `batch_records` says so."""
CHUNK_BYTES: Final = 4 << 20
"""Bytes that are read from the log at a time, and are in memory."""
WAIT_S: Final = 0.5
"""How long a poll waits for records."""
PATIENT_S: Final = 1.0
"""How long a topic may not exist before that is said."""
_log = logging.getLogger(__name__)


@dataclass
class Followed(Doing):
    """What a sink has done since it began.

    Attributes:
        phase: `starting`, `following`, `waiting` (for the target or the log), `paused`, `failed` or
            `stopped`.
        upserts: rows written.
        deletes: keys deleted.
        dead: records that don't fit, or that the target refused: they are dead letters.
        retries: how often it tried again after an error that passes.
        lag: records that are in the log and not in the target.
        behind_s: seconds since the target last had all of them; 0 where it has.
        progress: the part of the topic's records that is in the target, from 0 to 1; None: not known yet.
        offsets: the next ones, by partition.
        trouble: why it waits; empty if it doesn't.
        last_error: the last error, also after it has passed.
        breaker: the circuit breaker's state; nothing is sent to the target while it is `open`.
    """

    upserts: int = 0
    deletes: int = 0
    dead: int = 0
    lag: int | None = None
    behind_s: float = 0.0
    progress: float | None = None
    offsets: dict[int, int] = field(default_factory=dict)


class Following(Body[Followed]):
    """Records of a topic into a target.

    Args:
        name: the sink's.
        target: where to.
        rows: the topic, the columns and the key.
        decoder: of the records.
        merging: of the changes of a key.
        pace_s: the shortest time between two writes; None: the target's.
        batch_records: the most records in a transaction of the target.
    """

    kind = KIND
    needs_reports = True

    def __init__(
        self,
        name: str,
        target: Target,
        rows: Rows,
        decoder: ChangelogDecoder | RegisteredChangelog,
        merging: Merging,
        pace_s: float | None,
        batch_records: int | None,
    ) -> None:
        self.name, self.done = name, Followed()
        self._target, self._rows = target, rows
        self._decoder, self._merging = decoder, merging
        self._pace_s, self._batch_records = pace_s, batch_records
        self._finishes = threading.Event()
        self._is_warned = False  # of values that are left out
        self._first: dict[int, int] = {}
        self._level_at: float | None = None  # when the target had everything

    @property
    def _keeps_offsets(self) -> bool:
        """Whether the target does; else the group's are the ones that count."""
        return self._target.keeps_offsets

    def finish(self) -> None:
        """Ends when all there is was written; from any thread."""
        self._finishes.set()

    def ending(self, error: Exception) -> Exception | None:
        """See `Body`."""
        return None if isinstance(error, tuple(self._target.passing)) else super().ending(error)

    def figures(self) -> FollowingFigures:
        """See `Body`."""
        done = self.done
        if done.lag != 0 and self._level_at is not None:
            done.behind_s = time.monotonic() - self._level_at
        return {
            "topic": self._rows.topic,
            "letters_topic": letters_topic(self.name),
            "source": self._rows.topic,
            "target": self._target.name,
            "lag": done.lag,
            "progress": done.progress,
            "records": done.upserts + done.deletes,
            "upserts": done.upserts,
            "deletes": done.deletes,
            "dead": done.dead,
            "behind_ms": round(done.behind_s * 1_000),
        }

    def places(self, client: Client) -> dict[tuple[str, int], int]:
        """See `Body`; those that were shown last, where the target wasn't opened yet."""
        topic, offsets = self._rows.topic, self.done.offsets
        if not offsets:
            if topic not in client.topics():
                return {}  # nothing to commit, and nothing to wait for
            offsets = self._shown_last(client)
        return {(topic, p): offset for p, offset in offsets.items()}

    def _shown_last(self, client: Client) -> dict[int, int]:
        topic = self._rows.topic
        first, known = client.offsets(topic, "earliest"), client.committed(self.follower.group)
        return {p: known.get((topic, p), offset) for p, offset in first.items()}

    # -- attempts ---------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Follows the topic."""
        if self._level_at is None:
            self._level_at = time.monotonic()
        follower, topic = self.follower, self._rows.topic
        client = follower.client
        with Producer(follower.address, **follower.settings) as producer:
            self._letters = Letters(client, producer, self.name, topic)
            if not self._has_topic(client):
                return
            try:
                self._open(client)
                follower.enter("following")
                follower.report()  # before the target is changed: see `_doubt`
                while self._turn(client):
                    positions = {(topic, p): at for p, at in self.done.offsets.items()}
                    client.wait_for_data(positions, WAIT_S)
            finally:
                self._target.close()

    def _has_topic(self, client: Client) -> bool:
        """Waits for the topic; False if the sink ends or is paused before it exists."""
        began, topic, has_warned = time.monotonic(), self._rows.topic, False
        while topic not in (known := client.topics()):
            if not has_warned and time.monotonic() - began >= PATIENT_S:
                has_warned = True
                missing = f"expected the topic {topic!r}; found none{hint(topic, known)}"
                self.follower.enter("waiting", missing)
                _log.warning("%s: %s. Waiting until it is created", self.name, missing)
            if self._finishes.is_set():
                self.follower.stop()
            if self.follower.look() or self.follower.is_over or self.follower.wait(WAIT_S):
                return False
        return True

    def _open(self, client: Client) -> None:
        """Opens the target, which says how far it is."""
        topic = self._rows.topic
        offsets = self._target.open(self.name, self._rows)
        if not self._keeps_offsets:
            committed = client.committed(self.follower.group, [topic])
            offsets = {p: o for (t, p), o in committed.items() if t == topic}
        self._doubt(client, offsets)
        known = client.offsets(topic, "earliest")
        if not any(offsets.values()):
            ends = client.offsets(topic, "latest")
            check_key(self._rows, self._decoder, self.follower.reader, known, ends)
        for partition, first in known.items():
            if (at := offsets.setdefault(partition, first)) < first:
                _log.warning(
                    "%s: expected %s[%d] to have the records from offset %d on; found that it "
                    "begins at %d: retention has removed %d. They are skipped",
                    *(self.name, topic, partition, at, first, first - at),
                )
        self.done.offsets, self._first = offsets, known

    def _turn(self, client: Client) -> bool:
        """Writes what there is; False if it is over then, or to pause."""
        finishes = self._finishes.is_set()  # before it is asked how much there is
        ends = client.offsets(self._rows.topic, "latest")
        self._check(self.done.offsets, ends)
        self._catch_up(ends)
        self.follower.succeed()
        is_to_return = self._show(ends)
        if finishes:
            self.follower.stop()
        if is_to_return or self.follower.is_over:
            return False
        self._wait_until_due(ends)
        return True

    def _doubt(self, client: Client, offsets: Mapping[int, int]) -> None:
        """Says so if the topic may be another one of the same name, whose first records are skipped.

        The group has offsets before the target has any. A broker removes them with the topic; but also some
        days after the last of them, and `drop` does, so that this can't be an error.
        """
        topic, behind = self._rows.topic, max(offsets.values(), default=0)
        if not behind or client.committed(self.follower.group, [topic]):
            return
        self.done.last_error = (
            f"expected the group {self.follower.group} to have offsets of {topic!r}, as the target has its "
            f"records up to offset {behind}; found none. If the sink was dropped or hasn't run for days, "
            "nothing is missing. If the topic was deleted and created again, its first records are: empty "
            "the target's table, and choose another name=…"
        )
        _log.warning("%s: %s", self.name, self.done.last_error)

    def rest(self) -> None:
        """Sees how far it is, with the target closed: who opens it alone may have it meanwhile."""
        client, topic = self.follower.client, self._rows.topic
        if not self.done.offsets:
            self._first = client.offsets(topic, "earliest")
            self.done.offsets = self._shown_last(client)
        if self._finishes.is_set():
            self.follower.stop()
        self._see(client.offsets(topic, "latest"))

    def _wait_until_due(self, ends: Mapping[int, int]) -> None:
        """Waits as long as the target wants between writes; not when it is to end."""
        pace_s = self._target.pace_s if self._pace_s is None else self._pace_s
        until = time.monotonic() + pace_s
        while (left := until - time.monotonic()) > 0 and not self._finishes.is_set():
            if self.follower.wait(min(WAIT_S, left)):
                return
            self._show(ends)

    def _check(self, offsets: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Whether the topic is the one that was followed.

        Raises:
            SetupError: it is shorter than what was read of it.
        """
        for partition, offset in offsets.items():
            if offset > ends.get(partition, 0):
                raise SetupError(
                    f"expected {self._rows.topic}[{partition}] to have records up to offset {offset}, as the "
                    f"sink {self.name!r} has written them; found that it ends at {ends.get(partition, 0)}. "
                    "The topic was created again: empty the target's table, and choose another name=…"
                )

    def _catch_up(self, ends: Mapping[int, int]) -> None:
        offsets, is_to_return = self.done.offsets, self.follower.look()
        for partition, end in ends.items():
            at = offsets.setdefault(partition, 0)
            while at < end and not is_to_return:
                stop = min(end, at + (self._batch_records or STEP_OFFSETS))
                for records in self.follower.reader.read(
                    self._rows.topic, partition, at, stop, chunk_bytes=CHUNK_BYTES, missing="skip"
                ):
                    at = int(records.offset[-1]) + 1
                    self._write(records, partition, at)
                if at < stop:  # the last offsets are a transaction's markers
                    at = stop
                    self._write(None, partition, at)
                is_to_return = self._show(ends)

    def _show(self, ends: Mapping[int, int]) -> bool:
        """Shows how far it is; whether it is over, or to pause."""
        self._see(ends)
        return self.follower.look()

    def _see(self, ends: Mapping[int, int]) -> None:
        """Sees how far it is."""
        done = self.done
        done.lag = sum(max(end - done.offsets.get(p, 0), 0) for p, end in ends.items())
        held = sum(end - self._first.get(p, 0) for p, end in ends.items())
        done.progress = max(round(1.0 - done.lag / held, 4), 0.0) if held > 0 else 1.0
        if done.lag == 0:
            self._level_at, done.behind_s = time.monotonic(), 0.0

    # -- records to the target --------------------------------------------------------------------------

    def _write(self, records: Records | None, partition: int, offset: int) -> None:
        if records is None:
            self._target.write(self._nothing, {partition: offset})
        else:
            changes = self._decoder.decode(records)
            if len(changes.bad_rows):
                self._bury(records, changes.bad_rows, changes.reasons, partition)
            self._put(records, changes, slice(0, len(changes.rows)), partition, offset)
        self.follower.succeed()
        self.done.offsets[partition] = offset

    @property
    def _nothing(self) -> Batch:
        none = self._rows.nothing()
        at = np.zeros(0, np.int64)
        return Batch(none, none.select(list(self._rows.key)), at, at, 0)

    def _put(
        self, records: Records, changes: Changes, some: slice, partition: int, offset: int
    ) -> None:
        """Writes some changes, and the offset behind them; those that the target refuses are dead letters.

        They are found by halving. The halves are transactions of their own, in the records' order, each with
        the offset behind it. So what the last rows of some keys break together, such as a unique column when
        two rows exchange their values, is written as the topic's records did it.
        """
        try:
            batch = self._batch(records, changes, some, partition)
            self._target.write(batch, {partition: offset})
        except RefusedError as error:
            count = some.stop - some.start
            if count <= SORTED_MAX and isinstance(self._target, Sorting):
                self._put_rest(self._target, records, changes, some, partition, offset)
                return
            if count > 1:
                middle = (some.start + some.stop) // 2
                behind = int(records.offset[changes.rows[middle]])
                first, second = slice(some.start, middle), slice(middle, some.stop)
                self._put(records, changes, first, partition, behind)
                self._put(records, changes, second, partition, offset)
                return
            self._bury(records, changes.rows[some], [str(error)], partition)
            self._target.write(self._nothing, {partition: offset})
        else:
            self.done.upserts += len(batch.upserts)
            self.done.deletes += len(batch.deletes)

    def _put_rest(
        self,
        target: Sorting,
        records: Records,
        changes: Changes,
        some: slice,
        partition: int,
        offset: int,
    ) -> None:
        """Writes those of some changes that the target takes, in one transaction; see `_put`."""
        rows, first = changes.rows[some], some.start

        def batch(part: slice) -> Batch:
            inner = slice(first + part.start, first + part.stop)
            return self._batch(records, changes, inner, partition)

        def bury(reasons: Sequence[str | None]) -> None:
            refused = [i for i, reason in enumerate(reasons) if reason is not None]
            if refused:
                self._bury(records, rows[refused], [str(reasons[i]) for i in refused], partition)

        for one in target.write_rest(len(rows), batch, {partition: offset}, bury):
            self.done.upserts += len(one.upserts)
            self.done.deletes += len(one.deletes)

    def _batch(self, records: Records, changes: Changes, some: slice, partition: int) -> Batch:
        """Of each key the last change.

        Raises:
            RefusedError: it leaves out a value that the target can't have.
        """
        columns = changes.columns.slice(some.start, some.stop - some.start)
        at = records.offset[changes.rows[some]]
        batch = self._merging.merged(columns, changes.deleted[some], at, partition)
        if batch.kept and self._merging.unchanged == "logged" and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: expected whole rows; found that %s is left out as unchanged. %s is a log of changes: "
                "%r is the value there",
                *(self.name, next(iter(batch.kept)), self._target.name, self._merging.placeholder),
            )
        return batch

    def _bury(self, records: Records, rows: np.ndarray, reasons: list[str], partition: int) -> None:
        self._letters.send(records, rows, reasons, partition)
        self.done.dead += len(rows)
