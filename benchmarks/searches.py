"""How many documents a second are matched with stored searches, beside Lucene's Monitor?

    python benchmarks/searches.py [--searches 1000,100000] [--documents 20000] [--changes 1000]
                                  [--smoke] [--json]

Documents of 100 words whose frequencies follow Zipf's law, and searches over the same words: of ten, six ask
for two words, two for a phrase, one for any of three words, one for a word without another. Both sides
analyse alike: words in lower case. Documents come in batches of 1,000; with `--changes`, each batch also adds
so many searches and removes as many. Penstock's side is the operator: state in memory, one shard. Lucene's
side takes documents in batches of `--lucene-batch`. Both must find as many matches.

Times are of processor time of one thread, which a busy machine distorts little. Bytes are what a search takes
in memory: for Penstock the growth of the process, for Lucene that of the heap.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from peers import cache
from penstock.core.delta import TIME, WEIGHT
from penstock.ops import NO_TIME, Context
from penstock.ops.joins.percolate import Percolate
from penstock.ops.state import State
from penstock.searches.fields import MEANING, Fields
from penstock.state import MemoryStateFiles, vacuum

WORDS = 50_000
WORDS_EACH = 100
BATCH = 1_000
LOADED = 50_000  # searches of a batch, before documents come
PEER = "lucene"
PROGRAM = Path(__file__).parent / "peers" / "LuceneMonitor.java"
DOCUMENTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("body", pa.string())])
SEARCHES = pa.schema([pa.field("name", pa.int64(), nullable=False), ("search", pa.string())])
SMOKE = {"searches": "2000", "documents": 2_000, "changes": 50}


def words(chance: np.random.Generator, count: int) -> Any:
    """Words of a language: `w1` is the commonest."""
    ranks = np.minimum(chance.zipf(1.2, 2 * count), 10**9)
    ranks = ranks[ranks <= WORDS][:count]
    return np.char.add("w", np.resize(ranks, count).astype(str))


def documents(chance: np.random.Generator, count: int) -> list[str]:
    """Texts of so many words each."""
    return [" ".join(one) for one in words(chance, count * WORDS_EACH).reshape(count, WORDS_EACH)]


def searches(chance: np.random.Generator, count: int) -> list[str]:
    """Searches of all forms, without the commonest words alone: people look for rarer ones."""
    some = np.char.add("w", chance.integers(20, WORDS // 5, (count, 3)).astype(str))
    common = words(chance, count)
    forms = ("+{0} +{1}",) * 6 + ('"{0} {3}"',) * 2 + ("{0} {1} {2}", "{0} -{3}")
    return [
        forms[i % 10].format(*row, other)
        for i, (row, other) in enumerate(zip(some.tolist(), common.tolist(), strict=True))
    ]


class Penstock:
    """The operator, batch by batch."""

    def __init__(self) -> None:
        self.operator = Percolate(
            documents=DOCUMENTS,
            queries=SEARCHES,
            query="search",
            columns=("body",),
            fields=Fields(pa.schema([DOCUMENTS.field("body")]), ("body",)),
            by=("id",),
            kept=False,
            meaning=MEANING,
        )
        self.files = MemoryStateFiles()
        self.state: State = self.operator.empty(self.files)
        self.version = 0

    def step(self, texts: Sequence[str], asked: pa.Table) -> int:
        """Takes documents and changes of searches; how many matches there are."""
        ids = np.arange(len(texts))
        times = pa.array(ids).view(pa.timestamp("us", "UTC"))
        rows = pa.table([pa.array(ids), pa.array(texts, pa.string())], schema=DOCUMENTS)
        inputs = []
        for port, table in enumerate((rows.append_column(TIME, times), asked)):
            prepared = self.operator.prepare(port, table)
            inputs.append([prepared.parcel] if prepared.parcel.rows else [])
        context = Context(self.files, "s", self.version, (NO_TIME, NO_TIME))
        made = self.operator.step(self.state, inputs, context)
        self.state = made.state
        found = sum(map(len, made.more))
        vacuum(self.files, "s", [self.state.describe()], self.version)
        self.version += 1
        return found


def asked_of(
    come: Sequence[str], first: int, gone: Sequence[str] = (), oldest: int = 0
) -> pa.Table:
    """Searches that come, and others that go, with their numbers."""
    names = np.concatenate([first + np.arange(len(come)), oldest + np.arange(len(gone))])
    weights = np.repeat([1, -1], [len(come), len(gone)])
    columns = [pa.array(names), pa.array([*come, *gone], pa.string()), pa.array(weights)]
    return pa.table(columns, SEARCHES.append(pa.field(WEIGHT, pa.int64())))


def penstock(texts: list[str], queries: list[str], changes: list[str]) -> dict[str, float]:
    """Registers the searches, then takes the documents."""
    Penstock().step(["one"], asked_of(["one"], 0))  # kernels and modules are no search's
    gc.collect()
    before = psutil.Process().memory_info().rss
    run, everything = Penstock(), [*queries, *changes]
    began = time.process_time()
    for lo in range(0, len(queries), LOADED):
        run.step([], asked_of(queries[lo : lo + LOADED], lo))
    registered = time.process_time() - began
    gc.collect()
    held = psutil.Process().memory_info().rss - before
    rounds = -(-len(texts) // BATCH)
    each = len(changes) // rounds
    matches, changed, matched = 0, 0.0, 0.0
    for i in range(rounds):
        began = time.process_time()
        first, oldest = len(queries) + i * each, i * each
        if each:
            come, gone = everything[first : first + each], everything[oldest : oldest + each]
            run.step([], asked_of(come, first, gone, oldest))
        middle = time.process_time()
        matches += run.step(texts[i * BATCH : (i + 1) * BATCH], asked_of([], 0))
        changed += middle - began
        matched += time.process_time() - middle
    return {
        "register_s": registered,
        "match_s": matched,
        "change_s": changed,
        "matches": matches,
        "heap": held,
    }


def lucene(
    texts: list[str], queries: list[str], changes: list[str], batch: int
) -> dict[str, float]:
    """The same by Lucene's Monitor."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, lines in (("queries", queries), ("documents", texts), ("changes", changes)):
            paths.append(str(Path(folder, name)))
            Path(folder, name).write_text("".join(f"{line}\n" for line in lines))
        command = [str(cache.java()), "-Xmx4g", "-XX:+UseSerialGC", "-cp", cache.classpath(PEER)]
        command += [str(PROGRAM), *paths, str(batch), str(BATCH)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Runs each number of searches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--searches", default="1000,10000,100000")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--changes", type=int, default=0, help="searches added and removed a batch")
    parser.add_argument("--lucene-batch", type=int, default=100)
    parser.add_argument("--peers", default=PEER, help="'' runs Penstock alone")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMOKE)
    missing = cache.problem(PEER) if options.peers else "not asked"
    if missing and options.peers:
        print(missing, file=sys.stderr)
    results = []
    for count in map(int, options.searches.split(",")):
        chance = np.random.default_rng(7)
        rounds = -(-options.documents // BATCH)
        texts, queries = documents(chance, options.documents), searches(chance, count)
        changes = searches(chance, options.changes * rounds)
        with multiprocessing.get_context("spawn").Pool(1) as fresh:  # memory of its own
            sides = {"penstock": fresh.apply(penstock, (texts, queries, changes))}
        if not missing:
            sides[PEER] = lucene(texts, queries, changes, options.lucene_batch)
        results += [
            shown(name, count, len(texts), len(changes), one) for name, one in sides.items()
        ]
        if len(sides) > 1:
            ours, theirs = results[-2:]
            ours["ratio"] = ours["documents_per_s"] / theirs["documents_per_s"]
            ours["equal"] = ours["matches"] == theirs["matches"]
    if options.json:
        print(json.dumps({"searches": results}))
        return
    for one in results:
        ratio = f"  {one['ratio']:.1f} x" if "ratio" in one else ""
        equal = "" if one.get("equal", True) else "  OTHER MATCHES"
        print(
            f"{one['side']:9} {one['searches']:9,} searches  {one['documents_per_s']:10,.0f} documents/s  "
            f"{one['registered_per_s']:9,.0f} registered/s  {one['changed_per_s']:9,.0f} changed/s  "
            f"{one['bytes_each']:7,.0f} bytes each  {one['matches']:12,.0f} matches{ratio}{equal}"
        )


def shown(side: str, count: int, texts: int, changes: int, one: dict[str, float]) -> dict[str, Any]:
    """Rates of a side."""
    return {
        "side": side,
        "searches": count,
        "documents_per_s": texts / one["match_s"],
        "registered_per_s": count / one["register_s"],
        "changed_per_s": 2 * changes / one["change_s"] if changes else 0.0,
        "bytes_each": one["heap"] / count,
        "matches": one["matches"],
    }


if __name__ == "__main__":
    main()
