"""Pipelines in a test: the same operators, in this process, without a JVM or a broker.

    def test_clicks_per_minute():
        run = ps.testing.run(app)
        run.send("clicks", url="/1", at="2026-01-01T12:00:05Z")
        assert run.view("per_minute").rows() == [...]

Records pass through the same bytes as in a broker (record batches of JSON), rows through the same
operators and state, and batches are treated as roughly as a cluster may treat them (see
`penstock.engine.hosts.shaken`), so what holds here holds on Spark.

All that is left to chance is decided by a seed. It is new in every process and printed where pytest shows it
with a failure; `PENSTOCK_SEED=… pytest …`, or `run(app, seed=…)`, repeats a run.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.partitioner import murmur2_partitions
from penstock.core.rows import sent_value
from penstock.core.time import instant_us
from penstock.engine.driver import Progress
from penstock.engine.hosts.local import LocalHost
from penstock.engine.hosts.shaken import ShakenHost, not_the_same
from penstock.engine.log import Outgoing, Writer
from penstock.engine.plan import Execute, Limits, Work
from penstock.engine.record.report import Report
from penstock.engine.runtime import assemble, find_upgrade, upgrade_job
from penstock.engine.store import Store
from penstock.engine.tasks import Job
from penstock.engine.upgrade import Outputs, Upgrade
from penstock.engine.watermarks import LOOK_EVERY_US
from penstock.errors import FencedError, FlowError
from penstock.flow import Flow
from penstock.flow.checks import check_columns, check_duration, check_name, check_number, check_text
from penstock.flow.graph import Graph, Source
from penstock.serve.answers import Once
from penstock.serve.shown.tables import View
from penstock.serve.views import Snapshot
from penstock.state import MemoryStateFiles
from penstock.wire.columns import Records, decode, encode

__all__ = ["CrashPoint", "MemoryLog", "Record", "Run", "View", "run"]

CrashPoint: TypeAlias = Literal["plan", "output", "transaction", "commit"]
FAR_AHEAD: Final = "2100-01-01T00:00:00Z"
CORES_MAX: Final = 256  # shards that a test has any use for
SEED: Final = "PENSTOCK_SEED"
_LOG: Final = logging.getLogger(__name__)
_OWN_SEED: Final = secrets.randbits(32)  # of this process
_shown_tests: set[str] = set()  # tests that have shown their seed


@dataclass(frozen=True)
class Record:
    """A record of a topic, for tests."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: dict[str, str] = field(default_factory=dict)


class MemoryLog:
    """A log in memory (see `penstock.engine.log.Log`)."""

    decode_s = 0.0  # nothing here is worth measuring

    def __init__(self) -> None:
        self._topics: dict[str, list[list[Record]]] = {}
        self._ids: dict[str, str] = {}
        # By partition and writer, in the order of sequences.
        self._stored: dict[tuple[str, int, int, int], list[Record]] = defaultdict(list)
        self._producer_ids = itertools.count(1)
        self.schemas: dict[tuple[str, str, str, str], int] = {}  # by registry, subject, kind, text
        self._writers: dict[str, Writer] = {}  # of transactions, by id
        self._open: dict[str, set[tuple[str, int]]] = {}  # the partitions that were added
        self._offsets: dict[tuple[str, tuple[str, int]], tuple[int, str]] = {}
        self._pending: dict[str, list[Record]] = {}
        self._hidden: set[int] = set()  # records, by identity, of transactions not committed

    def ensure_topic(self, topic: str, partitions: int, retention_us: int | None = None) -> int:  # noqa: ARG002
        """See `Log`."""
        self._ids.setdefault(topic, f"topic {len(self._ids)}")
        return len(self._topics.setdefault(topic, [[] for _ in range(partitions)]))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """See `Log`."""
        return {topic: self._ids[topic] for topic in topics}

    def start_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        return {topic: dict.fromkeys(range(len(self._topics[topic])), 0) for topic in topics}

    def end_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        return {t: {i: len(p) for i, p in enumerate(self._topics[t])} for t in topics}

    def look(  # noqa: D102 - see `Log`
        self,
        offsets: Mapping[tuple[str, int], int],
        timeout_s: float,  # noqa: ARG002
        aside: object = None,  # noqa: ARG002
    ) -> dict[str, dict[int, int]]:
        return self.end_offsets({topic for topic, _ in offsets})

    def expect(self, topic_ids: Mapping[str, str]) -> None:
        """See `Log`: nothing happens between a plan and its reading."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """See `Log`."""
        if records := self._topics[topic][partition][start:end]:
            keys = pa.array([r.key for r in records], pa.binary())
            values = pa.array([r.value for r in records], pa.binary())
            times = np.array([r.timestamp_ms for r in records], np.int64)
            headers = [[(name, t.encode()) for name, t in r.headers.items()] for r in records]
            batches = encode(keys, values, times, base_offset=start, headers=headers)
            yield decode(b"".join(bytes(batch) for batch in batches))

    def schema_id(self, registry: str, subject: str, schema: str, kind: str = "AVRO") -> int:
        """See `Log`: the registry isn't asked."""
        return self.schemas.setdefault((registry, subject, kind, schema), len(self.schemas) + 1)

    def schema_versions(self, registry: str, subject: str) -> Sequence[str]:
        """See `Log`."""
        return [one[-1] for one in self.schemas if one[:2] == (registry, subject)][::-1]

    def new_writer(self) -> Writer:
        """See `Log`."""
        return Writer(next(self._producer_ids), 0)

    def send(self, topic: str, outgoing: Outgoing, writer: Writer) -> None:
        """See `Log`."""
        where = (topic, outgoing.partition, writer.producer_id, writer.epoch)
        self._check_writer(topic, outgoing.partition, writer)
        first = writer.next_sequence.get(outgoing.partition, 0)
        stored = self._stored[where]
        assert first <= len(stored), "a writer's sequence has a gap"
        keys = itertools.repeat(None) if outgoing.keys is None else outgoing.keys.to_pylist()
        values, times = outgoing.values.to_pylist(), outgoing.timestamps_ms.tolist()
        rows = zip(keys, values, times, outgoing.header_pairs(), strict=False)
        for sequence, (key, value, at_ms, named) in enumerate(rows, first):
            if sequence < len(stored):
                _check_same(topic, stored[sequence], key, value, at_ms)
            else:
                record = self.append(topic, outgoing.partition, key, value, at_ms, named)
                stored.append(record)
                if writer.transactional_id is not None:
                    self._pending[writer.transactional_id].append(record)
                    self._hidden.add(id(record))
        writer.next_sequence[outgoing.partition] = first + len(outgoing.values)

    def append(
        self,
        topic: str,
        partition: int,
        key: str | bytes | None,
        value: str | bytes | None,
        timestamp_ms: int,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Record:
        """Appends one record."""
        records = self._topics[topic][partition]
        named = {name: text.decode() for name, text in headers}
        key, value = _bytes(key), _bytes(value)
        records.append(Record(partition, len(records), key, value, timestamp_ms, named))
        return records[-1]

    def begin(self, transactional_id: str) -> Writer:
        """See `Log`."""
        before = self._writers.get(transactional_id)
        if before is None:
            writer = Writer(next(self._producer_ids), 0, transactional_id=transactional_id)
        else:
            writer = replace(before, epoch=before.epoch + 1, next_sequence={})
        self._writers[transactional_id] = writer
        self._open[transactional_id], self._pending[transactional_id] = set(), []
        return writer

    def join(self, writer: Writer, places: Iterable[tuple[str, int]]) -> None:
        """See `Log`."""
        assert writer.transactional_id is not None
        self._check_epoch(writer)
        self._open[writer.transactional_id].update(places)

    def end(self, writer: Writer, place: tuple[str, int], offset: int, note: str) -> None:
        """See `Log`."""
        assert writer.transactional_id is not None
        self._check_epoch(writer)
        self._hidden -= {id(record) for record in self._pending[writer.transactional_id]}
        self._open[writer.transactional_id], self._pending[writer.transactional_id] = set(), []
        self._offsets[writer.transactional_id, place] = offset, note

    def counted(self, group: str, place: tuple[str, int]) -> tuple[int, str]:
        """See `Log`."""
        return self._offsets.get((group, place), (0, ""))

    def _check_writer(self, topic: str, partition: int, writer: Writer) -> None:
        if writer.transactional_id is not None:
            self._check_epoch(writer)
            assert (topic, partition) in self._open[writer.transactional_id], "it was not added"

    def _check_epoch(self, writer: Writer) -> None:
        assert writer.transactional_id is not None
        if self._writers[writer.transactional_id].epoch != writer.epoch:
            raise FencedError("expected the newest epoch of a transactional id; found an older one")

    @property
    def topics(self) -> Mapping[str, list[list[Record]]]:
        """Every topic's partitions."""
        return self._topics

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that count, by partition and offset."""
        found = [record for partition in self._topics.get(topic, []) for record in partition]
        return [record for record in found if id(record) not in self._hidden]

    def close(self) -> None:
        """See `Log`."""


class _Died(BaseException):
    """The process that runs a batch is gone."""


class Run:
    """A pipeline that runs in this process. See `run`."""

    def __init__(
        self, flow: Flow, *, cores: int, now: str | None, shaken: bool, seed: int | None
    ) -> None:
        self._graph = flow.graph()
        self._report = Once()
        self._clock_us = instant_us(check_text(now or FAR_AHEAD, "now", repr(FAR_AHEAD)))
        self._cores = cores
        #: What decides all that is left to chance; None: nothing is.
        self.seed = _seed(seed) if shaken else None
        self._chance = random.Random(self.seed)  # noqa: S311 - repeated by its seed
        self.log = MemoryLog()
        self.store = Store(MemoryStateFiles())
        #: Runs the batches of the upgrade that `begin` gave.
        self.execute_backfill: Execute = _nothing_to_execute
        self._sources = _declared(self._graph)
        self.restart()

    def restart(self) -> None:
        """Lets a new owner take over the pipeline, as after a crash."""
        job, self._driver = assemble(
            self._graph,
            self.store,
            self.log,
            cores=self._cores,
            open_store=lambda: self.store,
            open_log=lambda: self.log,
            wall_us=lambda: self._clock_us,
        )
        self._host = self._host_of(job, self._driver.lanes)

    def _host_of(self, job: Job, lanes: int) -> LocalHost | ShakenHost:
        if self.seed is None:
            return LocalHost(job, lanes=lanes)
        return ShakenHost(job, lanes=lanes, chance=self._chance)

    def change(
        self,
        flow: Flow,
        *,
        cores: int | None = None,
        shards: int | None = None,
        rebuild: bool = False,
        outputs: Outputs | None = None,
        steps: int | None = None,
    ) -> bool:
        """Lets a changed program take over the pipeline.

        Args:
            flow: an app of the same name.
            cores: as for `run`; None leaves them as they are.
            shards: the new number of shards of exchanged state; None leaves it unchanged.
            rebuild: whether all state is computed again.
            outputs: what topics get that the program did not write before: `"all"` or `"new"`; None:
                all if a topic is empty.
            steps: the number of steps after which the upgrade's process dies; None: it doesn't.

        Returns: whether it has taken over; if not, the previous program continues until another `change`.

        Raises:
            FlowError: the upgrade is not possible; the message says why.
        """
        before = self._graph, self._cores, self._sources
        upgrade = self.begin(flow, cores=cores, shards=shards, rebuild=rebuild, outputs=outputs)
        left = itertools.repeat(None) if steps is None else iter([None] * steps)
        while upgrade is not None and not upgrade.done and next(left, self) is not self:
            with self._seeded():
                upgrade.step(self.execute_backfill)
        done = upgrade is None or upgrade.done
        if not done:
            self._graph, self._cores, self._sources = before
        self.restart()
        return done

    def begin(self, flow: Flow, *, cores: int | None = None, **how: Any) -> Upgrade | None:
        """The upgrade to a changed program, which `change` runs to its end; None where there is none.

        Arguments as for `change`.
        """
        how["anew"] = how.pop("rebuild", False)
        graph, cores = flow.graph(), cores or self._cores
        found = find_upgrade(
            graph, self.store, self.log, cores=cores, wall_us=lambda: self._clock_us, **how
        )
        self._graph, self._cores = graph, cores
        self._sources = _declared(graph)
        if found is not None:
            job = upgrade_job(found, lambda: self.store, lambda: self.log)
            if job is not None:
                self.execute_backfill = self._host_of(job, found.target.lanes).execute
        return found

    def send(self, topic: str, /, *, partition: int | None = None, **row: Any) -> None:
        """Appends a row to a topic as JSON. `step`, or reading a view, processes it.

        Args:
            topic: a stream's.
            partition: its number; by default chosen by the stream's or the table's key, or the first. Of a
                stream that has a column of this name it is the column's value.
            row: the columns. A TIMESTAMP may be a time of day, on 2000-01-01: `at="12:00:05"`.

        Raises:
            FlowError: there is no such stream, partition or column; `send_raw` sends anything.
        """
        source = check_name(topic, self._sources, "one of the streams")
        if source.format is not None:
            raise FlowError(
                f"expected a stream of JSON to send rows to; found {topic!r} with {source.format}. Send its "
                "lines with send_raw"
            )
        if "partition" in source.schema.names and partition is not None:
            row, partition = {**row, "partition": partition}, None
        check_columns(tuple(row), source.schema, "send")
        is_flat = source.changelog is not None and source.changelog.format == "flat"
        for name, value in row.items():
            row[name] = sent_value(value, source.schema[name].type, json_is_text=is_flat)
        text = _key_text(source, row)
        if partition is None:
            count = self.log.ensure_topic(topic, source.partitions)
            partition = 0
            if text is not None:
                partition = int(
                    murmur2_partitions(pa.array([text.encode()], pa.binary()), count)[0]
                )
        try:
            body = orjson.dumps(row)
        except TypeError as error:
            raise FlowError(
                f"expected values that JSON can say in {row!r}; found: {error}"
            ) from None
        self.send_raw(topic, body, key=text, partition=partition)

    def send_raw(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | bytes | None = None,
        partition: int = 0,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Appends a record of any content.

        Raises:
            FlowError: there is no such topic or partition, or it is no record.
        """
        count = len(check_name(topic, self.log.topics, "one of the topics"))
        check_number(partition, f"as a partition of {topic!r}", 0, count - 1)
        for what, given in (("value", value), ("key", key)):
            if not isinstance(given, str | bytes | None):
                raise FlowError(f"expected the {what} as bytes or text; found {given!r}")
        at_ms = self._clock_us // 1_000 if timestamp_ms is None else timestamp_ms
        self.log.append(topic, partition, key, value, at_ms, headers)

    def step(self, *, rows: int | None = None) -> Progress | None:
        """Runs one batch; None if there was nothing to do.

        Args:
            rows: most records of each partition; None: all that were sent.
        """
        if rows is not None:
            check_number(rows, "rows", 1, Limits.rows_max)
        self._driver.limits = replace(self._driver.limits, rows_max=rows or Limits.rows_max)
        with self._seeded():
            return self._driver.step(self._host.execute)

    def crash(self, after: CrashPoint = "output") -> bool:
        """Lets the process die during a batch. A new owner takes over and repeats the batch.

        Args:
            after: its last step: `"plan"`, what it reads is written down; `"output"`, topics and the state's
                files are written; `"transaction"`, that has ended, if there is one; `"commit"`, all is done.

        Returns: whether there was a batch to run.
        """
        if after not in get_args(CrashPoint):
            raise FlowError(f"expected after as one of {get_args(CrashPoint)}; found {after!r}")
        commit = self.store.commit

        def execute(work: Work) -> list[Report]:
            if after == "plan":
                work.write()
                raise _Died
            reports = self._host.execute(work)
            if after == "output":
                raise _Died
            return reports

        def committing(*arguments: Any, **more: Any) -> bool:
            if after == "commit":
                commit(*arguments, **more)
            raise _Died

        self.store.commit = committing  # type: ignore[method-assign] # the fault
        try:
            with self._seeded():
                self._driver.step(execute)
        except _Died:
            pass
        else:
            return False
        finally:
            self.store.commit = commit  # type: ignore[method-assign] # as before
        self.restart()
        return True

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        """Adds to an error how it is repeated."""
        try:
            yield
        except Exception as error:
            if self.seed is not None:
                error.add_note(f"ps.testing.run(…, seed={self.seed}) repeats this run")
            raise

    def settle(self) -> None:
        """Runs batches until nothing is left to do."""
        while self.step() is not None:
            pass

    def advance(self, by: str) -> None:
        """Advances the wall clock and runs batches meanwhile; for example, a partition becomes idle."""
        left_us = check_duration(by, "how far to advance", "'1 minute'")
        while left_us > 0:
            self.step()
            self._clock_us += min(left_us, LOOK_EVERY_US)
            left_us -= LOOK_EVERY_US

    def view(self, name: str) -> View:
        """A view's content, after everything that was sent.

        Raises:
            FlowError: there is no such view.
        """
        check_name(name, {view.name: view for view in self._graph.views}, "one of the views")
        self.settle()
        number = self.store.newest_version()
        if number == 0:
            return View(name, pa.table({}))
        snapshot = Snapshot(self.store, self.store.version(number))
        rows, failures = snapshot.counted(name)
        self._report(name, failures)
        return View(name, rows, snapshot.keys(name), failures)

    def _repr_html_(self) -> str:
        """In a notebook: each view's chart and first rows, after everything that was sent."""
        return "".join(self.view(view.name)._repr_html_() for view in self._graph.views)

    def topic(self, name: str) -> list[Record]:
        """The records of a topic, after everything that was sent.

        Raises:
            FlowError: there is no such topic.
        """
        check_name(name, self.log.topics, "one of the topics")
        self.settle()
        return self.log.records(name)

    def dead_letters(self) -> list[Record]:
        """The dead letters, after everything that was sent."""
        return self.topic(f"{self._graph.name}.dead-letters")


def _nothing_to_execute(work: Work) -> list[Report]:
    raise AssertionError(work.attempt())


def run(
    flow: Flow,
    *,
    cores: int = 2,
    now: str | None = None,
    shaken: bool = True,
    seed: int | None = None,
) -> Run:
    """Runs a pipeline in this process.

    Args:
        flow: an app.
        cores: the number of shards of exchanged state.
        now: the wall clock, ISO 8601; by default far in the future, so that no event time is ahead of
            it.
        shaken: whether batches are cut, repeated and interrupted as on a cluster; otherwise each runs
            once, in one piece.
        seed: the seed of these choices; by default `PENSTOCK_SEED` from the environment, or a new number
            in each process.

    Raises:
        FlowError: `flow` is not an app, or computes nothing.
    """
    if not isinstance(flow, Flow):
        raise _no_flow(flow)
    check_number(cores, "cores", 1, CORES_MAX)
    return Run(flow, cores=cores, now=now, shaken=shaken, seed=seed)


def _declared(graph: Graph) -> dict[str, Source]:
    return {source.topic: source for source in (*graph.sources, *graph.unused)}


def _seed(given: int | None) -> int:
    """The seed of a run. A test that may fail shows how to repeat it, once."""
    if given is not None:
        return given
    text = os.environ.get(SEED, str(_OWN_SEED))
    try:
        seed = int(text)
    except ValueError:
        raise FlowError(f"expected a whole number in {SEED}; found {text!r}") from None
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is not None and test not in _shown_tests:
        _shown_tests.add(test)
        # A log, not print: pytest shows it where a test fails, and no test finds it in its own output.
        _LOG.warning("%s=%d repeats what ps.testing has left to chance", SEED, seed)
    return seed


def _check_same(topic: str, known: Record, key: Any, value: Any, at_ms: int) -> None:
    """Asserts that a record that is written again is the one that is there."""
    again = Record(known.partition, known.offset, _bytes(key), _bytes(value), at_ms, known.headers)
    if again != known:
        raise not_the_same(f"records in {topic}: {known} and {again}")


def _key_text(source: Source, row: Mapping[str, Any]) -> str | None:
    """The key of a row's record."""
    if source.changelog is None:
        key = row.get(source.key) if source.key else None
        return None if key is None else str(key)
    if source.changelog.format not in ("json", "flat") or source.format is not None:
        raise FlowError(
            f"expected a topic whose values are rows; found {source.topic!r}, which is read as "
            f"{source.changelog.format}. Use send_raw"
        )
    parts = {name: row.get(name) for name in source.changelog.key}
    if len(parts) > 1:
        return orjson.dumps(parts).decode()
    [key] = parts.values()
    return None if key is None else str(key)


def _no_flow(found: object) -> FlowError:
    return FlowError(f"expected a ps.App, such as ps.testing.run(app); found {found!r}")


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
