"""Does a batch cost more as what an operator keeps grows: in keys, windows, lateness, values of a group?

    python benchmarks/growth.py [--cases aggregate,top] [--smoke] [--json]

Of each operator one thing grows while batches stay the same: how many keys it has seen, how many windows are
open, for how long late rows are waited for, how many values a group has. A batch (map side and step, one
shard, state in memory) is timed by its thread's processor time, which a busy machine distorts little;
the median of some counts. The slope is that of the logarithm of the time over the logarithm of the size: 0 is
a time that stays, 1 one that grows with the size. A time that grows with the logarithm from ten thousand to
a million has a slope of 0.09; SLOPE_MAX is the aim.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.delta import DELETED, OFFSET, TIME, WEIGHT
from penstock.core.schema import Schema
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.table_join import TableJoin
from penstock.ops.joins.temporal_join import TemporalJoin
from penstock.ops.keyed.top import Top
from penstock.state import MemoryStateFiles, vacuum

BATCH_ROWS, BATCH_KEYS, BATCHES, WARM_UP = 20_000, 5_000, 15, 3
FILL_ROWS = 250_000  # of a batch while the state is filled
SLOPE_MAX = 0.15
MINUTE_US = 60_000_000
BEGIN_US = 1_700_000_000_000_000 // MINUTE_US * MINUTE_US
MICROS = pa.timestamp("us", "UTC")

KEY = Column("k", pa.int64(), required=True)
VALUE = Column("v", pa.int64(), required=True)


@dataclass(frozen=True)
class Batch:
    """What a step gets: rows of each port, or none; the ports' frontiers; whether it is timed."""

    ports: tuple[pa.Table | None, ...]
    frontiers_us: tuple[int, ...]
    is_timed: bool


Batches = Iterator[Batch]


@dataclass(frozen=True)
class Case:
    """An operator, and what grows.

    Attributes:
        name: of the operator.
        grows: what the sizes count.
        sizes: that it takes.
        make: gives the operator for a size, and its batches.
    """

    name: str
    grows: str
    sizes: tuple[int, ...]
    make: Callable[[int, np.random.Generator], tuple[Any, Batches]]


def rows(
    keys: np.ndarray, chance: np.random.Generator, at_us: np.ndarray | None = None
) -> pa.Table:
    """Rows of some keys, with a value, and with a time if one is given."""
    table = pa.table({"k": keys, "v": chance.integers(0, 1_000_000, len(keys))})
    return table if at_us is None else table.append_column(TIME, pa.array(at_us, MICROS))


def filled(
    size: int, chance: np.random.Generator, ports: int, batch: Callable[[np.ndarray], pa.Table]
) -> Batches:
    """Batches in which each of `size` keys comes once on each port, and then timed ones of some of them."""
    frontiers = (NO_TIME,) * ports
    keys = chance.permutation(size)
    for first in range(0, size, FILL_ROWS):
        part = keys[first : first + FILL_ROWS]
        yield Batch(tuple(batch(part) for _ in range(ports)), frontiers, is_timed=False)
    for i in range(WARM_UP + BATCHES):
        part = keys[np.arange(i * BATCH_KEYS, (i + 1) * BATCH_KEYS) % size]
        some = np.resize(part, BATCH_ROWS // ports)
        yield Batch(tuple(batch(some) for _ in range(ports)), frontiers, is_timed=True)


def windowed(window: Window, *aggregates: Aggregate, **how: Any) -> WindowedAggregate:
    """An aggregate per key."""
    time_ = None if window.kind == "none" else TIME
    return WindowedAggregate(AggregateSpec((KEY,), window, aggregates, time_, **how))


TOTAL = Aggregate("total", "sum", VALUE)
NO_WINDOW = Window("none", 0)


def aggregate_keys(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """A count and a sum of each key, whose changes are read."""
    operator = windowed(NO_WINDOW, Aggregate("n", "count"), TOTAL, changes=True)
    return operator, filled(size, chance, 1, lambda keys: rows(keys, chance))


def aggregate_windows(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """As many groups, in more windows that are open at once."""
    operator = windowed(Window("tumbling", MINUTE_US), TOTAL, changes=True, closed=True)
    keys = max(200_000 // size, 1)

    def batch(some: np.ndarray) -> pa.Table:
        return rows(some % keys, chance, BEGIN_US + some // keys * MINUTE_US)

    return operator, filled(size * keys, chance, 1, batch)


def aggregate_lateness(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """Windows that are kept for late rows, most rows being of the newest; each batch closes one."""
    keep_us = size * MINUTE_US
    operator = windowed(
        Window("tumbling", MINUTE_US), TOTAL, closed=True, keep_us=keep_us, correct_us=keep_us
    )

    def batches() -> Batches:
        for i in range(size + WARM_UP + BATCHES):
            at = BEGIN_US + i * MINUTE_US + chance.integers(0, MINUTE_US, BATCH_ROWS)
            late = chance.integers(0, 100, BATCH_ROWS) == 0
            at[late] -= chance.integers(0, max(min(i, size) * MINUTE_US, 1), int(late.sum()))
            table = rows(chance.integers(0, 5_000, BATCH_ROWS), chance, at)
            yield Batch((table,), (BEGIN_US + i * MINUTE_US,), is_timed=i >= size)

    return operator, batches()


def of_groups(kind: str, parameter: float | None = None) -> Callable[..., tuple[Any, Batches]]:
    """An aggregate of a table's groups, whose rows come and go; each group has more of them."""
    groups = 1_000

    def make(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
        one = Aggregate("x", kind, VALUE, None, parameter)
        operator = windowed(NO_WINDOW, one, retracts=True, changes=True)

        def batches() -> Batches:
            numbers = np.arange(groups * size)
            values = chance.integers(0, 1_000_000, len(numbers))
            weighted = lambda at, sign: pa.table(  # noqa: E731
                {"k": at % groups, "v": values[at], WEIGHT: np.full(len(at), sign)}
            )
            for first in range(0, len(numbers), FILL_ROWS):
                some = numbers[first : first + FILL_ROWS]
                yield Batch((weighted(some, 1),), (NO_TIME,), is_timed=False)
            for _ in range(WARM_UP + BATCHES):
                gone = chance.choice(numbers, groups, replace=False)
                before = weighted(gone, -1)
                values[gone] = chance.integers(0, 1_000_000, groups)
                both = pa.concat_tables([before, weighted(gone, 1)])
                yield Batch((both,), (NO_TIME,), is_timed=True)

        return operator, batches()

    return make


def sessions_keys(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """Sessions that are open, of as many keys; each batch makes some longer."""
    spec = AggregateSpec((KEY,), Window("session", 30 * MINUTE_US), (TOTAL,), TIME, closed=True)

    def batch(keys: np.ndarray) -> pa.Table:
        return rows(keys, chance, BEGIN_US + chance.integers(0, MINUTE_US, len(keys)))

    return SessionAggregate(spec), filled(size, chance, 1, batch)


def join_state(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """An interval with more rows in it, and as many more keys: a row has as many partners."""
    within_us = size * 100  # a row in 100 us on each side
    sides = [Schema.parse(f"k BIGINT NOT NULL, {name} BIGINT") for name in ("v", "w")]
    operator = IntervalJoin(*sides, (("k", "k"),), within_us, within_us, "inner")

    def batches() -> Batches:
        done, each = 0, BATCH_ROWS // 2
        full = 2 * size
        while done < full + (WARM_UP + BATCHES) * each:
            count = min(FILL_ROWS, full - done) if done < full else each
            at = BEGIN_US + np.arange(done, done + count) * 100
            tables = [rows(chance.integers(0, size, count), chance, at) for _ in range(2)]
            tables[1] = tables[1].rename_columns(["k", "w", TIME])
            yield Batch(tuple(tables), (int(at[0]),) * 2, is_timed=done >= full)
            done += count

    return operator, batches()


def join_lateness(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """The same interval, but the watermark is further behind, so that rows are kept for longer."""
    within_us = 10_000_000
    sides = [Schema.parse(f"k BIGINT NOT NULL, {name} BIGINT") for name in ("v", "w")]
    operator = IntervalJoin(*sides, (("k", "k"),), 0, within_us, "left")

    def batches() -> Batches:
        done, each, full = 0, BATCH_ROWS // 2, size + 100_000
        while done < full + (WARM_UP + BATCHES) * each:
            count = min(FILL_ROWS, full - done) if done < full else each
            at = BEGIN_US + np.arange(done, done + count) * 100
            tables = [rows(chance.integers(0, 100_000, count), chance, at) for _ in range(2)]
            tables[1] = tables[1].rename_columns(["k", "w", TIME])
            yield Batch(tuple(tables), (int(at[0]) - size * 100,) * 2, is_timed=done >= full)
            done += count

    return operator, batches()


def table_join_keys(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """Two tables of as many keys; each batch adds rows to some."""
    left, right = (Schema.parse(f"k BIGINT NOT NULL, {n} BIGINT").arrow for n in ("v", "w"))
    operator = TableJoin("left", left, right, (("k", "k"),))
    names = iter([])

    def batch(keys: np.ndarray) -> pa.Table:
        nonlocal names
        name = next(names, None)
        if name is None:
            names = iter(("w",))
            name = "v"
        table = rows(np.unique(keys), chance).rename_columns(["k", name])
        return table.append_column(WEIGHT, pa.array(np.ones(len(table), np.int64)))

    return operator, filled(size, chance, 2, batch)


def top(*, grows: str, takes_back: bool) -> Callable[..., tuple[Any, Batches]]:
    """The ten highest of each group: more groups, or more rows of a group."""

    def make(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
        schema = Schema.parse("k BIGINT NOT NULL, v BIGINT NOT NULL").arrow
        groups = size if grows == "groups" else 1_000
        operator = Top(schema, ("k",), (("v", True),), 10, takes_back, ())

        def batch(numbers: np.ndarray) -> pa.Table:
            table = rows(numbers % groups, chance)
            if not takes_back:
                return table
            return table.append_column(WEIGHT, pa.array(np.ones(len(table), np.int64)))

        return operator, filled(size if grows == "groups" else size * groups, chance, 1, batch)

    return make


def temporal_keys(size: int, chance: np.random.Generator) -> tuple[Any, Batches]:
    """A stream beside a table of as many keys, a tenth of each batch being changes of it."""
    stream = Schema.parse("k BIGINT NOT NULL, v BIGINT").arrow
    table = Schema.parse("k BIGINT NOT NULL, w BIGINT").arrow
    operator = TemporalJoin("inner", stream, table, (("k", "k"),))

    def changes(keys: np.ndarray, at_us: int, offset: int) -> pa.Table:
        made = rows(keys, chance, np.full(len(keys), at_us)).rename_columns(["k", "w", TIME])
        made = made.append_column(OFFSET, pa.array(np.arange(offset, offset + len(keys))))
        return made.append_column(DELETED, pa.array(np.zeros(len(keys), np.bool_)))

    def batches() -> Batches:
        keys, offset = chance.permutation(size), 0
        for first in range(0, size, FILL_ROWS):
            part = keys[first : first + FILL_ROWS]
            yield Batch((None, changes(part, BEGIN_US, offset)), (BEGIN_US,) * 2, is_timed=False)
            offset += len(part)
        for i in range(1, 1 + WARM_UP + BATCHES):
            at_us = BEGIN_US + i * 1_000_000
            some = keys[np.arange(i * BATCH_KEYS, (i + 1) * BATCH_KEYS) % size]
            asked = rows(np.resize(some, BATCH_ROWS), chance, np.full(BATCH_ROWS, at_us))
            changed = changes(some[: BATCH_ROWS // 10], at_us, offset)
            offset += len(changed)
            yield Batch((asked, changed), (at_us + 1,) * 2, is_timed=True)

    return operator, batches()


MANY = (10_000, 100_000, 1_000_000)
FEW = (10, 100, 1_000)
CASES = (
    Case("aggregate", "keys", MANY, aggregate_keys),
    Case("aggregate", "open windows", FEW, aggregate_windows),
    Case("aggregate", "windows of lateness", FEW, aggregate_lateness),
    Case("min, rows taken back", "values per group", FEW, of_groups("min")),
    Case("count_distinct", "values per group", FEW, of_groups("count_distinct")),
    Case("collect", "values per group", FEW, of_groups("collect", 10)),
    Case("quantile", "values per group", FEW, of_groups("quantile", 0.9)),
    Case("frequent", "values per group", FEW, of_groups("frequent", 10)),
    Case("frequencies", "values per group", FEW, of_groups("frequencies", 10)),
    Case("sessions", "keys", MANY, sessions_keys),
    Case("join", "rows within, keys", MANY, join_state),
    Case("join", "rows of lateness", MANY, join_lateness),
    Case("table join", "keys", MANY, table_join_keys),
    Case("temporal join", "keys", MANY, temporal_keys),
    Case("top", "groups", MANY, top(grows="groups", takes_back=False)),
    Case("top", "values per group", FEW, top(grows="values", takes_back=False)),
    Case("top, rows taken back", "values per group", FEW, top(grows="values", takes_back=True)),
)


def measure(case: Case, size: int) -> tuple[float, int]:
    """Milliseconds of a batch, and the rows of the state at the end."""
    operator, batches = case.make(size, np.random.default_rng(1))
    files = MemoryStateFiles()
    state, spent = operator.empty(files), []
    for version, batch in enumerate(batches):
        began = time.thread_time()
        parcels = [
            [] if table is None else [operator.prepare(port, table).parcel]
            for port, table in enumerate(batch.ports)
        ]
        step = operator.step(state, parcels, Context(files, "s", version, batch.frontiers_us))
        if batch.is_timed:
            spent.append(1_000 * (time.thread_time() - began))
        state = step.state
        vacuum(files, "s", [state.describe()], version)
    return statistics.median(spent[WARM_UP:]), state.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", help="beginnings of operators' names (default: all)")
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    wanted = tuple((options.cases or "").split(","))
    results = []
    if not options.json:
        print(f"{'operator':22}{'grows':22}{'sizes':>27}{'ms per batch':>27}{'slope':>7}")
    for case in (one for one in CASES if one.name.startswith(wanted)):
        sizes = tuple(max(size // 100, 2 + i) for i, size in enumerate(case.sizes))
        sizes = sizes if options.smoke else case.sizes
        found = [measure(case, size) for size in sizes]
        spent_ms = [ms for ms, _ in found]
        slope = float(np.polyfit(np.log(sizes), np.log(spent_ms), 1)[0])
        results.append(
            {
                "operator": case.name,
                "grows": case.grows,
                "sizes": sizes,
                "ms": [round(ms, 2) for ms in spent_ms],
                "state_rows": [count for _, count in found],
                "slope": round(slope, 2),
            }
        )
        if not options.json:
            cells = "".join(f"{size:>9,}" for size in sizes) + "".join(
                f"{ms:>9.1f}" for ms in spent_ms
            )
            print(f"{case.name:22}{case.grows:22}{cells}{slope:>7.2f}"
                  f"{'' if slope <= SLOPE_MAX else '  above the aim'}", flush=True)  # fmt: skip
    if options.json:
        print(json.dumps({"slope_max": SLOPE_MAX, "results": results}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
