"""Flink runs a query over topics of JSON (Flink SQL, event time); prints one line of JSON.

Runs in Flink's own environment. The query comes as JSON: topics' columns, SQL over them, settings.
Rows go to Flink's blackhole, without checkpoints; with `--out` they are written, and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from cache import problem
from flink_nexmark import write
from flink_windows import Sampler, environment, free_port

SOURCE = """
CREATE TABLE {topic} ({columns}, rt AS TO_TIMESTAMP_LTZ(ts, 3),
  WATERMARK FOR rt AS rt - INTERVAL '{lateness_s}' SECOND) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = 'flink-streams', 'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset', 'format' = 'json'
)"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--query", type=json.loads, required=True, help="sources, sql, settings")
    parser.add_argument("--rows", type=int, required=True, help="in the topics that it reads")
    parser.add_argument("--out", type=Path, help="write the result to this file")
    parser.add_argument("--state", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if reason := problem("flink"):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    os.environ["TZ"] = "UTC"
    from pyflink.table import TableDescriptor

    launched, rest_port = time.monotonic(), free_port()
    out, options.out = options.out, None  # no checkpoints
    tables = environment(options, rest_port)
    for name, value in options.query["settings"].items():
        tables.get_config().set(name, value)
    for topic, columns in options.query["sources"].items():
        declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        lateness_s = options.query["lateness_s"]
        tables.execute_sql(
            SOURCE.format(
                topic=topic, columns=declared, bootstrap=options.bootstrap, lateness_s=lateness_s
            )
        )
    query = tables.sql_query(options.query["sql"])
    if out:
        write(tables, query, out)
        print(json.dumps({"side": "flink", "rows": options.rows}), flush=True)
        return 0
    sampler = Sampler(rest_port)
    sampler.start()
    started = time.monotonic()
    query.execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
    seconds = time.monotonic() - started
    sampler.end()
    steady = sampler.steady_rows_per_s(options.rows)
    found = {
        "side": "flink",
        "rows": options.rows,
        "seconds": round(seconds, 3),
        "rows_per_s": round(options.rows / seconds),
        "steady_rows_per_s": steady and round(steady),
        "startup_s": round(started - launched, 3),
    }
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
