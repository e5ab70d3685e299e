"""How fast is old history read? From the log, from its tier, and from its Iceberg table.

    python benchmarks/tier.py [--records N] [--smoke] [--json]

One broker with a directory as its tier, one topic of JSON events. The same stretch is read in full
by the columnar reader: from local segments, from the tier with a cold cache, both decoded to rows;
then from the Parquet files of its Iceberg table, all columns and two of them. Then Spark groups all
records by a column: of `ps.History`, and next to it of Spark's own Kafka source and from_json, where that
is fetched (`benchmarks/peers/fetch.py spark`). Records per second.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer
from penstock.client.reader import Reader
from penstock.client.tables.history import catalog_loader, open_table
from penstock.core.schema import Schema
from penstock.errors import UserError

sys.path.append(str(Path(__file__).parent / "peers"))
SCHEMA = Schema.parse("user BIGINT, url STRING, ms DOUBLE, at TIMESTAMP")
JSON_SCHEMA = "user BIGINT, url STRING, ms DOUBLE, at BIGINT"
BATCH = 10_000
CORES = 2
WAIT_S = 300.0


def produce(address: str, topic: str, records: int) -> None:
    """Appends JSON events."""
    chance = np.random.default_rng(1)
    producer = Producer(address, acks="all")
    for first in range(0, records, BATCH):
        users = chance.integers(0, 100_000, BATCH)
        values = [
            b'{"user":%d,"url":"/page/%d","ms":%.3f,"at":%d}'
            % (user, user % 977, user / 7, 1_700_000_000_000 + first + n)
            for n, user in enumerate(users.tolist())
        ]
        keys = pa.array([b"%d" % user for user in users.tolist()])
        times = np.arange(first, first + BATCH) + 1_700_000_000_000
        producer.send(topic, 0, keys, pa.array(values, pa.binary()), times)
    producer.close()


def wait_for(what: str, condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {WAIT_S} s")
        time.sleep(0.1)


def rate(records: int, reads) -> float:
    """Records per second of one pass; what is read must be all of them."""
    began = time.perf_counter()
    found = sum(len(part) for part in reads)
    assert found == records, (found, records)
    return records / (time.perf_counter() - began)


def measure(directory: Path, records: int) -> dict[str, float]:
    """All figures."""
    (directory / "warehouse").mkdir()
    uri = f"sqlite:///{directory}/catalog.db"
    warehouse = (directory / "warehouse").as_uri()
    arguments = ["--tier", (directory / "tier").as_uri(), "--tier-interval-ms", "100"]
    arguments += ["--iceberg-catalog", uri, "--iceberg-warehouse", warehouse]
    arguments += ["--iceberg-interval-ms", "100"]
    settings = {"segment.bytes": str(8 << 20), "remote.storage.enable": "true"}
    settings["retention.ms"] = "-1"  # the events are old
    settings |= {"penstock.schema": SCHEMA.text, "penstock.iceberg.table": "bench.events"}
    figures: dict[str, float] = {}
    with (
        BrokerProcess(directory / "data", arguments=arguments) as broker,
        Client(broker.address) as client,
    ):
        client.create_topic("events", 1, configs=settings)
        produce(broker.address, "events", records)
        began = time.perf_counter()
        load = catalog_loader(uri, None)

        def covered() -> int:
            try:
                return open_table(broker.address, "events", load).covered.get(0, 0)
            except UserError:
                return 0  # there is no table yet

        wait_for("all rows", lambda: covered() >= records)
        figures["appended to the table"] = records / (time.perf_counter() - began)
        with Reader(broker.address) as reader:
            figures["log: records"] = rate(records, reader.read("events", 0, 0, records))
        table = open_table(broker.address, "events", load)
        rows = table.log.read(0, 0, records, table.schema.names)
        figures["log: rows"] = rate(records, rows)
        history = ps.History("events", uri, broker.address)
        figures["Iceberg: all columns"] = rate(records, history.arrow())
        figures["Iceberg: two columns"] = rate(records, history.arrow(["user", "ms"]))
        figures |= measure_spark(broker.address, history, records)
    return figures


def measure_spark(address: str, history: ps.History, records: int) -> dict[str, float]:
    """Spark's aggregate, the second of two: over the table, and over the topic with its own source."""
    import cache
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812
    from spark_session import session

    problem = cache.problem("spark")
    spark = session("memory", CORES)

    def table() -> DataFrame:
        return history.spark(spark, ["url", "ms"])

    def kafka() -> DataFrame:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
        value = F.col("value").cast("string")
        rows = source.option("subscribe", history.topic).option("minPartitions", CORES).load()
        return rows.select(F.from_json(value, JSON_SCHEMA).alias("row")).select("row.*")

    def aggregated(rows: DataFrame) -> dict[str, tuple[int, float]]:
        groups = rows.groupBy("url").agg(F.count("*").alias("n"), F.sum("ms").alias("ms"))
        return {row.url: (row.n, row.ms) for row in groups.collect()}

    figures: dict[str, float] = {}
    results = []
    sides = {"Spark, ps.History": table} | ({} if problem else {"Spark, its Kafka source": kafka})
    for what, rows in sides.items():
        aggregated(rows())
        began = time.perf_counter()
        results.append(aggregated(rows()))
        figures[what] = records / (time.perf_counter() - began)
    spark.stop()
    if problem:
        print(f"without Spark's Kafka source: {problem}", file=sys.stderr)
    for one in results:
        assert sum(n for n, _ in one.values()) == records
        assert one.keys() == results[0].keys()
        assert all(math.isclose(ms, results[0][url][1]) for url, (_, ms) in one.items())
    return figures


def measure_tier(directory: Path, records: int) -> dict[str, float]:
    """The same records from the tier: everything but the last segment was dropped locally."""
    arguments = ["--tier", (directory / "tier").as_uri(), "--tier-interval-ms", "50"]
    settings = {
        "segment.bytes": str(1 << 20 if records < 100_000 else 8 << 20),
        "remote.storage.enable": "true",
        "local.retention.bytes": "0",
        "retention.ms": "-1",
    }
    with (
        BrokerProcess(directory / "data", arguments=arguments) as broker,
        Client(broker.address) as client,
    ):
        client.create_topic("events", 1, configs=settings)
        produce(broker.address, "events", records)
        wait_for("local segments to go", lambda: _local_bytes(directory) <= 9 << 20)
        broker.stop()
        broker.start()
        with Reader(broker.address) as reader:
            cold = rate(records, reader.read("events", 0, 0, records))
            warm = rate(records, reader.read("events", 0, 0, records))
    return {"tier: records, cold": cold, "tier: records, again": warm}


def _local_bytes(directory: Path) -> int:
    return sum(one.stat().st_size for one in (directory / "data").rglob("*.log"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    records = 20_000 if options.smoke else options.records
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        figures = measure(Path(one), records) | measure_tier(Path(two), records)
    if options.json:
        json.dump({"figures": figures, "records": records}, sys.stdout)
        return
    base = figures["log: rows"]
    for what, value in figures.items():
        print(f"{what:26} {value:14,.0f} records/s {value / base:6.2f} x log: rows")


if __name__ == "__main__":
    main()
