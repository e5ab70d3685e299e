"""Penstock's windows as a live view: per user and minute, count, sum and newest `seq`.

Prints one line of JSON with the address that the view is served at, then runs until its standard
input ends, as Spark's side does (`peers/spark_latency.py`).

The view is served by a process of its own (`--serve`), as the page and `penstock ui` are: it reads what was
committed, next to the pipeline, which shares no interpreter with it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock as ps
from peers.served import Served
from penstock.client import Client, Producer

SCHEMA = "user BIGINT NOT NULL, seq BIGINT NOT NULL, v DOUBLE NOT NULL, ts TIMESTAMP NOT NULL"
ITEMS = 50


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--serve", type=Path, help="serve the view of this directory, and nothing else"
    )
    parser.add_argument("--bootstrap", help="the broker, HOST:PORT")
    parser.add_argument("--topic")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument(
        "--join",
        action="store_true",
        help="in front of the windows, join with a table: two exchanges, as the log isn't taken for keyed",
    )
    options = parser.parse_args()
    if options.serve is None and not (options.bootstrap and options.topic):
        parser.error("expected --serve, or --bootstrap and --topic")
    return options


def serve(directory: Path) -> None:
    """Serve what each commit makes visible until standard input ends; prints the address."""
    newest: dict[int, int] = {}
    served, views = Served(), ps.serve.Views(directory)
    is_over = threading.Event()

    def until_input_ends() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=until_input_ends, daemon=True).start()
    print(served.url, flush=True)
    with views.arrivals() as arrivals:
        seen = 0
        while not is_over.is_set():
            if views.version != seen:  # 0 before the first
                seen, rows = views.read(
                    None, lambda found: (found.version, found.table("per_user"))
                )
                columns = (rows.column(name).to_pylist() for name in ("user", "seq"))
                for user, seq in zip(*columns, strict=True):
                    newest[user] = max(seq, newest.get(user, -1))
                served.put(newest)
            arrivals.wait(1.0)
    served.end()


def fill(bootstrap: str, topic: str) -> None:
    """A table of items."""
    with Client(bootstrap) as client, Producer(bootstrap) as producer:
        client.create_topic(topic, 1, exists_ok=True)
        rows = [json.dumps({"item": item, "price": item + 0.5}).encode() for item in range(ITEMS)]
        keys = [str(item).encode() for item in range(ITEMS)]
        at_ms = np.full(ITEMS, time.time_ns() // 1_000_000)
        producer.send(topic, 0, pa.array(keys, pa.binary()), pa.array(rows, pa.binary()), at_ms)


def run(options: argparse.Namespace, work: Path) -> None:
    """Keep the view until standard input ends."""
    directory = work / "latency.penstock"
    app = ps.App(
        "latency",
        log=f"kafka://{options.bootstrap}",
        directory=directory,
        cores=options.parallelism,
    )
    when = ps.event_time("ts", lateness="2 seconds")
    if options.join:
        topic = f"{options.topic}-items"
        items = app.table(topic, "item BIGINT NOT NULL, price DOUBLE NOT NULL", key="item")
        fill(options.bootstrap, topic)
        bought = app.stream(options.topic, SCHEMA, time=when).select(
            "user", "seq", "v", "ts", item=f"seq % {ITEMS}"
        )
        events = bought.enrich(items, on="item").select("user", "seq", "ts", v="v * price")
    else:
        events = app.stream(options.topic, SCHEMA, time=when, key="user")
    windows = events.window(ps.tumbling("1 minute")).group_by("user")
    app.view("per_user", windows.agg(n=ps.count(), total=ps.sum("v"), seq=ps.max("seq")))
    batch_ms: list[float] = []

    def until_input_ends() -> None:
        sys.stdin.read()
        app.stop()

    def idle() -> None:
        """The first time that the log was read to its end, the pipeline is up."""
        if not readers:
            command = [sys.executable, __file__, "--serve", str(directory)]
            readers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            print(json.dumps({"url": readers[0].stdout.readline().strip()}), flush=True)

    readers: list[subprocess.Popen[str]] = []
    threading.Thread(target=until_input_ends, daemon=True).start()
    app.run(on_progress=lambda progress: batch_ms.append(progress.batch_ms), on_idle=idle)
    for reader in readers:
        reader.communicate()
    print(
        json.dumps(
            {
                "batches": len(batch_ms),
                "batch_ms_p50": round(statistics.median(batch_ms), 1) if batch_ms else None,
            }
        ),
        flush=True,
    )


def main() -> int:
    options = arguments()
    if options.serve:
        serve(options.serve)
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as work:
        run(options, Path(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
