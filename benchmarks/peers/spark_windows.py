"""Spark's own Kafka source and window operator count and sum per user and minute (event time).

Prints one line of JSON. Without `--out` the windows go to Spark's noop sink; with it they are
written as Parquet. Everything that is in the topic is read, in micro-batches of `--per-batch`.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from batches import Batch, steady_rows_per_s
from cache import problem
from spark_session import STATE_PROVIDERS, checkpoint, events, session

SCHEMA = "user long, v double, ts long"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True, help="events in the topic")
    parser.add_argument("--out", type=Path, help="write the windows to this folder, as Parquet")
    parser.add_argument("--state", choices=list(STATE_PROVIDERS), default="memory")
    parser.add_argument("--per-batch", type=int, default=800_000, help="events (default 800000)")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--read-only", action="store_true", help="read and decode, no windows")
    return parser.parse_args()


def run(options: argparse.Namespace, work: Path) -> dict[str, object]:
    """Run the query to the topic's end and say how fast it was."""
    launched = time.monotonic()
    spark = session(options.state, options.parallelism)
    from pyspark.sql import functions as F  # noqa: N812

    # Spark rounds each partition's part down: without the addition a last batch has a few rows
    per_batch = options.per_batch + options.parallelism
    result = events(spark, options.bootstrap, options.topic, SCHEMA, per_batch)
    if not options.read_only:
        result = (
            result.withWatermark("et", "2 seconds")
            .groupBy(F.window("et", "1 minute"), "user")
            .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
            .select(F.unix_millis("window.start").alias("window_start_ms"), "user", "n", "total")
        )
    sink = result.writeStream.outputMode("append").option("checkpointLocation", checkpoint(work))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        sink = sink.format("parquet").option("path", options.out.resolve().as_uri())
    else:
        sink = sink.format("noop")
    started = time.monotonic()
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - started
    batches = [read_progress(progress) for progress in query.recentProgress]
    spark.stop()
    read = sum(batch["rows"] for batch in batches)
    if read != options.rows:
        raise RuntimeError(f"expected {options.rows:,} events in the topic; Spark read {read:,}")
    return {
        "side": "spark" if options.state == "memory" else "spark-rocksdb",
        "rows": options.rows,
        "seconds": round(seconds, 3),
        "rows_per_s": round(options.rows / seconds),
        "steady_rows_per_s": steady_rows_per_s(batches),
        "startup_s": round(started - launched, 3),
        "late_dropped": sum(batch["late_dropped"] for batch in batches),
        "batches": batches,
    }


def read_progress(progress: object) -> Batch:
    """What matters of a micro-batch's progress report."""
    report = json.loads(progress.json)
    return {
        "rows": report["numInputRows"],
        "ms": report["batchDuration"],
        "late_dropped": sum(
            operator["numRowsDroppedByWatermark"] for operator in report["stateOperators"]
        ),
        "split_ms": report["durationMs"],
    }


def main() -> int:
    options = arguments()
    if reason := problem("spark"):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as work:
        print(json.dumps(run(options, Path(work))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
