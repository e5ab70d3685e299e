"""Flink reads JSON from a topic and counts and sums per user and minute (Flink SQL, event time).

Runs in Flink's own environment (`.cache/flink-venv/bin/python`); prints one line of JSON. Without
`--out` the windows go to Flink's blackhole and there are no checkpoints, which is Flink at its
fastest; with `--out` they are written as CSV, with the checkpoints that the file sink needs.
"""

import argparse
import itertools
import json
import os
import resource
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

from cache import jars, problem

SAMPLE_INTERVAL_S = 0.5
REST_TIMEOUT_S = 2.0
STEADY_FROM = 0.25  # of the rows: what comes before is start-up and the JIT's warming up
MANAGED_MEMORY = "1g"  # RocksDB's blocks and write buffers
CHECKPOINT_INTERVAL_MS = 2_000  # of runs that write files: the sink commits with checkpoints

SOURCE = """
CREATE TABLE events (
  `user` BIGINT, v DOUBLE, ts BIGINT,
  et AS TO_TIMESTAMP_LTZ(ts, 3),
  WATERMARK FOR et AS et - INTERVAL '2' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = 'flink-windows', 'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset', 'format' = 'json'
)"""
SINK = """
CREATE TABLE windows (window_start TIMESTAMP(3), `user` BIGINT, n BIGINT, total DOUBLE)
WITH ({sink})"""
WINDOWS = """
INSERT INTO windows
SELECT window_start, `user`, COUNT(*), SUM(v)
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(et), INTERVAL '1' MINUTE))
GROUP BY window_start, window_end, `user`"""
READ_SINK = "CREATE TABLE rows_read (`user` BIGINT, v DOUBLE) WITH ('connector' = 'blackhole')"
READ = "INSERT INTO rows_read SELECT `user`, v FROM events"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True, help="events in the topic")
    parser.add_argument("--out", type=Path, help="write the windows to this folder, as CSV")
    parser.add_argument("--state", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--read-only", action="store_true", help="read and decode, no windows")
    return parser.parse_args()


class Sampler(threading.Thread):
    """Asks Flink's own REST service how many records the sources have read so far."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._root = f"http://127.0.0.1:{port}"
        self._ended = threading.Event()
        self._metrics: dict[str, list[str]] = {}
        self.samples: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            try:
                rows = self._rows()
            except (OSError, ValueError, KeyError):
                continue  # the cluster is starting or gone
            if rows:
                self.samples.append((time.monotonic(), rows))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def steady_rows_per_s(self, rows: int) -> float | None:
        """The rate after STEADY_FROM of all rows, or None where there are too few samples."""
        later = [sample for sample in self.samples if sample[1] >= STEADY_FROM * rows]
        moving = [a for a, b in itertools.pairwise(later) if b[1] > a[1]] + later[-1:]
        if len(moving) < 3:
            return None
        (first_s, first), (last_s, last) = moving[0], moving[-1]
        return (last - first) / (last_s - first_s)

    def _rows(self) -> int:
        total = 0
        for job in self._get("/jobs")["jobs"]:
            for vertex in self._get(f"/jobs/{job['id']}")["vertices"]:
                if "Source" not in vertex["name"]:
                    continue
                path = f"/jobs/{job['id']}/vertices/{vertex['id']}/subtasks/metrics"
                if not self._metrics.get(path):
                    names = [metric["id"] for metric in self._get(path)]
                    self._metrics[path] = [
                        name
                        for name in names
                        if name.startswith("Source") and name.endswith(".numRecordsIn")
                    ]
                for name in self._metrics[path]:
                    found = self._get(f"{path}?get={urllib.request.quote(name)}&agg=sum")
                    total += sum(int(metric["sum"]) for metric in found)
        return total

    def _get(self, path: str) -> object:
        with urllib.request.urlopen(self._root + path, timeout=REST_TIMEOUT_S) as answer:
            return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def checkpointing(folder: Path) -> dict[str, str]:
    """Settings of a run with checkpoints: into files, as those in memory fail beyond 5 MB of state.

    A job that fails ends: by default Flink starts one with checkpoints without limit.
    """
    return {
        "execution.checkpointing.interval": f"{CHECKPOINT_INTERVAL_MS}ms",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": folder.resolve().as_uri(),
        "restart-strategy.type": "none",
    }


def environment(options: argparse.Namespace, rest_port: int) -> object:
    """A table environment on a cluster inside this process's JVM."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    settings = {
        "parallelism.default": str(options.parallelism),
        "state.backend.type": "hashmap" if options.state == "heap" else "rocksdb",
        "pipeline.jars": ";".join(jar.as_uri() for jar in jars("flink")),
        "taskmanager.memory.managed.size": MANAGED_MEMORY,
        "table.local-time-zone": "UTC",
        "rest.address": "127.0.0.1",
        "rest.bind-port": str(rest_port),
        "metrics.fetcher.update-interval": str(int(SAMPLE_INTERVAL_S * 1000)),
    }
    if options.out:
        settings |= checkpointing(options.out / "checkpoints")
    for name, value in settings.items():
        configuration.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(configuration)
        .build()
    )


def main() -> int:
    options = arguments()
    if reason := problem("flink"):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    os.environ["TZ"] = "UTC"
    launched = time.monotonic()
    rest_port = free_port()
    tables = environment(options, rest_port)
    tables.execute_sql(SOURCE.format(topic=options.topic, bootstrap=options.bootstrap))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        where = options.out.resolve().as_uri()
        sink = f"'connector' = 'filesystem', 'path' = '{where}', 'format' = 'csv'"
    else:
        sink = "'connector' = 'blackhole'"
    tables.execute_sql(READ_SINK if options.read_only else SINK.format(sink=sink))
    sampler = Sampler(rest_port)
    sampler.start()
    started = time.monotonic()
    tables.execute_sql(READ if options.read_only else WINDOWS).wait()
    seconds = time.monotonic() - started
    sampler.end()
    steady = sampler.steady_rows_per_s(options.rows)
    found = {
        "side": "flink" if options.state == "heap" else "flink-rocksdb",
        "rows": options.rows,
        "seconds": round(seconds, 3),
        "rows_per_s": round(options.rows / seconds),
        "steady_rows_per_s": steady and round(steady),
        "startup_s": round(started - launched, 3),
        "python_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
