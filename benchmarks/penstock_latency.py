"""Penstock's windows as a live view: per user and minute, count, sum and newest `seq`.

Prints one line of JSON with the address that the view is served at, then runs until its standard
input ends, as Spark's side does (`peers/spark_latency.py`).
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import penstock as ps
from peers.served import serve_json

SCHEMA = "user BIGINT NOT NULL, seq BIGINT NOT NULL, v DOUBLE NOT NULL, ts TIMESTAMP NOT NULL"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def run(options: argparse.Namespace, work: Path) -> None:
    """Keep the view until standard input ends."""
    directory = work / "latency.penstock"
    app = ps.App(
        "latency",
        log=f"kafka://{options.bootstrap}",
        directory=directory,
        cores=options.parallelism,
    )
    events = app.stream(
        options.topic, SCHEMA, time=ps.event_time("ts", lateness="2 seconds"), key="user"
    )
    windows = events.window(ps.tumbling("1 minute")).group_by("user")
    app.view("per_user", windows.agg(n=ps.count(), total=ps.sum("v"), seq=ps.max("seq")))
    newest: dict[int, int] = {}
    batch_ms: list[float] = []
    changed = threading.Event()

    def committed(progress: ps.Progress) -> None:
        batch_ms.append(progress.batch_ms)
        changed.set()

    def read_view() -> None:
        """Serves what a commit made visible: read back from the committed view, next to the next batch."""
        views = None
        while changed.wait():
            changed.clear()
            views = views or ps.serve.Views(directory)
            rows = views.table("per_user")
            columns = (rows.column(name).to_pylist() for name in ("user", "seq"))
            for user, seq in zip(*columns, strict=True):
                newest[user] = max(seq, newest.get(user, -1))

    def until_input_ends() -> None:
        sys.stdin.read()
        app.stop()

    threading.Thread(target=until_input_ends, daemon=True).start()
    threading.Thread(target=read_view, daemon=True).start()
    server = serve_json(lambda: dict(newest))
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    announced: list[str] = []

    def idle() -> None:
        """The first time that the log was read to its end, the pipeline is up."""
        if not announced:
            announced.append(url)
            print(json.dumps({"url": url}), flush=True)

    app.run(on_progress=committed, on_idle=idle)
    server.shutdown()
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
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as work:
        run(arguments(), Path(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
