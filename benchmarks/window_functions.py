"""What does a change cost window functions, and how does that grow with their partition?

    python benchmarks/window_functions.py [--smoke] [--json]

A change takes a row of one partition back and brings it with another value, in the middle of the order or
near its end. State is in memory, on one shard. A change (map side and step) is timed by its thread's
processor time; the median of some. Beside it, the whole partition computed again by DuckDB, as a change of
a function costs that the engine doesn't compute where rows changed. On a busy machine compare two trees in
runs that alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import WEIGHT
from penstock.core.schema import Schema
from penstock.ops import NO_TIME, Context
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.over.functions import Frame, Function
from penstock.ops.over.window_functions import Ordered, WindowFunctions
from penstock.state import MemoryStateFiles, vacuum

SIZES: Final = (100, 1_000, 10_000, 100_000)
CHANGES, WARM_UP = 9, 3
ROWS: Final = Schema.parse("k BIGINT, o BIGINT, x BIGINT").arrow
OUTPUT: Final = ROWS.append(pa.field("f", pa.int64()))
WINDOW: Final = "PARTITION BY k ORDER BY o"

FUNCTIONS: Final[dict[str, tuple[str, Function, float]]] = {
    "lag(x)": (f"lag(x) OVER ({WINDOW})", Function("f", "lag", "x", n=1), 0.5),
    "sum(x), ROWS 9 PRECEDING": (
        f"sum(x) OVER ({WINDOW} ROWS 9 PRECEDING)",
        Function("f", "sum", "x", Frame((-9, 0))),
        0.5,
    ),
    "max(x), running": (f"max(x) OVER ({WINDOW})", Function("f", "max", "x"), 0.5),
    "row_number()": (f"row_number() OVER ({WINDOW})", Function("f", "row_number"), 0.5),
    "sum(x), running, near the end": (
        f"sum(x) OVER ({WINDOW})",
        Function("f", "sum", "x"),
        1.0,
    ),
    "sum(x), running, in the middle": (
        f"sum(x) OVER ({WINDOW})",
        Function("f", "sum", "x"),
        0.5,
    ),
}
"""Name, SQL, the same as the engine has it, and where in the partition rows change."""


def by_change(sql: str, function: Function) -> Any:  # noqa: ARG001
    """The operator that computes it where rows changed."""
    return WindowFunctions(ROWS, ("k",), (Ordered("o"),), (function,), OUTPUT)


def whole(sql: str, function: Function) -> Any:  # noqa: ARG001
    """The operator that asks DuckDB for the partition."""
    query = f"SELECT *, CAST({sql} AS BIGINT) AS f FROM rows0"
    return GroupQuery((ROWS,), (("k",),), query, OUTPUT, ("k",))


def measure(operator: Any, size: int, where: float, changes: int) -> float:
    """Milliseconds of a change."""
    files, chance = MemoryStateFiles(), np.random.default_rng(1)
    x = chance.integers(0, 1_000, size)
    state = operator.empty(files)

    def step(version: int, at: np.ndarray, values: np.ndarray, weights: np.ndarray) -> float:
        nonlocal state
        table = pa.table([np.zeros_like(at), at, values, weights], [*ROWS.names, WEIGHT])
        began = time.thread_time()
        parcel = operator.prepare(0, table).parcel
        context = Context(files, "s", version, (NO_TIME,))
        state = operator.step(state, [[parcel]], context).state
        spent = time.thread_time() - began
        vacuum(files, "s", [state.describe()], version)
        return 1_000 * spent

    step(0, np.arange(size), x, np.ones(size, np.int64))
    spent = []
    for version in range(1, WARM_UP + changes + 1):
        at = max(0, int(size * where) - 1 - version)
        new = int(chance.integers(0, 1_000))
        rows, values = np.array([at, at]), np.array([x[at], new])
        spent.append(step(version, rows, values, np.array([-1, 1])))
        x[at] = new
    return statistics.median(spent[WARM_UP:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    sizes = (10, 100) if options.smoke else SIZES
    changes = 1 if options.smoke else CHANGES
    results = []
    for name, (sql, function, where) in FUNCTIONS.items():
        for kind, make in (("by change", by_change), ("partition", whole)):
            ms = [measure(make(sql, function), size, where, changes) for size in sizes]
            results.append({"function": name, "computed": kind, "rows": sizes, "ms": ms})
    if options.json:
        print(json.dumps({"results": results}))
        return 0
    print(f"{'ms per change, rows of the partition:':44}" + "".join(f"{n:>10,}" for n in sizes))
    for one in results:
        label = f"{one['function']}, {one['computed']}"
        print(f"{label:44}" + "".join(f"{ms:>10.2f}" for ms in one["ms"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
