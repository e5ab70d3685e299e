"""Spark for pipelines: started on this machine or on a cluster, quiet and small.

A pipeline runs on a context. A session on it would load 4,000 classes more, for what no lane uses: 4 s of
processor time and 55 MB without an archive of classes. Spark Connect has sessions alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from penstock.engine.spark import archive, scratch, standby
from penstock.engine.spark.addresses import LOOPBACK, address_towards
from penstock.engine.spark.java import java_home
from penstock.errors import FlowError, SetupError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Place", "Spark", "session_for", "start_context", "start_session"]

Place: TypeAlias = "SparkContext | SparkSession"
"""Where jobs run: a context; a session where it is of Spark Connect, whose server has the context."""

# The JVM schedules and moves blobs; it never sees an event. A quick compiler and a small collector then
# start sooner and leave the cores to the work: 3 s and a third of a small batch's time (docs/decisions).
# Its heap would begin with a 64th of the machine's memory, and be filled before garbage is collected: begun
# small, it holds 304 MB after its first jobs instead of 398, for the same processor time.
# Figures for jstat, which nothing reads, would wake it twenty times a second.
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms48m -Xmn16m -XX:-UsePerfData"
# Each task has one core; libraries that start a thread per core would fight over it.
THREADS: Final = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
LANE_FAILURES_MAX: Final = 64
"""Times that Spark starts one lane again before it gives up the job, which is then started again."""


class Spark:
    """Where jobs run, and what begins another where its JVM is gone.

    Args:
        place: the first one; None: it is begun on another thread, and there when it is asked for.
        start: begins another; None: Spark is the program's own, which alone may begin it again.
        master: of what is begun; None is this machine.
        before: called before one is begun, on the caller's thread.
        address: of this machine, at which workers reach it; None: Spark's own, or the way to its server.
    """

    def __init__(
        self,
        place: Place | None = None,
        start: Callable[[], Place] | None = None,
        master: str | None = None,
        before: Callable[[], object] = lambda: None,
        address: str | None = None,
    ) -> None:
        self._start, self._own_master, self._before = start, master, before
        self._address = address
        self._place: Future[Place] = Future()
        if place is not None:
            self._place.set_result(place)
        else:
            self._begin()

    def _begin(self) -> None:
        assert self._start is not None, "it is the program's own"
        start, begun = self._start, self._place

        def begin() -> None:
            try:
                begun.set_result(start())
            except BaseException as error:  # noqa: BLE001 - raised where the place is asked for
                begun.set_exception(error)

        try:
            self._before()
            threading.Thread(target=begin, name="penstock-spark-start", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - raised likewise
            begun.set_exception(error)

    @property
    def place(self) -> Place:
        """Where jobs run; waits until it is there.

        Raises:
            Exception: it can't be started: Spark's, the set-up's, or the system's.
        """
        return self._place.result()

    @property
    def is_here(self) -> bool:
        """Whether all of Spark runs on this machine; waits for Spark where a cluster may be meant."""
        if self.can_start_again and self._own_master is None:
            return True
        return (_setting(self.place, "spark.master") or "").startswith("local")

    @property
    def host(self) -> str:
        """Where lanes reach this process; waits for Spark likewise."""
        if self.can_start_again and self._own_master is None:
            return LOOPBACK
        return self._address or _setting(self.place, "spark.driver.host") or LOOPBACK

    @property
    def can_start_again(self) -> bool:
        """Whether Spark is the pipeline's."""
        return self._start is not None

    def is_gone(self) -> bool:
        """Whether the JVM doesn't answer, or Spark could not be started."""
        if not self._place.done():
            return False
        try:
            return not self.place.version
        except Exception:  # noqa: BLE001 - py4j's, and sockets'
            return True

    def start_again(self) -> None:
        """Begins another one instead of that whose JVM is gone."""
        _let_go(None if self._place.exception() else self.place)
        self._place = Future()
        self._begin()

    def close(self) -> None:
        """Stops Spark, if it is the pipeline's; waits for one that is being started."""
        if self._start is None:
            return
        standby.end()
        with contextlib.suppress(Exception):  # a JVM that is gone has stopped already
            self.place.stop()
        standby.end()


@contextlib.contextmanager
def session_for(
    name: str, master: str | None, folder: Path, *, cores: int, address: str | None = None
) -> Iterator[Spark]:
    """The session or context that the program has, left as it is; or a context of the pipeline's own, until
    the block ends.

    The latter starts on another thread, while the block gets other things ready. Arguments as of
    `start_context`.

    Raises:
        FlowError: the program's session has another master than the pipeline's.
    """
    theirs = _theirs() if "pyspark" in sys.modules else None  # the import takes 0.4 s
    if theirs is not None:
        found = _master(theirs)
        if master not in (None, found):
            raise FlowError(
                f"expected Spark at {master!r}; found a session of this program at {found!r}, which is used "
                "if there is one. Stop it first, or omit spark=…"
            )
        folder.mkdir(parents=True, exist_ok=True)
        yield Spark(theirs, address=address)
        return
    is_over = threading.Event()
    start = functools.partial(
        start_context, name, master, folder, cores=cores, address=address, is_over=is_over.is_set
    )
    stand_by = functools.partial(_stand_by, folder) if master is None else lambda: None
    spark = Spark(start=start, master=master, before=stand_by, address=address)
    try:
        yield spark
    finally:
        is_over.set()
        spark.close()


def _theirs() -> Place | None:
    """What the program has begun itself."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001 - no public name asks without beginning one
    return SparkSession.getActiveSession() if context is None else context


def _let_go(place: Place | None) -> None:
    """Forgets a place whose JVM is gone: PySpark has one for each process, and would use it again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it isn't stopped in order
        if place is not None:
            place.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - no public name lets go of it
    with SparkContext._lock:  # noqa: SLF001
        SparkContext._gateway = None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if process is not None:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
    with contextlib.suppress(Exception):
        gateway.shutdown()


def _setting(place: Place, name: str) -> str | None:
    """A setting of Spark's."""
    from pyspark import SparkContext

    if isinstance(place, SparkContext):
        return place.getConf().get(name)
    return place.conf.get(name, None)


def _master(place: Place) -> str:
    """A place's master. Sessions of Spark Connect know none: their server does."""
    from pyspark import SparkContext

    return str(place.master) if isinstance(place, SparkContext) else "a server of Spark Connect"


def start_session(
    name: str, master: str | None, folder: Path, *, cores: int, jvm_options: str | None = None
) -> SparkSession:
    """Starts Spark as for a pipeline, with a session on it. Arguments as for `start_context`."""
    from pyspark.sql import SparkSession

    start_context(name, master, folder, cores=cores, jvm_options=jvm_options)
    return SparkSession.builder.getOrCreate()


def start_context(
    name: str,
    master: str | None,
    folder: Path,
    *,
    cores: int,
    jvm_options: str | None = None,
    address: str | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> SparkContext:
    """Starts Spark, where none is active.

    Args:
        name: of the application.
        master: `spark://…`; None runs Spark in a process of this machine.
        folder: for Spark's log and the Java launcher.
        cores: to use.
        jvm_options: in addition to Penstock's own; None uses the archive of classes, where there is one.
        address: of this machine, at which workers reach it; None: SPARK_LOCAL_IP, else the one on the way
            to the master.
        is_over: asked between two steps; when it is true, Spark is no longer needed.

    Raises:
        SetupError: it is over.
        OSError: there is no way to the master.
    """
    from pyspark import SparkConf, SparkContext

    folder.mkdir(parents=True, exist_ok=True)
    # Where the JVM is gone, py4j logs what it raises as well, some of it as the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4js)
    java = java_home(folder)
    if jvm_options is None:
        jvm_options = archive.use_options(java)
    os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    where = _local_ip(master, address)
    options: dict[str, str] = {
        "spark.app.name": name,
        "spark.master": master or f"local[{cores},{LANE_FAILURES_MAX}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "penstock.engine.spark.workers",
        "spark.sql.session.timeZone": "UTC",
        # A second attempt of a lane would do its work twice, and the pipeline waits for no straggler.
        "spark.speculation": "false",
        # A run has one job, whose variables go with it; a thread would look for garbage ten times a second.
        "spark.cleaner.referenceTracking": "false",
        # A lane may be lost now and then for as long as the pipeline runs.
        "spark.task.maxFailures": str(LANE_FAILURES_MAX),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log4j(folder)} "
        f"{JVM_OPTIONS} {jvm_options}",
        **{f"spark.executorEnv.{k}": v for k, v in THREADS.items()},
    }
    if master is None:
        temporary = scratch.begin(folder)
        options["spark.local.dir"] = str(temporary)
        options["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={temporary}"'

    def check() -> None:
        if is_over():
            raise SetupError("expected a pipeline that needs Spark; found that it has ended")

    check()
    if SparkContext._gateway is None:  # noqa: SLF001 - else there is a JVM, which is used again
        environment = THREADS | (_stand_by(folder) if master is None else {})
        if where is not None:
            environment["SPARK_LOCAL_IP"] = where
        with (folder / "spark.log").open("ab") as log, _environment(environment):
            _launch(options, log)
    check()
    conf = SparkConf().setAll(list(options.items()))
    is_given = master is None or address is not None
    return SparkContext.getOrCreate(_configure(conf, master, cores, where, is_given=is_given))


def _local_ip(master: str | None, address: str | None) -> str | None:
    """The address that the driver has for its workers; None: Spark itself is to find it.

    Raises:
        OSError: there is no way to the master.
    """
    if master is None or address is not None:
        return LOOPBACK if master is None else address
    return None if os.environ.get("SPARK_LOCAL_IP") else address_towards(master)


def _configure(
    conf: SparkConf, master: str | None, cores: int, address: str | None, *, is_given: bool
) -> SparkConf:
    """Adds what Spark's own configuration may override, in `spark-defaults.conf` or `PYSPARK_SUBMIT_ARGS`.

    Args:
        conf: Spark's configuration, and what counts in any case.
        master: see `start_context`.
        cores: that the lanes need.
        address: of the driver; None: Spark finds it.
        is_given: whether the address counts in any case as well.
    """
    if address is not None:
        for key in ("spark.driver.bindAddress", "spark.driver.host"):
            (conf.set if is_given else conf.setIfMissing)(key, address)
    if master is not None:
        # Without a limit, a pipeline takes all cores of a standalone cluster, and the next one gets none.
        each = int(conf.get("spark.task.cpus", "1") or "1")
        conf.setIfMissing("spark.cores.max", str(cores * each))
    return conf


def _stand_by(folder: Path) -> dict[str, str]:
    """Has a process stand by, unless one does, or there is a JVM already; the environment variable for it."""
    pyspark = sys.modules.get("pyspark")  # else there is no JVM, and the import takes 0.4 s
    if pyspark is not None and pyspark.SparkContext._gateway is not None:  # noqa: SLF001
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "spark.log").open("ab") as log:
        return standby.ready(THREADS, log)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _log4j(folder: Path) -> Path:
    """A log4j configuration that writes warnings to a file next to it."""
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


def _launch(options: dict[str, str], log: BinaryIO) -> None:
    """Starts the JVM, whose standard error goes to a file. PySpark's own way would give it this process's."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf()
    for key, value in options.items():
        conf.set(key, value)
    gateway = launch_gateway(conf, {"stderr": log})  # type: ignore[no-untyped-call] # it has no types
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


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
