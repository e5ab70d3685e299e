"""Runs many random queries beside DuckDB, on several processes: `python -m tests.sql.chance.run 100000`.

Queries of successive seeds are views of one program, `TOGETHER` at a time. One program in five has a schema
of its own. One in four runs on two lanes, and one in eight as roughly as `penstock.testing` can; the others
run each batch once. What fails is run alone, made smaller while it still fails, and printed with its seed.
The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, Final

from sqlglot import exp, parse_one
from tests.sql.beside_duckdb import compare_all, failing, is_query
from tests.sql.chance.queries import random_query, random_timed
from tests.sql.chance.schemas import random_schema
from tests.sql.chance.typed_queries import typed_query
from tests.sql.chance.windows import random_windows

__all__ = ["run", "smaller", "tried"]

TOGETHER: Final = 100
"""Queries of a program: with 50, each costs a sixth more; with 200, no less."""
BATCHES: Final = 3
TRIALS_MAX: Final = 60  # of smaller queries, each a program of its own
OWN_SCHEMA: Final = 5  # one program in so many
PROGRAMS_EACH: Final = 20  # that a process runs, so that what it keeps stays small
GARBAGE_MIN: Final = 100_000
"""Objects before Python looks for garbage: plans are many that stay, which it looks at in vain."""


def query_of(seed: int) -> str:
    """The query of a seed; one in five is of window functions, one has an event time."""
    match seed % 5:
        case 4:
            return random_windows(seed)
        case 3:
            return random_timed(seed, depth=seed % 3)
        case _:
            return random_query(seed, depth=2 + seed % 4)


def tried(
    first: int, count: int, make: Callable[[int], str] = query_of, *, own_schema: bool = False
) -> tuple[int, list[str]]:
    """Runs the queries of some seeds in one program.

    Args:
        first: seed.
        count: of seeds.
        make: the query of a seed.
        own_schema: whether they are over a schema of the first seed instead.

    Returns:
        How many, and of each that fails its seed, its text, a smaller one, and the error.
    """
    part = first // count
    how: dict[str, Any] = {
        "seed": first,
        "batches": BATCHES,
        "cores": 2 if part % 4 == 1 else 1,
        "shaken": part % 8 == 1,
    }
    if own_schema:
        how["schema"] = random_schema(first)
        make = partial(typed_query, how["schema"])
    seeds = {make(seed): seed for seed in range(first, first + count)}
    failures: list[str] = []
    for query, error in failing(list(seeds), **how):
        least = smaller(query, type(error), how)
        text = str(error).splitlines()
        failures.append(
            f"seed {seeds.get(query, first)}: {query}\n  smaller: {least}\n  compare_all([…], "
            f"{', '.join(f'{name}={value}' for name, value in how.items())})\n  "
            f"{type(error).__name__}: {' '.join(text)[-600:]}"
        )
    return count, failures


def smaller(query: str, kind: type[Exception], how: Mapping[str, Any]) -> str:
    """A query that fails with the same kind of error, without parts that don't matter."""
    trials = 0
    found = True
    while found and trials < TRIALS_MAX:
        found = False
        for candidate in parts_of(query):
            trials += 1
            if trials > TRIALS_MAX:
                break
            shorter = len(candidate) < len(query) and is_query(candidate, how.get("schema"))
            if shorter and fails(candidate, kind, how):
                query, found = candidate, True
                break
    return query


def fails(query: str, kind: type[Exception], how: Mapping[str, Any]) -> bool:
    """Whether a query fails so, alone."""
    try:
        compare_all([query], **how)
    except Exception as error:
        return type(error) is kind
    return False


def parts_of(query: str) -> Iterator[str]:
    """Queries inside of a query, and the query without a clause, a join, a condition or a column."""
    try:
        tree = parse_one(query, dialect="duckdb")
    except Exception:
        return
    for inner in tree.find_all(exp.Query):
        if inner is not tree:
            yield inner.unnest().sql(dialect="duckdb")
    for i, select in enumerate(tree.find_all(exp.Select)):
        changes = [("where", None), ("having", None), ("qualify", None), ("distinct", None)]
        for what, n in [
            *changes,
            *(("joins", n) for n in range(len(select.args.get("joins") or ()))),
        ]:
            copied = tree.copy()
            one = list(copied.find_all(exp.Select))[i]
            if n is None and one.args.get(what):
                one.set(what, None)
                yield copied.sql(dialect="duckdb")
            elif n is not None:
                one.args[what].pop(n)
                yield copied.sql(dialect="duckdb")
        for n in range(len(select.expressions) if len(select.expressions) > 1 else 0):
            copied = tree.copy()
            list(copied.find_all(exp.Select))[i].expressions.pop(n)
            yield copied.sql(dialect="duckdb")


def run(count: int, *, first: int, processes: int) -> list[str]:
    """Runs so many queries, and says how far it is.

    Returns:
        What failed.
    """
    started, done = time.monotonic(), 0
    failures: list[str] = []
    starts = range(first, first + count, TOGETHER)

    def note(programs: int, new: list[str]) -> None:
        nonlocal done
        done = min(done + programs * TOGETHER, count)
        failures.extend(new)
        for failure in new:
            print(failure, flush=True)
        rate = done / (time.monotonic() - started)
        print(f"{done} of {count}, {rate:.1f} queries/s, {len(failures)} failed", flush=True)

    together = processes * PROGRAMS_EACH
    for part in (starts[i : i + together] for i in range(0, len(starts), together)):
        waiting = list(part)
        while waiting:
            waiting = answered(waiting, first + count, processes, note)
            # A process has ended: DuckDB's own faults end it. Its program is among the first.
            for at in waiting[:processes]:
                if answered([at], first + count, 1, note):
                    note(
                        1, [f"seeds from {at}: a process ended; python -X faulthandler says where"]
                    )
            waiting = waiting[processes:]
    return failures


def answered(
    starts: Sequence[int], end: int, processes: int, note: Callable[[int, list[str]], None]
) -> list[int]:
    """Runs programs in new processes, which `max_tasks_per_child` doesn't start in Python 3.11.

    Returns:
        The programs without an answer, as a process ended.
    """
    with ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), gc.set_threshold, (GARBAGE_MIN, 50, 50)
    ) as pool:
        waiting = {
            pool.submit(
                tried, at, min(TOGETHER, end - at), own_schema=at // TOGETHER % OWN_SCHEMA == 0
            ): at
            for at in starts
        }
        without = []
        for one in as_completed(waiting):
            try:
                note(1, one.result()[1])
            except BrokenProcessPool:
                without.append(waiting[one])
    return sorted(without)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    failures = run(asked.count, first=asked.first, processes=asked.processes)
    print(f"{asked.count} queries from seed {asked.first}: {len(failures)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
