"""What is known of a pipeline's process: what the page, the terminal and `penstock ui` judge by.

A running pipeline writes its facts into its directory as they change (`heartbeat.json`) and holds a lock
there (`heartbeat.lock`), which the system lets go when the process ends, however it ends. So a process that
reads the facts knows whether somebody still stands behind them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from penstock.engine.spark.scratch import is_held

if TYPE_CHECKING:  # they load the engine, and clients
    from penstock.engine.explain.figures import NodeFigures
    from penstock.sinks.figures import SinkFigures

__all__ = ["Facts", "Found", "hold", "read_facts", "write_facts"]

FILE: Final = "heartbeat.json"
LOCK: Final = "heartbeat.lock"


@dataclass(frozen=True)
class Facts:
    """What a pipeline's process knows of itself.

    Instants (`…_us`) are microseconds since 1970 UTC; None: it has not happened yet.

    Attributes:
        app: the pipeline's name.
        pid: of its process.
        machine: that it runs on.
        directory: of the pipeline.
        topics: that it reads.
        command: that starts it.
        started_us: when it was started.
        said_us: when these facts were written down.
        log: the log's address; None: it can't be used yet.
        embedded: whether the log is the pipeline's own, which it starts again by itself.
        spark_us: when Spark was there.
        spark_restarts: how often Spark was gone in this run, and has been started again.
        gathering_us: when a batch last waited for Spark to start its tasks.
        looked_us: when the engine last ended a batch, or found nothing to read.
        batch_us: when the last batch ended.
        batch_ms: how long it took.
        slowest_ms: how long the slowest of the last batches took, the run's first one left out.
        backfill: how far what is new in the program has been made of the log; None: all is.
        backfill_us: since when it is being made.
        read_us: when the last batch that read something ended.
        asked_us: since when the log has been asked how far it reaches.
        answered_us: when it last answered.
        answering_us: since when it has, without a failure.
        log_error: why it doesn't.
        lag: by topic, the records that are in the log and not in the views, at `answered_us`.
        behind_us: what was in the log then is not yet in the views; None: all that was there is.
        abreast_us: since when that has been no long time.
        nodes: of the graph, by identity, what they have done and do; see `penstock.app.nodes`.
        sinks: of the program, by name, what they do: see `penstock.sinks.Sink.figures`.
        warning: the engine's last one, and `warning_us`, when it was.
        stopping_us: when it was asked to stop.
        ended_us: when it ended.
        error: that ended it.
    """

    app: str
    pid: int
    machine: str
    directory: str
    started_us: int
    said_us: int
    topics: list[str] = field(default_factory=list)
    command: str | None = None
    log: str | None = None
    embedded: bool = False
    spark_us: int | None = None
    spark_restarts: int = 0
    gathering_us: int | None = None
    looked_us: int | None = None
    batch_us: int | None = None
    batch_ms: float | None = None
    slowest_ms: float = 0.0
    backfill: str | None = None
    backfill_us: int | None = None
    read_us: int | None = None
    asked_us: int | None = None
    answered_us: int | None = None
    answering_us: int | None = None
    log_error: str | None = None
    lag: dict[str, int] | None = None
    behind_us: int | None = None
    abreast_us: int | None = None
    nodes: dict[str, NodeFigures] = field(default_factory=dict)
    sinks: dict[str, SinkFigures] = field(default_factory=dict)
    warning: str | None = None
    warning_us: int | None = None
    stopping_us: int | None = None
    ended_us: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Found:
    """Facts, and whether a process still stands behind them."""

    facts: Facts
    alive: bool


def write_facts(directory: Path, facts: Facts) -> None:
    """Writes the facts; a reader sees all of them or all of the ones before."""
    new = directory / f"{FILE}.{os.getpid()}.new"
    new.write_bytes(orjson.dumps(facts))
    new.replace(directory / FILE)


def read_facts(directory: Path) -> Found | None:
    """The facts of the pipeline in a directory; None: there are none that can be read."""
    known = {one.name for one in fields(Facts)}
    try:
        content = orjson.loads((directory / FILE).read_bytes())
        facts = Facts(**{name: value for name, value in content.items() if name in known})
        return Found(facts, alive=is_held(directory / LOCK))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Says that a process is there until the block ends, or the process does.

    Several may: a second run of a pipeline takes over while the first one is ending.
    """
    try:
        file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:  # a full disk: the pipeline itself says so
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
