"""The broker that a benchmark's topics are in: Penstock's own, Kafka, or one that runs already."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from peers.kafka import KafkaProcess, free_port, wait_until_ready

BROKERS = ("penstock", "kafka")
STOP_TIMEOUT_S = 30.0
LOG_TAIL_CHARS = 2000


@contextlib.contextmanager
def broker(which: str, data_dir: Path) -> Iterator[str]:
    """A broker for the time of a `with` block.

    Args:
        which: `penstock`, `kafka`, or the `host:port` of one that runs already.
        data_dir: What the started one keeps its data and its console in.

    Yields:
        Its address, `host:port`.
    """
    match which:
        case "kafka":
            with KafkaProcess(data_dir) as kafka:
                yield kafka.address
        case "penstock":
            with _penstock(data_dir) as address:
                yield address
        case _ if ":" in which:
            wait_until_ready(which, died=lambda: None)
            yield which
        case _:
            raise ValueError(f"broker: expected {', '.join(BROKERS)} or HOST:PORT; found {which!r}")


@contextlib.contextmanager
def _penstock(data_dir: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir.with_suffix(".log")
    command = [sys.executable, "-m", "penstock.broker", "--listen", address]
    command += ["--die-with-parent", str(os.getpid())]  # even where SIGKILL ends this one
    with log.open("wb") as console:
        process = subprocess.Popen(
            [*command, "--data", str(data_dir)], stdout=console, stderr=subprocess.STDOUT
        )

    def died() -> str | None:
        code = process.poll()
        words = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
        return None if code is None else f"exit {code}: {words}"

    try:
        wait_until_ready(address, died=died)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
