"""How many events a second does each of Nexmark's queries take? Penstock and Flink on the same topics.

    python benchmarks/nexmark.py [--rows 2000000] [--queries q0,q5] [--peers flink] [--language sql] [--json]

Events of people, auctions and bids (`auctions/`) lie in three topics of the embedded broker. Each query reads
its topics from their beginning, one side after another, on the same two cores as the broker. What each side
found is compared with DuckDB's answer over all events. Flink's rows go to its blackhole; Penstock keeps the
tables as views, and writes the rows of streams to a topic.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from auctions.generator import Events
from auctions.queries import FLINKS, LANGUAGES
from auctions.topics import events_of, fill, truth_database, unequal
from common.brokers import BROKERS, broker
from common.sides import HERE, PENSTOCK, SideError, end_cleanly, limit_cores, run_program
from peers import cache

SMOKE_ROWS = 20_000
SMOKE_QUERIES = ("q2", "q4", "q8")
FLINK = "flink"
PROGRAMS = {PENSTOCK: "penstock_nexmark.py", FLINK: "peers/flink_nexmark.py"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="events of all three kinds")
    parser.add_argument("--queries", help=f"of {','.join(LANGUAGES['sql'])} (default: all)")
    parser.add_argument(
        "--language", choices=list(LANGUAGES), default="python", help="of Penstock's"
    )
    parser.add_argument("--peers", help="flink, or '' for none (default: flink if it is here)")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-batch", type=int, help="events of a partition in Penstock's batches")
    parser.add_argument("--broker", default=BROKERS[0], help="penstock, kafka, or HOST:PORT")
    parser.add_argument("--cores", type=int, default=2, help="for the broker and the side together")
    parser.add_argument("--runs", type=int, default=1, help="timed runs; the median is reported")
    parser.add_argument("--compare-peers", action="store_true", help="check the peers' rows, too")
    parser.add_argument("--timeout-s", type=float, default=900, help="of one run of one side")
    parser.add_argument("--smoke", action="store_true", help="some queries: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if options.smoke:
        options.rows = SMOKE_ROWS
        options.queries = options.queries or ",".join(SMOKE_QUERIES)
    known = LANGUAGES[options.language]
    options.names = options.queries.split(",") if options.queries else list(known)
    if unknown := set(options.names) - set(known):
        parser.error(f"--queries: expected of {', '.join(known)}; found {', '.join(unknown)}")
    reason = cache.problem(FLINK)
    if options.peers is None:
        options.peers = "" if reason else FLINK
        if reason:
            say(f"flink: not run: {reason}")
    if options.peers not in ("", FLINK):
        parser.error(f"--peers: expected flink, or ''; found {options.peers!r}")
    if options.peers and reason:
        parser.error(reason)
    if options.per_batch is None:
        options.per_batch = max(1, min(200_000, options.rows // 10))
    return options


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def command(
    side: str, name: str, rows: int, address: str, options: argparse.Namespace
) -> list[str]:
    """A side's program for one query."""
    python = sys.executable if side == PENSTOCK else str(cache.python(FLINK))
    found = [python, str(HERE / PROGRAMS[side]), "--bootstrap", address, "--query", name]
    found += ["--rows", str(rows), "--parallelism", str(options.partitions)]
    if side == PENSTOCK:
        found += ["--per-batch", str(options.per_batch), "--language", options.language]
    return found


def run_query(name: str, ground: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Runs a query on each side."""
    query = LANGUAGES[options.language][name]
    rows = events_of(query, ground["counts"])
    result: dict[str, Any] = {"query": name, "rows": rows}
    peers = [options.peers] if options.peers and name in FLINKS else []
    for side in (PENSTOCK, *peers):
        work = ground["work"] / f"{name}-{side}"
        runs, out = [], work / "result.jsonl"
        try:
            for number in range(options.runs):
                base = command(side, name, rows, ground["address"], options)
                check = not number and (side == PENSTOCK or options.compare_peers)
                if check:
                    base += ["--out", str(out)]
                if side == PENSTOCK:
                    base += ["--topic", f"result-{name}-{number}"]
                runs.append(run_program(base, work=work, timeout_s=options.timeout_s))
                if check:
                    difference = unequal(ground["truth"], query, out)
                    result[f"{side}_equal"] = not difference
                    if difference:
                        say(f"{name}, {side}: {difference}")
        except SideError as error:
            say(f"{name}, {side} failed: {error}")
            result[f"{side}_error"] = str(error)
            continue
        middle = statistics.median_low([run["seconds"] for run in runs])
        result[side] = next(run for run in runs if run["seconds"] == middle)
    if PENSTOCK in result and FLINK in result:
        own, other = result[PENSTOCK], result[FLINK]
        result["ratio"] = round(own["rows_per_s"] / other["rows_per_s"], 2)
        if own["steady_rows_per_s"] and other["steady_rows_per_s"]:
            result["steady_ratio"] = round(own["steady_rows_per_s"] / other["steady_rows_per_s"], 2)
    say(line(result))
    return result


HEAD = f"{'':5}{'rows':>10}" + "".join(
    f"{name:>12}" for name in ("penstock/s", "steady", "flink/s", "steady")
)
HEAD += f"{'ratio':>8}{'steady':>8}  rows"


def line(result: dict[str, Any]) -> str:
    """A query's results as a line of the table."""
    cells = f"{result['query']:5}{result['rows']:>10,}"
    for side in (PENSTOCK, FLINK):
        found = result.get(side, {})
        for rate in ("rows_per_s", "steady_rows_per_s"):
            cells += f"{found[rate]:>12,}" if found.get(rate) else f"{'-':>12}"
    for ratio in ("ratio", "steady_ratio"):
        cells += f"{result[ratio]:>7.2f}x" if ratio in result else f"{'-':>8}"
    checked = {side: result.get(f"{side}_equal") for side in (PENSTOCK, FLINK)}
    said = [
        f"{side} {'equal' if ok else 'DIFFERS'}" for side, ok in checked.items() if ok is not None
    ]
    said += [f"{side} failed" for side in (PENSTOCK, FLINK) if f"{side}_error" in result]
    return f"{cells}  {', '.join(said)}"


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Fills the topics and runs every query."""
    report: dict[str, Any] = {"cores": limit_cores(options.cores), "rows": options.rows}
    events = Events(options.rows)
    with broker(options.broker, work / "broker") as address:
        counts = fill(events, address, options.partitions)
        truth = truth_database(events, options.partitions)
        ground = {"counts": counts, "truth": truth, "address": address, "work": work}
        report["queries"] = [run_query(name, ground, options) for name in options.names]
        truth.close()
    for ratio in ("ratio", "steady_ratio"):
        found = [result[ratio] for result in report["queries"] if ratio in result]
        if found:
            report[f"mean_{ratio}"] = round(statistics.geometric_mean(found), 2)
            report[f"least_{ratio}"] = min(found)
    return report


def main() -> int:
    options = arguments()
    end_cleanly()
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as work:
        report = measure(options, Path(work))
    if options.json:
        print(json.dumps(report))
    else:
        print("\n".join([HEAD, *map(line, report["queries"])]))
        for name in ("mean_ratio", "mean_steady_ratio", "least_ratio", "least_steady_ratio"):
            if name in report:
                print(f"{name.replace('_', ' ')}: {report[name]}")
    bad = [
        result
        for result in report["queries"]
        if any(key.endswith("_error") for key in result) or not result.get("penstock_equal", True)
    ]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
