"""Random row patterns, rows, and cuts of rows into calls."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.patterns import Matcher, Matches, Partial, Resume, RowPattern, parse_pattern
from penstock.patterns.tree import mapped_names, names_of

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
ALONE = (
    "x = 1",
    "x < 3",
    "x > PREV(x)",
    "y = 'p' OR x = 2",
    "PREV(x, 2) IS NULL OR x <> 2",
    "TRUE",
)
MATCHED = (
    "x > LAST(b.x)", "x >= FIRST(a.x)", "sum(x) < 8", "count(a.*) < 3", "avg(c.x) <= x", "x > LAST(a.x, 1)",
    "x <> PREV(FIRST(x, 1), 1)", "min(b.x) + max(x) < 5", "x - FIRST(x) < 2", "MATCH_NUMBER() < 3",
    "y = LAST(b.y)", "y >= FIRST(y)", "u.x <= x AND NOT y = LAST(u.y, 1)", "max(y) = y",
    "COALESCE(LAST(c.x), 1) = 1",
    "count(u.x) * 2 < 5 OR x = 3", "CLASSIFIER() = 'a' OR x > 1",
)  # fmt: skip
AHEAD = ("NEXT(x) > x", "NEXT(LAST(b.x), 2) = x OR x = 1")
MEASURES = (
    "first(x)", "last(a.x)", "count(*)", "count(b.x)", "sum(u.x)", "avg(x)", "min(c.x)", "max(y)",
    "match_number()", "classifier()", "FINAL last(x)", "RUNNING count(a.*)", "FINAL count(*)", "list(b.x)",
    "PREV(first(x))", "classifier(u)", "last(x, 1) + 1", "a.x", "y", "FIRST(u.x, 1)", "LAST(classifier(), 1)",
)  # fmt: skip


def a_spec(rng: random.Random, *, ahead: bool = True) -> RowPattern:
    """A pattern with definitions and measures."""
    timed = rng.random() < 0.4
    depth = rng.choice([1, 2, 3, 3])
    text = _pattern(rng, depth, timed=timed)
    node = parse_pattern(text)
    names = names_of(node)
    conditions = ALONE + MATCHED + (AHEAD if ahead and rng.random() < 0.3 else ())
    if rng.random() < 0.3:
        conditions = ALONE
    found = {name: rng.choice(conditions) for name in names if rng.random() < 0.9}
    found |= {name: rng.choice(ALONE) for name in names if name not in mapped_names(node)}
    members = tuple(one for one in ("a", "c") if one in names) or names[:1]
    subsets = (("u", members),) if members else ()
    known = {*names, *(name for name, _ in subsets)}
    rows: Any = rng.choice(["one", "all"])
    measures = [one for one in rng.sample(MEASURES, 5) if _fits(one, known)]
    if rows == "all":
        measures.append("classifier()")
    # Of patterns that nest, there are too many ways to list them.
    afters = ["past last row", "past last row", "next row", "no skip" if depth == 1 else "next row"]
    afters += [f"{which} {name}" for which in ("first", "last") for name in mapped_names(node)]
    return RowPattern(
        text,
        tuple((k, v) for k, v in found.items() if _fits(v, known))
        + tuple((k, "x = 1") for k, v in found.items() if not _fits(v, known)),
        subsets,
        tuple((f"m{i}", one, rng.choice(["running", "final"])) for i, one in enumerate(measures)),
        rng.choice(afters),
        rng.choice([2, 5, 9]) if timed else None,
        rows,
        rng.choice(["show", "omit"]),
        rows == "all" and rng.random() < 0.5,
    )


def _fits(text: str, known: set[str]) -> bool:
    """Whether an expression names variables that there are."""
    return all(one in known for one in "abcdu" if f"{one}." in text or f"({one})" in text)


def _pattern(rng: random.Random, depth: int, *, timed: bool, top: bool = True) -> str:
    if depth == 0:
        return rng.choice("abcd")
    parts = [
        _pattern(rng, depth - 1, timed=timed, top=False) for _ in range(rng.choice([1, 2, 2, 3]))
    ]
    parts = [f"({one}){_quantifier(rng)}" if rng.random() < 0.6 else f"({one})" for one in parts]
    if timed and rng.random() < 0.2:
        parts[-1] += f" WITHIN {rng.choice([1, 3])} microseconds"
    match rng.randrange(10):
        case 0 | 1:
            return " | ".join(parts)
        case 2:
            return f"PERMUTE({', '.join(parts)})"
        case 3:
            return f"{{- {parts[0]} -}} {' '.join(parts[1:])}"
        case 4 | 5:
            marks = [rng.choice([" -> ", " ->> ", " -> !d -> "]) for _ in parts[1:]]
            text = parts[0] + "".join(m + one for m, one in zip(marks, parts[1:], strict=True))
            return text + " -> !c" if timed and top and rng.random() < 0.5 else text
        case 6:
            return (
                f"{rng.choice(['', '', '^ '])}{' '.join(parts)}{rng.choice(['', '', ' $', ' !d'])}"
            )
        case 7:
            return f"{parts[0]} UNTIL {rng.choice('ad')} {' '.join(parts[1:])}"
        case _:
            return " ".join(parts)


def _quantifier(rng: random.Random) -> str:
    return rng.choice(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}"]) + rng.choice(["", "", "?"])


def some_rows(rng: random.Random, most: int) -> list[dict[str, Any]]:
    """Rows of one partition; times are whole numbers."""
    at, rows = 0, []
    for _ in range(rng.randrange(most + 1)):
        at += rng.choice([0, 1, 1, 2, 5])
        x = rng.choice([0, 1, 1, 2, 3, None])
        rows.append({"x": x, "y": rng.choice(["p", "q", None]), "at": at})
    return rows


def a_table(partitions: list[list[dict[str, Any]]]) -> tuple[pa.Table, np.ndarray]:
    """Rows of some partitions, and where each begins."""
    rows = [row for one in partitions for row in one]
    columns = [pa.array([row[f.name] for row in rows], f.type) for f in SCHEMA]
    return pa.table(columns, schema=SCHEMA), np.cumsum([0, *map(len, partitions)])


def as_rows(found: Matches) -> list[dict[str, Any]]:
    """The rows of the output; times are whole numbers."""
    rows = found.rows
    if "at" in rows.column_names:
        at = rows.schema.get_field_index("at")
        rows = rows.set_column(at, "at", rows.column(at).cast(pa.int64()))
    return rows.to_pylist()


class Calls:
    """The rows of partitions, given to a matcher in several calls."""

    def __init__(self, matcher: Matcher, count: int) -> None:
        self.matcher = matcher
        self.kept: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.at = [0] * count
        self.numbers = [0] * count
        self.whole = [True] * count
        self.covered: list[list[bool]] = [[] for _ in range(count)]
        self.dropped = [0] * count
        self.output: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.late: list[tuple[int, int, str]] = []
        self.partial: list[tuple[int, int, str]] = []

    def give(
        self, rows: list[list[dict[str, Any]]], *, complete: bool, frontier: int | None = None
    ) -> Matches:
        """Gives each partition's next rows."""
        for i, some in enumerate(rows):
            self.kept[i] += some
            self.covered[i] += [False] * len(some)
        table, starts = a_table(self.kept)
        covered = np.array([one for some in self.covered for one in some], np.bool_)
        resume = Resume(
            starts[:-1] + self.at, np.array(self.numbers), np.array(self.whole), covered
        )
        found = self.matcher.match(
            table, starts, complete=complete, resume=resume, frontier_us=frontier
        )
        owners = np.searchsorted(starts, found.source, side="right") - 1
        for owner, row in zip(owners, as_rows(found) or [{} for _ in owners], strict=True):
            self.output[owner].append(row)
        self.late += self._begun(found.timed_out, starts)
        self.partial = self._begun(found.partial, starts)
        left = found.next_from
        for i, begin in enumerate(found.open_from.tolist()):
            dropped = begin - int(starts[i])
            self.covered[i] = left.covered[begin : starts[i + 1]].tolist()
            self.kept[i] = self.kept[i][dropped:]
            self.dropped[i] += dropped
            self.at[i] = int(left.at[i]) - begin
            self.numbers[i] = int(left.numbers[i])
            self.whole[i] = bool(left.whole[i])
        return found

    def _begun(self, some: Partial, starts: np.ndarray) -> list[tuple[int, int, str]]:
        """Matches that have begun: the first row in its partition, how many there are, and what the last one
        is.
        """
        firsts = [
            first - int(starts[i]) + self.dropped[i]
            for i, first in zip(some.partition.tolist(), some.first.tolist(), strict=True)
        ]
        return list(zip(firsts, some.count.tolist(), some.variable, strict=True))
