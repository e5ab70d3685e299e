"""How many events a second become sessions, beside Flink, and beside DuckDB's gaps and islands?

    python benchmarks/sessions.py [--rows 5000000] [--smoke] [--json]
    python benchmarks/sessions.py --operator [--rows 5000000] [--users 100000] [--smoke] [--json]

Events of many users, each active for a while and then away, out of order by up to 2 s. They lie in a topic
keyed by the user; Penstock and Flink's SQL read it one after another (`streams/`).

`--operator` leaves log and engine out: Penstock's operator takes them in batches, keeps its state on files,
and closes sessions as the watermark passes; DuckDB sorts all rows at once (`lag`, a running sum, `GROUP BY`),
on one thread. Both count and sum per session; the sessions must be the same. Rates are of processor time,
which a busy machine distorts little.

`growth` is the time of a batch in the last quarter by that in the second: closed sessions are kept, and
the aim is that they cost nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time

import duckdb
import numpy as np
import pyarrow as pa

from penstock.ops import Aggregate, AggregateSpec, Context, SessionAggregate, Window
from penstock.ops.aggregates import Column
from penstock.state import LocalStateFiles, vacuum
from streams.comparing import add_arguments, run

ROWS, USERS, BATCH_ROWS = 5_000_000, 100_000, 250_000
BATCHES_MIN = 12
SMOKE_ROWS, SMOKE_USERS = 40_000, 500
GAP_US = 1_800_000_000
LATENESS_US = 2_000_000
PER_SESSION = 10  # events, on average
PAUSE_US = 60_000_000  # between two of them, on average
BEGIN_US = 1_700_000_000_000_000


def events(rows: int, users: int) -> pa.Table:
    """Events in the order in which they come: user, v (a multiple of one half), $time."""
    rng = np.random.default_rng(1)
    sessions = rows // PER_SESSION
    # As many users are active at any time, whatever the number of rows.
    span_us = max(1, sessions // users) * 2 * GAP_US
    first = rng.integers(0, span_us, sessions)
    which = np.sort(rng.integers(0, sessions, rows))
    steps = rng.exponential(PAUSE_US, rows).astype(np.int64)
    since = np.cumsum(steps)
    began = np.concatenate([[True], which[1:] != which[:-1]])
    since -= np.maximum.accumulate(np.where(began, since, 0))
    at = first[which] + since
    user = rng.integers(0, users, sessions)[which]
    order = np.argsort(at + rng.integers(0, LATENESS_US, rows))
    return pa.table(
        {
            "user": user[order],
            "v": rng.integers(0, 1000, rows) / 2,
            "$time": pa.array(at[order] + BEGIN_US, pa.timestamp("us", "UTC")),
        }
    )


def penstock(table: pa.Table, directory: str) -> tuple[pa.Table, list[float], int]:
    """The sessions, the seconds of each batch, and how many sessions were closed on the way."""
    user = Column("user", pa.int64(), required=True)
    total = Aggregate("total", "sum", Column("v", pa.float64(), required=True))
    spec = AggregateSpec(
        (user,), Window("session", GAP_US), (Aggregate("n", "count"), total), "$time", closed=True
    )
    op = SessionAggregate(spec)
    files = LocalStateFiles(directory, fsync=False)
    state = op.empty(files)
    seconds, closed = [], 0
    per_batch = min(BATCH_ROWS, max(1, len(table) // BATCHES_MIN))
    for version, start in enumerate(range(0, len(table), per_batch)):
        batch = table.slice(start, per_batch).combine_chunks()
        frontier_us = batch["$time"][0].value - LATENESS_US
        began = time.process_time()
        part = op.partials(batch)
        context = Context(files, "s", version, (frontier_us,))
        step = op.step(state, [[part]], context)
        seconds.append(time.process_time() - began)
        state = op.open(files, json.loads(json.dumps(step.state.describe())))
        assert step.closed is not None
        closed += len(step.closed)
        vacuum(files, "s", [state.describe()], version)
    return pa.Table.from_batches(list(op.scan(state)), op.traits.schema), seconds, closed


QUERY = f"""
    WITH since AS (
        SELECT "user", v, us, us - lag(us) OVER (PARTITION BY "user" ORDER BY us) AS pause
        FROM rows_
    ), cut AS (
        SELECT *, sum(CASE WHEN pause < {GAP_US} THEN 0 ELSE 1 END)
                  OVER (PARTITION BY "user" ORDER BY us ROWS UNBOUNDED PRECEDING) AS nth
        FROM since
    )
    SELECT "user", min(us) AS first, max(us) + {GAP_US} AS ends, count(*) AS n, sum(v) AS total
    FROM cut GROUP BY "user", nth
"""


def gaps_and_islands(table: pa.Table) -> tuple[pa.Table, float]:
    """The sessions, and the seconds it took."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("source", table)
        connection.execute(
            'CREATE TABLE rows_ AS SELECT "user", v, epoch_us("$time") AS us FROM source'
        )
        began = time.process_time()
        found = connection.sql(QUERY).to_arrow_table()
        return found, time.process_time() - began


def same(ours: pa.Table, theirs: pa.Table) -> bool:
    """Whether the sessions are the same."""
    mine = pa.table(
        {
            "user": ours["user"],
            "first": ours["window_start"].cast(pa.int64()),
            "ends": ours["window_end"].cast(pa.int64()),
            "n": ours["n"],
            "total": ours["total"],
        }
    )
    by = [("user", "ascending"), ("first", "ascending")]
    return bool(mine.sort_by(by).equals(theirs.select(mine.column_names).sort_by(by)))


def measure(rows: int, users: int) -> dict[str, float]:
    """Both sides, one after the other."""
    warm = events(SMOKE_ROWS, SMOKE_USERS)
    table = events(rows, users)
    directory = tempfile.mkdtemp(prefix="penstock-sessions-")
    try:
        penstock(warm, f"{directory}/warm")
        ours, seconds, closed = penstock(table, f"{directory}/state")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    gaps_and_islands(warm)
    theirs, their_seconds = gaps_and_islands(table)
    quarter = max(1, len(seconds) // 4)
    second, last = seconds[quarter : 2 * quarter] or seconds, seconds[-quarter:]
    rate, their_rate = rows / sum(seconds), rows / their_seconds
    return {
        "rows": rows,
        "users": users,
        "sessions": len(ours),
        "closed": closed,
        "equal": same(ours, theirs),
        "penstock_rows_per_s": round(rate),
        "duckdb_rows_per_s": round(their_rate),
        "ratio": round(rate / their_rate, 2),
        "growth": round(sum(last) / len(last) * len(second) / sum(second), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_arguments(parser, rows=ROWS)
    parser.add_argument("--operator", action="store_true", help="the operator alone, beside DuckDB")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_ROWS:,} rows: does it run?")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    if options.smoke:
        options.rows, options.users = SMOKE_ROWS, SMOKE_USERS
    if not options.operator:
        return run(("sessions",), parser, options)
    found = measure(options.rows, options.users)
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{'':12}{'events/s':>12}{'Penstock is':>13}")
    print(f"{'Penstock':12}{found['penstock_rows_per_s']:>12,}")
    print(f"{'DuckDB':12}{found['duckdb_rows_per_s']:>12,}{found['ratio']:>11.2f} x")
    print(
        f"{found['sessions']:,} sessions ({found['closed']:,} closed on the way), "
        f"{'the same' if found['equal'] else 'THEY DIFFER'}; "
        f"growth {found['growth']:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
