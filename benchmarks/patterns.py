"""How many events a second are matched against a row pattern, beside Flink's MATCH_RECOGNIZE?

    python benchmarks/patterns.py [--rows 4000000] [--cases pattern-steps,…] [--smoke] [--json]
    python benchmarks/patterns.py --operator [--rows 1000000] [--smoke] [--json]

Three patterns over each user's events, which are out of order by up to 2 s: three steps in a row; a
quantifier with a condition that reads matched rows; an absence at the end, which Flink's SQL can't state
(Penstock alone). Events lie in a topic keyed by the user; Penstock and Flink's SQL read it one after
another (`streams/`). The matches of each are compared with those of a query in DuckDB.

`--operator` leaves log and engine out, and shows how the time of a batch grows: with open partial matches,
with keys, and with the length of the pattern. Rates are of processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.ops import Context
from penstock.state import MemoryStateFiles, vacuum
from streams.cases import CASES, PATTERNS
from streams.comparing import add_arguments, run

ROWS, SMOKE_ROWS, BATCH_ROWS = 4_000_000, 40_000, 100_000
BATCHES_MIN = 8
LATENESS_US = 2_000_000
BEGIN_US = 1_700_000_000_000_000
KINDS = 4


def events(rows: int, users: int) -> pa.Table:
    """Events in the order in which they come: user, kind, v, $time."""
    random = np.random.default_rng(1)
    at = BEGIN_US + np.arange(rows) * 500 - random.integers(0, LATENESS_US, rows)
    columns = {
        "user": random.integers(0, users, rows),
        "kind": random.integers(0, KINDS, rows),
        "v": random.integers(0, 100, rows),
        "at": pa.array(at, pa.timestamp("us", "UTC")),
    }
    table = pa.table(columns)
    return table.append_column("$time", table["at"])


def questions(rows: int) -> Iterator[tuple[str, int, str, str]]:
    """What is measured: its name, users, pattern, within."""
    users = max(rows // 100, 1)
    for many in (max(users // 10, 1), users, users * 10):
        yield f"a b c, {many:,} keys", many, "a b c", "1 hour"
    for within in ("1 second", "10 seconds", "1 minute"):
        yield f"a -> b -> a -> c, within {within}", users, "a -> b -> a -> c", within
    for length in (2, 8, 32):
        yield f"(a | b | c){{{length}}}", users, f"(a | b | c){{{length}}}", "1 hour"


def measure(rows: int, users: int, pattern: str, within: str) -> dict[str, float]:
    """One pattern over all rows, batch after batch."""
    app = ps.App("patterns")
    stream = app.stream(
        "events",
        "user BIGINT, kind BIGINT, v BIGINT, at TIMESTAMP",
        time=ps.event_time("at", lateness="2 seconds"),
    )
    found = stream.match(
        pattern,
        by="user",
        within=within,
        measures={"first": "a.at", "n": "count(*)"},
        a="kind = 0",
        b="kind = 1",
        c="kind = 2",
    )
    operator = found.node.operator
    files = MemoryStateFiles()
    table, state = events(rows, users), operator.empty(files)
    per_batch = min(BATCH_ROWS, max(1, rows // BATCHES_MIN))
    seconds, matches = [], 0
    for version, start in enumerate(range(0, rows, per_batch)):
        batch = table.slice(start, per_batch).combine_chunks()
        frontier_us = BEGIN_US + start * 500 - LATENESS_US
        began = time.process_time()
        parcel = operator.prepare(0, batch).parcel
        step = operator.step(state, [[parcel]], Context(files, "s", version, (frontier_us,)))
        seconds.append(time.process_time() - began)
        assert step.changes is not None
        matches += len(step.changes)
        state = step.state
        vacuum(files, "s", [state.describe()], version)
    quarter = max(1, len(seconds) // 4)
    second, last = seconds[quarter : 2 * quarter], seconds[-quarter:]
    return {
        "rows_per_s": round((rows - per_batch) / sum(seconds[1:])),
        "matches": matches,
        "kept_rows": state.rows,
        "growth": round(sum(last) / len(last) * len(second) / sum(second), 2),
    }


def grown(options: argparse.Namespace) -> int:
    """The operator alone, question after question."""
    found = {name: measure(options.rows, *rest) for name, *rest in questions(options.rows)}
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{'':40}{'events/s':>12}{'matches':>12}{'rows kept':>12}{'growth':>8}")
    for name, one in found.items():
        cells = (f"{one['rows_per_s']:,}", f"{one['matches']:,}", f"{one['kept_rows']:,}")
        print(f"{name:40}" + "".join(f"{cell:>12}" for cell in cells) + f"{one['growth']:>8.2f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_arguments(parser, rows=ROWS)
    names = [case.name for case in PATTERNS]
    parser.add_argument("--cases", default=",".join(names), help="of " + ", ".join(names))
    parser.add_argument("--operator", action="store_true", help="the operator alone, how it grows")
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_ROWS:,} rows: does it run?")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    if options.smoke:
        options.rows = SMOKE_ROWS
    if options.operator:
        return grown(options)
    asked = [one for one in options.cases.split(",") if one]
    if unknown := set(asked) - CASES.keys():
        parser.error(f"--cases: expected some of {', '.join(names)}; found {', '.join(unknown)}")
    return run(asked, parser, options)


if __name__ == "__main__":
    sys.exit(main())
