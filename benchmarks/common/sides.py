"""Running a side of a comparison: a program of its own that prints one line of JSON."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from peers import cache

SAMPLE_INTERVAL_S = 0.25
ERROR_CHARS = 1500  # of a failed side's standard error
PENSTOCK = "penstock"
HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Side:
    """One system in one setting.

    Args:
        name: As `--peers` takes it.
        peer: Which fetched peer it needs, or None.
        program: Below `benchmarks/`.
        arguments: That make it this side.
        result: The DuckDB relation over what it wrote to `{out}`.
    """

    name: str
    peer: str | None
    program: str
    arguments: tuple[str, ...]
    result: str

    def problem(self) -> str | None:
        """Why it can't be run here and what to do, or None."""
        return cache.problem(self.peer) if self.peer else None

    def command(self) -> list[str]:
        """The program with the interpreter that it needs."""
        python = str(cache.python("flink")) if self.peer == "flink" else sys.executable
        return [python, str(HERE / self.program), *self.arguments]


_PARQUET = """(SELECT window_start_ms, "user", n, total FROM read_parquet('{out}/*.parquet'))"""
_CSV = """(SELECT epoch_ms(ws) AS window_start_ms, "user", n, total FROM read_csv('{out}/**/part-*',
    header = false, columns = {{ws: 'TIMESTAMP', user: 'BIGINT', n: 'BIGINT', total: 'DOUBLE'}}))"""
_FLINK = "peers/flink_windows.py"
_SPARK = "peers/spark_windows.py"

WINDOW_SIDES = {
    side.name: side
    for side in (
        Side(PENSTOCK, None, "penstock_windows.py", (), _PARQUET),
        Side("flink", "flink", _FLINK, ("--state", "heap"), _CSV),
        Side("flink-rocksdb", "flink", _FLINK, ("--state", "rocksdb"), _CSV),
        Side("spark", "spark", _SPARK, ("--state", "memory"), _PARQUET),
        Side("spark-rocksdb", "spark", _SPARK, ("--state", "rocksdb"), _PARQUET),
    )
}


class SideError(Exception):
    """A side ended without a result."""


class _Usage(threading.Thread):
    """Samples the memory of a process and all its children, and their processor time.

    Pages that several processes share are counted once (proportional set size), where the system tells;
    elsewhere memory is what is resident, process by process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._cpu_s: dict[int, float] = {}
        self.peak_mib = 0

    @property
    def cpu_s(self) -> float:
        """Of all of them, as far as it was seen."""
        return sum(self._cpu_s.values())

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            total = 0
            try:
                for process in (self._root, *self._root.children(recursive=True)):
                    total += _memory_bytes(process)
                    self._cpu_s[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:
                continue  # one of them has just ended
            self.peak_mib = max(self.peak_mib, total >> 20)

    def end(self) -> None:
        self._ended.set()
        self.join()


def _memory_bytes(process: psutil.Process) -> int:
    found = process.memory_full_info() if psutil.LINUX else process.memory_info()
    return getattr(found, "pss", found.rss)


def run_program(command: Sequence[str], *, work: Path, timeout_s: float) -> dict[str, object]:
    """Run a side to its end.

    Args:
        command: The program and its arguments.
        work: Its working directory; its standard error is kept there.
        timeout_s: After which it is ended, with a SideError.

    Returns:
        What it printed, and `peak_mib` and `cpu_s` of it and its children together.
    """
    work.mkdir(parents=True, exist_ok=True)
    console = work / "stderr.log"
    # a group of its own: the JVMs that it starts can be ended with it
    with (
        console.open("wb") as stderr,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=work,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        usage = _Usage(process.pid)
        usage.start()
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise SideError(f"no result within {timeout_s:g} s") from None
        finally:
            usage.end()
    if process.returncode:
        words = console.read_text(encoding="utf-8", errors="replace").strip()[-ERROR_CHARS:]
        raise SideError(f"exit {process.returncode}: {words}")
    lines = printed.strip().splitlines()
    if not lines:
        raise SideError("expected a line of JSON on standard output; found nothing")
    used = {"peak_mib": usage.peak_mib, "cpu_s": round(usage.cpu_s, 2)}
    return {**json.loads(lines[-1]), **used}


def end_cleanly() -> None:
    """Let SIGTERM unwind as Ctrl-C does, so that no broker and no side is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def limit_cores(cores: int) -> int:
    """Bind this process and all that it starts to some cores; returns how many there are."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        os.sched_setaffinity(0, allowed)
        return len(allowed)
    return os.cpu_count() or 1  # macOS has no such call: the sides' parallelism must do
