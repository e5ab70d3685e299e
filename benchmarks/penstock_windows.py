"""Penstock reads JSON from a topic and counts and sums per user and minute (event time).

Prints one line of JSON, as the peers' programs do. With `--out` the windows are written as
Parquet files with the columns `window_start_ms`, `user`, `n`, `total`.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import duckdb

import penstock as ps
from peers.batches import Batch, steady_rows_per_s
from penstock.engine.spark.session import start_context

SCHEMA = "user BIGINT NOT NULL, v DOUBLE NOT NULL, ts TIMESTAMP NOT NULL"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True, help="events in the topic")
    parser.add_argument("--out", type=Path, help="write the windows to this folder, as Parquet")
    parser.add_argument(
        "--keyed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the topic's key is the user (nothing is shuffled)",
    )
    parser.add_argument("--per-batch", type=int, help="events (default: Penstock's own)")
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def pipeline(options: argparse.Namespace, directory: Path) -> ps.App:
    """Windows per user."""
    limit = {} if options.per_batch is None else {"batch_rows": options.per_batch}
    app = ps.App(
        "windows",
        log=f"kafka://{options.bootstrap}",
        directory=directory,
        cores=options.parallelism,
        **limit,
    )
    events = app.stream(
        options.topic,
        SCHEMA,
        time=ps.event_time("ts", lateness="2 seconds"),
        key="user" if options.keyed else None,
    )
    windows = events.window(ps.tumbling("1 minute")).group_by("user")
    app.view("per_user", windows.agg(n=ps.count(), total=ps.sum("v")))
    return app


def run(options: argparse.Namespace, work: Path) -> dict[str, object]:
    """Run the pipeline from the topic's beginning until it has taken in all events."""
    launched = time.monotonic()
    app = pipeline(options, work / "windows.penstock")
    progress: list[ps.Progress] = []
    committed_at: list[float] = []

    def committed(batch: ps.Progress) -> None:
        progress.append(batch)
        committed_at.append(time.monotonic())

    start_context("windows", None, app.directory / "spark", cores=options.parallelism)
    started = time.monotonic()
    app.run(
        on_progress=committed,
        until=lambda: sum(batch.rows for batch in progress) >= options.rows,
    )
    # Between two commits lies all that a batch costs, Spark's own bookkeeping included.
    ends = [started, *committed_at]
    batches: list[Batch] = [
        {
            "rows": batch.rows,
            "ms": 1000 * (ends[i + 1] - ends[i]),
            "late_dropped": batch.late_rows,
            "split_ms": split(batch, 1000 * (ends[i + 1] - ends[i]), options.parallelism),
        }
        for i, batch in enumerate(progress)
    ]
    if options.out:
        write(work / "windows.penstock", options.out)
    seconds = committed_at[-1] - started
    return {
        "side": "penstock",
        "rows": options.rows,
        "seconds": round(seconds, 3),
        "rows_per_s": round(options.rows / seconds),
        "steady_rows_per_s": steady_rows_per_s(batches),
        "startup_s": round(started - launched, 3),
        "late_dropped": sum(batch.late_rows for batch in progress),
        "batches": batches,
    }


def split(batch: ps.Progress, ms: float, parallelism: int) -> dict[str, float]:
    """Milliseconds by part of the work, per task; what is in none of them is Spark's."""
    alone = {"plan", "commit"}  # the driver's, while no task runs
    parts = {
        name: 1000 * s / (1 if name in alone else parallelism) for name, s in batch.seconds.items()
    }
    return {**parts, "spark": max(0.0, ms - sum(parts.values())), "batch": ms}


def write(directory: Path, out: Path) -> None:
    """The view as Parquet."""
    out.mkdir(parents=True, exist_ok=True)
    rows = ps.serve.Views(directory).table("per_user")
    query = 'SELECT epoch_ms(window_start) AS window_start_ms, "user", n, total FROM rows'
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.sql(query).write_parquet(str(out / "windows.parquet"))


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-windows-") as work:
        print(json.dumps(run(options, Path(work))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
