"""The examples over whole files of real events, compared with DuckDB over the same rows.

PENSTOCK_DATA names a folder with the files: the access log of elastic/examples
(`apache_access_elastic_10k.log.gz`), the US DOT's flights of January 2015 (`us_flights_2015-01.csv.gz`), and
the metrics of numenta/NAB (`nab_metrics.csv.gz`). Flights and metrics that are made up are always tried.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock.cli.support.programs import load
from penstock.demo.lines import values_of_lines
from penstock.demo.programs import example

DATA = os.environ.get("PENSTOCK_DATA")
FLIGHTS = "us_flights_2015-01.csv.gz"
LOG = "apache_access_elastic_10k.log.gz"
METRICS = "nab_metrics.csv.gz"
EDITS = "wikipedia_edits_2015-09-12_sampled.jsonl.gz"
CJK = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}"
BETWEEN = r"[^\p{L}\p{N}_]"
PAIR = rf"(^|{BETWEEN}|[{CJK}])11{BETWEEN}*[^\p{{L}}\p{{N}}_.,;]{BETWEEN}*2015($|{BETWEEN}|[{CJK}])"
SEARCHES = {
    "year": ("title:2015", "titles LIKE '% 2015 %'"),
    "years": ("title:2014 text:2016", "titles LIKE '% 2014 %' OR texts LIKE '% 2016 %'"),
    "long": ("length:[2000 TO *]", "length >= 2000"),
    "short": ("+title:2015 -length:>100", "titles LIKE '% 2015 %' AND (length > 100) IS NOT TRUE"),
    "day": (
        '+"11 2015" +length:>0',
        f"length > 0 AND regexp_matches(concat(title, ' - ', text), '{PAIR}')",
    ),
}
"""Saved searches, and the same as conditions in DuckDB: of numbers alone, which have no stems."""
AIRPORTS = {"ATL": 0, "LAX": -180, "ORD": -60, "DEN": -120}
COLUMNS = (
    *("YEAR", "MONTH", "DAY", "AIRLINE", "TAIL_NUMBER", "ORIGIN_AIRPORT", "DESTINATION_AIRPORT"),
    *("SCHEDULED_DEPARTURE", "SCHEDULED_ARRIVAL", "SCHEDULED_TIME", "DEPARTURE_DELAY"),
    *("ELAPSED_TIME", "ARRIVAL_DELAY", "CANCELLED"),
)


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def real(name: str) -> str:
    """A file of real events."""
    path = Path(DATA or "", name)
    if not DATA or not path.exists():
        pytest.skip(f"PENSTOCK_DATA names no folder with {name}")
    return str(path)


def made_up(folder: Path) -> str:
    """Flights between four airports, of aircraft that go on from where they are."""
    rng = random.Random(4)
    rows = []
    for tail in range(20):
        airport, ready = rng.choice(list(AIRPORTS)), rng.randint(0, 600)
        while ready < 3 * 1440:
            to = rng.choice([one for one in AIRPORTS if one != airport])
            takes = 90 + abs(AIRPORTS[airport] - AIRPORTS[to])
            planned = ready + rng.randint(30, 200)
            delay = rng.choice([-5, 0, 10, 90])
            cancelled = rng.random() < 0.1
            took = takes + rng.choice([-10, 0, 20])
            local = planned + AIRPORTS[airport] + 1440
            arrives = (planned + takes + AIRPORTS[to]) % 1440
            text = ["" if cancelled else str(x) for x in (delay, took, delay + took - takes)]
            rows.append(
                (
                    *(planned, 2015, 1, 1 + local // 1440, "XY"[tail % 2], f"N{tail}", airport, to),
                    *(clock(local % 1440), clock(arrives), takes, *text, int(cancelled)),
                )
            )
            ready = planned + (60 if cancelled else delay + took)
            airport = airport if cancelled else to
    path = folder / "flights.csv.gz"
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(row[1:] for row in sorted(rows))
    return str(path)


def clock(minute: int) -> str:
    return f"{minute // 60:02}{minute % 60:02}"


def flights_run(path: str, batches: int) -> tuple[ps.testing.Run, dict[str, pa.Table]]:
    """The pipeline of flights after all of the file's records, and these."""
    program = load(example("flights"))
    run, sent = ps.testing.run(program.pipeline()), {}
    for topic in ("scheduled", "departed", "arrived"):
        sent[topic] = list(program.records(path, topic))
    for batch in range(batches):
        for topic, rows in sent.items():
            for row in rows[batch * len(rows) // batches : (batch + 1) * len(rows) // batches]:
                run.send_raw(topic, orjson.dumps(row))
        run.settle()
    # One event a month later: all that waits for watermarks is decided.
    later = "2015-03-01T00:00:00Z"
    run.send("scheduled", flight=-1, airline="none", planned=later)
    run.send("departed", flight=-2, origin="none", left=later)
    run.send("arrived", tail="none", airport="none", landed=later)
    return run, {topic: pa.Table.from_pylist(rows) for topic, rows in sent.items()}


@pytest.mark.parametrize("source", ["made up", pytest.param("real", marks=pytest.mark.slow)])
def test_flights(source: str, tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    """Punctuality is a join of all flights, turnarounds an ASOF join of all departures."""
    path = real(FLIGHTS) if source == "real" else made_up(tmp_path)
    run, sent = flights_run(path, batches=7)
    for topic, table in sent.items():
        database.register(f"{topic}_sent", table)
        at = {"scheduled": "planned", "departed": "left", "arrived": "landed"}[topic]
        database.execute(
            f'CREATE TABLE {topic} AS SELECT * REPLACE ("{at}"::TIMESTAMPTZ AS "{at}") FROM {topic}_sent'
        )
    expected = database.sql("""
        SELECT date_trunc('hour', greatest(planned, "left")) AS window_start, airline, count(*) AS flights,
            count(*) FILTER ("left" IS NULL) AS cancelled, count(*) FILTER (delay > 15) AS late,
            avg(delay) AS mean_delay
        FROM scheduled LEFT JOIN departed ON scheduled.flight = departed.flight
            AND "left" BETWEEN planned - INTERVAL 2 HOUR AND planned + INTERVAL 1 DAY
        GROUP BY ALL""")
    assert run.dead_letters() == []
    found = run.view("punctuality").table.filter(pa.compute.field("airline") != "none")
    assert differences(database, expected, found) == []
    # Of two arrivals of an aircraft at one instant the later one in the file counts.
    expected = database.sql("""
        WITH numbered AS (SELECT *, row_number() OVER () AS n FROM arrived),
        last AS (SELECT * FROM numbered QUALIFY n = max(n) OVER (PARTITION BY tail, landed)),
        turns AS (SELECT d.*, a.delay AS delay_before, (epoch(d."left") - epoch(landed)) / 60 AS minutes
            FROM departed d ASOF JOIN last a ON d.tail = a.tail AND d."left" >= a.landed
            WHERE airport = d.origin)
        SELECT origin, count(*) AS departures, quantile_cont(minutes, 0.5) AS minutes,
            count(*) FILTER (delay > 15) AS late,
            count(*) FILTER (delay > 15 AND delay_before > 15) AS late_before FROM turns GROUP BY ALL""")
    assert differences(database, expected, run.view("turnarounds").table) == []
    assert len(run.topic("turns")) == sum(
        row["departures"] for row in run.view("turnarounds").rows()
    )


@pytest.mark.slow
def test_visits_of_the_access_log(database: duckdb.DuckDBPyConnection) -> None:
    """Sessions are gaps and islands over all lines."""
    with gzip.open(real(LOG)) as file:
        values = values_of_lines(file.read().splitlines())[0].to_pylist()
    run = ps.testing.run(load(example("visits")).pipeline())
    for start in range(0, len(values), 999):
        for value in values[start : start + 999]:
            run.send_raw("requests", value)
        run.settle()
    # The log is out of order by less than the lateness, but for nobody.
    assert [x for x in run.dead_letters() if x.headers["penstock.reason"].startswith("late")] == []
    rows = [orjson.loads(value) for value in values if value.startswith(b"{")]
    database.register("lines", pa.Table.from_pylist(rows))
    expected = database.sql("""
        WITH typed AS (SELECT *, "at"::TIMESTAMPTZ AS t FROM lines),
        gaps AS (SELECT *, coalesce(t - lag(t) OVER (PARTITION BY ip ORDER BY t) >= INTERVAL 30 MINUTE,
            true)::INT AS first FROM typed),
        numbered AS (SELECT *, sum(first) OVER (PARTITION BY ip ORDER BY t ROWS UNBOUNDED PRECEDING) AS n
            FROM gaps)
        SELECT ip, min(t) AS window_start, count(*) AS requests, count(*) FILTER (status >= 400) AS errors,
            sum(bytes)::BIGINT AS bytes, epoch(max(t)) - epoch(min(t)) AS seconds
        FROM numbered GROUP BY ip, numbered.n""")
    assert differences(database, expected, run.view("visits").table) == []


def metrics(folder: Path) -> Path:
    """A file of series with jumps, some values at one instant, some out of order."""
    rng = random.Random(6)
    rows = []
    for series in range(3):
        for i in range(900):
            at = 300 * i + 900 + rng.choice([0, 0, 0, 300, -900])
            value = 20 + rng.random() + (9 * (series + 1) if rng.random() < 0.01 else 0)
            rows.append((i, f"s{series}", f"2026-01-0{1 + at // 86_400}", at % 86_400, value))
    path = folder / METRICS
    with gzip.open(path, "wt") as file:
        file.write("series,timestamp,value\n")
        for _, name, day, second, value in sorted(rows):
            hours, rest = divmod(second, 3_600)
            file.write(f"{name},{day} {hours:02}:{rest // 60:02}:00,{value}\n")
    return path


@pytest.mark.parametrize("source", ["made up", pytest.param("real", marks=pytest.mark.slow)])
def test_anomalies(source: str, tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    """Unusual values are those of a window function, alarms the gaps and islands of these."""
    path = real(METRICS) if source == "real" else metrics(tmp_path)
    program = load(example("anomalies"))
    with gzip.open(path, "rt") as file:
        rows = list(program.records(file))
    if source == "real":
        rows.sort(key=lambda row: row["at"])  # the file has one series after another
    run = ps.testing.run(program.pipeline())
    for start in range(0, len(rows), 20_000):
        for row in rows[start : start + 20_000]:
            run.send_raw("readings", orjson.dumps(row))
        run.settle()
    run.send("readings", series="none", value=1, at="2030-01-01T00:00:00Z")
    assert run.dead_letters() == []
    database.register("lines", pa.Table.from_pylist(rows))
    database.execute(f"""
        CREATE TABLE unusual AS
        WITH typed AS (SELECT series, value, "at"::TIMESTAMPTZ AS t FROM lines),
        beside AS (SELECT *, avg(value) OVER day AS mean, stddev(value) OVER day AS deviation,
            count(*) OVER day AS seen FROM typed WINDOW day AS (PARTITION BY series ORDER BY t
            RANGE BETWEEN INTERVAL '23:59:59.999999' PRECEDING AND CURRENT ROW))
        SELECT * FROM beside WHERE seen >= {program.ENOUGH}
            AND abs(value - mean) > {program.DEVIATIONS} * deviation""")
    found = [orjson.loads(record.value or b"") for record in run.topic("unusual")]
    expected = database.sql('SELECT series, t AS "at", value, mean, deviation FROM unusual')
    table = pa.Table.from_pylist(found)
    at = pa.compute.cast(table["at"], pa.timestamp("us", "UTC"))
    table = table.set_column(table.column_names.index("at"), "at", at)
    assert differences(database, expected, table) == []
    expected = database.sql("""
        WITH gaps AS (SELECT *, coalesce(t - lag(t) OVER (PARTITION BY series ORDER BY t) >= INTERVAL 6 HOUR,
            true)::INT AS begins FROM unusual),
        numbered AS (SELECT *, sum(begins) OVER (PARTITION BY series ORDER BY t ROWS UNBOUNDED PRECEDING)
            AS n FROM gaps)
        SELECT series, count(*) AS values, min(t) AS first, max(t) AS last
        FROM numbered GROUP BY series, n""")
    assert differences(database, expected, run.view("alarms").table) == []


def differences(
    database: duckdb.DuckDBPyConnection, expected: duckdb.DuckDBPyRelation, found: pa.Table
) -> list[Any]:
    """Rows of one that the other hasn't, with numbers to eight digits; some of them."""
    names = expected.columns
    # A mean of some decimals may end in a 5, just where it is rounded: all are moved away from there.
    digits = 'format(\'{{:.8g}}\', "{0}" * (1 + 1e-11)) AS "{0}"'
    shown = [
        digits.format(name) if kind == "DOUBLE" else f'"{name}"'
        for name, kind in zip(names, map(str, expected.types), strict=True)
    ]
    database.execute("CREATE OR REPLACE TEMP TABLE wanted AS " + expected.sql_query())
    database.register("found", found)
    one, other = (f"SELECT {', '.join(shown)} FROM {table}" for table in ("wanted", "found"))
    assert database.execute("SELECT count(*) FROM wanted").fetchall()[0][0] > 0
    both = f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})"
    return database.execute(f"SELECT * FROM ({both}) ORDER BY ALL LIMIT 6").fetchall()


@pytest.mark.slow
def test_press(database: duckdb.DuckDBPyConnection) -> None:
    """Of a day of Wikipedia's edits, those are found that conditions in SQL find."""
    program = load(example("press"))
    with gzip.open(real(EDITS)) as file:
        rows = list(program.records(file))
    run = ps.testing.run(program.pipeline())
    for name, (search, _) in SEARCHES.items():
        run.send("searches", person=name, name=name, search=search)
    for start in range(0, len(rows), 10_000):
        for row in rows[start : start + 10_000]:
            run.send_raw("articles", orjson.dumps(row))
        run.settle()
    assert run.dead_letters() == []
    database.register("lines", pa.Table.from_pylist(rows))
    words = rf"concat(' ', regexp_replace(lower(%s), '[^\p{{L}}\p{{N}}]+|[{CJK}]', ' ', 'g'), ' ')"
    database.execute(f"""CREATE TABLE cut AS
        SELECT *, {words % "title"} AS titles, {words % "text"} AS texts FROM lines""")
    found = {row["name"]: row["articles"] for row in run.view("hits").rows()}
    for name, (_, condition) in SEARCHES.items():
        [(wanted,)] = database.sql(
            f"SELECT count(DISTINCT article) FROM cut WHERE {condition}"
        ).fetchall()
        assert (name, found.get(name, 0)) == (name, wanted)
        assert wanted > 3, name
