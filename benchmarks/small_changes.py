"""What does a small change cost each operator of a query, and how does that grow with what it keeps?

    python benchmarks/small_changes.py [--smoke] [--json]

A change takes ten rows back and brings ten, of sixteen columns. State is in memory, on one shard. A change
(map side and step) is timed by its thread's processor time; the median of some counts. On a busy machine
compare two trees in runs that alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import DELETED, WEIGHT
from penstock.core.schema import Schema
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    Window,
    WindowedAggregate,
)
from penstock.ops.joins.table_join import TableJoin
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.keyed.top import Top
from penstock.ops.keyed.upserts import Upserts
from penstock.state import MemoryStateFiles, vacuum

SIZES: Final = (1_000, 10_000, 100_000)
CHANGE_ROWS, CHANGES, WARM_UP = 10, 30, 5
GROUP_ROWS: Final = 10
"""Rows that share `g`: of a group of the aggregate, the top and the window functions."""
NUMBERS, TEXTS = 8, 6

WIDE: Final = Schema.parse(
    "id BIGINT NOT NULL, g BIGINT NOT NULL, "
    + ", ".join(
        [*(f"n{i} BIGINT" for i in range(NUMBERS)), *(f"t{i} STRING" for i in range(TEXTS))]
    )
).arrow


def rows(ids: np.ndarray, salt: int, prefix: str = "") -> pa.Table:
    """Rows of some ids, with other values for another salt."""
    columns = [ids, ids // GROUP_ROWS, *((ids * 7 + i + salt) % 1_000 for i in range(NUMBERS))]
    columns += [pa.array([f"text {(v + i + salt) % 997}" for v in ids]) for i in range(TEXTS)]
    names = [name if name in ("id", "g") else prefix + name for name in WIDE.names]
    return pa.table(columns, names)


def weighted(table: pa.Table, weight: int) -> pa.Table:
    """Rows that come, or go."""
    return table.append_column(WEIGHT, pa.array(np.full(len(table), weight)))


def other(prefix: str) -> pa.Schema:
    """The columns by other names."""
    names = [name if name == "id" else prefix + name for name in WIDE.names]
    return pa.schema([f.with_name(n) for f, n in zip(WIDE, names, strict=True)])


def aggregate() -> WindowedAggregate:
    """A count and two sums of each group."""
    values = [Column(f"n{i}", pa.int64()) for i in range(2)]
    sums = [Aggregate(f"s{i}", "sum", one) for i, one in enumerate(values)]
    key = Column("g", pa.int64(), required=True)
    spec = AggregateSpec(
        (key,),
        Window("none", 0),
        (Aggregate("n", "count"), *sums),
        None,
        retracts=True,
        changes=True,
    )
    return WindowedAggregate(spec)


def ranked() -> GroupQuery:
    """A window function over each group."""
    output = WIDE.append(pa.field("r", pa.int64()))
    query = "SELECT *, row_number() OVER (PARTITION BY g ORDER BY n0, id) AS r FROM rows0"
    return GroupQuery((WIDE,), (("g",),), query, output, ("g",))


OPERATORS: Final[dict[str, Callable[[], Any]]] = {
    "table of a topic": lambda: Upserts(WIDE, ("id",)),
    "inner join": lambda: TableJoin("inner", WIDE, other("r "), (("id", "id"),)),
    "left join": lambda: TableJoin("left", WIDE, other("r "), (("id", "id"),)),
    "aggregate": aggregate,
    "top 3 per group": lambda: Top(WIDE, ("g",), (("n0", True),), 3, True, ()),  # noqa: FBT003
    "window function": ranked,
}


def measure(make: Callable[[], Any], size: int, changes: int = CHANGES) -> float:
    """Milliseconds of a change."""
    operator = make().emitting(changes=True, closed=False)
    is_table, is_join = isinstance(operator, Upserts), isinstance(operator, TableJoin)
    files, chance = MemoryStateFiles(), np.random.default_rng(1)
    salts = np.zeros(size, np.int64)
    state = operator.empty(files)

    def step(version: int, tables: list[pa.Table]) -> float:
        nonlocal state
        began = time.thread_time()
        parcels = [[operator.prepare(port, table).parcel] for port, table in enumerate(tables)]
        parcels += [[] for _ in range(is_join + 1 - len(tables))]
        frontiers = (NO_TIME,) * len(parcels)
        state = operator.step(state, parcels, Context(files, "s", version, frontiers)).state
        spent = time.thread_time() - began
        vacuum(files, "s", [state.describe()], version)
        return 1_000 * spent

    def whole() -> pa.Table:
        made = rows(np.arange(size), 0)
        if is_table:
            return made.append_column(DELETED, pa.array(np.zeros(size, np.bool_)))
        return weighted(made, 1)

    first = [whole()]
    if is_join:
        first.append(first[0].rename_columns([*other("r ").names, WEIGHT]))
    step(0, first)
    spent = []
    for version in range(1, WARM_UP + changes + 1):
        ids = chance.choice(size, CHANGE_ROWS, replace=False)
        before = pa.concat_tables(
            [rows(ids[i : i + 1], int(salts[ids[i]])) for i in range(len(ids))]
        )
        salts[ids] = version
        after = rows(ids, version)
        if is_table:
            change = after.append_column(DELETED, pa.array(np.zeros(len(ids), np.bool_)))
        else:
            change = pa.concat_tables([weighted(before, -1), weighted(after, 1)])
        spent.append(step(version, [change.combine_chunks()]))
    return statistics.median(spent[WARM_UP:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    sizes = (100, 1_000) if options.smoke else SIZES
    changes = 1 if options.smoke else CHANGES
    found = {n: [measure(make, size, changes) for size in sizes] for n, make in OPERATORS.items()}
    if options.json:
        results = [{"operator": n, "sizes": sizes, "ms": ms} for n, ms in found.items()]
        print(json.dumps({"results": results}))
        return 0
    print(f"{'ms per change, rows kept:':26}" + "".join(f"{size:>10,}" for size in sizes))
    for name, spent_ms in found.items():
        print(f"{name:26}" + "".join(f"{ms:>10.2f}" for ms in spent_ms))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
