"""Spark with Iceberg's runtime reads the broker's tables through the broker's own catalog.

    python tests/suites/iceberg_spark.py [--only name]

The runtime and the Spark that it is built for come with `python benchmarks/peers/fetch.py iceberg`; they
run in an environment of their own (`iceberg_spark_job.py`). What Spark tells is compared with what was
produced, with what pyiceberg and DuckDB read of the same files, and with `ps.History`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs import Jobs
from suite import Scenario, cache, create_topic, expect, report, tried, wait

import penstock as ps
from penstock.client import Client
from penstock.client.tables.history import catalog_loader, open_table
from penstock.client.topic_admin import TopicAdmin
from penstock.engine.spark.session import start_session
from penstock.errors import PenstockError

JOB = Path(__file__).with_name("iceberg_spark_job.py")
JOB_S_MAX = 180.0
FLUSH_S_MAX = 30
PAUSE_S = 0.1  # between what is written on and on: commits are made all the time
SCHEMA = (
    "user BIGINT NOT NULL, key STRING, small INT, ms DOUBLE, ratio FLOAT, ok BOOLEAN, at TIMESTAMP, "
    "day DATE, tags ARRAY<STRING>"
)

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""

_jobs: Jobs | None = None
_folder = Path()
Sent = dict[str, Any]


def uri() -> str:
    """The catalog that the broker writes to."""
    return f"sqlite:///{_folder}/catalog.db"


@contextlib.contextmanager
def spark() -> Iterator[None]:
    """Spark for as long as the block."""
    global _jobs
    launcher = cache.java()
    assert launcher is not None
    home = os.environ.get("JAVA_HOME", str(launcher.resolve().parent.parent))
    command = [cache.python("iceberg"), JOB, _folder / "catalog.db", warehouse()]
    env = {"JAVA_HOME": home, "TZ": "UTC", "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PYSPARK_PYTHON"] = str(cache.python("iceberg"))
    _jobs = Jobs([*command, *cache.jars("iceberg")], _folder / "spark.log", JOB_S_MAX, env)
    try:
        yield
    finally:
        _jobs.kill()


def warehouse() -> str:
    """Where the tables are."""
    return (_folder / "warehouse").as_uri()


def ask(**request: Any) -> list[list[Any]]:
    """What Spark answers."""
    assert _jobs is not None
    _jobs.begin(**request)
    return list(_jobs.result()["rows"])


def sql(text: str, **names: str) -> list[list[Any]]:
    """The rows of a query; `{table}` and other names are put in as names of the catalog."""
    return ask(sql=text.format(**{name: f"penstock.{one}" for name, one in names.items()}))


def table_topic(address: str, what: str, partitions: int = 2, **settings: str) -> tuple[str, str]:
    """A new topic and its table's name."""
    topic = create_topic(address, what, partitions, **{"retention.ms": "-1"})
    table = f"suite.{topic.replace('-', '_')}"
    if settings.pop("late", None) is None:
        settings["penstock.iceberg.table"] = table
    with TopicAdmin(address) as admin:
        admin.change_configs(topic, settings)
    return topic, table


def produce(address: str, topic: str, sent: Sequence[Sent], **transaction: Any) -> None:
    """Writes records and fills in the offsets that they got.

    Args:
        address: the broker's.
        topic: the topic.
        sent: `partition`, `key`, `value`, `timestamp` (ms), `headers` of each.
        transaction: `id`, and whether to `commit` it.
    """
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 3}
    if transaction:
        settings["transactional.id"] = transaction["id"]
    producer = Producer(settings)
    if transaction:
        producer.init_transactions()
        producer.begin_transaction()
    for one in sent:

        def written(error: Any, message: Any, one: Sent = one) -> None:
            expect("error of a producer", error, None)
            one["offset"] = message.offset()

        producer.produce(topic, on_delivery=written, **one)
    expect("messages left", producer.flush(FLUSH_S_MAX), 0)
    if transaction:
        (producer.commit_transaction if transaction["commit"] else producer.abort_transaction)()


def covered(address: str, topic: str, sent: Sequence[Sent] = ()) -> None:
    """Waits until the table has these records, or everything that is committed now."""
    ends: dict[int, int] = {}
    for one in sent:
        ends[one["partition"]] = max(ends.get(one["partition"], 0), one["offset"] + 1)
    if not sent:
        with Client(address) as client:
            ends = {one: end for one, end in client.offsets(topic, "latest").items() if end}

    def is_covered() -> bool:
        try:
            table = open_table(address, topic, catalog_loader(uri(), None))
        except PenstockError:
            return False  # there is none yet
        return all(table.covered.get(one, 0) >= end for one, end in ends.items())

    wait(is_covered, f"table of {topic} to cover {ends}")


def raw(chance: random.Random, count: int, partitions: int = 2) -> list[Sent]:
    """Records of any bytes, with and without key, value and headers."""
    return [
        {
            "partition": chance.randrange(partitions),
            "key": chance.choice([None, b"", b"k\xff"]),
            "value": chance.choice([None, b"", bytes(chance.randrange(256) for _ in range(9))]),
            "timestamp": int(time.time() * 1000) + number,
            "headers": chance.choice([[], [("a", b"1"), ("é", None), ("a", b"")]]),
        }
        for number in range(count)
    ]


def raw_row(one: Sent) -> list[Any]:
    """A record as Spark tells its row, where the topic has no schema."""
    return [*own_columns(one), None if one["value"] is None else one["value"].hex()]


def own_columns(one: Sent) -> list[Any]:
    """The columns that all tables of topics have."""
    key = None if one["key"] is None else one["key"].hex()
    headers = [[name, None if text is None else text.hex()] for name, text in one["headers"]]
    return [one["partition"], one["offset"], moment(one["timestamp"]), key, headers]


def moment(ms: int) -> str:
    """A time as Spark tells it."""
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None).isoformat()


def events(chance: random.Random, count: int, partitions: int = 2) -> list[Sent]:
    """Records of JSON that the schema fits, tombstones, and values that it doesn't."""
    made = raw(chance, count, partitions)
    for number, one in enumerate(made):
        fields = {
            "user": chance.choice([number, -number, 2**53]),
            "key": chance.choice([None, "ü", ""]),
            "small": chance.choice([None, -(2**31)]),
            "ms": chance.choice([None, 0.1, -1e300]),
            "ratio": chance.choice([None, 0.5]),
            "ok": chance.choice([None, True, False]),
            "at": one["timestamp"],
            "day": chance.choice([None, "1969-12-31"]),
            "tags": chance.choice([None, [], ["a", None]]),
        }
        good = json.dumps(fields).encode()
        one["value"] = chance.choices([good, None, b"{", b'{"user": "x"}'], [8, 1, 1, 1])[0]
        one["fields"] = fields
    return made


def event_row(one: Sent) -> list[Any]:
    """A record as Spark tells its row, where the topic has the schema."""
    fields = one["fields"]
    if one["value"] is None:
        return [*own_columns(one), *[None] * len(fields)]
    return [*own_columns(one), *{**fields, "at": moment(fields["at"])}.values()]


def is_good(one: Sent) -> bool:
    """Whether the schema fits a record of `events`."""
    return one["value"] is None or len(one["value"]) > len(b'{"user": "x"}')


def send_events(address: str, topic: str, sent: list[Sent]) -> None:
    """Produces what `events` has made."""
    fields = [one.pop("fields") for one in sent]
    produce(address, topic, sent)
    for one, made in zip(sent, fields, strict=True):
        one["fields"] = made


def by_place(rows: list[list[Any]]) -> list[list[Any]]:
    """Rows by partition and offset."""
    return sorted(rows, key=lambda row: row[:2])


def read_raw_values(address: str) -> None:
    """A topic without a schema, written in several commits: every byte of it, nulls told from nothing."""
    topic, table = table_topic(address, "raw", 3)
    sent: list[Sent] = []
    for seed in range(3):
        more = raw(random.Random(seed), 80, 3)
        produce(address, topic, more)
        sent += more
        covered(address, topic)
    rows = sql("SELECT * FROM {table}", table=table)
    expect("rows", by_place(rows), by_place([raw_row(one) for one in sent]))
    expect("commits", sql("SELECT count(*) >= 3 FROM {table}.snapshots", table=table), [[True]])


def read_decoded_values(address: str) -> None:
    """A topic with a schema: all types, nulls, tombstones, a field named like a column of ours."""
    topic, table = table_topic(address, "decoded", **{"penstock.schema": SCHEMA})
    sent = events(random.Random(1), 300)
    send_events(address, topic, sent)
    covered(address, topic)
    rows = sql("SELECT * FROM {table}", table=table)
    expect("rows", by_place(rows), by_place([event_row(one) for one in sent if is_good(one)]))
    dead = sql("SELECT * FROM {table}_dead_letters", table=table)
    letters = [[*own_columns(one)[:4], one["value"].hex()] for one in sent if not is_good(one)]
    expect("dead letters", by_place([row[:5] for row in dead]), by_place(letters))
    expect("letters without a reason", [row for row in dead if not row[5]], [])


def filter_and_prune(address: str) -> None:
    """Conditions on partition, offset, time and values: the right rows, of fewer files."""
    topic, table = table_topic(address, "filter", 3, **{"penstock.schema": SCHEMA})
    sent = events(random.Random(2), 300, 3)
    send_events(address, topic, sent)
    covered(address, topic)
    good = [one for one in sent if is_good(one)]
    late = good[len(good) // 2]["timestamp"]
    conditions = {
        "partition = 1": lambda one: one["partition"] == 1,
        "partition = 2 AND offset < 40": lambda one: one["partition"] == 2 and one["offset"] < 40,
        f"timestamp >= timestamp_millis({late})": lambda one: one["timestamp"] >= late,
        "user IS NULL": lambda one: one["value"] is None,
        "user < 0": lambda one: one["value"] is not None and one["fields"]["user"] < 0,
    }
    for condition, chosen in conditions.items():
        rows = sql(f"SELECT partition, offset FROM {{table}} WHERE {condition}", table=table)
        wanted = [[one["partition"], one["offset"]] for one in good if chosen(one)]
        expect(condition, by_place(rows), by_place(wanted))
    query = "SELECT count(DISTINCT _file) FROM {table} WHERE partition = 1"
    files = "SELECT count(*) FROM {table}.files WHERE partition.partition = 1"
    expect("files", sql(query, table=table), sql(files, table=table))


def appended_while_open(address: str) -> None:
    """A session that knows a table sees more after REFRESH TABLE; an older version stays readable."""
    topic, table = table_topic(address, "open")
    counts = []
    for seed in range(3):
        produce(address, topic, raw(random.Random(seed), 50))
        covered(address, topic)
        sql("REFRESH TABLE {table}", table=table)
        (row,) = sql("SELECT count(*), count(DISTINCT partition, offset) FROM {table}", table=table)
        counts.append(row)
    expect("rows, each once", counts, [[50, 50], [100, 100], [150, 150]])
    newest = "SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at"
    first = sql(newest, table=table)[0][0]
    query = f"SELECT count(*) BETWEEN 1 AND 50 FROM {{table}} VERSION AS OF {first}"
    expect("an older version", sql(query, table=table), [[True]])


def stream_of_the_table(address: str) -> None:
    """Spark's stream from the table has each record once, in two runs with one checkpoint."""
    topic, table = table_topic(address, "stream")
    sent: list[Sent] = []
    found: list[list[Any]] = []
    for seed in range(2):
        more = raw(random.Random(seed), 60)
        produce(address, topic, more)
        covered(address, topic)
        sql("REFRESH TABLE {table}", table=table)
        sent += more
        found += ask(stream=f"penstock.{table}", into=str(_folder / "checkpoint"))
        expect("rows", by_place(found), by_place([raw_row(one) for one in sent]))


def aborted_transactions(address: str) -> None:
    """What was aborted isn't there; what was committed around it is."""
    topic, table = table_topic(address, "aborted")
    sent: list[Sent] = []
    for seed in range(4):
        more = raw(random.Random(seed), 40)
        produce(address, topic, more, id=topic, commit=seed % 2 == 1)
        sent += more if seed % 2 == 1 else []
    covered(address, topic, sent)  # a transaction's end is no row, and waits for the next one
    rows = sql("SELECT * FROM {table}", table=table)
    expect("rows", by_place(rows), by_place([raw_row(one) for one in sent]))


def backfilled(address: str) -> None:
    """A topic whose table is switched on late has everything."""
    topic, table = table_topic(address, "late", late="yes")
    sent = raw(random.Random(3), 500)
    produce(address, topic, sent)
    with TopicAdmin(address) as admin:
        admin.change_configs(topic, {"penstock.iceberg.table": table})
    covered(address, topic)
    rows = sql("SELECT * FROM {table}", table=table)
    expect("rows", by_place(rows), by_place([raw_row(one) for one in sent]))


def aggregates_agree(address: str) -> None:
    """Spark, pyiceberg, DuckDB and `ps.History` give one result, that of what was produced."""
    import duckdb

    topic, table = table_topic(address, "agree", **{"penstock.schema": SCHEMA})
    sent: list[Sent] = []
    for seed in range(3):
        more = events(random.Random(seed), 200)
        send_events(address, topic, more)
        sent += more
        covered(address, topic)
    good = [one["fields"] for one in sent if is_good(one) and one["value"] is not None]
    produced = {
        small: (len(mine), sum(one["user"] for one in mine), max(one["at"] for one in mine))
        for small in {one["small"] for one in good}
        if (mine := [one for one in good if one["small"] == small])
    }
    query = (
        'SELECT "small", count(*), CAST(sum("user") AS BIGINT), max({ms}) FROM {table} '
        'WHERE "user" IS NOT NULL GROUP BY "small"'
    )
    opened = catalog_loader(uri(), None)().load_table(table)
    files = [task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()]
    scanned = opened.scan().to_arrow()
    history = ps.History(topic, uri(), address).arrow()
    results = {
        "Spark": sql(
            query.replace('"', "`").format(ms="unix_millis(at)", table=f"penstock.{table}")
        )
    }
    with duckdb.connect() as connection:
        for name, rows in {"pyiceberg": scanned, "ps.History": history}.items():
            connection.register("rows", rows)
            text = query.format(ms='epoch_ms("at")', table="rows")
            results[name] = [list(row) for row in connection.execute(text).fetchall()]
        text = query.format(ms='epoch_ms("at")', table="read_parquet($1)")
        results["DuckDB"] = [list(row) for row in connection.execute(text, [files]).fetchall()]
    for name, rows in results.items():
        expect(name, {small: tuple(rest) for small, *rest in rows}, produced)
    expect("a sum of doubles", math.isfinite(sum(one["ms"] or 0 for one in good)), True)


@contextlib.contextmanager
def producing(address: str, topic: str) -> Iterator[list[Sent]]:
    """Writes on and on for as long as the block; gives what has been acknowledged."""
    written: list[Sent] = []
    end = threading.Event()

    def work() -> None:
        for seed in itertools.count():
            if end.wait(PAUSE_S):
                return
            more = events(random.Random(seed), 20)
            send_events(address, topic, more)
            written.extend(more)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield written
    finally:
        end.set()
        worker.join()


def maintained_by_spark(address: str) -> None:
    """Spark compacts the table and expires snapshots while the broker appends: each record once."""
    topic, table = table_topic(address, "maintained", **{"penstock.schema": SCHEMA})
    with producing(address, topic) as sent:
        for _ in range(3):
            wanted = len(sent) + 100
            wait(lambda count=wanted: len(sent) > count, "more records")
            covered(address, topic)
            sql("REFRESH TABLE {table}", table=table)
            sql(f"CALL penstock.system.rewrite_data_files(table => '{table}', "
                "options => map('rewrite-all', 'true'))")  # fmt: skip
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
            sql(f"CALL penstock.system.expire_snapshots('{table}', TIMESTAMP '{now}', 1)")
    covered(address, topic)
    sql("REFRESH TABLE {table}", table=table)
    sql(f"CALL penstock.system.rewrite_manifests('{table}')")  # the broker merges them meanwhile
    wanted = by_place([event_row(one) for one in sent if is_good(one)])
    expect("rows", by_place(sql("SELECT * FROM {table}", table=table)), wanted)
    found = ps.History(topic, uri(), address).arrow(["partition", "offset"]).read_all().to_pylist()
    expect("history", by_place([list(row.values()) for row in found]), [row[:2] for row in wanted])


def sorted_by_spark(address: str) -> None:
    """Spark compacts the table in the order of the offsets: replays go on reading it, byte for byte."""
    topic, table = table_topic(address, "sorted")
    sent: list[Sent] = []
    for seed in range(4):
        more = raw(random.Random(seed), 60)
        produce(address, topic, more)
        sent += more
        covered(address, topic)
        if seed == 2:
            sql("REFRESH TABLE {table}", table=table)
            sql(f"CALL penstock.system.rewrite_data_files(table => '{table}', strategy => 'sort', "
                "sort_order => 'offset ASC', options => map('rewrite-all', 'true'))")  # fmt: skip
    opened = open_table(address, topic, catalog_loader(uri(), None))
    for partition, end in opened.covered.items():
        mine = [one for one in sent if one["partition"] == partition]
        found = [
            (offset, value)
            for records in opened.records(partition, 0, end)
            for offset, value in zip(
                records.offset.tolist(), records.values().to_pylist(), strict=True
            )
        ]
        expect("records", found, [(one["offset"], one["value"]) for one in mine])
    sql("REFRESH TABLE {table}", table=table)
    query = "SELECT count(*) FROM {table}.snapshots WHERE operation = 'replace'"
    expect("compactions", sql(query, table=table), [[1]])


def deleted_by_spark(address: str) -> None:
    """Spark deletes rows with delete files beside the data; the broker goes on, readers agree."""
    topic, table = table_topic(address, "deleted")
    sent = raw(random.Random(4), 100)
    produce(address, topic, sent)
    covered(address, topic)
    sql("ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')", table=table)
    sql("DELETE FROM {table} WHERE offset % 7 = 3", table=table)
    left = [one for one in sent if one["offset"] % 7 != 3]
    more = raw(random.Random(5), 50)
    produce(address, topic, more)
    covered(address, topic)
    sql("REFRESH TABLE {table}", table=table)
    wanted = by_place([raw_row(one) for one in left + more])
    expect("rows", by_place(sql("SELECT * FROM {table}", table=table)), wanted)
    files = sql("SELECT count(*) FROM {table}.delete_files", table=table)
    expect("delete files", files[0][0] > 0, True)
    history, places = ps.History(topic, uri(), address), ["partition", "offset"]
    found = history.arrow(places).read_all().to_pylist()
    expect("history", by_place([list(row.values()) for row in found]), [row[:2] for row in wanted])
    session = start_session("suite", None, _folder / "own-spark", cores=2)
    try:
        collected = history.spark(session, places).collect()
    finally:
        session.stop()
    expect(
        "Penstock's own Spark",
        by_place([list(row) for row in collected]),
        [row[:2] for row in wanted],
    )


SCENARIOS: tuple[Scenario, ...] = (
    read_raw_values,
    read_decoded_values,
    filter_and_prune,
    appended_while_open,
    stream_of_the_table,
    aborted_transactions,
    backfilled,
    aggregates_agree,
    maintained_by_spark,
    sorted_by_spark,
    deleted_by_spark,
)


def main() -> int:
    """Runs the scenarios, tells."""
    global _folder
    with tempfile.TemporaryDirectory(prefix="penstock-iceberg-") as name:
        _folder = Path(name)
        (_folder / "warehouse").mkdir()
        own = ["--iceberg-catalog", uri(), "--iceberg-warehouse", warehouse()]
        own += ["--iceberg-interval-ms", "200"]
        found = tried(SCENARIOS, __doc__, cache.problem("iceberg"), spark, own)
    return report("Spark 4.1.4 with Iceberg 1.12.0, own scenarios", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())
