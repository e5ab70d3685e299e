"""What does keeping each of TPC-H's queries up to date cost, compared with computing it again?

    python benchmarks/tpch_views.py [--scale 0.1] [--shares 0.01,0.001] [--queries q1,q5] [--json]

Each query is one program in a process of its own, or with --together all of them are one, without Spark. It
reads the tables, and then refreshes: TPC-H's functions, which insert and delete orders with their lineitems.
A refresh is timed from its records (JSON, in a log in memory) to the committed version of the view, and
compared with DuckDB, which computes the query of the tables as they are then, in memory and with as many
threads. The rows of both must be equal. The ratio is of processor times, which other load on the machine
changes little. A view "pays below" the share of changes that takes as long as DuckDB. Joins are in the order
of the tables' sizes, as when a program starts.

What a process has at most grows with the scale: the records of all tables, DuckDB's tables while the answers
are made, and the state of one program.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

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
ROWS_PER_PIECE: Final = 100_000


Encoded: TypeAlias = Mapping[str, list[Records]]
"""By topic, records in pieces that follow one another: made once, for all programs that read them."""


class ColumnLog(ps.testing.MemoryLog):
    """A log in memory whose topics of tables are columns of records."""

    def __init__(self, records: Encoded) -> None:
        super().__init__()
        self.pieces = {topic: list(pieces) for topic, pieces in records.items()}

    def append_all(self, records: Encoded) -> None:
        """Appends records to topics, whose offsets they have."""
        for topic, pieces in records.items():
            self.pieces[topic] += pieces

    def end_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        topics = list(topics)
        found = super().end_offsets(topics)
        return found | {
            t: {0: self.pieces[t][-1].next_offset if self.pieces[t] else 0}
            for t in topics
            if t in self.pieces
        }

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """See `Log`."""
        if topic not in self.pieces:
            yield from super().read(topic, partition, start, end)
            return
        for piece in self.pieces[topic]:
            first = piece.next_offset - len(piece)
            if first < end and piece.next_offset > start:
                yield piece.slice(max(0, start - first), min(len(piece), end - first))


def encoded(records: pa.Table, first: int = 0) -> list[Records]:
    """Records as a broker gives them.

    Args:
        records: keys and values.
        first: the offset of the first one.
    """
    found = []
    for at in range(0, len(records), ROWS_PER_PIECE):
        part = records.slice(at, ROWS_PER_PIECE).combine_chunks()
        times = np.full(len(part), AT_US // 1_000, np.int64)
        keys, values = (part.column(name).combine_chunks() for name in ("key", "value"))
        data = b"".join(bytes(b) for b in encode(keys, values, times, base_offset=first + at))
        found.append(decode(data))
    return found


class Pipeline:
    """Some queries as a program, and its log."""

    def __init__(
        self, views: Mapping[str, str], records: Encoded, cores: int, *, ordered: bool = True
    ) -> None:
        app = SqlFlow("tpch")
        app.sql(program())
        for name, query in views.items():
            app.view(name, sql=query)
        sizes = {topic: sum(map(len, pieces)) for topic, pieces in records.items()}
        self.graph = app.ordered(sizes)[0] if ordered else app.graph()
        self.store, self.log = Store(MemoryStateFiles()), ColumnLog(records)
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
    all_rows = {name: encoded(rows) for name, rows in tables.all()}
    ends = {name: sum(map(len, pieces)) for name, pieces in all_rows.items()}
    changes = []
    for share in [share for share in options.shares for _ in range(options.rounds)]:
        made = tables.refreshed(share)
        records = {name: encoded(rows, ends[name]) for name, rows in made.items()}
        ends |= {name: ends[name] + len(rows) for name, rows in made.items()}
        changes.append((share, records, answered(tables, texts, options.names)))
    tables.close()
    found = []
    programs = [options.names] if options.together else [[name] for name in options.names]
    for names in programs:
        views = {name: texts[name] for name in names}
        one = in_a_process(lambda views=views: measured(views, all_rows, changes, options))
        found.append(one)
        print(line(one), file=sys.stderr, flush=True)
    return {"scale": options.scale, "queries": found}


def in_a_process(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function gives in a process of its own, whose memory is gone with it: state is gigabytes."""
    context = multiprocessing.get_context("fork")  # records are there already
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sending.send(compute()))
    process.start()
    sending.close()
    try:
        found: dict[str, Any] = receiving.recv()
    finally:
        process.join()
    return found


def measured(
    views: Mapping[str, str],
    all_rows: Encoded,
    changes: Iterable[tuple[float, Encoded, Mapping[str, tuple[Any, ...]]]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Runs some queries as one program."""
    pipeline = Pipeline(views, all_rows, options.cores, ordered=not options.as_written)
    loaded, _ = pipeline.settle()
    one = {
        "query": "all" if options.together else next(iter(views)),
        "operators": len(pipeline.graph.stateful()),
        "load_s": round(loaded, 3),
        "equal": True,
        "changes": [],
    }
    times: dict[float, list[tuple[float, ...]]] = {share: [] for share in options.shares}
    for share, records, answers in changes:
        pipeline.log.append_all(records)
        spent = pipeline.settle()
        others = [sum(answers[name][i] for name in views) for i in (1, 2)]
        times[share].append((*spent, *others))
        for name in views:
            equal = counted(pipeline.rows(name)) == counted(answers[name][0])
            one["equal"] = one["equal"] and equal
    for share, rounds in times.items():
        middle = [1000 * statistics.median(column) for column in zip(*rounds, strict=True)]
        heads = ("change_ms", "change_cpu_ms", "duckdb_ms", "duckdb_cpu_ms")
        figures = {what: round(ms, 1) for what, ms in zip(heads, middle, strict=True)}
        one["changes"].append({"share": share, **figures, "ratio": round(middle[3] / middle[1], 2)})
    one["pays_below"] = pays_below(one["changes"])
    one["state_mb"] = round(pipeline.state_bytes / 1e6, 1)
    one["process_mb"] = round(psutil.Process().memory_info().rss / 1e6)
    return one


def pays_below(changes: Sequence[Mapping[str, Any]]) -> float | None:
    """The share up to which a change takes less processor time than DuckDB, at most 1.

    A change takes a fixed time, and one for each row: the line through the smallest and the largest share.
    None: the fixed time alone is more.
    """
    few, many = (which(changes, key=lambda one: one["share"]) for which in (min, max))
    duckdb = statistics.mean(one["duckdb_cpu_ms"] for one in changes)
    if few is many:
        slope, fixed = few["change_cpu_ms"] / few["share"], 0.0
    else:
        slope = (many["change_cpu_ms"] - few["change_cpu_ms"]) / (many["share"] - few["share"])
        fixed = few["change_cpu_ms"] - slope * few["share"]
    if max(fixed, few["change_cpu_ms"] if slope <= 0 else 0.0) >= duckdb:
        return None
    return 1.0 if slope <= 0 else min(1.0, (duckdb - fixed) / slope)


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


HEAD: Final = (
    "query operators   load s  state MB  process MB  pays below   "
    "per share: ms (processor ms), DuckDB's, ratio"
)


def line(one: Mapping[str, Any]) -> str:
    """A query's results as a line of the table."""
    text = f"{one['query']:5} {one['operators']:9} {one['load_s']:8.2f} {one['state_mb']:9.1f}"
    text += f" {one['process_mb']:11,}"
    text += f" {'never' if one['pays_below'] is None else format(one['pays_below'], '.2%'):>11}"
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
    parser.add_argument(
        "--as-written", action="store_true", help="joins in the order of the queries, not by size"
    )
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
