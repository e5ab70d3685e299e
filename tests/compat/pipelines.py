"""Pipelines in the local host: their state on the disk, and the log that it belongs to as JSON.

A case is a program and rounds of records. The first rounds are run by the release of the fixture, the others
by the current one, from its state. All must be as if the current one had run them from the first.
"""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from tests.compat.cases import FILES, Case, Facts

import penstock as ps
from penstock.core.time import instant_us
from penstock.engine.log import Writer
from penstock.engine.record.version import Version
from penstock.engine.runtime import find_upgrade
from penstock.engine.savepoints import check_savepoint, create_savepoint, find_savepoint, go_back
from penstock.engine.store import Store
from penstock.flow import Flow
from penstock.serve.answers import Once
from penstock.serve.views import Snapshot
from penstock.state.files import LocalStateFiles
from penstock.testing import MemoryLog, Record, Run, _declared, _nothing_to_execute

STATE: Final = "state"
LOG: Final = "log.json"
SAVEPOINT: Final = "halfway"
NOW: Final = "2026-01-01T00:00:00Z"
ROUND_US: Final = 20_000_000
"""By which the clock advances after each round."""
ROUNDS: Final = 12
"""That the release of the fixture has run: state has runs of several sizes then."""
HALF: Final = ROUNDS // 2
MORE: Final = 6
"""Rounds that the current release adds: windows and timers of before end in them."""
CORES: Final = 2

RECOMPUTED: Final[dict[tuple[str, str], str]] = {}
"""By release and case: why state is computed from the log again, instead of being taken over."""

Send = Callable[[Run, random.Random, int], None]
"""Sends the records of a round, which has a number."""


@dataclass(frozen=True)
class Pipeline:
    """A program, and what it is fed with.

    Attributes:
        name: of the case.
        app: the program.
        send: the records of a round.
        before: the program of the first half of the fixture's rounds, where that is another one.
        ends: how the release of the fixture is stopped: between two batches; after a step of a batch, see
            `Run.crash`; or in the midst of the upgrade from `before` to `app`, which is then its last act.
        goes_back: whether what follows from the log is independent of its cut into batches, so that the views
            are the same after a return to a savepoint.
        is_slow: see `Case`.
    """

    name: str
    app: Callable[[], Flow]
    send: Send
    before: Callable[[], Flow] | None = None
    ends: str | None = None
    goes_back: bool = False
    is_slow: bool = False

    def case(self) -> Case:
        """As any case."""
        return Case(self.name, self.write, self.check, self.is_slow)

    def write(self, folder: Path) -> Facts:
        """Runs the first rounds; leaves the state, a savepoint and the log."""
        run = Stored(self._first(), folder / FILES / STATE)
        saved = self._begin(run)
        (folder / FILES / LOG).write_bytes(written(run.log))
        version = run.store.version(run.store.newest_version())
        whole = self._whole()
        self._begin(whole)
        self._finish(whole)
        return {
            "version": version.number,
            "clock_us": run._clock_us,
            "operators": sorted(operators(version)),
            "aggregates": sorted(aggregates(version)),
            "saved": counts(saved),
            "rows": counts(contents(whole)),
        }

    def check(self, folder: Path, facts: Facts) -> None:
        """Continues from the state of the fixture, and returns to its savepoint."""
        expected = self._whole()
        saved = self._begin(expected)
        log = read_log((folder / FILES / LOG).read_bytes())
        check_inputs(expected, log)
        last = self._first() if self.ends == "upgrade" else self.app()
        state = folder / FILES / STATE
        recomputes = (facts["release"], self.name) in RECOMPUTED
        check_change(last, Store(LocalStateFiles(state)), log, recomputes=recomputes)
        found = savepoint_rows(Store(LocalStateFiles(state)))
        assert found == saved, "the savepoint's views differ from those of a run of this release"
        assert counts(found) == facts["saved"]
        clock_us = facts["clock_us"]
        run = Stored(last, state, log=log, clock_us=clock_us, recomputes=recomputes)
        assert recomputes or run.store.newest_version() == facts["version"]
        self._finish(run)
        self._finish(expected)
        rows, whole = contents(run), contents(expected)
        for name, of in whole.items():
            assert rows[name] == of, f"{name} differs from that of a run of this release alone"
        assert counts(rows) == facts["rows"]
        run.store.check_owner(run._driver.epoch)
        if self.goes_back:
            go_back(run.store, SAVEPOINT, [one.topic for one in run._graph.outputs], again=True)
            run.restart()
            views = {name: of for name, of in contents(run).items() if name.startswith("view ")}
            assert views == {name: whole[name] for name in views}

    def _whole(self) -> Run:
        return ps.testing.run(self._first(), cores=CORES, now=NOW, shaken=False)

    def _first(self) -> Flow:
        return (self.before or self.app)()

    def _begin(self, run: Run) -> dict[str, list[str]]:
        """Runs what the release of the fixture runs; returns the views halfway, where the savepoint is."""
        self._rounds(run, 0, HALF)
        create_savepoint(run.store, SAVEPOINT, instant_us(NOW))
        saved = savepoint_rows(run.store)
        if self.before is not None and self.ends != "upgrade":
            assert run.change(self.app())
        self._rounds(run, HALF, ROUNDS)
        if self.ends == "upgrade":
            assert not run.change(self.app(), steps=1)
        elif self.ends is not None:
            self.send(run, random.Random(ROUNDS), ROUNDS)
            assert run.crash(after=self.ends)  # type: ignore[arg-type]
        return saved

    def _finish(self, run: Run) -> None:
        """Runs the rounds after that."""
        if self.ends == "upgrade":
            assert run.change(self.app())
        self._rounds(run, ROUNDS + (self.ends not in (None, "upgrade")), ROUNDS + MORE)
        run.settle()

    def _rounds(self, run: Run, first: int, end: int) -> None:
        for number in range(first, end):
            self.send(run, random.Random(number), number)
            while run.step() is not None:
                pass
            run._clock_us += ROUND_US


class Stored(Run):
    """A run whose state is on the disk."""

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        *,
        log: MemoryLog | None = None,
        clock_us: int | None = None,
        recomputes: bool = False,
    ) -> None:
        self._graph = flow.graph()
        self._clock_us = instant_us(NOW) if clock_us is None else clock_us
        self._cores = CORES
        self.seed = None
        self._chance = random.Random(0)
        self.log = MemoryLog() if log is None else log
        self.store = Store(LocalStateFiles(folder))
        self.execute_backfill = _nothing_to_execute
        self._sources = _declared(self._graph)
        self._report = Once()
        upgrade = self.begin(flow) if recomputes else None
        while upgrade is not None and not upgrade.done:
            upgrade.step(self.execute_backfill)
        self.restart()


def check_change(flow: Flow, store: Store, log: MemoryLog, *, recomputes: bool) -> None:
    """Asserts that a program takes its state over as it is, or that some is computed from the log again."""
    found = find_upgrade(flow.graph(), store, log, cores=CORES)
    assert (found is not None) == recomputes, (
        "state isn't taken over as it is: the identity of an operator, or the form of its state, has "
        "changed. Repair that, or see Releases in CONTRIBUTING.md"
        if found is not None
        else "state is taken over as it is: remove the case from RECOMPUTED"
    )


def check_inputs(run: Run, log: MemoryLog) -> None:
    """Asserts that a fixture is of the records that its case sends."""
    for source in run._graph.sources:
        assert run.log.records(source.topic) == log.records(source.topic), (
            f"the case sends other records to {source.topic} than when its fixture was written. Leave a case "
            "as it is from its release on; add another one"
        )


def savepoint_rows(store: Store) -> dict[str, list[str]]:
    """The views of the savepoint, whose files are checked."""
    savepoint = find_savepoint(store, SAVEPOINT)
    check_savepoint(store, savepoint)
    snapshot = Snapshot(store, savepoint.content)
    return {
        f"view {name}": sorted(map(repr, snapshot.table(name).to_pylist()))
        for name in savepoint.content.views
    }


def contents(run: Run) -> dict[str, list[str]]:
    """All that a run has made: views, output topics, dead letters."""
    found = {
        f"view {one.name}": sorted(map(repr, run.view(one.name).rows())) for one in run._graph.views
    }
    for output in run._graph.outputs:
        records = ((r.partition, r.key, r.value) for r in run.topic(output.topic))
        found[f"topic {output.topic}"] = sorted(map(repr, records))
    letters = ((sorted(r.headers.items()), r.key, r.value) for r in run.dead_letters())
    return found | {"dead letters": sorted(map(repr, letters))}


def counts(contents: dict[str, list[str]]) -> dict[str, int]:
    """How many rows there are of each kind."""
    return {name: len(rows) for name, rows in contents.items()}


def operators(version: Version) -> set[str]:
    """The kinds of a version's operators."""
    return {one.spec["kind"] for one in version.operators.values()}


def aggregates(version: Version) -> set[str]:
    """The kinds of a version's aggregate functions."""
    return {kind for one in version.operators.values() for kind in _functions(one.spec)}


def _functions(spec: Any) -> Iterator[str]:
    """What is called `aggregates` in a spec, however deep: lists of a name, a kind, and more."""
    if isinstance(spec, dict):
        for name, of in spec.items():
            if name == "aggregates":
                yield from (str(one[1]) for one in of)
            else:
                yield from _functions(of)
    elif isinstance(spec, list):
        for one in spec:
            yield from _functions(one)


# -- the log ------------------------------------------------------------------------------------------------


def written(log: MemoryLog) -> bytes:
    """A log as JSON, with all that decides whether records are written again."""
    places = {
        id(r): (t, r.partition, r.offset) for t in log.topics for p in log.topics[t] for r in p
    }
    content = {
        "topics": {topic: [list(map(_said, p)) for p in of] for topic, of in log.topics.items()},
        "ids": log._ids,
        "stored": [[*where, [places[id(r)][2] for r in of]] for where, of in log._stored.items()],
        "writers": {
            name: [one.producer_id, one.epoch, sorted(one.next_sequence.items())]
            for name, one in log._writers.items()
        },
        "open": {name: sorted(of) for name, of in log._open.items()},
        "offsets": [[group, *place, *said] for (group, place), said in log._offsets.items()],
        "pending": {name: [places[id(r)] for r in of] for name, of in log._pending.items()},
        "hidden": sorted(places[one] for one in log._hidden),
        "producer_ids": max(
            [*(w[2] for w in log._stored), *(w.producer_id for w in log._writers.values())],
            default=0,
        ),
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def read_log(text: bytes) -> MemoryLog:
    """The log that `written` has written."""
    content, log = orjson.loads(text), MemoryLog()
    log._ids = content["ids"]
    for topic, partitions in content["topics"].items():
        log._topics[topic] = [
            [_record(partition, offset, one) for offset, one in enumerate(records)]
            for partition, records in enumerate(partitions)
        ]
    for topic, partition, producer, epoch, offsets in content["stored"]:
        of = log._topics[topic][partition]
        log._stored[topic, partition, producer, epoch] = [of[offset] for offset in offsets]
    for name, (producer, epoch, sequences) in content["writers"].items():
        log._writers[name] = Writer(producer, epoch, dict(sequences), transactional_id=name)
    log._open = {name: {(t, p) for t, p in of} for name, of in content["open"].items()}
    log._offsets = {(g, (t, p)): (offset, note) for g, t, p, offset, note in content["offsets"]}
    log._pending = {
        n: [log._topics[t][p][o] for t, p, o in of] for n, of in content["pending"].items()
    }
    log._hidden = {id(log._topics[t][p][o]) for t, p, o in content["hidden"]}
    log._producer_ids = itertools.count(content["producer_ids"] + 1)
    return log


def _said(record: Record) -> list[Any]:
    return [_text(record.key), _text(record.value), record.timestamp_ms, record.headers]


def _record(partition: int, offset: int, said: list[Any]) -> Record:
    key, value, timestamp_ms, headers = said
    return Record(partition, offset, _bytes(key), _bytes(value), timestamp_ms, headers)


def _text(content: bytes | None) -> str | None:
    return (
        None
        if content is None
        else base64.b85encode(content).decode()
        if not content.isascii()
        else "=" + content.decode()
    )


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    return text[1:].encode() if text.startswith("=") else base64.b85decode(text)
