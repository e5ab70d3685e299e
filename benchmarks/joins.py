"""How many events a second are joined within an interval, beside Flink, and beside DuckDB?

    python benchmarks/joins.py [--rows 4000000] [--smoke] [--json]
    python benchmarks/joins.py --operator [--rows 1000000] [--batch 50000] [--smoke] [--json]

Searches and clicks of many sessions, out of order by up to 2 s, joined within a minute, inner and left. They
lie in topics keyed by the session; Penstock and Flink's SQL read them one after another (`streams/`).

`--operator` leaves log and engine out: batches of a fixed size of each side through Penstock's operator
(state in memory, one shard), whose result DuckDB then computes from all rows in one query, on one thread.
Both must have as many rows, and the same sums.
`events/s` is of processor time, which a busy machine distorts little. In the last line all rows are of
one session; as DuckDB compares all of a session's rows with each other, it gets a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import Schema
from penstock.ops import NO_TIME, Context
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.state import MemoryStateFiles, vacuum
from streams.comparing import add_arguments, run

SECOND_US = 1_000_000
PER_S = 2_000  # events of each side, of event time
DISORDER_US = 2 * SECOND_US
WITHIN_US = 60 * SECOND_US
HOT_WITHIN_US = 1_000  # two rows of the other side
HOT_SHARE = 10  # DuckDB's part of the rows of one session
OPERATOR_ROWS_MAX = 1_000_000  # of each side
SMOKE_ROWS = 20_000
LEFT = Schema.parse("session BIGINT NOT NULL, query STRING, n BIGINT")
RIGHT = Schema.parse("session BIGINT NOT NULL, url STRING, m BIGINT")


@dataclass(frozen=True)
class Case:
    """What is joined how."""

    how: str
    sessions: int
    within_us: int


def side(schema: Schema, rows: int, sessions: int, seed: int) -> pa.Table:
    """One stream, in the order that it comes in."""
    chance = np.random.default_rng(seed)
    at = np.arange(rows) * (SECOND_US // PER_S) + 10**15
    order = np.argsort(at + chance.integers(0, DISORDER_US, rows), kind="stable")
    texts = pa.DictionaryArray.from_arrays(
        chance.integers(0, 1_000, rows), pa.array([f"/{i:07}/of-some-length" for i in range(1_000)])
    )
    columns = [chance.integers(0, sessions, rows), texts.cast(pa.string()), np.arange(rows)]
    table = pa.table([pa.array(column) for column in columns], schema.arrow)
    return table.append_column(TIME, pa.array(at[order]).view(pa.timestamp("us", "UTC")))


def penstock(case: Case, left: pa.Table, right: pa.Table, batch: int) -> dict[str, Any]:
    """The join, batch by batch."""
    operator = IntervalJoin(LEFT, RIGHT, (("session", "session"),), 0, case.within_us, case.how)
    files = MemoryStateFiles()
    state = operator.empty(files)
    rows = total = peak = version = 0
    spent = 0.0
    newest = 0
    for start in range(0, len(left) + 1, batch):
        last = start + batch >= len(left)
        began = time.process_time()
        sides = [table.slice(start, batch) for table in (left, right)]
        parcels = [[operator.prepare(port, one).parcel] for port, one in enumerate(sides)]
        if len(sides[0]):
            newest = max(newest, int(np.max(sides[0].column(TIME).cast(pa.int64()).to_numpy())))
        frontier = 2**62 if last else max(newest - DISORDER_US, NO_TIME)
        step = operator.step(
            state, parcels, Context(files, "s", version, (frontier, frontier), "0")
        )
        spent += time.process_time() - began
        state, version = step.state, version + 1
        rows += len(step.changes)
        total += checksum(step.changes)
        peak = max(peak, state.rows)
        vacuum(files, "s", [state.describe()], version)
    return {"rows": rows, "sum": total, "seconds": spent, "state_rows": peak}


def peer(case: Case, left: pa.Table, right: pa.Table) -> dict[str, Any]:
    """The same in one query."""
    kind = {"inner": "JOIN", "left": "LEFT JOIN"}[case.how]
    near = f"""epoch_us(r."{TIME}") BETWEEN epoch_us(l."{TIME}")
               AND epoch_us(l."{TIME}") + {case.within_us}"""
    with duckdb.connect(config={"threads": 1}) as con:
        con.register("l", left)
        con.register("r", right)
        began = time.process_time()
        found = con.sql(
            f"""SELECT l.session, query, n, url, m, greatest(l."{TIME}", r."{TIME}") AS at
                FROM l {kind} r ON l.session = r.session AND {near}"""
        ).to_arrow_table()
        spent = time.process_time() - began
    return {"rows": len(found), "sum": checksum(found), "seconds": spent}


def checksum(rows: pa.Table) -> int:
    """The sum of both sides' numbers."""
    return sum(rows.column(name).drop_null().to_numpy().sum().item() for name in ("n", "m"))


def measure(case: Case, rows: int, batch: int) -> dict[str, Any]:
    """One line of the table."""
    left = side(LEFT, rows, case.sessions, 1)
    right = side(RIGHT, rows, case.sessions, 2)
    few = rows // HOT_SHARE if case.sessions == 1 else rows
    penstock(
        case, left.slice(0, batch), right.slice(0, batch), batch
    )  # compiled kernels are loaded
    mine = penstock(case, left, right, batch)
    theirs = peer(case, left.slice(0, few), right.slice(0, few))
    same = mine if few == rows else penstock(case, left.slice(0, few), right.slice(0, few), batch)
    rates = [2 * rows / mine["seconds"], 2 * few / theirs["seconds"]]
    return {
        "how": case.how,
        "sessions": case.sessions,
        "events_per_s": round(rates[0]),
        "duckdb_events_per_s": round(rates[1]),
        "ratio": round(rates[0] / rates[1], 2),
        "rows": mine["rows"],
        "state_rows": mine["state_rows"],
        "equal": (same["rows"], same["sum"]) == (theirs["rows"], theirs["sum"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser, rows=4_000_000)
    parser.add_argument("--operator", action="store_true", help="the operator alone, beside DuckDB")
    parser.add_argument("--batch", type=int, default=50_000, help="rows of each side in a batch")
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_ROWS:,} rows: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if options.smoke:
        options.rows, options.batch = SMOKE_ROWS, SMOKE_ROWS // 8
    if not options.operator:
        return run(("join-inner", "join-left"), parser, options)
    options.rows = min(options.rows, OPERATOR_ROWS_MAX)
    many = max(options.rows // 10, 1)
    cases = [
        Case("inner", many, WITHIN_US),
        Case("left", many, WITHIN_US),
        Case("left", 1, HOT_WITHIN_US),
    ]
    results = []
    if not options.json:
        print(f"{'join':6}{'sessions':>10}{'events/s':>13}{'DuckDB':>13}{'Penstock is':>13}"
              f"{'rows given':>13}{'state rows':>12}")  # fmt: skip
    for case in cases:
        found = measure(case, options.rows, options.batch)
        results.append(found)
        if not options.json:
            print(f"{found['how']:6}{found['sessions']:>10,}{found['events_per_s']:>13,}"
                  f"{found['duckdb_events_per_s']:>13,}{found['ratio']:>11.2f} x"
                  f"{found['rows']:>13,}{found['state_rows']:>12,}"
                  f"{'' if found['equal'] else '  DIFFER'}", flush=True)  # fmt: skip
    if options.json:
        print(json.dumps({"rows": options.rows, "batch": options.batch, "joins": results}))
    return 0 if all(found["equal"] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
