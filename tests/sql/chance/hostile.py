"""Random queries whose expressions fail for many rows, and what they should give.

A query is a form with expressions in it. What a form gives is computed row by row: each expression is asked
of DuckDB for one row alone, and what fails there counts as the form says: the row is left out, the value is
NULL, or the condition isn't true. What is left can't fail, and DuckDB aggregates it.

`python -m tests.sql.chance.hostile 10000` runs as many queries, `TOGETHER` to a program.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import duckdb
import pyarrow as pa

import penstock as ps
from penstock.errors import SchemaError

__all__ = ["TOGETHER", "failures"]

TOGETHER: Final = 10
BATCHES: Final = 3
TEXTS: Final = ("1", "5", "-3", "", "abc", "2020-02-30", "2020-02-28", "{", "[1]", "(", "UTC", "99999999999",
                "true", "1e400", "ß", None)  # fmt: skip
NUMBERS: Final = (0, 1, 2, -1, 5, 10, 2**31, 2**62, -(2**63), 2**63 - 1, None)
FAILS: Final = object()
AS_WRITTEN: Final = "common_subexpressions,in_clause"
"""Left out of the plan: an expression is what is written, and its parts fail where they are."""
PLANNED_LESS: Final = "expression_rewriter,statistics_propagation"
Row = tuple[Any, ...]
ARROW: Final = {"BIGINT": pa.int64(), "VARCHAR": pa.string()}
T: Final = {"id": "BIGINT", "k": "BIGINT", "v": "BIGINT", "s": "VARCHAR"}
U: Final = {"uid": "BIGINT", "j": "BIGINT", "w": "BIGINT", "y": "VARCHAR"}


class Maker:
    """Makes expressions over some columns: numbers, texts and conditions."""

    def __init__(self, chance: random.Random, numbers: Sequence[str], texts: Sequence[str]) -> None:
        self.chance, self.numbers, self.texts = chance, numbers, texts

    def number(self, depth: int = 2) -> str:
        """An expression of a BIGINT, or what becomes one."""
        if depth == 0:
            return self.chance.choice(self.numbers)
        n, s, c = (partial(one, depth - 1) for one in (self.number, self.text, self.condition))
        forms: list[Callable[[], str]] = [
            lambda: f"CAST({s()} AS INT)",
            lambda: f"{s()}::BIGINT",
            lambda: f"(10 // {n()})",
            lambda: f"({n()} % nullif({n()}, 3))",
            lambda: f"({n()} * 4611686018427387904)",
            lambda: f"({n()} + {n()})",
            lambda: f"(- {n()})",
            lambda: f"CAST({n()} AS TINYINT)",
            lambda: f"CASE WHEN {c()} THEN {n()} ELSE {n()} END",
            lambda: f"nullif({n()}, {n()})",
            lambda: f"coalesce({n()}, {n()})",
            lambda: f"length({s()})",
            lambda: f"year(CAST({s()} AS DATE))",
            lambda: f"list_transform([{s()}], lambda x: CAST(x AS INT))[1]",
            lambda: (
                f"list_reduce(CASE WHEN {c()} THEN []::BIGINT[] ELSE [{n()}] END, lambda a, b: a + b)"
            ),
            lambda: f"CAST(sqrt({n()}) AS BIGINT)",
            lambda: f"CAST(json_extract({s()}, '$[0]') AS BIGINT)",
            lambda: f"hour(TIMESTAMPTZ '2020-01-01 00:00:00+00' AT TIME ZONE {s()})",
            lambda: f"abs({n()})",
            lambda: f"greatest({n()}, {n()})",
        ]
        return self.chance.choice(forms)()

    def text(self, depth: int = 2) -> str:
        """An expression of a text."""
        if depth == 0:
            return self.chance.choice(self.texts)
        n, s, c = (partial(one, depth - 1) for one in (self.number, self.text, self.condition))
        forms: list[Callable[[], str]] = [
            lambda: f"CAST({n()} AS VARCHAR)",
            lambda: f"({s()} || {s()})",
            lambda: f"CASE WHEN {c()} THEN error('no ' || {s()}) ELSE {s()} END",
            lambda: f"regexp_replace({s()}, {s()}, '')",
            lambda: f"CAST(strptime({s()}, '%Y-%m-%d') AS VARCHAR)",
            lambda: f"substr({s()}, CAST({n()} AS INT) % 3, 2)",
            lambda: f"upper({s()})",
            lambda: f"coalesce({s()}, CAST({n()} AS VARCHAR))",
            lambda: f"json_extract_string({s()}, '$.a')",
            lambda: f"chr(CAST({n()} AS INT) % 300)",
            lambda: f"CAST(CAST({s()} AS DECIMAL(4, 2)) AS VARCHAR)",
            lambda: f"map {{{s()}: {s()}}}[{s()}]",
        ]
        return self.chance.choice(forms)()

    def condition(self, depth: int = 2) -> str:
        """An expression of a BOOLEAN."""
        n, s = partial(self.number, max(depth - 1, 0)), partial(self.text, max(depth - 1, 0))
        forms: list[Callable[[], str]] = [
            lambda: f"{n()} > {n()}",
            lambda: f"{n()} BETWEEN {n()} AND {n()}",
            lambda: f"{n()} IN (1, 5)",
            lambda: f"{s()} IN (1, 5)",
            lambda: f"list_contains([1, 5], {n()})",
            lambda: f"{s()} < {s()}",
            lambda: f"CAST({s()} AS BOOLEAN)",
            lambda: f"regexp_matches({s()}, {s()})",
            lambda: f"{n()} IS NULL",
            lambda: f"{n()} IS DISTINCT FROM {n()}",
        ]
        if depth > 0:
            c = partial(self.condition, depth - 1)
            forms += [
                lambda: f"({c()} AND {c()})",
                lambda: f"({c()} OR {c()})",
                lambda: f"NOT ({c()})",
            ]
        return self.chance.choice(forms)()


class AmbiguousError(Exception):
    """DuckDB may give either of two answers."""


@dataclass
class Oracle:
    """What expressions give of single rows."""

    con: duckdb.DuckDBPyConnection = field(default_factory=lambda: duckdb.connect(":memory:"))
    known: dict[tuple[str, Row], Any] = field(default_factory=dict)
    asked: list[tuple[str, Row, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.con.execute("SET threads = 1; SET TimeZone = 'UTC'; LOAD json; LOAD icu")
        self.con.execute(f"SET disabled_optimizers = '{AS_WRITTEN}'")

    def value(self, expression: str, row: Row, columns: dict[str, str]) -> Any:
        """The value, or `FAILS`."""
        key = expression, row
        self.asked.append((expression, row, columns))
        if key not in self.known:
            self._register(row, columns)
            self.known[key] = self._found(expression)
        return self.known[key]

    def _found(self, expression: str) -> Any:
        try:
            return self.con.execute(f"SELECT {expression} FROM r").fetchall()[0][0]
        except duckdb.Error:
            return FAILS

    def is_ambiguous(self) -> bool:
        """Whether DuckDB gives anything that was asked for otherwise, where it plans less or sees more rows.

        It moves constants together, which may then overflow, and takes what is NULL in all rows for a
        constant, next to which it computes nothing.
        """
        for optimizers in (AS_WRITTEN, f"{AS_WRITTEN},{PLANNED_LESS}"):
            self.con.execute(f"SET disabled_optimizers = '{optimizers}'")
            for expression, row, columns in self.asked:
                found = {repr(self.known[expression, row])}
                for others in ((), *((one,) for one in self._harmless(expression, columns))):
                    self._register(row, columns, *others)
                    found.add(repr(self._found(expression)))
                if len(found) > 1:
                    self.con.execute(f"SET disabled_optimizers = '{AS_WRITTEN}'")
                    return True
        self.con.execute(f"SET disabled_optimizers = '{AS_WRITTEN}'")
        return False

    def _harmless(self, expression: str, columns: dict[str, str]) -> Iterator[Row]:
        """Rows without NULL for which an expression doesn't fail."""
        for text in ("1", "UTC", "2020-02-28", "[1]"):
            row = tuple(1 if type_ == "BIGINT" else text for type_ in columns.values())
            self._register(row, columns)
            if self._found(expression) is not FAILS:
                yield row

    def _register(self, row: Row, columns: dict[str, str], *others: Row) -> None:
        """Makes rows the table `r`, of Arrow's: what is constant would be folded, and might not fail."""
        values = zip(*(row, *others), strict=True)
        arrays = [pa.array(v, ARROW[t]) for v, t in zip(values, columns.values(), strict=True)]
        self.con.register("r", pa.table(arrays, list(columns)))

    def holds(self, condition: str, row: Row, columns: dict[str, str]) -> bool:
        """Whether a join's condition is true; raises `AmbiguousError` where it may be or fail.

        A filter needn't compute all parts of AND and OR, so it may not meet the one that fails.
        """
        if (found := self.value(condition, row, columns)) is not FAILS:
            return found is True
        self._register(row, columns)
        with contextlib.suppress(duckdb.Error):
            self.con.execute(f"SELECT count(*) FROM r WHERE {condition}").fetchall()
            raise AmbiguousError
        return False

    def table(
        self, query: str, parts: Sequence[str], rows: Sequence[Row], columns: dict[str, str]
    ) -> Counter[Any]:
        """What a query gives of rows of `t`: its parts, `{0}` and so on, are computed of each row before."""
        types = dict(columns)
        for i, part in enumerate(parts):
            declared = ", ".join(f"CAST(NULL AS {t}) AS {n}" for n, t in columns.items())
            described = self.con.execute(f"DESCRIBE SELECT {part} AS x FROM (SELECT {declared})")
            types[f"p{i}"] = described.fetchall()[0][1]
        declared = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        self.con.execute(f"CREATE OR REPLACE TABLE t ({declared})")
        for row in rows:
            marks = ", ".join("?" for _ in types)
            made = [self.value(part, row, columns) for part in parts]
            self.con.execute(f"INSERT INTO t VALUES ({marks})", [*row, *made])
        named = [f"p{i}" for i in range(len(parts))]
        return counted(self.con.execute(query.format(*named)).fetchall())


def counted(rows: Sequence[Row]) -> Counter[Any]:
    """Rows, each as often as it is there."""
    return Counter(repr(tuple(row)) for row in rows)


Expected = Callable[[Oracle, list[Row], list[Row]], Counter[Any]]


@dataclass(frozen=True)
class Query:
    """A query, and what it gives of the rows of `t` and `u`."""

    sql: str
    expected: Expected


def random_query(chance: random.Random) -> Query:
    """A form with expressions in it."""
    return chance.choice([projected, filtered, grouped, grouped, listed, windowed, distinct, first, joined,
                          outer, pairs])(chance)  # fmt: skip


def of_t(chance: random.Random) -> Maker:
    return Maker(chance, ["v", "k", "id", "v"], ["s"])


def of_both(chance: random.Random) -> Maker:
    return Maker(chance, ["v", "w", "id", "uid"], ["s", "y"])


def projected(chance: random.Random) -> Query:
    """The last step of a view: what fails is NULL."""
    make = of_t(chance)
    parts = [
        chance.choice([make.number, make.text, make.condition])()
        for _ in range(chance.randint(1, 3))
    ]
    if chance.random() < 0.5:  # a part that comes twice
        parts.append(f"[{parts[0]}, {parts[0]}]")
    items = ", ".join(f"{one} AS c{i}" for i, one in enumerate(parts))

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        def shown(row: Row, one: str) -> Any:
            found = oracle.value(one, row, T)
            return None if found is FAILS else found

        return counted([(row[0], *(shown(row, one) for one in parts)) for row in t])

    return Query(f"SELECT id, {items} FROM t", expected)


def filtered(chance: random.Random) -> Query:
    """A condition that fails isn't true."""
    condition = of_t(chance).condition()

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        return counted([(row[0],) for row in t if oracle.value(condition, row, T) is True])

    return Query(f"SELECT id FROM t WHERE {condition}", expected)


def _of_working(query: str, parts: Sequence[str], condition: str | None = None) -> Query:
    """A query of the rows for which none of its parts, `{0}` and so on, fails."""
    where = "" if condition is None else f" WHERE {condition}"

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        rows = [row for row in t if condition is None or oracle.value(condition, row, T) is True]
        rows = [row for row in rows if all(oracle.value(one, row, T) is not FAILS for one in parts)]
        return oracle.table(query, parts, rows, T)

    return Query(query.format(*parts).replace(" FROM t", f" FROM t{where}"), expected)


def _condition(chance: random.Random, make: Maker) -> str | None:
    return None if chance.random() < 0.6 else make.condition()


def grouped(chance: random.Random) -> Query:
    """Aggregates that are kept up change by change."""
    make = of_t(chance)
    key = chance.choice(["k", make.text(1), make.number(1)])
    values = "count(*) AS n, count({1}) AS c, max({2}) AS a, min({1}) AS b"
    query = f"SELECT {{0}} AS g, {values} FROM t GROUP BY {{0}}"
    return _of_working(query, [key, make.text(), make.number()], _condition(chance, make))


def listed(chance: random.Random) -> Query:
    """Aggregates that are computed again."""
    make = of_t(chance)
    query = (
        "SELECT k, string_agg({0}, ',' ORDER BY id) AS a, list({1} ORDER BY id) AS b, count(*) AS n, "
        "median(CAST({1} AS DOUBLE)) AS m FROM t GROUP BY k"
    )
    return _of_working(query, [make.text(), make.number()], _condition(chance, make))


def windowed(chance: random.Random) -> Query:
    """Window functions, by change and by partition."""
    make = of_t(chance)
    over = chance.choice(["PARTITION BY k ORDER BY {0}, id", "PARTITION BY k ORDER BY id"])
    what = chance.choice(["row_number()", "max({1})", "lag({1})", "ntile(2)", "first_value({1})"])
    query = f"SELECT id, {what} OVER ({over}) AS w, max({{0}}) OVER (PARTITION BY k) AS x FROM t"
    parts = [make.number(), make.text()]
    return _of_working(query, parts if "{1}" in what else parts[:1], _condition(chance, make))


def distinct(chance: random.Random) -> Query:
    """Different values."""
    return _of_working("SELECT DISTINCT k, {0} AS d FROM t", [of_t(chance).text()])


def first(chance: random.Random) -> Query:
    """The first rows by what may fail."""
    make = of_t(chance)
    query = "SELECT id, {1} AS d FROM t ORDER BY {0}, id LIMIT 3"
    return _of_working(query, [make.number(), make.text()])


def _pairs(t: list[Row], u: list[Row]) -> list[Row]:
    return [(*one, *two) for one in t for two in u if one[1] is not None and one[1] == two[1]]


def joined(chance: random.Random) -> Query:
    """Pairs of rows, grouped: those for which something fails are left out."""
    make = of_both(chance)
    condition, n = make.condition(), make.number()
    sql = f"SELECT k, count(*) AS n, max({n}) AS m FROM t JOIN u ON t.k = u.j WHERE {condition} GROUP BY k"

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        rows = [row for row in _pairs(t, u) if oracle.value(condition, row, T | U) is True]
        rows = [row for row in rows if oracle.value(n, row, T | U) is not FAILS]
        query = "SELECT k, count(*) AS n, max({0}) AS m FROM t GROUP BY k"
        return oracle.table(query, [n], rows, T | U)

    return Query(sql, expected)


def pairs(chance: random.Random) -> Query:
    """Pairs of rows as a view's last step."""
    make = of_both(chance)
    n = make.number()

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        found = [(row[0], row[4], oracle.value(n, row, T | U)) for row in _pairs(t, u)]
        return counted([(a, b, None if c is FAILS else c) for a, b, c in found])

    return Query(f"SELECT id, uid, {n} AS c FROM t JOIN u ON t.k = u.j", expected)


def outer(chance: random.Random) -> Query:
    """A further condition that fails isn't true: the row has no partner there."""
    condition = of_both(chance).condition()

    def expected(oracle: Oracle, t: list[Row], u: list[Row]) -> Counter[Any]:
        found: list[Row] = []
        for one in t:
            some = [r for r in _pairs([one], u) if oracle.holds(condition, r, T | U)]
            found += [(one[0], row[4]) for row in some] or [(one[0], None)]
        return counted(found)

    return Query(f"SELECT id, uid FROM t LEFT JOIN u ON t.k = u.j AND ({condition})", expected)


def failures(seed: int, count: int = TOGETHER) -> list[str]:
    """Runs a program of random queries over random changes.

    Returns:
        What differs, or stops it.
    """
    chance = random.Random(seed)
    oracle = Oracle()
    app = ps.App("hostile")
    app.table("t", "id BIGINT, k BIGINT, v BIGINT, s STRING", key="id")
    app.table("u", "uid BIGINT, j BIGINT, w BIGINT, y STRING", key="uid")
    queries: dict[str, Query] = {}
    found: list[str] = []
    while len(queries) < count:
        query = random_query(chance)
        try:
            made = app.view(f"q{len(queries)}", sql=query.sql)
        except SchemaError as error:
            if "DuckDB understands" not in str(error):  # types that don't fit: chr(BIGINT), say
                found.append(f"seed {seed}: {query.sql}: {error}")
            continue
        if chance.random() < 0.3:
            made.to(f"out{len(queries)}", emit="changes")
        queries[f"q{len(queries)}"] = query
    run = ps.testing.run(app, seed=seed, shaken=seed % 4 == 0, cores=1 + seed % 2)
    rows: dict[str, dict[int, Row]] = {"t": {}, "u": {}}
    names = {"t": ("id", "k", "v", "s"), "u": ("uid", "j", "w", "y")}
    for batch in range(BATCHES):
        for _ in range(chance.randint(3, 12)):
            table, id_ = chance.choice("tttu"), chance.randint(1, 9)
            if chance.random() < 0.15:
                rows[table].pop(id_, None)
                run.send_raw(table, None, key=str(id_).encode())
                continue
            row = (id_, chance.choice([1, 2, None]), chance.choice(NUMBERS), chance.choice(TEXTS))
            rows[table][id_] = row
            run.send(table, **dict(zip(names[table], row, strict=True)))
        try:
            run.settle()
        except Exception as error:
            return [*found, f"seed {seed}, batch {batch}: stopped: {type(error).__name__}: {error}"]
        for name, query in queries.items():
            try:
                here = counted([tuple(row.values()) for row in run.view(name).rows()])
            except Exception as error:
                found.append(f"seed {seed}: {query.sql}: {type(error).__name__}: {error}")
                continue
            oracle.asked.clear()
            try:
                expected = query.expected(
                    oracle, list(rows["t"].values()), list(rows["u"].values())
                )
            except AmbiguousError:
                continue
            if here != expected and not oracle.is_ambiguous():
                found.append(
                    f"seed {seed}, batch {batch}: {query.sql}: missing {list(expected - here)[:4]}, "
                    f"unexpected {list(here - expected)[:4]}"
                )
        if found:
            return found
    return found


def _quiet_failures(seed: int) -> list[str]:
    logging.disable(logging.CRITICAL)
    return failures(seed)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="of queries")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    started, failed = time.monotonic(), 0
    seeds = range(asked.first, asked.first + -(-asked.count // TOGETHER))
    for at in range(0, len(seeds), 200):  # new processes, so that what one keeps stays small
        with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
            for found in pool.map(_quiet_failures, seeds[at : at + 200]):
                failed += bool(found)
                for one in found:
                    print(one, flush=True)
        done = min(at + 200, len(seeds))
        rate = done * TOGETHER / (time.monotonic() - started)
        print(f"{done * TOGETHER} queries, {rate:.1f}/s, {failed} programs failed", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
