"""How long it takes from producing an event to seeing it in a view: Penstock and Spark alike.

    python benchmarks/latency.py [--rate 1000] [--seconds 30] [--json]

Each event has a user and an increasing `seq`; the view has per user and minute a count, a sum and
the newest `seq`. Events are produced one by one through confluent-kafka (acks=1). The view is followed
over HTTP: a request is answered when the view has changed, and sent again at once. An event is visible
at the first answer in which its user's newest `seq` has reached its own. Latency runs from just before
the event is handed to the producer to the arrival of that answer. Both sides go through the same code here.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from common.brokers import BROKERS, broker
from common.events import TOPIC_CONFIG
from common.sides import HERE, PENSTOCK, SideError, end_cleanly, limit_cores
from peers import cache

DRAIN_INTERVAL_S = 0.01
START_TIMEOUT_S = 120.0  # a Spark session on a busy machine
WARM_UP_TIMEOUT_S = 180.0  # after which a side is measured as it is
WARM_UP_CHANGES = 5  # of the view, before a side counts as warm
DRAIN_TIMEOUT_S = 60.0  # for the last event to become visible
STOP_TIMEOUT_S = 60.0
ERROR_CHARS = 1500

PROGRAMS = {
    PENSTOCK: ["penstock_latency.py"],
    f"{PENSTOCK}-join": ["penstock_latency.py", "--join"],
    "spark": ["peers/spark_latency.py", "--state", "memory"],
    "spark-rocksdb": ["peers/spark_latency.py", "--state", "rocksdb"],
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=1_000, help="events a second (default 1000)")
    parser.add_argument("--seconds", type=float, default=30, help="measured (default 30)")
    parser.add_argument(
        "--warm-up-s", type=float, default=20, help="after the view's first rows (default 20)"
    )
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--sides", default=f"{PENSTOCK},spark", help=f"of {','.join(PROGRAMS)}")
    parser.add_argument("--broker", default=BROKERS[0], help="penstock, kafka, or HOST:PORT")
    parser.add_argument("--cores", type=int, default=2, help="for everything together")
    parser.add_argument("--smoke", action="store_true", help="a few seconds: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if options.smoke:
        options.rate, options.seconds, options.warm_up_s = 200, 3, 3
    options.sides = [name for name in options.sides.split(",") if name]
    if unknown := set(options.sides) - set(PROGRAMS):
        parser.error(f"--sides: expected {', '.join(PROGRAMS)}; found {', '.join(unknown)}")
    if any(not one.startswith(PENSTOCK) for one in options.sides) and (
        reason := cache.problem("spark")
    ):
        parser.error(reason)
    return options


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Follower(threading.Thread):
    """Follows a view over one connection and keeps what changed.

    Args:
        url: Answers with the newest `seq` of each user (`peers/served.py`).
    """

    url: str
    samples: list[tuple[float, dict[int, int]]] = field(default_factory=list)
    error: str | None = None

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.newest: dict[int, int] = {}

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
        path = where.path + (f"?{where.query}" if where.query else "")
        known = ""
        try:
            while not self._ended.is_set():
                connection.request("GET", path, headers={"If-None-Match": known})
                answer = connection.getresponse()
                body = answer.read()
                seen = time.monotonic()
                if answer.status == 304:
                    continue
                if answer.status != 200:
                    raise ValueError(f"the view answered {answer.status}: {body[:200]!r}")
                known = answer.headers["ETag"]
                self.newest = {int(user): seq for user, seq in json.loads(body).items()}
                if self.newest:
                    self.samples.append((seen, self.newest))
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = repr(error)
        finally:
            connection.close()

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass(frozen=True)
class Produced:
    """The events that were sent: `seq` is the index.

    Args:
        user: int64[n].
        at_s: float64[n], on the monotonic clock, just before each was handed to the producer.
        measured_from: The first `seq` after the warm-up.
    """

    user: np.ndarray
    at_s: np.ndarray
    measured_from: int

    def last_by_user(self) -> dict[int, int]:
        """Each user's newest `seq`."""
        return {int(user): seq for seq, user in enumerate(self.user)}


def produce(
    bootstrap: str, topic: str, options: argparse.Namespace, samples: list[tuple[float, Any]]
) -> Produced:
    """Send events one by one at an even rate, through the warm-up and the measured time.

    The warm-up ends `warm_up_s` after the view first showed something, and not before it changed
    WARM_UP_CHANGES times: a first micro-batch may take half a minute on a busy machine, and says
    nothing of those that follow.
    """
    from confluent_kafka import Producer

    random = np.random.default_rng(7)
    users: list[int] = []
    at_s: list[float] = []
    measured_from: int | None = None
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0})
    started = time.monotonic()
    while measured_from is None or len(users) < measured_from + options.rate * options.seconds:
        seq = len(users)
        wait = started + seq / options.rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        users.append(int(random.integers(0, options.users)))
        now_ms = time.time_ns() // 1_000_000
        value = f'{{"user":{users[seq]},"seq":{seq},"v":{seq % 10}.5,"ts":{now_ms}}}'
        at_s.append(time.monotonic())
        producer.produce(topic, value, str(users[seq]))
        producer.poll(0)
        if measured_from is None:
            late = at_s[seq] - started > WARM_UP_TIMEOUT_S
            if late and not samples:
                raise SideError(f"nothing was visible within {WARM_UP_TIMEOUT_S:g} s")
            changed = late or len(samples) >= WARM_UP_CHANGES
            if changed and at_s[seq] - samples[0][0] >= options.warm_up_s:
                measured_from = seq + 1
    producer.flush(DRAIN_TIMEOUT_S)
    return Produced(np.array(users), np.array(at_s), measured_from)


def latencies_ms(produced: Produced, samples: list[tuple[float, dict[int, int]]]) -> np.ndarray:
    """From produced to visible, for each event; infinite where it never became visible."""
    result = np.full(len(produced.user), np.inf)
    for user in np.unique(produced.user).tolist():
        steps = [(seen, newest[user]) for seen, newest in samples if user in newest]
        if not steps:
            continue
        seen = np.array([step[0] for step in steps])
        newest = np.maximum.accumulate([step[1] for step in steps])
        seqs = np.flatnonzero(produced.user == user)
        first = np.searchsorted(newest, seqs)  # the first sample that has reached each seq
        visible = first < len(newest)
        chosen = seqs[visible]
        result[chosen] = 1000 * (seen[first[visible]] - produced.at_s[chosen])
    return result


def run_side(name: str, bootstrap: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Measure one side on a topic of its own."""
    topic = f"latency-{name}"
    create_topic(bootstrap, topic, options.partitions)
    program, *settings = PROGRAMS[name]
    command = [sys.executable, str(HERE / program), *settings, "--bootstrap", bootstrap]
    command += ["--topic", topic, "--parallelism", str(options.partitions)]
    console = work / f"{name}.log"
    with console.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=work,
            start_new_session=True,
        )
    try:
        url = json.loads(first_line(process, console))["url"]
        say(f"{name}: view at {url}; producing …")
        follower = Follower(url)
        follower.start()
        produced = produce(bootstrap, topic, options, follower.samples)
        drain(follower, produced.last_by_user())
        follower.end()
        process.stdin.close()
        process.wait(STOP_TIMEOUT_S)
        last = process.stdout.read().strip().splitlines()
    finally:
        end_group(process)
    if follower.error:
        raise SideError(follower.error)
    details = json.loads(last[-1]) if last else {}
    return {"side": name, **summary(produced, follower), **details}


def end_group(process: subprocess.Popen[str]) -> None:
    """End a side and all that it started: a JVM outlives the Python that launched it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def first_line(process: subprocess.Popen[str], console: Path) -> str:
    """The line that says that a side is ready."""
    alarm = threading.Timer(START_TIMEOUT_S, end_group, [process])
    started = time.monotonic()
    alarm.start()
    line = process.stdout.readline()
    alarm.cancel()
    if not line:
        process.wait()
        words = console.read_text(encoding="utf-8", errors="replace").strip()[-ERROR_CHARS:]
        if time.monotonic() - started >= START_TIMEOUT_S:
            raise SideError(f"expected its view within {START_TIMEOUT_S:g} s; found none: {words}")
        raise SideError(f"exit {process.returncode} before its view was up: {words}")
    return line


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """An empty topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=TOPIC_CONFIG)])[topic].result()


def drain(follower: Follower, last: dict[int, int]) -> None:
    """Wait until each user's last event is visible, or for DRAIN_TIMEOUT_S."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while follower.is_alive() and time.monotonic() < deadline:
        newest = follower.newest
        if all(newest.get(user, -1) >= seq for user, seq in last.items()):
            return
        time.sleep(DRAIN_INTERVAL_S)


def summary(produced: Produced, follower: Follower) -> dict[str, Any]:
    """Percentiles of the events after the warm-up."""
    measured = latencies_ms(produced, follower.samples)[produced.measured_from :]
    seen = measured[np.isfinite(measured)]
    found: dict[str, Any] = {"events": len(measured), "never_visible": len(measured) - len(seen)}
    if len(seen):
        quantiles = np.percentile(seen, (50, 90, 99, 100))
        names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
        found |= {name: round(float(q), 1) for name, q in zip(names, quantiles, strict=True)}
    sampled_s = follower.samples[-1][0] - follower.samples[0][0] if follower.samples else 0
    span = produced.at_s[-1] - produced.at_s[0]
    found["changes_per_s"] = round(len(follower.samples) / sampled_s, 1) if sampled_s else None
    found["rate"] = round(len(produced.user) / span)
    return found


def table(results: list[dict[str, Any]]) -> str:
    """The results as text."""
    names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    lines = [
        f"{'':15}" + "".join(f"{name:>11}" for name in names) + "  never visible  ms per batch"
    ]
    for result in results:
        if "error" in result:
            lines.append(f"{result['side']:15}  failed: {result['error'].splitlines()[-1][:90]}")
            continue
        cells = "".join(f"{result.get(name, '?'):>11}" for name in names)
        batch = result.get("batch_ms_p50")
        cells += f"{result['never_visible']:>15,}{batch if batch is not None else '?':>14}"
        lines.append(f"{result['side']:15}" + cells)
    own = next((r for r in results if r["side"] == PENSTOCK and "p50_ms" in r), None)
    for result in results:
        if own and result is not own and "p50_ms" in result:
            p50, p99 = (result[name] / own[name] for name in ("p50_ms", "p99_ms"))
            lines.append(f"  {result['side']} takes {p50:.1f} x as long at p50, {p99:.1f} x at p99")
    return "\n".join(lines)


def main() -> int:
    options = arguments()
    end_cleanly()
    cores = limit_cores(options.cores)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-benchmark-") as folder:
        work = Path(folder)
        with broker(options.broker, work / "broker") as address:
            for name in options.sides:
                try:
                    results.append(run_side(name, address, options, work))
                except SideError as error:
                    say(f"{name} failed: {error}")
                    results.append({"side": name, "error": str(error)})
    report = {"cores": cores, "rate": options.rate, "users": options.users, "sides": results}
    print(json.dumps(report) if options.json else table(results))
    return 1 if any("error" in r or r["never_visible"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
