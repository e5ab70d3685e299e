"""The events that benchmarks feed to every side, the topic that holds them, and the true answer.

An event is `{"user":17,"v":3.5,"ts":1700000000123}`: `user` is uniform, `v` a multiple of one half
(so that sums are exact in any order), `ts` epoch milliseconds that advance at `per_second` and are
set back by less than `disorder_ms` at random. The same numbers always give the same events.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

START_MS = 1_700_000_000_000 - 1_700_000_000_000 % 60_000  # event time begins with a minute
WINDOW_MS = 60_000
CHUNK_ROWS = 500_000  # made, encoded and sent at once: some 50 MB
VALUES = 1000  # different values of `v`
QUEUE_MESSAGES = 1_000_000  # confluent-kafka's send queue
FLUSH_TIMEOUT_S = 120.0
TOPIC_CONFIG = {"retention.ms": "-1"}  # the events' times are long past


@dataclass(frozen=True)
class Workload:
    """What the topic holds.

    Args:
        rows: Events.
        users: Different users, uniformly drawn.
        disorder_ms: An event's time is behind the newest by less than this.
        per_second: Events per second of event time.
        partitions: Of the topic.
        keyed: Whether the user is the record's key (co-partitioned), or records have no key and
            any user's events lie in all partitions (a shuffle is needed).
        seed: Of the generator.
    """

    rows: int
    users: int = 100_000
    disorder_ms: int = 2_000
    per_second: int = 2_000
    partitions: int = 2
    keyed: bool = True
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("rows", "users", "disorder_ms", "per_second", "partitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more; found {getattr(self, name)!r}")

    def chunks(self) -> Iterator[pa.Table]:
        """The events in order, as tables of `user`, `v`, `ts` of at most CHUNK_ROWS."""
        random = np.random.default_rng(self.seed)
        for first in range(0, self.rows, CHUNK_ROWS):
            index = np.arange(first, min(self.rows, first + CHUNK_ROWS), dtype=np.int64)
            ahead = START_MS + index * 1000 // self.per_second
            yield pa.table(
                {
                    "user": random.integers(0, self.users, len(index)),
                    "v": random.integers(0, VALUES, len(index)) / 2,
                    "ts": np.maximum(
                        START_MS, ahead - random.integers(0, self.disorder_ms, len(index))
                    ),
                }
            )

    def closed_before_ms(self) -> int:
        """Windows that end by this are closed by a watermark `disorder_ms` behind the newest."""
        newest = START_MS + (self.rows - 1) * 1000 // self.per_second
        # the very newest event may itself be set back by up to the disorder, on each partition
        return newest - 2 * self.disorder_ms


def to_json(events: pa.Table) -> pa.StringArray:
    """One JSON object per event."""
    query = (
        """SELECT format('{{"user":{},"v":{:.1f},"ts":{}}}', "user", v, ts) AS json FROM events"""
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("events", events)
        json = connection.sql(query).to_arrow_table().column("json")
    return pa.concat_arrays(json.cast(pa.string()).chunks)


def user_keys(events: pa.Table) -> pa.StringArray:
    """The record keys: the user in decimal."""
    return pa.concat_arrays(events.column("user").cast(pa.string()).chunks)


def fill(workload: Workload, bootstrap: str, topic: str, *, through: str = "penstock") -> float:
    """Create the topic and produce the workload to it.

    Args:
        workload: What to produce.
        bootstrap: The broker, `host:port`.
        topic: Its name; must not exist.
        through: `penstock` (columns) or `confluent` (a call per record).

    Returns:
        Seconds it took.
    """
    started = time.monotonic()
    send = {"penstock": _penstock_sender, "confluent": _confluent_sender}[through]
    sender = send(workload, bootstrap, topic)
    next(sender)
    done = 0
    for events in workload.chunks():
        sender.send(events)
        done += events.num_rows
        print(f"\r  {done:,} of {workload.rows:,} events produced", end="", file=sys.stderr)
    sender.close()
    seconds = time.monotonic() - started
    print(f", {seconds:.1f} s", file=sys.stderr)
    return seconds


def _penstock_sender(workload: Workload, bootstrap: str, topic: str) -> Iterator[None]:
    """Sends each table it is given through Penstock's columnar producer."""
    from penstock.client import Client, Producer
    from penstock.core.partitioner import murmur2_partitions

    client = Client(bootstrap)
    client.create_topic(topic, workload.partitions, configs=TOPIC_CONFIG)
    client.close()
    producer = Producer(bootstrap, acks=1)
    sent = 0
    try:
        while True:
            events = yield
            values = to_json(events).cast(pa.binary())
            stamps = events.column("ts").to_numpy()
            if workload.keyed:
                keys = user_keys(events).cast(pa.binary())
                target = np.asarray(murmur2_partitions(keys, workload.partitions))
            else:
                keys = None
                target = (np.arange(events.num_rows) + sent) % workload.partitions
            for partition in range(workload.partitions):
                rows = np.flatnonzero(target == partition)
                chosen = None if keys is None else keys.take(pa.array(rows))
                producer.send(topic, partition, chosen, values.take(pa.array(rows)), stamps[rows])
            sent += events.num_rows
    finally:
        producer.close()


def _confluent_sender(workload: Workload, bootstrap: str, topic: str) -> Iterator[None]:
    """Sends each table it is given through confluent-kafka."""
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive the answer
    asked = NewTopic(topic, workload.partitions, 1, config=TOPIC_CONFIG)
    admin.create_topics([asked])[topic].result()
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": 1,
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": 1 << 20,
        "partitioner": "murmur2_random",
    }
    producer = Producer(settings)
    failed: list[str] = []

    def report(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    def produce(index: int, key: str, value: str, stamp: int) -> None:
        while True:
            try:
                if workload.keyed:
                    producer.produce(topic, value, key, timestamp=stamp, on_delivery=report)
                else:
                    where = index % workload.partitions
                    producer.produce(topic, value, None, where, report, stamp)
            except BufferError:
                producer.poll(0.05)
            else:
                return

    sent = 0
    try:
        while True:
            events = yield
            rows = zip(
                user_keys(events).to_pylist(),
                to_json(events).to_pylist(),
                events.column("ts").to_pylist(),
                strict=True,
            )
            for index, row in enumerate(rows, sent):
                produce(index, *row)
            sent += events.num_rows
            producer.poll(0)
    finally:
        if producer.flush(FLUSH_TIMEOUT_S) or failed:
            raise KafkaException(f"not every event was stored: {failed[:1] or 'time ran out'}")


def write_truth(workload: Workload, file: Path) -> int:
    """Compute the windows from the generated events themselves, with DuckDB.

    Args:
        workload: The events.
        file: The Parquet file to write: `window_start_ms`, `user`, `n`, `total`.

    Returns:
        Rows written.
    """
    with duckdb.connect() as connection:
        connection.execute(
            'CREATE TABLE part (window_start_ms BIGINT, "user" BIGINT, n BIGINT, total DOUBLE)'
        )
        for events in workload.chunks():
            connection.register("events", events)
            connection.execute(
                f"""INSERT INTO part SELECT ts - ts % {WINDOW_MS}, "user", count(*), sum(v)
                    FROM events GROUP BY ALL"""
            )
        connection.execute(
            f"""COPY (SELECT window_start_ms, "user", sum(n)::BIGINT AS n, sum(total) AS total
                FROM part GROUP BY ALL) TO '{file}' (FORMAT parquet)"""
        )
        counted = connection.execute(f"SELECT count(*) FROM '{file}'").fetchone()
    assert counted is not None
    return int(counted[0])


@dataclass(frozen=True)
class Comparison:
    """How a side's windows differ from the true ones.

    Args:
        rows: The side's rows.
        wrong: Rows whose count or sum isn't the true one.
        unknown: Rows for a window and user without events.
        repeated: Rows beyond the first for one window and user.
        missing: True rows of closed windows that the side doesn't have.
        events_short: Events that the side's closed windows lack (late ones that it dropped).
    """

    rows: int
    wrong: int
    unknown: int
    repeated: int
    missing: int
    events_short: int

    @property
    def equal(self) -> bool:
        """Whether the side has exactly the true windows, as far as they are closed."""
        return not (self.wrong or self.unknown or self.repeated or self.missing)

    def __str__(self) -> str:
        if self.equal:
            return f"equal ({self.rows:,} rows)"
        return (
            f"DIFFERS: {self.wrong:,} wrong, {self.missing:,} missing, {self.unknown:,} unknown,"
            f" {self.repeated:,} repeated, {self.events_short:,} events short"
        )


def compare(result: str, truth: Path, closed_before_ms: int) -> Comparison:
    """Compare a side's windows with the true ones.

    Args:
        result: A DuckDB relation with the columns of the truth, say `read_parquet('…/*')`.
        truth: What `write_truth` wrote.
        closed_before_ms: Windows that end by this must be there; later ones may be.
    """
    query = f"""
        WITH result AS (SELECT window_start_ms, "user", min(n) AS n, min(total) AS total,
                               count(*) AS times FROM {result} GROUP BY ALL),
             matched AS (SELECT t.n AS tn, t.total AS tt, r.n, r.total, r.times,
                             window_start_ms + {WINDOW_MS} <= {closed_before_ms} AS closed
                      FROM '{truth}' t FULL JOIN result r USING (window_start_ms, "user"))
        SELECT coalesce(sum(times), 0)::BIGINT,
               count(*) FILTER (tn IS NOT NULL AND n IS NOT NULL AND (n <> tn OR total <> tt)),
               count(*) FILTER (tn IS NULL),
               coalesce(sum(times - 1), 0)::BIGINT,
               count(*) FILTER (n IS NULL AND closed),
               coalesce(sum(tn - coalesce(n, 0)) FILTER (closed), 0)::BIGINT
        FROM matched"""
    with duckdb.connect() as connection:
        found = connection.execute(query).fetchone()
    assert found is not None
    return Comparison(*found)
