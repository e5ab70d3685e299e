"""Spark's own window operator as a live view: per user and minute, count, sum and newest `seq`.

Prints one line of JSON with the address that the view is served at, then runs until its standard
input ends, and prints what its micro-batches took. The view is what `foreachBatch` collected.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from cache import problem
from served import Served
from spark_session import STATE_PROVIDERS, checkpoint, events, session

SCHEMA = "user long, seq long, v double, ts long"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--state", choices=list(STATE_PROVIDERS), default="memory")
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def run(options: argparse.Namespace, work: Path) -> None:
    """Keep the view until standard input ends."""
    spark = session(options.state, options.parallelism)
    from pyspark.sql import functions as F  # noqa: N812

    newest: dict[int, int] = {}
    served = Served()

    def collect(batch: object, _batch_id: int) -> None:
        for user, seq in batch.select("user", "seq").collect():
            newest[user] = max(seq, newest.get(user, -1))
        served.put(newest)

    windows = (
        events(spark, options.bootstrap, options.topic, SCHEMA, None)
        .withWatermark("et", "2 seconds")
        .groupBy(F.window("et", "1 minute"), "user")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("seq").alias("seq"))
    )
    query = (
        windows.writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint(work))
        .foreachBatch(collect)
        .start()
    )
    print(json.dumps({"url": served.url}), flush=True)
    sys.stdin.read()
    if error := query.exception():
        raise RuntimeError(f"the query failed: {error}")
    spent = [p.batchDuration for p in query.recentProgress if p.numInputRows]
    query.stop()
    served.end()
    spark.stop()
    found = {"batches": len(spent), "batch_ms_p50": statistics.median(spent) if spent else None}
    print(json.dumps(found), flush=True)


def main() -> int:
    options = arguments()
    if reason := problem("spark"):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as work:
        run(options, Path(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
