"""Which values of a metric are unusual, compared with the mean and deviation of its last day.

    penstock run examples/anomalies.py
    zcat nab_metrics.csv.gz | python examples/anomalies.py - | penstock produce readings
    penstock query anomalies "SELECT series, count(*) AS n FROM alarms GROUP BY series ORDER BY n DESC"

A value raises an alarm if it is too many deviations away from the mean of its series' last day, which
includes the value, once the day has enough values. Values count in the order of their time. Alarms of a
series with less than six hours between them are one alarm.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator

import orjson

import penstock as ps

DEVIATIONS = 4.5
ENOUGH = 100
"""Values of the last day, without which nothing is out of the ordinary."""


def pipeline(directory: str = "anomalies.penstock", log: str | None = None) -> ps.App:
    """Unusual values to a topic, and one alarm for those of six hours in a view."""
    app = ps.App("anomalies", directory=directory, log=log)
    readings = app.stream(
        "readings",
        "series STRING NOT NULL, value DOUBLE NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="1 hour"),
    )
    compared = (
        readings.window(ps.sliding("1 day"))
        .group_by("series")
        .agg(mean=ps.avg("value"), deviation=ps.stddev("value"), seen=ps.count())
    )
    unusual = compared.where(
        f"seen >= {ENOUGH} AND abs(value - mean) > {DEVIATIONS} * deviation"
    ).select("series", "at", "value", "mean", "deviation")
    unusual.to("unusual")
    alarms = unusual.window(ps.session("6 hours")).group_by("series")
    app.view("alarms", alarms.agg(values=ps.count(), first=ps.min("at"), last=ps.max("at")))
    return app


def records(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    """The readings of a CSV file with the columns series, timestamp (UTC) and value."""
    for row in csv.DictReader(lines):
        at = row["timestamp"].replace(" ", "T") + "Z"
        yield {"series": row["series"], "value": float(row["value"]), "at": at}


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        for record in records(sys.stdin):
            sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
    else:
        pipeline().main()
