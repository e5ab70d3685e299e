"""Which airlines are punctual, and which delays an aircraft brings along: schedules, departures, arrivals.

    penstock run examples/flights.py
    python examples/flights.py flights.csv.gz scheduled | penstock produce scheduled
    python examples/flights.py flights.csv.gz arrived | penstock produce arrived
    python examples/flights.py flights.csv.gz departed | penstock produce departed
    penstock query flights "SELECT * FROM turnarounds ORDER BY departures DESC LIMIT 10"

The file is the on-time performance data of the US Department of Transportation. A departure is joined with
its schedule within a day. A flight without a departure was cancelled, which is known when the day has passed.
A departure is also joined with its aircraft's last arrival *as of the departure*: when, and how late.

The file's times are those of the clocks at each airport. `records` finds how far these are apart from the
flights themselves (a schedule says when a flight leaves, when it arrives, and how long it takes), and gives
instants. Its lines come in the order of the schedule, so departures and arrivals are hours out of order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import duckdb
import orjson

import penstock as ps

LATENESS = "2 days"
"""How far a departure or an arrival may be behind the newest one."""
WITHIN = ("2 hours", "1 day")
"""A flight leaves at most so much before its time, and at most so much after it."""


def pipeline(directory: str = "flights.penstock", log: str | None = None) -> ps.App:
    """Punctuality by airline and hour, and how aircraft turn round, by airport.

    The hour is that in which a flight left, or that of its schedule if it left earlier or never.
    """
    app = ps.App("flights", directory=directory, log=log)
    scheduled = app.stream(
        "scheduled",
        "flight BIGINT NOT NULL, airline STRING, origin STRING, destination STRING, "
        "planned TIMESTAMP NOT NULL",
        time=ps.event_time("planned", lateness="0 seconds"),
    )
    departed = app.stream(
        "departed",
        "flight BIGINT NOT NULL, tail STRING, origin STRING, delay BIGINT, left TIMESTAMP NOT NULL",
        time=ps.event_time("left", lateness=LATENESS),
    )
    arrived = app.table(
        "arrived",
        "tail STRING, airport STRING, delay BIGINT, landed TIMESTAMP NOT NULL",
        key="tail",
        time=ps.event_time("landed", lateness=LATENESS),
    )

    flights = scheduled.join(
        departed.select("flight", "left", "delay"), on="flight", within=WITHIN, how="left"
    )
    app.view(
        "punctuality",
        flights.window(ps.tumbling("1 hour"))
        .group_by("airline")
        .agg(
            flights=ps.count(),
            cancelled=ps.count(where="left IS NULL"),
            late=ps.count(where="delay > 15"),
            mean_delay=ps.avg("delay"),
        ),
    )

    before = arrived.select("tail", "airport", "landed", delay_before="delay")
    turns = departed.where("tail IS NOT NULL").enrich(before, on="tail", as_of="event time")
    turns = turns.where("airport = origin").select(
        *("flight", "tail", "origin", "left", "delay", "delay_before"),
        minutes="(epoch(left) - epoch(landed)) / 60",
    )
    turns.to("turns")
    app.view(
        "turnarounds",
        turns.group_by("origin").agg(
            departures=ps.count(),
            minutes=ps.quantile("minutes", 0.5),
            late=ps.count(where="delay > 15"),
            late_before=ps.count(where="delay > 15 AND delay_before > 15"),
        ),
    )
    return app


def records(path: str, topic: str) -> Iterator[dict[str, object]]:
    """The records for a topic, in the order of the file.

    Args:
        path: of the flights, CSV, gzipped or not.
        topic: `scheduled`, `departed` or `arrived`.
    """
    with duckdb.connect() as connection:
        connection.execute(FLIGHTS, {"path": path})
        connection.execute("CREATE TABLE offsets (airport VARCHAR, minutes BIGINT)")
        connection.executemany(
            "INSERT INTO offsets VALUES (?, ?)", list(_offsets(connection).items())
        )
        connection.execute(INSTANTS)
        found = connection.execute(TOPICS[topic])
        names = [column[0] for column in found.description or ()]
        while rows := found.fetchmany(10_000):
            yield from (dict(zip(names, row, strict=True)) for row in rows)


FLIGHTS = """
CREATE TABLE flights AS SELECT row_number() OVER () AS flight, AIRLINE AS airline, TAIL_NUMBER AS tail,
    ORIGIN_AIRPORT AS origin, DESTINATION_AIRPORT AS destination, CANCELLED = '1' AS cancelled,
    make_timestamp(YEAR::INT, MONTH::INT, DAY::INT, left(SCHEDULED_DEPARTURE, 2)::INT % 24,
        right(SCHEDULED_DEPARTURE, 2)::INT, 0) AS planned,
    60 * left(SCHEDULED_ARRIVAL, 2)::INT + right(SCHEDULED_ARRIVAL, 2)::INT AS arrives,
    SCHEDULED_TIME::INT AS takes, DEPARTURE_DELAY::INT AS departure_delay,
    ELAPSED_TIME::INT AS took, ARRIVAL_DELAY::INT AS arrival_delay
FROM read_csv($path, all_varchar = true)"""
APART = """
SELECT origin, destination, mode((arrives - 60 * hour(planned) - minute(planned) - takes + 2160) % 1440 - 720)
FROM flights WHERE takes IS NOT NULL GROUP BY ALL"""
INSTANTS = """
CREATE TABLE instants AS SELECT flights.*, planned - INTERVAL 1 MINUTE * o.minutes AS planned_at
FROM flights JOIN offsets o ON origin = airport"""
ISO = "strftime({} , '%Y-%m-%dT%H:%M:%SZ')"
LEFT = "planned_at + INTERVAL 1 MINUTE * departure_delay"
TOPICS = {
    "scheduled": f"""SELECT flight, airline, origin, destination, {ISO.format("planned_at")} AS planned
        FROM instants ORDER BY planned_at, flight""",
    "departed": f"""SELECT flight, tail, origin, departure_delay AS delay, {ISO.format(LEFT)} AS left
        FROM instants WHERE departure_delay IS NOT NULL ORDER BY flight""",
    "arrived": f"""SELECT tail, destination AS airport, arrival_delay AS delay,
        {ISO.format(LEFT + " + INTERVAL 1 MINUTE * took")} AS landed
        FROM instants WHERE took IS NOT NULL AND tail IS NOT NULL ORDER BY flight""",
}


def _offsets(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Minutes that each airport's clock is ahead of the first one's, found along the flights."""
    apart: dict[str, list[tuple[str, int]]] = {}
    for origin, destination, minutes in connection.execute(APART).fetchall():
        apart.setdefault(origin, []).append((destination, minutes))
        apart.setdefault(destination, []).append((origin, -minutes))
    found: dict[str, int] = {}
    for start in sorted(apart, key=lambda airport: -len(apart[airport])):
        if start not in found:
            found[start], reached = 0, [start]
            for airport in reached:
                for other, minutes in apart[airport]:
                    if other not in found:
                        found[other] = found[airport] + minutes
                        reached.append(other)
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].endswith((".csv", ".csv.gz")):
        for record in records(*sys.argv[1:]):
            sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
    else:
        pipeline().main()
