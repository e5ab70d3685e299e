"""Runs batches on Spark: Structured Streaming keeps the beat, schedules, shuffles and retries.

The stream's source is Spark's own clock (`rate-micro-batch`), whose rows number the lanes of stage 0.
The stages of a batch are in the stream's plan, which Spark compiles once:

    clock -> mapInArrow(stage 0) -> [repartitionById(shard) -> mapInArrow(stage k)]… -> foreachBatch

`foreachBatch` plans, collects (which runs the tasks) and commits, and does it again while there is
something to read. Where there is nothing it waits on the log, so a new event starts a batch at once.
What is true is in `penstock.engine.store`; Spark's own checkpoint begins anew with each owner. Only
APIs that Spark Connect has too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.engine import archive
from penstock.engine.driver import Driver, Progress
from penstock.engine.java import java_home
from penstock.engine.parcels import ROWS, Parcels
from penstock.engine.plan import Plan
from penstock.engine.tasks import Job, Message, run_shard_stage, run_source_stage
from penstock.errors import FencedError, PenstockError
from penstock.flow.graph import RowStep, ancestry
from penstock.ops.rows import MapBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkHost", "start_session"]

_log = logging.getLogger(__name__)

POLL_S: Final[Any] = 0.1  # of `until` (Spark takes fractions, its annotations do not)
WAIT_S: Final = 0.5  # of an idle tick: how long a stop or an idle partition may go unnoticed
TICK_S: Final = 2.0  # batches go on in one tick for so long: a tick costs Spark 90 ms beside them
ATTEMPTS_MAX: Final = 5  # of one batch, beyond Spark's own attempts at each task
RETRY_S: Final = 1.0
STOP_S: Final = 10.0  # for a batch in flight to end before the stream is interrupted
# The JVM schedules and moves blobs; it never sees an event. A quick compiler and a small collector then
# start sooner and leave the cores to the work: 3 s and a third of a small batch's time (docs/decisions).
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CHECKPOINT_MANAGER: Final = (
    # Writes each log entry with one rename; half the time of the default (docs/decisions)
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def start_session(
    name: str, master: str | None, folder: Path, *, cores: int, jvm_options: str | None = None
) -> SparkSession:
    """Starts Spark, or finds the session that the program has.

    Args:
        name: of the application.
        master: `spark://…`; None runs Spark in a process of this machine.
        folder: for Spark's log and the Java launcher.
        cores: to use on this machine, where `master` is None.
        jvm_options: beside Penstock's own; None uses the archive of classes, where there is one.
    """
    from pyspark.sql import SparkSession

    folder.mkdir(parents=True, exist_ok=True)
    java = java_home(folder)
    if jvm_options is None:
        jvm_options = archive.use_options(java)
    os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Each task has one core; libraries that start a thread per core would fight over it.
    threads = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    options: dict[str, Any] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.worker.reuse": True,
        "spark.python.daemon.module": "penstock.engine.workers",
        "spark.sql.session.timeZone": "UTC",
        # Adaptive plans run an exchange before foreachBatch is called: before there is a plan.
        "spark.sql.adaptive.enabled": False,
        # Partials are narrow already, and this JVM's compiler is not for compressing.
        "spark.shuffle.compress": False,
        "spark.shuffle.spill.compress": False,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        "spark.sql.streaming.minBatchesToRetain": 2,
        "spark.sql.streaming.numRecentProgressUpdates": 4,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log4j(folder)} "
        f"{JVM_OPTIONS} {jvm_options}",
        **{f"spark.executorEnv.{k}": v for k, v in threads.items()},
    }
    builder = SparkSession.builder.appName(name).master(master or f"local[{cores},4]")
    if master is not None:
        for key in ("spark.driver.bindAddress", "spark.driver.host"):
            del options[key]
    for key, value in options.items():
        builder = builder.config(key, value)
    with _stderr_to(folder / "spark.log"), _environment(threads):
        return builder.getOrCreate()


class SparkHost:
    """Executes a driver's batches on a Spark session, until it is told to stop."""

    def __init__(
        self, session: SparkSession, job: Job, *, lanes: int, checkpoint: Path, parcels: Parcels
    ) -> None:
        self.session, self.job, self.lanes, self.parcels = session, job, lanes, parcels
        self._checkpoint = checkpoint
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._failure: BaseException | None = None
        self._attempts = 0

    def run(
        self,
        driver: Driver,
        on_progress: Callable[[Progress], None],
        until: Callable[[], bool],
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs batches until `until()` or `stop()`.

        Args:
            driver: the owner of the pipeline.
            on_progress: called after each batch, on another thread.
            until: asked often.
            on_idle: called when there was nothing to do, on another thread.

        Raises:
            PenstockError: what stopped the pipeline.
        """
        shutil.rmtree(self._checkpoint, ignore_errors=True)

        def tick(frame: DataFrame, number: int) -> None:  # noqa: ARG001 - plans have numbers of their own
            self._idle.clear()
            try:
                if not self._stop.is_set():
                    self._tick(frame, driver, on_progress, on_idle)
            finally:
                self._idle.set()
            if self._stop.is_set():
                time.sleep(WAIT_S)

        query = (
            self._frame()
            .writeStream.foreachBatch(tick)
            .option("checkpointLocation", str(self._checkpoint))
            .start()
        )
        failed: Exception | None = None
        try:
            while not self._stop.is_set() and not until():
                if query.awaitTermination(POLL_S):
                    break
        except Exception as error:  # noqa: BLE001 - the query's own failure, or a JVM that is gone
            failed = error
        finally:
            self._stop.set()
            self._idle.wait(STOP_S)
            with contextlib.suppress(Exception):
                query.stop()
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        if self._failure is not None:
            raise self._failure
        if failed is not None:
            raise PenstockError(
                f"expected Spark to go on; found: {_short(failed)}. Its log is beside the checkpoint in "
                f"{str(self._checkpoint.parent)!r}. What was committed is safe: run the pipeline again"
            ) from failed

    def stop(self) -> None:
        """Ends `run` after the batch in flight."""
        self._stop.set()

    def _frame(self) -> DataFrame:
        """The stages as one streaming DataFrame."""
        from pyspark.sql import functions as sf

        job, lanes, parcels = self.job, self.lanes, self.parcels
        _carry_functions(job)

        def source_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for value in batch.column("value").to_numpy().tolist():
                    yield from parcels.pack(run_source_stage(job, value % lanes))

        frame = (
            self.session.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", lanes)
            .option("numPartitions", lanes)
            .load()
            .mapInArrow(source_stage, ROWS)
        )
        for stage in range(1, job.physical.stages):
            frame = frame.repartitionById(job.physical.shards, sf.col("shard")).mapInArrow(
                _shard_stage(job, stage, parcels), ROWS
            )
        return frame

    def _tick(
        self,
        frame: DataFrame,
        driver: Driver,
        on_progress: Callable[[Progress], None],
        on_idle: Callable[[], None],
    ) -> None:
        def execute(plan: Plan) -> list[Message]:  # noqa: ARG001 - tasks read it from the store
            try:
                return self.parcels.unpack(frame.collect())
            finally:
                self.parcels.clear()

        until = time.monotonic() + TICK_S
        while not self._stop.is_set():
            try:
                progress = driver.step(execute, timeout_s=WAIT_S)
            except Exception as error:  # noqa: BLE001 - it must reach the user's thread, not the JVM
                self._failed(error)
                return
            self._attempts = 0
            if progress is None:
                on_idle()
                return
            on_progress(progress)
            # Spark keeps what an exchange wrote, so collecting again would not run its first stage.
            if self.job.physical.stages > 1 or time.monotonic() > until:
                return

    def _failed(self, error: Exception) -> None:
        """Tries the batch again where that may help: it has a plan, so it will be the same one."""
        self._attempts += 1
        may_pass = not isinstance(error, PenstockError) or error.retriable
        if may_pass and self._attempts < ATTEMPTS_MAX and not self._stop.is_set():
            _log.warning("batch failed, attempt %d: %s", self._attempts, _short(error))
            self._stop.wait(RETRY_S * self._attempts)
            return
        if isinstance(error, PenstockError):
            self._failure = error
        else:
            self._failure = PenstockError(f"expected the batch to run; found: {_short(error)}")
            self._failure.__cause__ = error
        if isinstance(error, FencedError):
            _log.error("%s", error)
        self._stop.set()


def _carry_functions(job: Job) -> None:
    """Sends the modules of the user's functions along: workers can't import a program file."""
    from pyspark import cloudpickle

    graph = job.physical.graph
    ends = [view.node for view in graph.views] + [output.node for output in graph.outputs]
    for node in (node for end in ends for node in ancestry(end)):
        if isinstance(node, RowStep) and isinstance(node.operator, MapBatches):
            module = sys.modules.get(node.operator.function.__module__)
            installed = "site-packages" in str(getattr(module, "__file__", None) or "")
            if module is not None and module.__name__ != "__main__" and not installed:
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _shard_stage(
    job: Job, stage: int, parcels: Parcels
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = (
            piece
            for batch in batches
            for piece in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        shards: dict[int, list[Message]] = defaultdict(list)
        for message in parcels.unpack(pieces):
            shards[message[0]].append(message)
        for shard, messages in sorted(shards.items()):
            yield from parcels.pack(run_shard_stage(job, stage, shard, messages))

    return run


def _short(error: BaseException) -> str:
    """The last line of an error that says something: Python's own, below Java's trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (told or lines or [repr(error)])[-1 if told else 0][:2_000]


def _log4j(folder: Path) -> Path:
    """A log4j configuration that writes warnings to a file beside it."""
    path = folder / "log4j2.properties"
    path.write_text(
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = RollingFile\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {folder / 'spark.log'}\n"
        f"appender.file.filePattern = {folder / 'spark.%i.log'}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex\n"
        "appender.file.policies.type = Policies\n"
        "appender.file.policies.size.type = SizeBasedTriggeringPolicy\n"
        "appender.file.policies.size.size = 10MB\n"
        "appender.file.strategy.type = DefaultRolloverStrategy\n"
        "appender.file.strategy.max = 2\n"
    )
    return path


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Lets processes started meanwhile write their standard error to a file: the JVM keeps it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes started meanwhile."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
