"""The demonstrations from beginning to end: broker, Spark, views, and what is printed."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.errors import QueryError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]
MINUTE_LINES = 400


def penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def access_log(path: Path, *, seed: int) -> list[tuple[datetime, str, int, int]]:
    """Writes a log whose lines are out of order by up to a minute; its rows as a server knew them."""
    chance = random.Random(seed)
    start = datetime(2015, 5, 17, 10, tzinfo=UTC)
    rows, lines = [], []
    for i in range(3_000):
        at = start + timedelta(seconds=i * 60 // MINUTE_LINES - chance.randrange(60))
        row = (at, f"/page/{chance.randrange(20)}", chance.choice([200, 200, 404]), i)
        rows.append(row)
        lines.append(
            f'10.0.0.{i % 250} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "GET {row[1]}?q={i} HTTP/1.1" '
            f'{row[2]} {row[3]} "-" "agent \\"quoted\\""'
        )
    lines.insert(1_000, "no log line at all")
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return rows


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("window", "lateness"),
    [("1 minute", "60s"), pytest.param("10 seconds", "10s", marks=pytest.mark.slow)],
)
def test_weblog(tmp_path: Path, window: str, lateness: str) -> None:
    """Every line is counted, late or bad; with enough lateness all counts are DuckDB's."""
    rows = access_log(tmp_path / "access.log.gz", seed=7)
    ran = penstock(
        tmp_path, "demo", "weblog", "access.log.gz", "--no-ui",
        "--window", window, "--lateness", lateness,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    views = Views(tmp_path / "weblog.penstock").snapshot()
    minutes = views.table("per_minute" if window == "1 minute" else "per_window")
    counts = views.status()["counts"]
    counted = sum(minutes["requests"].to_pylist())
    late = counts["late"]["requests"]
    assert counts["dead"]["requests"] == late + 1, "late lines and the one that is none"
    assert counted + late == len(rows)
    assert f"counted {counted:,}" in ran.stdout
    if lateness == "10s":
        assert late > 100
        return
    assert late == 0
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.execute('CREATE TABLE lines ("at" TIMESTAMPTZ, path TEXT, status INT, bytes BIGINT)')
        con.executemany("INSERT INTO lines VALUES (?, ?, ?, ?)", rows)
        con.register("per_path", views.table("per_path"))
        differences = con.sql(
            """SELECT * FROM (
                SELECT date_trunc('minute', "at"), path, count(*), sum(bytes),
                       count(*) FILTER (status >= 400) FROM lines GROUP BY ALL
               ) EXCEPT SELECT window_start, path, requests, bytes, errors FROM per_path"""
        ).fetchall()
        assert differences == []
        [total] = con.sql(
            "SELECT count(DISTINCT (date_trunc('minute', \"at\"), path)) FROM lines"
        ).fetchall()
    assert views.table("per_path").num_rows == total[0]


@pytest.mark.slow
def test_machine_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The sampler's events become views; a second run adds to what the first one left."""

    def watched(more_than: int) -> dict[str, Any]:
        """What there is after a run that gets to some rows, for as long as that takes here."""
        for seconds in ("10", "30", "90"):
            ran = penstock(tmp_path, "demo", "machine", "--seconds", seconds, "--no-ui")
            assert ran.returncode == 0, ran.stderr[-3_000:]
            with contextlib.suppress(QueryError):  # there is no version yet
                found = Views(tmp_path / "machine.penstock").status()
                if found["counts"]["rows"]["cpu"] > more_than:
                    assert "load_per_minute" in ran.stdout
                    return found
        raise AssertionError(f"expected more than {more_than} rows of cpu; found {ran.stdout}")

    first = watched(0)
    second = watched(first["counts"]["rows"]["cpu"])
    assert second["version"] > first["version"]
    asked = penstock(
        tmp_path, "query", "machine", "SELECT count(*) AS n FROM load_now", "--format", "csv"
    )
    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout.split()[-1]) > 0
