"""Flink runs one of Nexmark's queries over topics (Flink SQL); prints one line of JSON.

Runs in Flink's own environment. The queries (`auctions/flink.sql`) are those of nexmark/nexmark's
`nexmark-flink`, with the settings that it recommends (mini-batches, split distinct aggregates). Rows go to
Flink's blackhole, without checkpoints; with `--out` the query runs once more after that, and writes its
changes to files, of which the rows that are left at the end are written as JSON lines. A job that has read
all of a topic ends without its open windows of the clock on the wall (q12): for its rows the topic is read
without an end, until they count all events.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from cache import problem
from flink_windows import Sampler, checkpointing, environment, free_port

COLUMNS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
    "state STRING, `dateTime` BIGINT, extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
    "`dateTime` BIGINT, expires BIGINT, seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "`dateTime` BIGINT, extra STRING",
    "side": "`key` BIGINT, `value` STRING",
}
SOURCE = """
CREATE TABLE {topic} ({columns}{time}) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = 'flink-nexmark', 'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = '{until}', 'format' = 'json'
)"""
TIME = """, rt AS TO_TIMESTAMP_LTZ(`dateTime`, 3), WATERMARK FOR rt AS rt - INTERVAL '4' SECOND"""
CLOCK = ", pt AS PROCTIME()"
ENDS = ", ends AS TO_TIMESTAMP_LTZ(expires, 3)"
SETTINGS = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
SQL = Path(__file__).resolve().parents[1] / "auctions" / "flink.sql"
READS = {"q3": "person auction", "q4": "auction bid", "q8": "person auction", "q9": "auction bid"}
READS |= {"q13": "bid side", "q20": "auction bid"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--query", choices=list(queries()), required=True)
    parser.add_argument("--rows", type=int, required=True, help="in the topics that it reads")
    parser.add_argument("--out", type=Path, help="write the result to this file")
    parser.add_argument("--state", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def queries() -> dict[str, str]:
    """The queries of `flink.sql` by name."""
    parts = re.split(r"^-- (q\d+)$", SQL.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: query.strip(" ;\n") for name, query in zip(parts[1::2], parts[2::2], strict=True)}


def write(tables: object, query: object, out: Path) -> None:
    """The rows of a table that changes, as they are at the end."""
    from pyflink.table import TableDescriptor

    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        changes = Path(folder) / "changes"
        for name, value in checkpointing(Path(folder) / "checkpoints").items():
            tables.get_config().set(name, value)
        files = TableDescriptor.for_connector("filesystem").option("path", changes.as_uri())
        query.execute_insert(files.format("debezium-json").build()).wait()
        rows: dict[str, int] = {}
        for path in sorted(changes.rglob("part-*")):
            for line in path.read_text(encoding="utf-8").splitlines():
                change = json.loads(line)
                sign, row = (1, "after") if change["op"] == "c" else (-1, "before")
                text = json.dumps(change[row])
                rows[text] = rows.get(text, 0) + sign
    with out.open("w", encoding="utf-8") as file:
        for text, count in rows.items():
            file.write((text + "\n") * count)


def source(topic: str, options: argparse.Namespace, until: str) -> str:
    """The statement that creates a topic's table."""
    time_columns = CLOCK if options.query == "q12" else TIME
    if topic == "side":
        time_columns = ""
    elif topic == "auction":
        time_columns = ENDS + time_columns
    return SOURCE.format(
        topic=topic,
        columns=COLUMNS[topic],
        time=time_columns,
        bootstrap=options.bootstrap,
        until=until,
    )


def write_windows(tables: object, options: argparse.Namespace, out: Path) -> None:
    """The windows of the clock on the wall, once they have closed with all rows in them."""
    tables.execute_sql("DROP TABLE bid")
    tables.execute_sql(source("bid", options, "unbounded"))
    counted = 0
    with (
        tables.sql_query(queries()["q12"]).execute().collect() as found,
        out.open("w", encoding="utf-8") as file,
    ):
        for row in found:
            bidder, n = row[2], row[3]
            file.write(json.dumps({"bidder": bidder, "n": n}) + "\n")
            counted += n
            if counted >= options.rows:
                return


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
    for name, value in SETTINGS.items():
        tables.get_config().set(name, value)
    for topic in READS.get(options.query, "bid").split():
        tables.execute_sql(source(topic, options, "latest-offset"))
    query = tables.sql_query(queries()[options.query])
    sampler = Sampler(rest_port)
    sampler.start()
    started = time.monotonic()
    query.execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
    seconds = time.monotonic() - started
    sampler.end()
    steady = sampler.steady_rows_per_s(options.rows)
    if out and options.query == "q12":
        write_windows(tables, options, out)
    elif out:
        write(tables, query, out)
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
