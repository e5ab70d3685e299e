"""Does a batch cost more as the state grows?

A batch of fixed size (250,000 rows over 50,000 keys) meets the state of a windowed count and sum that
holds 100 thousand to 10 million keys on one shard, each size in a process of its own:

    python benchmarks/state.py [--smoke] [--json] [--changes | --no-changes] [--batches N]

`CPU` is the thread's processor time per batch (map side and step, one core), which a busy machine
distorts little; `wall` is what passed. The aim: 10 million keys cost at most twice what 100 thousand do.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEYS = (100_000, 1_000_000, 10_000_000)
BATCH_ROWS, BATCH_KEYS, BATCHES = 250_000, 50_000, 60
FILL_KEYS = 500_000  # keys per batch while the state is filled
RATIO_MAX = 2.0  # the aim


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def measure(
    keys: int,
    changes: bool,  # noqa: FBT001
    batches: int,
    scale: int,
    directory: str,
) -> dict[str, float]:
    import numpy as np
    import pyarrow as pa

    from penstock.ops import (
        NO_TIME,
        Aggregate,
        AggregateSpec,
        Column,
        Context,
        Window,
        WindowedAggregate,
    )  # fmt: skip
    from penstock.ops.lateness import first_open, marks_before
    from penstock.ops.windows import NOTHING_YET_US
    from penstock.state import LocalStateFiles, vacuum

    window = Window("tumbling", 86_400_000_000)
    total = Aggregate("total", "sum", Column("v", pa.float64()))
    user = Column("user", pa.int64(), required=True)
    spec = AggregateSpec((user,), window, (Aggregate("n", "count"), total), "at", changes=changes)
    op = WindowedAggregate(spec)
    files = LocalStateFiles(directory, fsync=False)
    rng = np.random.default_rng(1)
    everyone = rng.permutation(keys) * 7 + 3
    version = 0

    def batch(users: np.ndarray) -> pa.Table:
        at = pa.array(rng.integers(0, 10**9, len(users)), pa.timestamp("us", "UTC"))
        return pa.table({"user": users, "v": rng.random(len(users)), "at": at})

    def run(state, rows):
        nonlocal version
        times = rows["at"].chunk(0).cast(pa.int64()).to_numpy()
        marks, _ = marks_before(times, NOTHING_YET_US, 0)
        first_open(times, marks, window)
        part = op.partials(rows, np.zeros(len(rows), np.int64))
        step = op.step(state, [[part]], Context(files, "s", version, (NO_TIME,)))
        version += 1
        return step

    state = op.empty(files)
    fill = max(1, FILL_KEYS // scale)
    for at in range(0, keys, fill):
        state = run(state, batch(everyone[at : at + fill])).state
        vacuum(files, "s", [state.describe()], version)
    rows, distinct = BATCH_ROWS // scale, BATCH_KEYS // scale
    cpu, wall, merged, runs, anonymous = [], [], [], [], 0
    for _ in range(batches + 3):
        users = rng.choice(everyone, distinct, replace=False)
        table = batch(users[rng.integers(0, distinct, rows)])
        there = set(files.list("s"))
        t, c = time.perf_counter(), time.thread_time()
        step = run(state, table)
        state = op.open(files, json.loads(json.dumps(step.state.describe())))
        wall.append(time.perf_counter() - t)
        cpu.append(time.thread_time() - c)
        merged.append(sum(files.size(path) for path in set(files.list("s")) - there))
        runs.append(len(state.traces["groups"].runs))
        anonymous = max(anonymous, anonymous_bytes())
        vacuum(files, "s", [state.describe()], version)
    cpu, wall, merged = cpu[3:], wall[3:], merged[3:]
    return {
        "keys": keys,
        "changes": changes,
        "cpu_p50_ms": statistics.median(cpu) * 1e3,
        "cpu_mean_ms": statistics.fmean(cpu) * 1e3,
        "cpu_max_ms": max(cpu) * 1e3,
        "wall_p50_ms": statistics.median(wall) * 1e3,
        "wall_max_ms": max(wall) * 1e3,
        "written_mean_mb": statistics.fmean(merged) / 1e6,
        "runs_max": max(runs),
        "state_mb": state.bytes / 1e6,
        "description_kb": len(json.dumps(state.describe())) / 1e3,
        "rss_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rss_anonymous_mb": anonymous / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, a few seconds")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.add_argument("--changes", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(*options.one)))
        return
    scale = 100 if options.smoke else 1
    batches = 5 if options.smoke else options.batches
    sizes = [keys // scale for keys in (KEYS[:2] if options.smoke else KEYS)]
    results = []
    for changes in (False, True):
        if options.changes not in (None, changes):
            continue
        for keys in sizes:
            directory = tempfile.mkdtemp(prefix="penstock-state-")
            try:
                job = json.dumps([keys, changes, batches, scale, directory])
                command = [sys.executable, __file__, "--one", job]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            result = json.loads(out)
            base = next((r for r in results if r["changes"] == changes), result)
            result["ratio"] = result["cpu_mean_ms"] / base["cpu_mean_ms"]
            results.append(result)
            if not options.json:
                show(result, first=len(results) == 1)
    if options.json:
        print(json.dumps(results))


def show(r: dict[str, float], *, first: bool) -> None:
    if first:
        print(
            "   keys     changes | CPU p50   mean    max | wall p50    max | ratio | runs | "
            "written | state  | RSS (anonymous)"
        )
    print(
        f"{r['keys']:>10,} {'yes' if r['changes'] else 'no':>8} | {r['cpu_p50_ms']:5.0f} ms "
        f"{r['cpu_mean_ms']:5.0f} {r['cpu_max_ms']:6.0f} | {r['wall_p50_ms']:5.0f} ms "
        f"{r['wall_max_ms']:6.0f} | {r['ratio']:5.2f} | {r['runs_max']:>4} | "
        f"{r['written_mean_mb']:4.1f} MB | {r['state_mb']:4.0f} MB | "
        f"{r['rss_peak_mb']:5.0f} ({r['rss_anonymous_mb']:.0f}) MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
