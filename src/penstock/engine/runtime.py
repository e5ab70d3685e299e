"""Puts a pipeline together and runs it: log, state, Spark, driver."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.client.network.connection import Aside
from penstock.engine.driver import Driver, Progress
from penstock.engine.encoding import register_schemas
from penstock.engine.log import KafkaLog, Log
from penstock.engine.physical import Physical, compile_graph
from penstock.engine.plan import Execute, Limits, Settings, Work
from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report
from penstock.engine.record.version import Version
from penstock.engine.savepoints import go_back
from penstock.engine.source import check_table_key
from penstock.engine.spark.host import SparkHost
from penstock.engine.spark.session import Spark
from penstock.engine.store import VERSIONS_KEPT, Store, open_files
from penstock.engine.tasks import Job
from penstock.engine.upgrade import Backfilled, Outputs, Target, Upgrade
from penstock.engine.upgrade.forms import unfit_states
from penstock.engine.upgrade.sizes import measured
from penstock.engine.upkeep.keeper import Keeper
from penstock.engine.upkeep.pauses import short_pauses
from penstock.engine.versions import before_first, recovered, same_program, without_topics
from penstock.errors import CorruptError, FlowError
from penstock.flow.graph import Graph

__all__ = [
    "Outputs",
    "Watcher",
    "assemble",
    "find_upgrade",
    "open_log",
    "open_store",
    "run_pipeline",
    "upgrade_job",
]

_log = logging.getLogger(__name__)

DEAD_LETTER_SUFFIX: Final = ".dead-letters"
PAUSE_S: Final = 0.05  # between steps that a host asks for after the end


class Watcher:
    """Learns what happens in a run, and says when it is over. This one ignores it, and never does."""

    def is_over(self) -> bool:
        """Whether the run is to end; asked often."""
        return False

    def spark_started(self) -> None:
        """Spark is up; batches may have run before. Called on another thread."""

    def spark_restarted(self) -> None:
        """Spark was gone, and has been started again. Called on another thread."""

    def gathering(self) -> None:
        """A batch waits for Spark to start its tasks. Called every second meanwhile, on another thread."""

    def planned(self, physical: Physical) -> None:
        """It is known how the program runs; its first batch follows."""

    def progressed(self, progress: Progress) -> None:
        """A batch was committed. Called on another thread."""

    def idled(self) -> None:
        """There was nothing to read. Called on another thread."""

    def backfilled(self, done: Backfilled) -> None:
        """A batch of what is new in the program was computed from the log. Called on another thread."""


def run_pipeline(
    graph: Graph,
    settings: Settings,
    address: str,
    spark: Spark,
    watcher: Watcher,
    *,
    rebuild: bool = False,
    savepoint: str | None = None,
    outputs: Outputs | None = None,
    ordered: Callable[[Mapping[str, int]], Graph] | None = None,
) -> None:
    """Runs a pipeline on Spark until the watcher says that it is over.

    Args:
        graph: what to run.
        settings: where.
        address: of the log, `host:port[,…]`.
        spark: where it runs; may still be starting.
        watcher: learns what happens.
        rebuild: whether to compute all state again from the log.
        savepoint: to go back to first; None continues from the last version.
        outputs: what is written to topics that may have it already; see `Outputs`.
        ordered: gives the graph for how many records each topic has, where it depends on that.
    """
    log = KafkaLog(address)
    store = open_store(settings.state_uri)
    if lost := store.recover():
        _log.warning("the machine stopped; its last %d versions are made again", lost)
    if savepoint is not None:
        with contextlib.suppress(CorruptError):  # a savepoint is a way out of that
            check_name(store, graph.name)
        topics = [output.topic for output in graph.outputs]
        go_back(store, savepoint, topics, again=outputs == "all")
    if ordered is not None:
        with contextlib.suppress(*[CorruptError] if rebuild else []):
            check_name(store, graph.name)
        graph = ordered(measured(graph, store, log, anew=rebuild))
    cores = settings.cores
    finding = functools.partial(
        find_upgrade,
        graph,
        store,
        log,
        cores=cores,
        shards=settings.shards,
        anew=rebuild,
        outputs=outputs,
        rows_max=settings.rows_max,
    )
    upgrade = finding()
    if upgrade is None:
        lay_out(graph, log, None, cores=cores)  # producers need the topics while Spark still starts
    with contextlib.closing(log):
        run = _Run(graph, settings, address, log, store, spark, watcher)
        run.carry_out(upgrade, finding)


class _Run:
    """A run of a pipeline. Arguments as for `run_pipeline`."""

    def __init__(
        self,
        graph: Graph,
        settings: Settings,
        address: str,
        log: Log,
        store: Store,
        spark: Spark,
        watcher: Watcher,
    ) -> None:
        self._graph, self._settings, self._log, self._store = graph, settings, log, store
        self._spark, self._watcher = spark, watcher
        self._open_store = functools.partial(open_store, settings.state_uri)
        self._open_log = functools.partial(open_log, address)

    def carry_out(self, upgrade: Upgrade | None, find: Callable[[], Upgrade | None]) -> None:
        """Upgrades what has to be, and runs the program's batches."""
        if upgrade is not None:
            try:
                done = self._change(upgrade)
            except FlowError:
                cores = self._settings.cores
                number = _begun_as_it_is(self._graph, self._store, self._log, cores=cores)
                if not number:
                    raise
                # This program, with shards as they were, was killed in a batch that it alone can end.
                self._run(*self._assembled(), number)
                is_over = self._watcher.is_over
                upgrade = None if is_over() else find()
                done = not is_over() and (upgrade is None or self._change(upgrade))
            if not done:
                return
        job, driver = self._assembled()
        self._watcher.planned(job.physical)
        self._run(job, driver)

    def _assembled(self) -> tuple[Job, Driver]:
        return assemble(
            self._graph,
            self._store,
            self._log,
            cores=self._settings.cores,
            shards=self._settings.shards,
            rows_max=self._settings.rows_max,
            versions_kept=self._settings.versions_kept,
            open_store=self._open_store,
            open_log=self._open_log,
            beside=True,
            relaxed=self._spark.is_here,
        )

    def _host(self, job: Job, lanes: int, shorten: Callable[[], None] = lambda: None) -> SparkHost:
        def started() -> None:
            shorten()  # Spark has brought modules of its own
            self._watcher.spark_started()

        return SparkHost(
            self._spark,
            job,
            lanes=lanes,
            log=str(self._settings.spark_folder / "spark.log"),
            on_start=started,
            on_restart=self._watcher.spark_restarted,
            on_gather=self._watcher.gathering,
        )

    def _run(self, job: Job, driver: Driver, last: int | None = None) -> None:
        steps, watcher = _Upto(driver, last), self._watcher
        with contextlib.closing(driver), short_pauses() as shorten:
            is_first = True

            def progressed(progress: Progress) -> None:
                nonlocal is_first
                watcher.progressed(progress)
                if is_first:  # it has imported what batches need
                    shorten()
                    is_first = False

            self._host(job, driver.lanes, shorten).run(
                steps, progressed, lambda: steps.are_over or watcher.is_over(), watcher.idled
            )

    def _change(self, upgrade: Upgrade) -> bool:
        """Carries out an upgrade; whether it is done, and not the run over before."""
        job = upgrade_job(upgrade, self._open_store, self._open_log)
        watcher = self._watcher
        if job is None:  # nothing is read
            while not upgrade.done and not watcher.is_over():
                upgrade.step(_nothing_to_execute)
            return upgrade.done
        watcher.backfilled(upgrade.progress())
        self._host(job, upgrade.target.lanes).run(
            upgrade,
            lambda _: watcher.backfilled(upgrade.progress()),
            lambda: upgrade.done or watcher.is_over(),
        )
        return upgrade.done


class _Upto:
    """A driver's batches up to a version; without one, all of them."""

    def __init__(self, driver: Driver, last: int | None) -> None:
        self._driver, self._last = driver, last

    @property
    def are_over(self) -> bool:
        """Whether the last one is committed."""
        return self._last is not None and self._driver.version.number >= self._last

    def step(
        self, execute: Execute, *, timeout_s: float = 0.0, aside: Aside | None = None
    ) -> Progress | None:
        """See `Driver`."""
        if self.are_over:
            time.sleep(min(timeout_s, PAUSE_S))
            return None
        return self._driver.step(execute, timeout_s=timeout_s, aside=aside)


def _begun_as_it_is(graph: Graph, store: Store, log: Log, *, cores: int) -> int:
    """The number of a batch that this program began before its state was to be cut again; 0: none."""
    number = store.newest_version()
    plan = store.plan(number + 1) if number else None
    if not isinstance(plan, Plan):
        return 0
    target = lay_out(graph, log, store.version(number), cores=cores)
    is_own = plan.program == target.physical.digest(target.output_partitions)
    return number + 1 if is_own else 0


def _nothing_to_execute(work: Work) -> list[Report]:
    raise AssertionError(work.attempt())


def find_upgrade(
    graph: Graph,
    store: Store,
    log: Log,
    *,
    cores: int,
    shards: int | None = None,
    anew: bool = False,
    outputs: Outputs | None = None,
    rows_max: int = Limits.rows_max,
    wall_us: Callable[[], int] | None = None,
) -> Upgrade | None:
    """What has to be done before a program can continue with a pipeline; None: nothing.

    Args:
        graph: the program.
        store: the pipeline's record.
        log: where it reads and writes.
        cores: tasks at a time.
        shards: into how many exchanged state is cut; None leaves it as it is.
        anew: whether to compute all state again.
        outputs: what topics get that the program didn't write so far.
        rows_max: of one partition in one batch.
        wall_us: the clock; None is this machine's.

    Raises:
        FlowError: it is another pipeline's record.
        CorruptError: the record can't be read, and nothing says how far topics were written.
    """
    number = store.newest_version()
    begun = None if number else store.plan(1)
    if not number and not isinstance(begun, Plan):
        return None
    base = _newest(store, number, graph.name, anew=anew)
    target = lay_out(graph, log, base, cores=cores, shards=shards)
    if isinstance(begun, Plan):
        if begun.program == target.physical.digest(target.output_partitions):
            return None
        base = before_first(target.physical, begun)
    elif base is None:
        base = recovered(store, number, target.physical)
    unfit = frozenset[str]()
    if number and not anew:
        unfit = unfit_states(base, target.physical, store.files)
        if same_program(base, target.physical, unfit=unfit):
            return None
    _warn_of_lost(base, target.physical, unfit)
    repair = functools.partial(_repaired, graph, log) if anew else _as_it_is
    limits = Limits(rows_max=rows_max)
    return Upgrade(
        target,
        store,
        base,
        log,
        anew=anew,
        outputs=outputs,
        limits=limits,
        wall_us=wall_us,
        repair=repair,
        unfit=unfit,
    )


def _newest(store: Store, number: int, name: str, *, anew: bool) -> Version | None:
    """The newest version; None where there is none, or it can't be read and isn't needed."""
    try:
        check_name(store, name)
        return store.version(number) if number else None
    except CorruptError:
        if not anew:
            raise
        return None


def _warn_of_lost(base: Version, physical: Physical, unfit: frozenset[str]) -> None:
    """Says which state and which views of the last version this program doesn't continue."""
    if unfit:
        names = ", ".join(physical.placed[one].name for one in sorted(unfit))
        _log.warning(
            "expected state in the form that this release keeps; found that of another release, of %s. "
            "It is recomputed from the log",
            names,
        )
    gone = base.views.keys() - {view.name for view in physical.graph.views}
    if gone:
        _log.warning(
            "expected the views %s, which the previous program has; found a program without them. Their "
            "state goes with the last version that has it; penstock savepoint create, before the switch, "
            "keeps it",
            ", ".join(sorted(gone)),
        )


def _as_it_is(version: Version) -> Version:
    return version


def _repaired(graph: Graph, log: Log, version: Version) -> Version:
    """A version without what it has read of topics that were created again."""
    topics = [source.topic for source in graph.sources]
    ends, ids = log.end_offsets(topics), log.topic_ids(topics)
    known = version.topic_ids
    return without_topics(
        version,
        [
            source
            for source in graph.sources
            for p, offset in version.offsets.get(source.topic, {}).items()
            if ends[source.topic].get(p, 0) < offset
            or ids.get(source.topic) != known.get(source.topic, ids.get(source.topic))
        ],
    )


def upgrade_job(
    upgrade: Upgrade, open_store: Callable[[], Store], open_log: Callable[[], Log]
) -> Job | None:
    """What the lanes of a backfill do; None where there is none.

    Args:
        upgrade: that it is of.
        open_store: gives the pipeline's record in a task's process.
        open_log: gives the log in a task's process.
    """
    if upgrade.physical is None:
        return None
    target = upgrade.target
    return Job(
        upgrade.physical,
        functools.partial(_within, open_store, upgrade.name),
        open_log,
        target.dead_letter_topic,
        dict(target.output_partitions),
        upgrade.lettered,
    )


def _within(open_store: Callable[[], Store], name: str) -> Store:
    return open_store().within(name)


def lay_out(
    graph: Graph, log: Log, version: Version | None, *, cores: int, shards: int | None = None
) -> Target:
    """Creates the topics and places the operators.

    Args:
        graph: the program.
        log: where it reads and writes.
        version: the last one; its shards stay, unless configured otherwise.
        cores: tasks at a time.
        shards: into how many exchanged state is cut.
    """
    partitions = {
        s.topic: log.ensure_topic(s.topic, s.partitions, s.retention_us) for s in graph.sources
    }
    for source in graph.unused:
        log.ensure_topic(source.topic, source.partitions, source.retention_us)
    dead_letter_topic = graph.name + DEAD_LETTER_SUFFIX
    outputs = {
        o.topic: log.ensure_topic(o.topic, o.partitions, o.retention_us) for o in graph.outputs
    }
    outputs[dead_letter_topic] = log.ensure_topic(dead_letter_topic, 1)
    for one in graph.outputs:
        register_schemas(one, log)
    _check_tables(graph, log, version)
    unkeyed: set[str] = set()
    if version is not None:
        known = version.partitions
        unkeyed = {t for t, count in partitions.items() if known.get(t, count) != count}
        unkeyed |= set(version.unkeyed) & partitions.keys()
        shards = shards or version.shards
    physical = compile_graph(graph, partitions, shards or cores, frozenset(unkeyed))
    lanes = max(1, min(cores, sum(partitions.values())))
    return Target(physical, outputs, dead_letter_topic, lanes)


def _check_tables(graph: Graph, log: Log, version: Version | None) -> None:
    """Checks the keys of the tables that a version doesn't have."""
    own = {source.topic: source for source in graph.sources}
    known: Mapping[str, str] = {}
    if version is not None:
        mine = {topic: one.identity for topic, one in own.items()}
        known = mine if version.sources is None else version.sources
    new = [t for t, one in own.items() if one.changelog and known.get(t) != one.identity]
    first, ends = log.start_offsets(new), log.end_offsets(new)
    for topic in new:
        check_table_key(own[topic], log, first[topic], ends[topic])


def assemble(
    graph: Graph,
    store: Store,
    log: Log,
    *,
    cores: int,
    open_store: Callable[[], Store],
    open_log: Callable[[], Log],
    shards: int | None = None,
    rows_max: int = Limits.rows_max,
    versions_kept: int = VERSIONS_KEPT,
    wall_us: Callable[[], int] | None = None,
    beside: bool = False,
    relaxed: bool = False,
) -> tuple[Job, Driver]:
    """Creates the topics, places the operators and takes ownership.

    Args:
        graph: what to run.
        store: the pipeline's record.
        log: where it reads and writes.
        cores: tasks at a time.
        open_store: gives the record in a task's process.
        open_log: gives the log in a task's process.
        shards: of exchanged state, where there is none yet; None is one for each core.
        rows_max: of one partition in one batch.
        versions_kept: how many committed versions can be read.
        wall_us: the clock; None is this machine's.
        beside: whether the record is kept up to date in a thread.
        relaxed: whether all lanes are on this machine, so that batches need not wait for the disk.
    """
    check_name(store, graph.name)
    number = store.newest_version()
    version = store.version(number) if number else None
    target = lay_out(graph, log, version, cores=cores, shards=None if version else shards)
    outputs = dict(target.output_partitions)
    # A topic recognises the last batch that is written again, not the ones before.
    relaxed = relaxed and store.can_relax and not graph.outputs
    topic = target.dead_letter_topic
    job = Job(target.physical, open_store, open_log, topic, outputs, relaxed=relaxed)
    clock = {} if wall_us is None else {"wall_us": wall_us}
    driver = Driver(
        target.physical,
        store,
        log,
        lanes=target.lanes,
        output_partitions=outputs,
        dead_letter_topic=target.dead_letter_topic,
        limits=Limits(rows_max=rows_max),
        keeper=Keeper(store, relaxed=relaxed, beside=beside),
        versions_kept=None if versions_kept == VERSIONS_KEPT else versions_kept,
        **clock,
    )
    return job, driver


def check_name(store: Store, name: str) -> None:
    """Refuses a directory of another pipeline, before anything is taken over or thrown away there."""
    number = store.newest_version()
    found = store.version(number).name if number else name
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
