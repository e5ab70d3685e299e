"""Spark's own daemons on this machine: a master, and workers that start executors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil
import pyspark
from tests.ports import free_port

from penstock.engine.spark.java import java_home

__all__ = ["PATIENCE_S", "Daemon", "master", "worker"]

PATIENCE_S: Final = 300.0
LOOPBACK: Final = "127.0.0.1"
DEPLOY: Final = "org.apache.spark.deploy"


class Daemon:
    """One of Spark's daemons, once it has said that it is there.

    Args:
        folder: for its log, and what it keeps.
        name: of its log.
        arguments: of `spark-class`.
        says: what it says when it is there.
        host: its address.
        within: what its command is an argument of: `ip netns exec NAME`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: str,
        says: str,
        host: str = LOOPBACK,
        within: Sequence[str] = (),
    ) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._command = [*within, str(spark_class), *arguments]
        self._folder, self._says, self._host = folder, says, host
        self._log = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        """Starts it, for the first time or after `kill`."""
        env = os.environ | {
            "JAVA_HOME": str(java_home(self._folder)),
            "SPARK_LOCAL_IP": self._host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_WORKER_DIR": str(self._folder / "work"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output, env=env)
        deadline = time.monotonic() + PATIENCE_S
        while self._says not in self._log.read_text():
            assert self.process.poll() is None, self._log.read_text()[-2_000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2_000:]
            time.sleep(0.1)

    def family(self) -> list[psutil.Process]:
        """The processes that it has started, and those that these have."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """Ends the daemon alone; its executors notice by themselves."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends it with all that it has started."""
        for one in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.kill()


@contextlib.contextmanager
def master(folder: Path, host: str = LOOPBACK, within: Sequence[str] = ()) -> Iterator[str]:
    """A master; its address."""
    port = free_port()
    address = ("--host", host, "--port", str(port), "--webui-port", "0")
    says = "I have been elected leader"
    kind = f"{DEPLOY}.master.Master"
    daemon = Daemon(folder, "master", kind, *address, says=says, host=host, within=within)
    try:
        yield f"spark://{host}:{port}"
    finally:
        daemon.end()


@contextlib.contextmanager
def worker(
    folder: Path,
    address: str,
    name: str = "worker",
    *,
    memory: str = "1500m",
    host: str = LOOPBACK,
    within: Sequence[str] = (),
) -> Iterator[Daemon]:
    """A worker with two cores, of the master at an address. An executor takes a gigabyte of its memory."""
    arguments = ("-c", "2", "-m", memory, "--webui-port", "0", address)
    says = "Successfully registered with master"
    kind = f"{DEPLOY}.worker.Worker"
    daemon = Daemon(folder, name, kind, *arguments, says=says, host=host, within=within)
    try:
        yield daemon
    finally:
        daemon.end()
