"""How many events a second become windows per user: Penstock, Flink and Spark on the same topic.

    python benchmarks/windows.py [--rows 10000000] [--peers flink,spark] [--json]

JSON events of 100 k users lie in a topic of the embedded broker, out of order by up to 2 s. Each
side reads the topic from its beginning and counts and sums per user and minute of event time, one
side after another, on the same two cores as the broker. Then each runs again and writes its
windows, which are compared with those that DuckDB computes from the generated events.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.brokers import BROKERS, broker
from common.events import Workload, compare, fill, write_truth
from common.sides import (
    PENSTOCK,
    WINDOW_SIDES,
    Side,
    SideError,
    end_cleanly,
    limit_cores,
    run_program,
)
from peers.batches import mean_split_ms

SMOKE_ROWS = 200_000
SMOKE_USERS = 5_000
SMOKE_EVENTS_PER_S = 500  # so that even the smoke size has several closed windows
LAYOUTS = ("keyed", "shuffled")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="events (default 10 M)")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--disorder-ms", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--events-per-s", type=int, default=2_000, help="of event time")
    parser.add_argument("--per-batch", type=int, help="of the micro-batch engines (default 800 k)")
    parser.add_argument("--layout", choices=[*LAYOUTS, "both"], default="keyed", help=LAYOUT_HELP)
    for layout in LAYOUTS:
        parser.add_argument(f"--{layout}", dest="layout", action="store_const", const=layout)
    names = [name for name in WINDOW_SIDES if name != PENSTOCK]
    parser.add_argument("--peers", help=f"of {','.join(names)}; '' is none (default: those here)")
    parser.add_argument("--without-penstock", action="store_true", help="the peers alone")
    parser.add_argument("--runs", type=int, default=1, help="timed runs; the median is reported")
    parser.add_argument("--no-compare", action="store_true", help="don't check the windows")
    parser.add_argument("--broker", default=BROKERS[0], help="penstock, kafka, or HOST:PORT")
    parser.add_argument("--fill", choices=["penstock", "confluent"], default="penstock")
    parser.add_argument("--cores", type=int, default=2, help="for the broker and the side together")
    parser.add_argument("--timeout-s", type=float, default=1800, help="of one run of one side")
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_ROWS:,} events: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    if options.smoke:
        options.rows, options.users = SMOKE_ROWS, SMOKE_USERS
        options.events_per_s = SMOKE_EVENTS_PER_S
    if options.per_batch is None:
        options.per_batch = min(800_000, max(1, options.rows // 4))
    try:
        options.sides = chosen_sides(options.peers, penstock=not options.without_penstock)
    except ValueError as error:
        parser.error(str(error))
    return options


LAYOUT_HELP = "records keyed by user, or without a key, so that a shuffle is needed"


def chosen_sides(peers: str | None, *, penstock: bool) -> list[Side]:
    """The sides to run: the named peers, all of which must be here, or else those that are."""
    own = [WINDOW_SIDES[PENSTOCK]] if penstock else []
    others = [side for name, side in WINDOW_SIDES.items() if name != PENSTOCK]
    if peers is None:
        for side in others:
            if reason := side.problem():
                say(f"{side.name}: not run: {reason}")
        return own + [side for side in others if not side.problem()]
    named = [name for name in peers.split(",") if name]
    if unknown := set(named) - {side.name for side in others}:
        raise ValueError(
            f"--peers: expected {', '.join(side.name for side in others)};"
            f" found {', '.join(sorted(unknown))}"
        )
    for side in (side for side in others if side.name in named):
        if reason := side.problem():
            raise ValueError(reason)
    return own + [side for side in others if side.name in named]


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Ground:
    """What all sides of one layout share."""

    workload: Workload
    address: str
    topic: str
    truth: Path
    work: Path


def run_side(side: Side, ground: Ground, options: argparse.Namespace) -> dict[str, Any]:
    """Time a side and check its windows."""
    command = [*side.command(), "--bootstrap", ground.address, "--topic", ground.topic]
    command += ["--rows", str(ground.workload.rows)]
    command += ["--parallelism", str(ground.workload.partitions)]
    if side.peer == "spark":  # Flink has no batches, Penstock its own
        command += ["--per-batch", str(options.per_batch)]
    if side.name == PENSTOCK:
        command.append("--keyed" if ground.workload.keyed else "--no-keyed")
    work = ground.work / f"{ground.topic}-{side.name}"
    runs = []
    try:
        for number in range(1, options.runs + 1):
            say(f"{side.name}, {ground.topic}: run {number} of {options.runs} …")
            found = run_program(command, work=work, timeout_s=options.timeout_s)
            say(f"  {found['rows_per_s']:,} events/s in all, steady {number_text(found)}")
            runs.append(found)
        middle = statistics.median_low([run["seconds"] for run in runs])
        result = next(run for run in runs if run["seconds"] == middle)
        result["runs_rows_per_s"] = [run["rows_per_s"] for run in runs]
        if not options.no_compare:
            say(f"{side.name}, {ground.topic}: run that writes its windows …")
            out = work / "out"
            written = run_program(
                [*command, "--out", str(out)], work=work, timeout_s=options.timeout_s
            )
            compared = compare(
                side.result.format(out=out), ground.truth, ground.workload.closed_before_ms()
            )
            say(f"  windows {compared}")
            result["windows"] = {**dataclasses.asdict(compared), "equal": compared.equal}
            result["windows"]["late_dropped"] = written.get("late_dropped")
    except SideError as error:
        say(f"  {side.name} failed: {error}")
        return {"side": side.name, "error": str(error)}
    if batches := result.pop("batches", None):
        result["split_ms"] = mean_split_ms(batches)
    return result


def number_text(found: dict[str, Any]) -> str:
    """The steady rate, where a side could tell it."""
    steady = found.get("steady_rows_per_s")
    return f"{steady:,} events/s" if steady else "unknown (too short a run)"


def with_ratios(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how many times as fast as each peer Penstock was, in all and steady."""
    own = next((r for r in results if r["side"] == PENSTOCK and "error" not in r), None)
    for result in results:
        for rate in ("rows_per_s", "steady_rows_per_s"):
            if own and own.get(rate) and result.get(rate):
                result[f"{rate}_ratio"] = round(own[rate] / result[rate], 2)
    return results


def table(layout: str, results: list[dict[str, Any]]) -> str:
    """The results of one layout as text."""
    head = f"{'':15}{'events/s':>12}{'Penstock is':>13}{'steady':>12}{'Penstock is':>13}"
    lines = [f"{layout} topic", head + f"{'peak MiB':>10}  windows"]
    for result in results:
        if "error" in result:
            lines.append(f"{result['side']:15}  failed: {result['error'].splitlines()[-1][:90]}")
            continue
        cells = f"{result['side']:15}"
        for rate in ("rows_per_s", "steady_rows_per_s"):
            ratio = result.get(f"{rate}_ratio")
            speed = result.get(rate)
            cells += f"{speed:>12,}" if speed else f"{'?':>12}"
            cells += f"{ratio:>11.2f} x" if ratio else f"{'':13}"
        cells += f"{result['peak_mib']:>10,}  "
        windows = result.get("windows")
        if windows is None:
            cells += "not compared"
        elif windows["equal"]:
            cells += f"equal ({windows['rows']:,})"
        else:
            cells += f"DIFFER: {windows['events_short']:,} events short, {windows['wrong']:,} wrong"
        lines.append(cells)
    for result in results:
        if "split_ms" in result:
            parts = ", ".join(f"{name} {spent:g}" for name, spent in result["split_ms"].items())
            lines.append(f"  {result['side']}: ms per batch: {parts}")
    return "\n".join(lines)


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Fill the topics and run every side on them."""
    layouts = LAYOUTS if options.layout == "both" else (options.layout,)
    report: dict[str, Any] = {"cores": limit_cores(options.cores), "broker": options.broker}
    truth = work / "truth.parquet"
    with broker(options.broker, work / "broker") as address:
        for layout in layouts:
            workload = Workload(
                rows=options.rows,
                users=options.users,
                disorder_ms=options.disorder_ms,
                per_second=options.events_per_s,
                partitions=options.partitions,
                keyed=layout == "keyed",
            )
            report["workload"] = dataclasses.asdict(workload)
            if not options.no_compare and not truth.exists():
                say(f"the true windows: {write_truth(workload, truth):,}")
            topic = f"events-{layout}"
            say(f"filling {topic} …")
            report[f"fill_{layout}_s"] = fill(workload, address, topic, through=options.fill)
            ground = Ground(workload, address, topic, truth, work)
            report[layout] = with_ratios(
                [run_side(side, ground, options) for side in options.sides]
            )
            if not options.json:
                print(table(layout, report[layout]), flush=True)
    return report


def main() -> int:
    options = arguments()
    end_cleanly()
    with tempfile.TemporaryDirectory(prefix="penstock-benchmark-") as work:
        report = measure(options, Path(work))
    if options.json:
        print(json.dumps(report))
    results = [result for layout in LAYOUTS for result in report.get(layout, ())]
    bad = [r for r in results if "error" in r or not r.get("windows", {"equal": True})["equal"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
