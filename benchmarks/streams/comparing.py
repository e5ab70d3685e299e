"""Runs cases end to end on topics, Penstock's side and Flink's in turn; compares their rows with DuckDB's."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from auctions.topics import unequal
from common.brokers import BROKERS, broker
from common.sides import HERE, PENSTOCK, SideError, end_cleanly, limit_cores, run_program
from peers import cache
from penstock.client import Client, Producer
from penstock.formats.json import encode_rows
from streams.cases import CASES, DISORDER_MS, Case

__all__ = ["add_arguments", "run"]

FLINK = "flink"


def add_arguments(parser: argparse.ArgumentParser, *, rows: int) -> None:
    """What the programs take."""
    parser.add_argument("--rows", type=int, default=rows, help="events of all topics together")
    parser.add_argument("--peers", help="flink, or '' for none (default: flink if it is here)")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-batch", type=int, help="events of a partition in Penstock's batches")
    parser.add_argument("--broker", default=BROKERS[0], help="penstock, kafka, or HOST:PORT")
    parser.add_argument("--cores", type=int, default=2, help="for the broker and the side together")
    parser.add_argument("--runs", type=int, default=1, help="timed runs; the median is reported")
    parser.add_argument("--no-compare", action="store_true", help="don't check the rows")
    parser.add_argument("--timeout-s", type=float, default=1800, help="of one run of one side")


def run(names: Sequence[str], parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Runs some cases on each side, and prints what was found; 1 where rows differ or a side failed."""
    reason = cache.problem(FLINK)
    peers = options.peers if options.peers is not None else ("" if reason else FLINK)
    if peers not in ("", FLINK):
        parser.error(f"--peers: expected flink, or ''; found {peers!r}")
    if peers and reason:
        parser.error(reason)
    end_cleanly()
    limit_cores(options.cores)
    results, sides = [], [PENSTOCK, *filter(None, [peers])]
    for name in names:
        with tempfile.TemporaryDirectory(prefix="penstock-streams-") as work:
            results.append(_run(CASES[name], sides, options, Path(work)))
    print(json.dumps({"cases": results}) if options.json else _shown(results))
    return int(
        any(
            f"{side}_error" in found or found.get(f"{side}_equal") is False
            for found in results
            for side in sides
        )
    )


def _run(case: Case, sides: list[str], options: argparse.Namespace, work: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"case": case.name}
    with broker(options.broker, work / "broker") as address, duckdb.connect() as truth:
        found["rows"] = _fill(case, options.rows, address, options.partitions, truth)
        for side in sides:
            if side == FLINK and not case.flink:
                continue
            runs, out = [], work / f"{side}.jsonl"
            try:
                for number in range(options.runs):
                    command = _command(side, case, found["rows"], address, options, number)
                    runs.append(run_program(command, work=work / side, timeout_s=options.timeout_s))
                if not options.no_compare:
                    command = _command(side, case, found["rows"], address, options, options.runs)
                    command += ["--out", str(out)]
                    run_program(command, work=work / side, timeout_s=options.timeout_s)
                    difference = _difference(case, truth, out)
                    found[f"{side}_equal"] = not difference
                    if difference:
                        _say(f"{case.name}, {side}: {difference}")
            except SideError as error:
                _say(f"{case.name}, {side} failed: {error}")
                found[f"{side}_error"] = str(error)
                continue
            middle = statistics.median_low([run["seconds"] for run in runs])
            found[side] = next(run for run in runs if run["seconds"] == middle)
    for name, rate in (("ratio", "rows_per_s"), ("steady_ratio", "steady_rows_per_s")):
        rates = [found.get(side, {}).get(rate) for side in (PENSTOCK, FLINK)]
        if all(rates):
            found[name] = round(rates[0] / rates[1], 2)
    return found


def _difference(case: Case, truth: duckdb.DuckDBPyConnection, out: Path) -> str:
    """How rows differ from the true ones, but for those of the last events, whose windows may be open."""
    key = next(iter(case.sources.values())).key
    query = f'SELECT * FROM ({case.truth}) WHERE "{key}" >= 0'
    if not out.exists() or not out.stat().st_size:
        return unequal(truth, query, out)
    rows = truth.sql(f"SELECT * FROM read_ndjson('{out}') WHERE \"{key}\" >= 0").to_arrow_table()
    return unequal(truth, query, rows)


def _command(
    side: str, case: Case, rows: int, address: str, options: argparse.Namespace, number: int
) -> list[str]:
    common = ["--bootstrap", address, "--rows", str(rows), "--parallelism", str(options.partitions)]
    if side == PENSTOCK:
        program = [sys.executable, str(HERE / "streams" / "penstock_side.py"), "--case", case.name]
        limit = [] if options.per_batch is None else ["--per-batch", str(options.per_batch)]
        return [*program, *common, "--topic", f"result-{number}", *limit]
    query = {
        "sources": {topic: dict(source.columns) for topic, source in case.sources.items()},
        "sql": case.flink,
        "settings": dict(case.settings or {}),
        "lateness_s": DISORDER_MS // 1_000,
    }
    program = [str(cache.python(FLINK)), str(HERE / "peers" / "flink_streams.py")]
    return [*program, "--query", json.dumps(query), *common]


def _fill(
    case: Case, rows: int, address: str, partitions: int, truth: duckdb.DuckDBPyConnection
) -> int:
    """Creates the topics, produces all events and puts them into DuckDB's tables; how many there are."""
    client = Client(address)
    for topic in case.sources:
        client.create_topic(topic, partitions, configs={"retention.ms": "-1"})
    client.close()
    truth.execute("SET TimeZone = 'UTC'")
    producer, total = Producer(address, acks=1), 0

    def send(topic: str, table: pa.Table, partition: int) -> None:
        table = table.combine_chunks()
        keys = table.column(case.sources[topic].key).cast(pa.string()).cast(pa.binary())
        values = encode_rows(table).cast(pa.binary())
        producer.send(topic, partition, keys, values, table.column("ts").to_numpy())

    def keep(topic: str, table: pa.Table) -> None:
        nonlocal total
        total += len(table)
        truth.register("events_made", table)
        truth.execute(f"CREATE TABLE IF NOT EXISTS {topic} AS SELECT * FROM events_made LIMIT 0")
        truth.execute(f"INSERT INTO {topic} SELECT * FROM events_made")
        truth.unregister("events_made")

    for chunk in case.events(rows):
        for topic, table in chunk.items():
            keep(topic, table)
            number = table.column(case.sources[topic].key).to_numpy() % partitions
            for partition in range(partitions):
                send(topic, table.filter(pa.array(number == partition)), partition)
    for partition in range(partitions):
        for topic, table in case.last(rows, partition).items():
            keep(topic, table)
            send(topic, table, partition)
    producer.close()
    return total


def _shown(results: list[dict[str, Any]]) -> str:
    """The results as a table."""
    names = ("events/s", "steady", "CPU us/event", "peak MiB")
    lines = [f"{'':16}{'':10}" + "".join(f"{name:>14}" for name in names) + "  rows"]
    for found in results:
        for side in (PENSTOCK, FLINK):
            if f"{side}_error" in found:
                lines.append(f"{found['case']:16}{side:10}  failed")
            if side not in found:
                continue
            run = found[side]
            cpu_us = 1e6 * run["cpu_s"] / found["rows"]
            cells = [f"{run['rows_per_s']:,}", f"{run['steady_rows_per_s'] or 0:,}"]
            cells += [f"{cpu_us:.2f}", f"{run['peak_mib']:,}"]
            equal = found.get(f"{side}_equal")
            verdict = "not compared" if equal is None else "equal" if equal else "DIFFER"
            lines.append(
                f"{found['case']:16}{side:10}"
                + "".join(f"{cell:>14}" for cell in cells)
                + f"  {verdict}"
            )
        if "ratio" in found:
            steady = f", steady {found['steady_ratio']} x" if "steady_ratio" in found else ""
            lines.append(f"{'':16}Penstock is {found['ratio']} x{steady}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
