"""Random MATCH_RECOGNIZE over tables and streams, against a reference by backtracking."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.effort import rounds
from tests.patterns.chance import a_spec, some_rows
from tests.patterns.reference import expected

import penstock as ps
from penstock.errors import PenstockError
from penstock.patterns import RowPattern
from penstock.sql import SqlFlow

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = rounds("PENSTOCK_SQL_PATTERN_ROUNDS", quick=5, full=60)
COLUMNS = "p STRING, id BIGINT{key}, x BIGINT, y STRING, at TIMESTAMP{time}"
LATER = 1_000_000


def clause_of(spec: RowPattern, *, table: bool) -> str:
    """A pattern as SQL."""
    after = spec.after.upper() if spec.after.endswith("row") else spec.after
    to = "" if spec.after == "past last row" else "TO "
    parts = [
        "PARTITION BY p ORDER BY at, id",
        "MEASURES " + ", ".join(f"{text} AS {name}" for name, text, _ in spec.measures),
        "ONE ROW PER MATCH" if spec.rows == "one" else "ALL ROWS PER MATCH",
    ]
    if spec.rows == "all":
        parts.append("WITH UNMATCHED ROWS" if spec.unmatched else f"{spec.empty} EMPTY MATCHES")
    parts.append(f"AFTER MATCH SKIP {to}{after} PATTERN ({spec.pattern})")
    if spec.within_us is not None:
        parts.append(f"WITHIN INTERVAL '{spec.within_us}' MICROSECONDS")
    if not table:
        parts.append("KEEP 1000 ROWS")
    if spec.subsets:
        parts.append("SUBSET " + ", ".join(f"{n} = ({', '.join(of)})" for n, of in spec.subsets))
    parts.append("DEFINE " + ", ".join(f"{name} AS {text}" for name, text in spec.defines))
    return " ".join(parts)


def a_clause(chance: random.Random) -> RowPattern:
    """A pattern that SQL can say."""
    while True:
        spec = a_spec(chance, ahead=False)
        which = "final" if spec.rows == "one" else "running"
        measures = tuple((name, text, which) for name, text, _ in spec.measures)
        if measures and spec.defines and spec.after != "no skip":
            empty = "show" if spec.rows == "one" or spec.unmatched else spec.empty
            return replace(spec, measures=measures, empty=empty)  # type: ignore[arg-type]


def found(spec: RowPattern, partitions: list[list[dict[str, Any]]], *, table: bool) -> Counter[Any]:
    """What a view finds, of the partitions' rows in a random order."""
    app = SqlFlow("random")
    key, time = (
        (" PRIMARY KEY", "") if table else ("", ", WATERMARK FOR at AS at - INTERVAL 1 HOUR")
    )
    app.sql(f"CREATE {'TABLE' if table else 'STREAM'} t ({COLUMNS.format(key=key, time=time)})")
    app.view("v", sql=f"SELECT * FROM t MATCH_RECOGNIZE ({clause_of(spec, table=table)})")
    run = ps.testing.run(app)
    rows = [{**row, "p": str(p)} for p, some in enumerate(partitions) for row in some]
    for i, row in enumerate(rows):
        run.send("t", **{**row, "id": i, "at": at(row["at"]).isoformat()})
        if i % 7 == 0:
            run.settle()
    if not table:
        run.send("t", p="end", at=(EPOCH + timedelta(hours=1, microseconds=LATER)).isoformat())
    run.settle()
    names = [name for name, _, _ in spec.measures]
    names += [] if spec.rows == "one" else ["x", "y", "at"]
    return Counter(plain(row[name] for name in ["p", *names]) for row in run.view("v").rows())


def plain(row: Iterable[Any]) -> tuple[Any, ...]:
    """A row that can be counted."""
    return tuple(tuple(one) if isinstance(one, list) else one for one in row)


def at(time: int) -> datetime:
    """An instant of the reference's."""
    return EPOCH + timedelta(microseconds=time)


def wanted(
    spec: RowPattern, partitions: list[list[dict[str, Any]]], *, table: bool
) -> Counter[Any]:
    """What the reference finds."""
    made: Counter[Any] = Counter()
    for p, rows in enumerate(partitions):
        frontier = None if table else LATER
        for row in expected(spec, rows, complete=table, frontier=frontier).rows:
            of_row = [row["x"], row["y"], at(row["at"])] if spec.rows == "all" else []
            made[plain([str(p), *(row[name] for name, _, _ in spec.measures), *of_row])] += 1
    return made


@pytest.mark.slow
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_matches_are_those_of_the_reference(seed: int, table: bool) -> None:
    """Whatever the clause and the rows, a view contains the reference's rows."""
    chance = random.Random(seed)
    for i in range(ROUNDS):
        spec = a_clause(chance)
        partitions = [some_rows(chance, 9) for _ in range(3)]
        if not table and is_refused(spec):
            continue
        made = found(spec, partitions, table=table)
        context = i, clause_of(spec, table=table), partitions
        assert made == wanted(spec, partitions, table=table), context


def is_refused(spec: RowPattern) -> bool:
    """Whether a stream has no such pattern."""
    try:
        found(spec, [], table=False)
    except PenstockError:
        return True
    return False
