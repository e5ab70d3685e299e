"""What does keeping each of TPC-H's queries up to date cost, compared with computing it again?

    python benchmarks/tpch_views.py [--scale 0.1] [--shares 0.01,0.001] [--queries q1,q5] [--json]

Each query is one program, or with --together all of them are one, in this process and without Spark. It
reads the tables, and then refreshes: TPC-H's functions, which insert and delete orders with their lineitems.
A refresh is timed from its records (JSON, in a log in memory) to the committed version of the view, and
compared with DuckDB, which computes the query of the tables as they are then, in memory and with as many
threads. The rows of both must be equal. The ratio is
of processor times, which other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa

import penstock as ps
from penstock.core.time import instant_us
from penstock.engine.hosts.local import LocalHost
from penstock.engine.runtime import assemble
from penstock.engine.store import Store
from penstock.serve.views import Snapshot
from penstock.sql import SqlFlow
from penstock.state import MemoryStateFiles
from penstock.wire.columns import Records, decode, encode
from tpch.data import Tables, available, program, queries

AT_US: Final = instant_us("2026-01-01T00:00:00Z")
ROWS_PER_READ: Final = 100_000


class ColumnLog(ps.testing.MemoryLog):
    """A log in memory whose topics of tables are columns of records."""

    def __init__(self, columns: Mapping[str, pa.Table]) -> None:
        super().__init__()
        self.columns = dict(columns)

    def append_all(self, columns: Mapping[str, pa.Table]) -> None:
        """Appends records to topics."""
        for topic, records in columns.items():
            self.columns[topic] = pa.concat_tables([self.columns[topic], records])

    def end_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        topics = list(topics)
        found = super().end_offsets(topics)
        return found | {t: {0: len(self.columns[t])} for t in topics if t in self.columns}

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """See `Log`."""
        if topic not in self.columns:
            yield from super().read(topic, partition, start, end)
            return
        for at in range(start, end, ROWS_PER_READ):
            part = self.columns[topic].slice(at, min(ROWS_PER_READ, end - at)).combine_chunks()
            times = np.full(len(part), AT_US // 1_000, np.int64)
            keys, values = (part.column(name).combine_chunks() for name in ("key", "value"))
            yield decode(b"".join(bytes(b) for b in encode(keys, values, times, base_offset=at)))


class Pipeline:
    """Some queries as a program, and its log."""

    def __init__(
        self, views: Mapping[str, str], columns: Mapping[str, pa.Table], cores: int
    ) -> None:
        app = SqlFlow("tpch")
        app.sql(program())
        for name, query in views.items():
            app.view(name, sql=query)
        self.graph = app.graph()
        self.store, self.log = Store(MemoryStateFiles()), ColumnLog(columns)
        job, self.driver = assemble(
            self.graph,
            self.store,
            self.log,
            cores=cores,
            open_store=lambda: self.store,
            open_log=lambda: self.log,
            wall_us=lambda: AT_US,
        )
        self.host = LocalHost(job, lanes=self.driver.lanes)
        self.state_bytes = 0

    def settle(self) -> tuple[float, float]:
        """Seconds until nothing is left to do, on the wall and of processors."""
        started, worked = time.perf_counter(), time.process_time()
        while (progress := self.driver.step(self.host.execute)) is not None:
            self.state_bytes = sum(node.state_bytes or 0 for node in progress.nodes.values())
        return time.perf_counter() - started, time.process_time() - worked

    def rows(self, view: str) -> pa.Table:
        """A view's."""
        version = self.store.version(self.store.newest_version())
        return Snapshot(self.store, version).table(view)


def counted(rows: pa.Table) -> Counter[Any]:
    """Rows with how often each is there; numbers to nine digits."""
    return Counter(tuple(map(_plain, row.values())) for row in rows.to_pylist())


def _plain(value: Any) -> Any:
    return f"{float(value):.9g}" if isinstance(value, float | int | Decimal) else value


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs every query over the same tables and refreshes."""
    tables = Tables(options.scale)
    tables.con.execute(f"SET threads = {options.cores}")
    texts = queries(options.scale)
    all_rows = tables.all()
    changes = [
        (share, tables.refreshed(share), answered(tables, texts, options.names))
        for share in options.shares
        for _ in range(options.rounds)
    ]
    tables.close()
    found = []
    programs = [options.names] if options.together else [[name] for name in options.names]
    for names in programs:
        pipeline = Pipeline({name: texts[name] for name in names}, all_rows, options.cores)
        loaded, _ = pipeline.settle()
        one = {
            "query": "all" if options.together else names[0],
            "operators": len(pipeline.graph.stateful()),
            "load_s": round(loaded, 3),
            "equal": True,
            "changes": [],
        }
        times: dict[float, list[tuple[float, ...]]] = {share: [] for share in options.shares}
        for share, records, answers in changes:
            pipeline.log.append_all(records)
            spent = pipeline.settle()
            others = [sum(answers[name][i] for name in names) for i in (1, 2)]
            times[share].append((*spent, *others))
            for name in names:
                equal = counted(pipeline.rows(name)) == counted(answers[name][0])
                one["equal"] = one["equal"] and equal
        for share, measured in times.items():
            middle = [1000 * statistics.median(column) for column in zip(*measured, strict=True)]
            heads = ("change_ms", "change_cpu_ms", "duckdb_ms", "duckdb_cpu_ms")
            figures = {what: round(ms, 1) for what, ms in zip(heads, middle, strict=True)}
            one["changes"].append(
                {"share": share, **figures, "ratio": round(middle[3] / middle[1], 2)}
            )
        one["state_mb"] = round(pipeline.state_bytes / 1e6, 1)
        one["process_mb"] = round(psutil.Process().memory_info().rss / 1e6)
        found.append(one)
        print(line(one), file=sys.stderr, flush=True)
    return {"scale": options.scale, "queries": found}


def answered(
    tables: Tables, texts: Mapping[str, str], names: Iterable[str]
) -> dict[str, tuple[Any, ...]]:
    """DuckDB's answers: rows, seconds on the wall, and of processors."""
    found = {}
    for name in names:
        started, worked = time.perf_counter(), time.process_time()
        rows = tables.answer(texts[name])
        found[name] = rows, time.perf_counter() - started, time.process_time() - worked
    return found


HEAD: Final = "query operators   load s  state MB   per share: ms (processor ms), DuckDB's, ratio"


def line(one: Mapping[str, Any]) -> str:
    """A query's results as a line of the table."""
    text = f"{one['query']:5} {one['operators']:9} {one['load_s']:8.2f} {one['state_mb']:9.1f}"
    for change in one["changes"]:
        text += (
            f"   {change['share']:.2%}: {change['change_ms']:.1f} ({change['change_cpu_ms']:.1f})"
        )
        text += (
            f", {change['duckdb_ms']:.1f} ({change['duckdb_cpu_ms']:.1f}), {change['ratio']:.2f}x"
        )
    return text + ("" if one["equal"] else "  DIFFERS")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H's scale factor")
    parser.add_argument(
        "--shares", default="0.01,0.001", help="of orders that come, and that go, in a refresh"
    )
    parser.add_argument("--rounds", type=int, default=3, help="refreshes of a share; medians count")
    parser.add_argument("--queries", help="such as q1,q5 (default: all)")
    parser.add_argument("--together", action="store_true", help="all queries as one program")
    parser.add_argument("--cores", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--smoke", action="store_true", help="small: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if options.smoke:
        options.scale, options.rounds = 0.002, 1
    options.shares = [float(share) for share in options.shares.split(",")]
    known = queries(options.scale)
    options.names = options.queries.split(",") if options.queries else list(known)
    if unknown := set(options.names) - set(known):
        parser.error(f"--queries: expected of {', '.join(known)}; found {', '.join(unknown)}")
    return options


def main() -> int:
    options = arguments()
    if reason := available():
        print(reason, file=sys.stderr)
        return 1
    report = measure(options)
    print(json.dumps(report) if options.json else "\n".join([HEAD, *map(line, report["queries"])]))
    return 0 if all(one["equal"] for one in report["queries"]) else 1


if __name__ == "__main__":
    sys.exit(main())
