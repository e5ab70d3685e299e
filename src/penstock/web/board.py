"""The status board: what the page and the terminal show of a pipeline, put together from what is known.

Three sources: the facts that the pipeline's process reports (`penstock.app.Facts`), from which its
state is judged; the committed version, whose counts hold over restarts; and, in the process itself,
the engine's report of each batch, which says where its time went.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from penstock.engine.record.version import Counts, Version
from penstock.errors import PenstockError
from penstock.web.health import LOG_SILENT_US, SILENT_US, Health, State, judge

if TYPE_CHECKING:  # they load the engine
    from penstock.app import Facts, Found
    from penstock.engine.driver import Progress
    from penstock.engine.explain.figures import NodeFigures
    from penstock.serve import Failure
    from penstock.sinks.figures import SinkFigures
    from penstock.web.status import FailureCounts, SinkStatus, SourceStatus, Status

HISTORY_MAX: Final = 600  # points, a second apart: some minutes of sparkline
POINT_EVERY_US: Final = 1_000_000
RATE_WINDOW_US: Final = 10_000_000  # rates are over these last microseconds: steady, yet alive
VERSION_EVERY_US: Final = 500_000  # how often the committed version is read at most
BUSY_MIN: Final = 0.002  # of a core: below it, none of the nodes is worth a look
ELSEWHERE: Final = "waiting, and handing over"


@dataclass
class _Rate:
    """Rows of a topic over the last seconds, from the counts of committed versions."""

    points: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, now_us: int, rows: int) -> None:
        if not self.points or rows != self.points[-1][1]:
            self.points.append((now_us, rows))
        while len(self.points) > 1 and self.points[1][0] <= now_us - RATE_WINDOW_US:
            self.points.popleft()

    def per_s(self, now_us: int) -> float:
        (first_us, first), last = self.points[0], self.points[-1][1]
        since_us = max(first_us, now_us - RATE_WINDOW_US)
        return (last - first) * 1_000_000 / max(1_000_000, now_us - since_us)


class StatusBoard:
    """Answers what the page and the terminal show. Used by any thread.

    Args:
        app: the pipeline's name.
        clock_us: the wall clock, microseconds since 1970 UTC.
        found: what the pipeline's process says; None: nothing yet.
        committed: gives the committed version.
        cores: tasks at a time.
        starting: what is so as long as nothing is said.
        failures: what failed in each view when it was last read.
    """

    def __init__(
        self,
        app: str,
        clock_us: Callable[[], int],
        found: Callable[[], Found | None],
        committed: Callable[[], Version],
        *,
        cores: int = 1,
        starting: bool = False,
        failures: Callable[[], Mapping[str, Sequence[Failure]]] = dict,
    ) -> None:
        self._failures = failures
        self._app, self._clock_us, self._found, self._committed = app, clock_us, found, committed
        self._cores, self._starting = cores, starting
        self._lock = threading.Lock()
        self._began_us = clock_us()
        self._split: dict[str, float] = {}
        self._version: Version | None = None
        self._read_us: int | None = None
        self._read_state: State | None = None
        self._rates: dict[str, _Rate] = {}
        self._history: deque[list[float | None]] = deque(maxlen=HISTORY_MAX)

    def add(self, progress: Progress) -> None:
        """Takes the report of one batch."""
        split = split_ms(progress.batch_ms, progress.seconds, self._cores)
        with self._lock:
            self._split = split

    def health(self) -> Health:
        """How the pipeline is."""
        return self._judge(self._found(), self._clock_us())

    def status(self, *, history: bool = False) -> Status:
        """The present state as JSON-able values; `history` adds the sparklines' points."""
        found = self._found()
        with self._lock:
            now_us = self._clock_us()
            health = self._judge(found, now_us)
            version = self._newest(now_us, health.state)
            status = self._status(found, health, version, now_us)
            self._point(status, now_us)
            if history:
                status["history"] = [list(point) for point in self._history]
            return status

    def _status(
        self, found: Found | None, health: Health, version: Version | None, now_us: int
    ) -> Status:
        facts = found.facts if found else None
        runs = found is not None and _reports(found, now_us)
        lag = _lag_now(facts, now_us) if facts and runs else None
        sources = {
            name: self._source(name, version, lag, now_us) for name in _topics(facts, version)
        }
        delays = [s["watermark_delay_ms"] for s in sources.values()]
        counts = version.counts if version else Counts()
        late = sum(counts.late.values())
        nodes = facts.nodes if facts else {}
        if not runs:
            nodes = {node: _at_rest(one) for node, one in nodes.items()}
        return {
            "app": self._app,
            "state": {
                "name": health.state.value,
                "level": health.state.level,
                "since_us": health.since_us,
                "reason": health.reason,
                "advice": health.advice,
            },
            "version": version.number if version else None,
            "committed_us": version.wall_us if version else None,
            "now_us": now_us,
            "started_us": facts.started_us if facts else None,
            "log": facts.log if facts else None,
            "spark_restarts": facts.spark_restarts if facts else None,
            "batch_ms": facts.batch_ms if facts else None,
            "split_ms": self._split,
            "rows": sum(source["rows"] for source in sources.values()),
            "rows_per_s": sum(s["rows_per_s"] for s in sources.values()) if runs else None,
            "lag": None if lag is None else sum(lag.values()),
            "watermark_delay_ms": max((d for d in delays if d is not None), default=None),
            "late_rows": late,
            "unusable_rows": max(0, sum(counts.dead.values()) - late),
            "lost_rows": sum(counts.lost.values()),
            "dead_letter_topic": f"{version.name}.dead-letters" if version else None,
            "sources": sources,
            "nodes": nodes,
            "sinks": {
                name: _sink(one, now_us, runs=runs)
                for name, one in (facts.sinks if facts else {}).items()
            },
            "failures": {view: _failed(some) for view, some in self._failures().items()},
            "slowest": _slowest(nodes),
        }

    def _judge(self, found: Found | None, now_us: int) -> Health:
        if found is None and self._starting:
            return Health(State.STARTING, self._began_us, "The program is being started.")
        return judge(found.facts if found else None, now_us, alive=found is None or found.alive)

    def _newest(self, now_us: int, state: State) -> Version | None:
        """The committed version, read now and then; None: there is none.

        It is read again when the state changes: who sees that a pipeline is live sees what made it so.
        """
        fresh = self._read_us is not None and 0 <= now_us - self._read_us < VERSION_EVERY_US
        if not fresh or state is not self._read_state:
            self._read_us, self._read_state = now_us, state
            try:
                self._version = self._committed()
            except (PenstockError, OSError):  # nothing is committed yet, or a rebuild begins
                self._version = None
            if self._version is not None:
                for name, rows in self._version.counts.rows.items():
                    self._rates.setdefault(name, _Rate()).take(now_us, rows)
        return self._version

    def _source(
        self, name: str, version: Version | None, lag: dict[str, int] | None, now_us: int
    ) -> SourceStatus:
        counts = version.counts if version else Counts()
        mark = version.watermark_us.get(name) if version else None
        held = version.held.get(name) if version else None
        late, dead = counts.late.get(name, 0), counts.dead.get(name, 0)
        return {
            "rows": counts.rows.get(name, 0),
            "rows_per_s": self._rates[name].per_s(now_us) if name in self._rates else 0.0,
            "lag": None if lag is None else lag.get(name, 0),
            "watermark_us": mark,
            "held_by": held.text if held else None,
            "held_since_us": held.since_us if held else None,
            "watermark_delay_ms": None if mark is None else (now_us - mark) / 1_000,
            "late_rows": late,
            "unusable_rows": max(0, dead - late),
            "lost_rows": counts.lost.get(name, 0),
        }

    def _point(self, status: Status, now_us: int) -> None:
        """One point of history: ms, batch_ms, rows/s, lag, delay, late, unusable."""
        if self._history and now_us / 1_000 - (self._history[-1][0] or 0) < POINT_EVERY_US / 1_000:
            return
        speed = status["batch_ms"], status["rows_per_s"]
        behind = status["lag"], status["watermark_delay_ms"]
        lost = status["late_rows"], status["unusable_rows"]
        self._history.append([now_us / 1_000, *speed, *behind, *lost])


def split_ms(batch_ms: float, seconds: Mapping[str, float], cores: int) -> dict[str, float]:
    """Where a batch's time went: parts of `batch_ms` that add up to it.

    The driver's parts are as they are. The tasks' parts are added up over tasks, of which `cores` run at a
    time: on average a core spent a `cores`-th of each. What is left of the time a core was not at
    work: something was handed over, or the slowest task was waited for.
    """
    own = {part: 1_000 * s for part, s in seconds.items() if part in ("plan", "commit")}
    work = {part: 1_000 * s / cores for part, s in seconds.items() if part not in own}
    rest = max(0.0, batch_ms - sum(own.values()) - sum(work.values()))
    plan, commit = own.get("plan", 0.0), own.get("commit", 0.0)
    return {"plan": plan, **work, ELSEWHERE: rest, "commit": commit}


def _reports(found: Found, now_us: int) -> bool:
    """Whether a process says now what moves: one that was killed or suspended said it long ago."""
    facts = found.facts
    return found.alive and facts.ended_us is None and now_us - facts.said_us <= SILENT_US


def _at_rest(figures: NodeFigures) -> NodeFigures:
    """A node's figures where no process reports: nothing moves any more."""
    moving = {what for what in figures if what.endswith("_per_s")} | {"busy"}
    found = {
        what: 0.0 if what in moving and one is not None else one for what, one in figures.items()
    }
    return cast("NodeFigures", found)


def _failed(failures: Sequence[Failure]) -> FailureCounts:
    """How many values, rows and groups of a view failed."""
    counts: FailureCounts = {"values": 0, "rows": 0, "groups": 0}
    for one in failures:
        counts[one.kind] += one.count
    return counts


def _slowest(nodes: Mapping[str, NodeFigures]) -> str | None:
    """The operator or step that takes most of the time; None where hardly any is taken."""
    busy = {n: one["busy"] for n, one in nodes.items() if one["kind"] not in {"source", "output"}}
    most = max(busy, key=busy.__getitem__, default=None)
    return most if most is not None and busy[most] >= BUSY_MIN else None


def _sink(figures: SinkFigures, now_us: int, *, runs: bool) -> SinkStatus:
    """What a sink does, and how it is. One that has ended measures nothing now."""
    from penstock.web.states import sink_state  # loads sinks

    found: SinkStatus = {**figures, "state": sink_state(figures, now_us // 1_000)}
    if not runs or figures["phase"] in ("failed", "stopped"):
        found["lag"] = found["progress"] = found["behind_ms"] = None
    return found


def _topics(facts: Facts | None, version: Version | None) -> list[str]:
    known = version.offsets if version else {}
    return list(dict.fromkeys([*(facts.topics if facts else []), *known]))


def _lag_now(facts: Facts, now_us: int) -> dict[str, int] | None:
    """The lag, where it was measured just now; an old one is none."""
    if facts.answered_us is None or now_us - facts.answered_us > LOG_SILENT_US:
        return None
    return facts.lag
