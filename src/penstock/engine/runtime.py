"""Puts a pipeline together and runs it: log, state, Spark, driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from penstock.engine.driver import Driver, Limits, Progress
from penstock.engine.log import KafkaLog, Log
from penstock.engine.physical import compile_graph
from penstock.engine.savepoints import go_back
from penstock.engine.spark.host import SparkHost
from penstock.engine.spark.session import session_for
from penstock.engine.store import Store
from penstock.engine.tasks import Job
from penstock.errors import CorruptError, FlowError
from penstock.flow.graph import Graph
from penstock.state import ArrowStateFiles, LocalStateFiles, StateFiles

__all__ = [
    "Outputs",
    "Settings",
    "assemble",
    "clear",
    "open_files",
    "open_log",
    "open_store",
    "run_pipeline",
]

Outputs: TypeAlias = Literal["all", "new"]
"""Of what is computed again, whether topics get all or what is new; None: all where a topic is empty."""
DEAD_LETTER_SUFFIX: Final = ".dead-letters"


@dataclass(frozen=True)
class Settings:
    """Where a pipeline runs.

    Attributes:
        directory: of the state and Spark's log.
        spark: `spark://…`; None runs Spark on this machine.
        state: a URI that pyarrow knows, for state that a cluster shares; None is in `directory`.
        cores: tasks at a time, and shards of exchanged state. It can't change while state is kept.
        rows_max: of one partition in one batch.
    """

    directory: Path
    spark: str | None = None
    state: str | None = None
    cores: int = 2
    rows_max: int = Limits.rows_max

    @property
    def state_uri(self) -> str:
        """Where the state is."""
        return self.state or str((self.directory / "state").absolute())


def run_pipeline(
    graph: Graph,
    settings: Settings,
    address: str,
    *,
    on_progress: Callable[[Progress], None],
    on_idle: Callable[[], None],
    until: Callable[[], bool],
    on_session: Callable[[], None],
    rebuild: bool = False,
    savepoint: str | None = None,
    outputs: Outputs | None = None,
) -> None:
    """Runs a pipeline on Spark until `until()`.

    Args:
        graph: what to run.
        settings: where.
        address: of the log, `host:port[,…]`.
        on_progress: called after each batch.
        on_idle: called when there was nothing to read.
        until: asked often.
        on_session: called when Spark is up, which has then put its own handler of Ctrl-C in place.
        rebuild: throws the state away first; it is computed again from the log.
        savepoint: to go back to first; None goes on from the last version.
        outputs: what is written to topics that may have it already; see `Outputs`.
    """
    log = KafkaLog(address)
    store = open_store(settings.state_uri)
    if savepoint is not None:
        _check_name(store, graph.name)
        topics = [output.topic for output in graph.outputs]
        go_back(store, savepoint, topics, again=outputs == "all")
    if rebuild:
        with contextlib.suppress(CorruptError):  # a rebuild is what mends that
            _check_name(store, graph.name)
        store.claim(
            "a rebuild"
        )  # an owner that still runs must not commit into what is being cleared
        clear(store.files)
    job, driver = assemble(
        graph,
        store,
        log,
        cores=settings.cores,
        rows_max=settings.rows_max,
        open_store=functools.partial(open_store, settings.state_uri),
        open_log=functools.partial(open_log, address),
    )
    folder = settings.directory / "spark"
    with (
        contextlib.closing(log),
        session_for(graph.name, settings.spark, folder, cores=settings.cores) as session,
    ):
        on_session()
        host = SparkHost(
            session,
            job,
            lanes=driver.lanes,
            host=session.conf.get("spark.driver.host", None) or "127.0.0.1",
            log=str(folder / "spark.log"),
        )
        host.run(driver, on_progress, until, on_idle)


def assemble(
    graph: Graph,
    store: Store,
    log: Log,
    *,
    cores: int,
    open_store: Callable[[], Store],
    open_log: Callable[[], Log],
    rows_max: int = Limits.rows_max,
    wall_us: Callable[[], int] | None = None,
) -> tuple[Job, Driver]:
    """Creates the topics, places the operators and takes ownership.

    Args:
        graph: what to run.
        store: the pipeline's record.
        log: where it reads and writes.
        cores: tasks at a time, and shards of exchanged state.
        open_store: gives the record in a task's process.
        open_log: gives the log in a task's process.
        rows_max: of one partition in one batch.
        wall_us: the clock; None is this machine's.
    """
    _check_name(store, graph.name)
    partitions = {
        s.topic: log.ensure_topic(s.topic, s.partitions, s.retention_us) for s in graph.sources
    }
    dead_letter_topic = graph.name + DEAD_LETTER_SUFFIX
    outputs = {
        o.topic: log.ensure_topic(o.topic, o.partitions, o.retention_us) for o in graph.outputs
    }
    outputs[dead_letter_topic] = log.ensure_topic(dead_letter_topic, 1)
    physical = compile_graph(graph, partitions, cores)
    job = Job(physical, open_store, open_log, dead_letter_topic, outputs)
    lanes = max(1, min(cores, sum(partitions.values())))
    clock = {} if wall_us is None else {"wall_us": wall_us}
    driver = Driver(
        physical,
        store,
        log,
        lanes=lanes,
        output_partitions=outputs,
        dead_letter_topic=dead_letter_topic,
        limits=Limits(rows_max=rows_max),
        **clock,
    )
    return job, driver


def _check_name(store: Store, name: str) -> None:
    """Refuses a directory of another pipeline, before anything is taken over or thrown away there."""
    number = store.newest_version()
    found = store.version(number)["name"] if number else name
    if found != name:
        raise FlowError(
            f"expected the state of the pipeline {name!r}, or none; found that of {found!r}. Name another "
            "directory"
        )


@functools.cache
def open_store(uri: str) -> Store:
    """The record at a path or URI; one object per process."""
    return Store(open_files(uri))


@functools.cache
def open_log(address: str) -> KafkaLog:
    """The log at an address; one set of connections per process."""
    return KafkaLog(address)


def open_files(uri: str) -> StateFiles:
    """The files under a path or a URI that pyarrow knows."""
    if "://" not in uri:
        return LocalStateFiles(Path(uri))
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(uri)
    return ArrowStateFiles(filesystem, path)


def clear(files: StateFiles) -> None:
    """Deletes all state; epochs stay, so that an owner that still runs finds itself replaced."""
    for folder in ("plans", "versions", "runs"):
        for path in files.list(folder):
            files.delete(path)
