"""Nexmark's events in topics, and the true answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from auctions.generator import START_MS, Events
from auctions.queries import SIDE, SIDE_ROWS, Query
from penstock.client import Client, Producer
from penstock.formats.json import encode_rows

__all__ = ["events_of", "fill", "side_table", "truth_database", "unequal"]

CONFIGS = {"retention.ms": "-1"}  # the events' times are long past
KEYS = {"person": "id", "auction": "id", SIDE: "key"}  # a bid has none


def side_table() -> pa.Table:
    """The rows of q13's other side."""
    return pa.table(
        {"key": np.arange(SIDE_ROWS), "value": [f"value {i}" for i in range(SIDE_ROWS)]}
    )


def fill(events: Events, bootstrap: str, partitions: int) -> dict[str, int]:
    """Creates the topics and produces all events; how many rows each topic has."""
    client = Client(bootstrap)
    for topic in ("person", "auction", "bid", SIDE):
        client.create_topic(topic, partitions, configs=CONFIGS)
    client.close()
    producer, counts = Producer(bootstrap, acks=1), dict.fromkeys(("person", "auction", "bid"), 0)

    def send(topic: str, table: pa.Table, partition: int) -> None:
        rows = table.combine_chunks()
        keys = None
        if topic in KEYS:
            keys = rows.column(KEYS[topic]).combine_chunks().cast(pa.string()).cast(pa.binary())
        values = encode_rows(rows)
        at_ms = np.full(len(rows), START_MS)
        if "dateTime" in rows.column_names:
            at_ms = rows.column("dateTime").to_numpy()
        producer.send(topic, partition, keys, values.cast(pa.binary()), at_ms)

    def spread(topic: str, table: pa.Table) -> None:
        number = np.arange(len(table))
        if topic in KEYS:
            number = table.column(KEYS[topic]).to_numpy()
        for partition in range(partitions):
            chosen = np.flatnonzero(number % partitions == partition)
            send(topic, table.take(pa.array(chosen)), partition)

    spread(SIDE, side_table())
    for chunk in events.chunks():
        for topic, table in chunk.items():
            spread(topic, table)
            counts[topic] += len(table)
        print(
            f"\r  {sum(counts.values()):,} of {events.rows:,} events produced",
            end="",
            file=sys.stderr,
        )
    for partition in range(partitions):
        for topic, table in events.last(partition).items():
            send(topic, table, partition)
            counts[topic] += 1
    producer.close()
    print(file=sys.stderr)
    return counts | {SIDE: SIDE_ROWS}


def events_of(query: Query, counts: dict[str, int]) -> int:
    """The rows that a query reads."""
    return sum(counts[topic] for topic in query.topics)


def truth_database(events: Events, partitions: int) -> duckdb.DuckDBPyConnection:
    """All events as DuckDB's tables."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in events.tables(partitions).items():
        connection.register("events", table)
        times = [c for c in ("dateTime", "expires") if c in table.column_names]
        instants = ", ".join(f"epoch_ms({c}) AS {c}" for c in times)
        connection.execute(f"CREATE TABLE {name} AS SELECT * REPLACE ({instants}) FROM events")
        connection.unregister("events")
    return connection


def unequal(
    connection: duckdb.DuckDBPyConnection, query: Query | str, found: pa.Table | Path
) -> str:
    """How what a side found differs from the truth; empty where it doesn't.

    Args:
        connection: with all events; see `truth_database`.
        query: whose answer it is, or the SQL that gives it.
        found: rows, or a file of JSON lines.
    """
    truth, compared = query, "FROM found"
    if not isinstance(query, str):
        truth, compared = query.truth, query.compared
    connection.execute(f"CREATE OR REPLACE TEMP TABLE expected AS {truth}")
    expected = dict(row[:2] for row in connection.execute("DESCRIBE expected").fetchall())
    if isinstance(found, Path):
        empty = not found.exists() or not found.stat().st_size
        read = "" if empty else _read(connection, found, expected)
    else:
        connection.register("rows_found", found)
        read, empty = "SELECT * FROM rows_found", False
    expected_rows = _one(connection, "SELECT count(*) FROM expected")
    if empty:
        return "" if not expected_rows else f"{expected_rows} rows missing"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE found AS {read}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE comparable AS {compared}")
    given = dict(row[:2] for row in connection.execute("DESCRIBE comparable").fetchall())
    if missing_columns := set(expected) - set(given):
        return f"expected the columns {', '.join(expected)}; {', '.join(missing_columns)} missing"
    sides = {}
    for side, types in (("expected", expected), ("comparable", given)):
        columns = [_comparable(name, expected[name], types[name]) for name in expected]
        sides[side] = f"SELECT {', '.join(columns)} FROM {side}"
    missing = f"{sides['expected']} EXCEPT ALL {sides['comparable']}"
    wrong = f"{sides['comparable']} EXCEPT ALL {sides['expected']}"
    counts = [_one(connection, f"SELECT count(*) FROM ({part})") for part in (missing, wrong)]
    if counts == [0, 0]:
        return ""
    first = [connection.execute(f"{part} LIMIT 1").fetchall() for part in (missing, wrong)]
    lost, more = (f"{count}, such as {rows}" for count, rows in zip(counts, first, strict=True))
    return f"of {expected_rows} rows {lost} missing; {more} wrong"


def _read(connection: duckdb.DuckDBPyConnection, file: Path, expected: Mapping[str, str]) -> str:
    """A query for lines of JSON. What is to be text is read as such: DuckDB would take 22:13 for a time."""
    rows = f"SELECT * FROM read_ndjson('{file}')"
    types = dict(row[:2] for row in connection.execute(f"DESCRIBE {rows}").fetchall())
    texts = {name: "VARCHAR" for name in types if expected.get(name) == "VARCHAR"}
    return f"SELECT * FROM read_ndjson('{file}', columns = {types | texts})"


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])


def _comparable(name: str, kind: str, found: str) -> str:
    """A column as it is compared: an instant as milliseconds, be it text or a number."""
    if kind.startswith("TIMESTAMP"):
        return name if found == "BIGINT" else f"epoch_ms({name}::TIMESTAMP) AS {name}"
    if kind.startswith(("DOUBLE", "DECIMAL")):
        return f"round({name}::DOUBLE, 3) AS {name}"
    return f"{name}::{kind} AS {name}"
