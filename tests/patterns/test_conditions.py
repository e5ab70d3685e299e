"""Conditions that read two rows of a match, against DuckDB's over the same values."""

from __future__ import annotations

import datetime as dt
import os
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.effort import rounds

from penstock.patterns import Matcher, RowPattern

SEED = int(os.environ.get("PENSTOCK_PATTERN_SEED", "0"))
ROUNDS = rounds("PENSTOCK_CONDITION_ROUNDS", quick=15, full=60)
PAIRS = 60
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(6, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("e", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")),
    ]
)
_DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "i": [-7, -1, 0, 1, 2, 5, None],
    "f": [-1.5, -0.0, 0.0, 1.0, 2.5, float("inf"), float("nan"), None],
    "d": [Decimal("-1.25"), Decimal("0.00"), Decimal("2.50"), Decimal("1.00"), None],
    "s": ["", "a", "b", "ä", "ab", None],
    "b": [True, False, None],
    "e": [_DAY.date(), _DAY.date() + dt.timedelta(days=1), None],
    "t": [_DAY, _DAY + dt.timedelta(hours=1), _DAY + dt.timedelta(days=1), None],
}


def _column(rng: random.Random, kinds: str) -> str:
    return f"{rng.choice('pq')}.{rng.choice(kinds)}"


def _number(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice([_column(rng, "ifd"), _column(rng, "ifd"), "1", "2.5", "-3"])
    one, other = _number(rng, depth - 1), _number(rng, depth - 1)
    match rng.randrange(8):
        case 0:
            return f"({_column(rng, 'i')} // {rng.choice(['2', '-3'])} + {_column(rng, 'i')} % 3)"
        case 1:
            return f"CASE WHEN {_condition(rng, 0)} THEN {one} ELSE {other} END"
        case 2:
            return f"COALESCE({one}, {other})"
        case 3:
            return f"(- {one})"
        case 4:
            return f"abs({one})"
        case _:
            return f"({one} {rng.choice('+-*/')} {other})"


def _condition(rng: random.Random, depth: int) -> str:
    comparison = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    if depth > 0 and rng.random() < 0.5:
        one, other = _condition(rng, depth - 1), _condition(rng, depth - 1)
        return rng.choice(
            [f"({one} AND {other})", f"({one} OR {other})", f"NOT {one}", f"({one}) IS NULL"]
        )
    match rng.randrange(9):
        case 0:
            return f"p.{(kind := rng.choice('sbet'))} {comparison} q.{kind}"
        case 1:
            return f"p.t - q.t {comparison} INTERVAL {rng.choice([0, 1, 24])} HOURS"
        case 2:
            return f"p.e - q.e {comparison} 0"
        case 3:
            return f"p.t {comparison} q.e"
        case 4:
            return "p.s IN (q.s, 'a')"
        case 5:
            return "p.s IS DISTINCT FROM q.s"
        case 6:
            numbers = [_number(rng, 1) for _ in range(3)]
            return f"{numbers[0]} BETWEEN {numbers[1]} AND {numbers[2]}"
        case _:
            return f"{_number(rng, 2)} {comparison} {_number(rng, 2)}"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(3))
def test_conditions_are_duckdbs(seed: int) -> None:
    """A condition over two rows of a match is true where it is in DuckDB."""
    rng = random.Random(SEED + seed)
    for _ in range(ROUNDS):
        columns = [[rng.choice(VALUES[f.name]) for _ in range(2 * PAIRS)] for f in SCHEMA]
        rows = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
        condition = _condition(rng, 2)
        spec = RowPattern("p q", (("q", condition),))
        found = Matcher(spec, SCHEMA, None).match(
            rows, np.arange(0, 2 * PAIRS + 1, 2), complete=True
        )
        assert found.partition.tolist() == _by_duckdb(condition, rows), condition


def _by_duckdb(condition: str, rows: pa.Table) -> list[int]:
    numbered = rows.append_column("n", pa.array(range(2 * PAIRS)))  # noqa: F841 - DuckDB reads it
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        found = con.sql(
            "SELECT p.n // 2 FROM numbered p JOIN numbered q ON q.n = p.n + 1 "
            f"WHERE p.n % 2 = 0 AND ({condition}) ORDER BY 1"
        ).fetchall()
    return [one for (one,) in found]
