"""`Sink`: a target follows a topic, with a pace and offsets of its own.

    invariant: the target has what the records before its offsets come to, and of no other record anything

Offsets are written in the target's own transaction, so it says itself how far it is; the group's offsets
in the log only show the lag. (Of a target that can't keep any, they are the ones that count.)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from penstock.client import Client, Producer, Reader
from penstock.client.schemas import registered_kinds, registered_schemas
from penstock.core.delta import PLACEHOLDER
from penstock.core.names import hint
from penstock.core.schema import JSON, Schema
from penstock.errors import BrokerError, FencedError, SetupError, UserError
from penstock.flow.checks import check_changelog
from penstock.formats.changelog import ChangelogDecoder, ChangelogFormat, Changes
from penstock.formats.registered import (
    Encoded,
    RegisteredChangelog,
    RegisteredFormat,
    registered_changelog,
)
from penstock.sinks._breaker import Breaker, Circuit
from penstock.sinks._checks import check_batching, check_key
from penstock.sinks._control import forget
from penstock.sinks._letters import Letters
from penstock.sinks._merging import Merging
from penstock.sinks._report import GROUP_PREFIX, control_topic, letters_topic, report
from penstock.sinks._targets.contract import Batch, RefusedError, Rows, Sorting, Target
from penstock.wire.columns import Records

__all__ = ["Followed", "Sink"]


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
SHOWN_S: Final = 1.0
"""How often the group's offsets, which show the lag, are committed to the log."""
REPORT_S: Final = 5.0
"""How long a sink that waits or ends tries to say so, and how often one that waits does."""
BACKOFF_S: Final = (0.2, 30.0)
"""The first pause after an error that passes, and the longest; doubled each time, with jitter."""
_log = logging.getLogger(__name__)


@dataclass
class Followed:
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

    phase: str = "starting"
    upserts: int = 0
    deletes: int = 0
    dead: int = 0
    retries: int = 0
    lag: int | None = None
    behind_s: float = 0.0
    progress: float | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    trouble: str = ""
    last_error: str = ""
    breaker: Circuit = "closed"


class Sink:
    """Keeps a table of another system equal to a topic.

    Args:
        target: such as `ps.sinks.postgres(…)`; docs/sinks.md lists them.
        topic: the topic that the sink follows.
        schema: the columns, as for `App.table`.
        key: the column, or columns, that distinguish rows; without one, rows are appended.
        log: the broker's address.
        format: of the records: `json`, `debezium`, `debezium-precise` or `maxwell`; with a registry: `avro`,
            `json-schema` or `protobuf`, rows, or `debezium`, envelopes of any of these.
        registry: the URL of the schema registry that knows the records' schemas.
        name: the name under which offsets are stored; by default `TOPIC.TABLE`. Only one process at a time
            can use a name: a second one fences the first.
        pace_s: the shortest time between two writes, in seconds. Records that arrive in between are
            written together. By default the target's, which is 0 if a write costs little. The last
            records of a run don't wait.
        batch_records: the most records in a transaction of the target; 4 MiB is another limit.
        placeholder: the text that stands for a large value that an update didn't change, if Debezium's
            `unavailable.value.placeholder` is set. The target keeps its value.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: an argument is wrong.
    """

    def __init__(
        self,
        target: Target,
        topic: str,
        schema: str | Schema,
        *,
        key: str | tuple[str, ...] = (),
        log: str = "127.0.0.1:9092",
        format: ChangelogFormat | RegisteredFormat = "json",  # noqa: A002 - the field's name
        registry: str | None = None,
        name: str | None = None,
        pace_s: float | None = None,
        batch_records: int | None = None,
        placeholder: str = PLACEHOLDER,
        **settings: Any,
    ) -> None:
        check_batching(pace_s, batch_records, STEP_OFFSETS)
        columns = Schema.parse(schema) if isinstance(schema, str) else schema
        keys = (key,) if isinstance(key, str) else tuple(key)
        for one in keys:
            if columns[one].type == JSON:  # a column that isn't there raises an error as well
                raise UserError(f"expected a key of single values; found {one!r}, which is JSON")
        # A NULL has no place in a key: some targets refuse it, others would take it for a text.
        columns = Schema(tuple(replace(f, required=f.required or f.name in keys) for f in columns))
        changes, encoded = check_changelog(format, registry)
        if changes != "json" and not keys:
            raise UserError(f"expected a key with format={format!r}; found none")
        self._target, self._rows = target, Rows(topic, columns, keys)
        self._format, self._registry = format, registry
        self._decoder = _decoder(columns, keys, changes, encoded)
        self._merging = Merging(self._rows, target, placeholder)
        self._is_warned = False  # of values that are left out
        self._address, self._settings = log.removeprefix("kafka://"), settings
        self.name = name or f"{topic}.{getattr(target, 'table', 'sink')}"
        self._pace_s, self._batch_records = pace_s, batch_records
        self._end, self._finishes = threading.Event(), threading.Event()
        self._is_paused, self._asked = False, 0.0
        self._shown, self._since_ms = 0.0, _now_ms()
        self._level_at = time.monotonic()  # when the target had everything
        self._breaker, self._first = Breaker(*BACKOFF_S), dict[int, int]()
        self.done = Followed()

    @property
    def target(self) -> Target:
        """What it writes to."""
        return self._target

    @property
    def rows(self) -> Rows:
        """What it follows: the topic, the columns and the key."""
        return self._rows

    def beside(self, target: Target, name: str) -> Sink:
        """Another sink of the same records, with a target and a name of its own."""
        topic, schema, key = self._rows.topic, self._rows.schema, self._rows.key
        settings: dict[str, Any] = {"log": self._address, "format": self._format, **self._settings}
        settings |= {"registry": self._registry, "batch_records": self._batch_records}
        settings["placeholder"] = self._merging.placeholder
        return Sink(target, topic, schema, key=key, name=name, **settings)

    @property
    def _keeps_offsets(self) -> bool:
        """Whether the target does; else the group's are the ones that count."""
        return getattr(self._target, "keeps_offsets", True)

    @property
    def group(self) -> str:
        """The consumer group whose offsets show the lag."""
        return GROUP_PREFIX + self.name

    def stop(self) -> None:
        """Ends `run` soon. Can be called from any thread."""
        self._end.set()

    def finish(self) -> None:
        """Ends `run` when all there is was written; from any thread."""
        self._finishes.set()

    def forget(self) -> None:
        """Deletes what the log has of the sink, except its dead letters. It must not run."""
        forget(self._address, self.name, **self._settings)

    def run(self, *, until: Callable[[Followed], bool] | None = None) -> Followed:
        """Follows the topic until it is stopped. While the target or the log is unavailable, it waits.

        Args:
            until: polled; `run` ends when it returns true.

        Raises:
            FencedError: another process has begun under this name.
            UserError: the target's table doesn't fit.
            SetupError: the target can't be used.
        """
        while not self._is_over(until):
            self._breaker.attempt()
            self.done.breaker = self._breaker.state
            try:
                if self._is_paused:
                    self._rest(until)
                else:
                    self._session(until)
            except FencedError:
                raise  # the other process reports from now on
            except Exception as error:
                if not isinstance(error, (BrokerError, OSError, *self._target.passing)):
                    self._enter("failed", str(error).strip() or type(error).__name__)
                    self._report()
                    raise
                pause_s = self._breaker.fail()
                self.done.breaker = self._breaker.state
                self.done.retries += 1
                self._enter("waiting", str(error).strip() or type(error).__name__)
                self._report()
                _log.warning("%s: %s; trying again", self.name, self.done.trouble)
                self._wait(pause_s)
        self._enter("stopped", "")
        self._report()
        return self.done

    def _wait(self, seconds: float) -> None:
        """Waits, and says so meanwhile: who is silent is taken for dead."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._end.wait(min(left, REPORT_S)):
            self._report()

    def _enter(self, phase: str, trouble: str) -> None:
        if phase != self.done.phase:
            self._since_ms = _now_ms()
        self.done.phase, self.done.trouble = phase, trouble
        self.done.last_error = trouble or self.done.last_error

    def _succeed(self) -> None:
        self._breaker.succeed()
        self.done.breaker = self._breaker.state

    def figures(self) -> dict[str, Any]:
        """What this sink does now, as values of JSON; `Followed` describes them.

        Returns:
            `topic`, `letters_topic`, `target` (without a password), `phase`, `breaker`, `trouble`,
            `last_error`, `lag`, `progress`, `upserts`, `deletes`, `dead`, `retries`, `behind_ms`;
            `since_ms`, when the phase began, and `at_ms`, now, in milliseconds since 1970.
        """
        done = self.done
        return {
            "phase": done.phase,
            "since_ms": self._since_ms,
            "at_ms": _now_ms(),
            "topic": self._rows.topic,
            "letters_topic": letters_topic(self.name),
            "target": str(getattr(self._target, "name", "")),
            "breaker": done.breaker,
            "trouble": done.trouble,
            "last_error": done.trouble or done.last_error,
            "lag": done.lag,
            "progress": done.progress,
            "upserts": done.upserts,
            "deletes": done.deletes,
            "dead": done.dead,
            "retries": done.retries,
            "behind_ms": round(done.behind_s * 1_000),
        }

    def _report(self, client: Client | None = None) -> None:
        """Commits the group's offsets, which show the lag, with what this sink says about itself."""
        done, topic = self.done, self._rows.topic
        if done.lag != 0:
            done.behind_s = time.monotonic() - self._level_at
        metadata = report(self.figures())
        if client is not None:
            client.commit(self.group, {(topic, p): o for p, o in done.offsets.items()}, metadata)
            return
        with (
            contextlib.suppress(BrokerError, OSError),  # it tries again, or has said why it ends
            Client(self._address, **{"patience_s": REPORT_S, **self._settings}) as one,
        ):
            if topic not in one.topics():
                return  # nothing to commit, and nothing to wait for
            offsets = done.offsets or one.offsets(topic, "earliest")
            known = one.committed(self.group) if not done.offsets else {}
            places = {(topic, p): known.get((topic, p), o) for p, o in offsets.items()}
            one.commit(self.group, places, metadata)

    def _is_over(self, until: Callable[[Followed], bool] | None) -> bool:
        return self._end.is_set() or (until is not None and until(self.done))

    def _session(self, until: Callable[[Followed], bool] | None) -> None:
        topic, settings = self._rows.topic, self._settings
        with (
            Client(self._address, **settings) as client,
            Reader(self._address, **settings) as reader,
            Producer(self._address, **settings) as producer,
        ):
            self._letters = Letters(client, producer, self.name, topic)
            if not self._has_topic(client, until):
                return
            self._hear(client, reader)  # also while the target is away
            if self._is_paused:
                return
            try:
                offsets = self._target.open(self.name, self._rows)
                if not self._keeps_offsets:
                    committed = client.committed(self.group, [topic])
                    offsets = {p: o for (t, p), o in committed.items() if t == topic}
                self._doubt(client, offsets)
                known = client.offsets(topic, "earliest")
                if not any(offsets.values()):
                    ends = client.offsets(topic, "latest")
                    check_key(self._rows, self._decoder, reader, known, ends)
                for partition, first in known.items():
                    if (at := offsets.setdefault(partition, first)) < first:
                        _log.warning(
                            "%s: expected %s[%d] to have the records from offset %d on; found that it "
                            "begins at %d: retention has removed %d. They are skipped",
                            *(self.name, topic, partition, at, first, first - at),
                        )
                self.done.offsets, self._first = offsets, known
                self._enter("following", "")
                self._report(client)  # before the target is changed: see `_doubt`
                while True:
                    finishes = self._finishes.is_set()  # before it is asked how much there is
                    self._hear(client, reader)
                    ends = client.offsets(topic, "latest")
                    self._check(offsets, ends)
                    self._catch_up(reader, ends, client)
                    self._succeed()
                    self._show(client, ends)
                    if finishes:
                        self._end.set()
                    if self._is_paused or self._is_over(until):
                        return
                    self._wait_until_due(client, ends)
                    positions = {(topic, p): offset for p, offset in offsets.items()}
                    client.wait_for_data(positions, WAIT_S)
            finally:
                self._target.close()

    def _doubt(self, client: Client, offsets: Mapping[int, int]) -> None:
        """Says so if the topic may be another one of the same name, whose first records are skipped.

        The group has offsets before the target has any. A broker removes them with the topic; but also some
        days after the last of them, and `drop` does, so that this can't be an error.
        """
        topic, behind = self._rows.topic, max(offsets.values(), default=0)
        if not behind or client.committed(self.group, [topic]):
            return
        self.done.last_error = (
            f"expected the group {self.group} to have offsets of {topic!r}, as the target has its records up "
            f"to offset {behind}; found none. If the sink was dropped or hasn't run for days, nothing is "
            "missing. If the topic was deleted and created again, its first records are: empty the target's "
            "table, and choose another name=…"
        )
        _log.warning("%s: %s", self.name, self.done.last_error)

    def _has_topic(self, client: Client, until: Callable[[Followed], bool] | None) -> bool:
        """Waits for the topic; False if the sink ends or is paused before it exists."""
        began, topic, has_warned = time.monotonic(), self._rows.topic, False
        while topic not in (known := client.topics()):
            if not has_warned and time.monotonic() - began >= SHOWN_S:
                has_warned = True
                self._enter(
                    "waiting", f"expected the topic {topic!r}; found none{hint(topic, known)}"
                )
                _log.warning("%s: %s. Waiting until it is created", self.name, self.done.trouble)
            if self._finishes.is_set():
                self._end.set()
            if self._is_over(until):
                return False
            self._end.wait(WAIT_S)
        return True

    def _rest(self, until: Callable[[Followed], bool] | None) -> None:
        """Is paused, with the target closed: who opens it alone may have it meanwhile."""
        topic = self._rows.topic
        with (
            Client(self._address, **self._settings) as client,
            Reader(self._address, **self._settings) as reader,
        ):
            if not self.done.offsets:  # the target wasn't opened: those that were shown last
                self._first = client.offsets(topic, "earliest")
                known = client.committed(self.group, [topic])
                self.done.offsets = {p: known.get((topic, p), o) for p, o in self._first.items()}
            self._enter("paused", "")
            self._show(client, client.offsets(topic, "latest"))
            while self._is_paused and not self._is_over(until):
                if self._finishes.is_set():
                    self._end.set()
                self._hear(client, reader)
                self._show(client, client.offsets(topic, "latest"))
                self._end.wait(WAIT_S)
        if not self._is_paused:
            self._enter("following", "")

    def _hear(self, client: Client, reader: Reader) -> None:
        """Looks once in a while whether it is to pause or to continue."""
        if time.monotonic() - self._asked < SHOWN_S:
            return
        self._asked, topic = time.monotonic(), control_topic(self.name)
        if topic not in client.topics():
            return
        end = client.offsets(topic)[0]
        for records in reader.read(topic, 0, max(end - 1, 0), end, missing="skip"):
            self._is_paused = records.values()[-1].as_py() == b"pause"

    def _wait_until_due(self, client: Client, ends: Mapping[int, int]) -> None:
        """Waits as long as the target wants between writes; not when it is to end."""
        pace_s = getattr(self._target, "pace_s", 0.0) if self._pace_s is None else self._pace_s
        until = time.monotonic() + pace_s
        while time.monotonic() < until and not self._finishes.is_set():
            if self._end.wait(min(WAIT_S, max(until - time.monotonic(), 0.0))):
                return
            self._show(client, ends)

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

    def _catch_up(self, reader: Reader, ends: Mapping[int, int], client: Client) -> None:
        offsets = self.done.offsets
        for partition, end in ends.items():
            at = offsets.setdefault(partition, 0)
            while at < end and not (self._end.is_set() or self._is_paused):
                stop = min(end, at + (self._batch_records or STEP_OFFSETS))
                for records in reader.read(
                    self._rows.topic, partition, at, stop, chunk_bytes=CHUNK_BYTES, missing="skip"
                ):
                    at = int(records.offset[-1]) + 1
                    self._write(records, partition, at)
                if at < stop:  # the last offsets are a transaction's markers
                    at = stop
                    self._write(None, partition, at)
                self._show(client, ends)
                self._hear(client, reader)

    def _show(self, client: Client, ends: Mapping[int, int]) -> None:
        done = self.done
        done.lag = sum(max(end - done.offsets.get(p, 0), 0) for p, end in ends.items())
        held = sum(end - self._first.get(p, 0) for p, end in ends.items())
        done.progress = max(round(1.0 - done.lag / held, 4), 0.0) if held > 0 else 1.0
        if done.lag == 0:
            self._level_at, done.behind_s = time.monotonic(), 0.0
        if time.monotonic() - self._shown >= SHOWN_S:
            self._shown = time.monotonic()
            self._report(client)

    # -- records to the target --------------------------------------------------------------------------

    def _write(self, records: Records | None, partition: int, offset: int) -> None:
        if records is None:
            self._target.write(self._nothing, {partition: offset})
        else:
            changes = self._decoder.decode(records)
            if len(changes.bad_rows):
                self._bury(records, changes.bad_rows, changes.reasons, partition)
            self._put(records, changes, slice(0, len(changes.rows)), partition, offset)
        self._succeed()
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


def _decoder(
    columns: Schema, keys: tuple[str, ...], changes: ChangelogFormat, encoded: Encoded | None
) -> ChangelogDecoder | RegisteredChangelog:
    """What decodes the records; a registry that is away is waited for as the log is, with reports."""
    if encoded is None:
        return ChangelogDecoder(columns, keys, changes)
    assert changes in ("json", "debezium"), "`check_changelog` lets no other one pass"
    schemas = functools.partial(registered_schemas, patience_s=REPORT_S)
    kinds = functools.partial(registered_kinds, patience_s=REPORT_S)
    return registered_changelog(columns, keys, changes, encoded, schemas, kinds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
