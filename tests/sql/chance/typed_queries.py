"""Random queries over random schemas: expressions of each type, in whatever clauses fit together.

The queries of `queries` nest deeper, over tables that stay the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.sql.chance.schemas import (
    EVERY,
    IN_DUCKDB,
    NESTED,
    NUMBERS,
    OTHERS,
    PLAIN,
    Columns,
    Schema,
    quoted,
)

__all__ = ["typed_query"]

SIGNS: Final = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Source:
    """Something in a FROM: its text, and its columns by `alias.name`."""

    sql: str
    columns: Columns


Made = tuple[str, str]
"""An expression and its type."""


class _Maker:
    """Makes queries; a query's columns are `c0`, `c1` and so on."""

    def __init__(self, schema: Schema, seed: int) -> None:
        self.schema, self.chance = schema, random.Random(seed)
        self.number = 0
        self.shared: dict[str, Columns] = {}  # queries of WITH

    def alias(self) -> str:
        self.number += 1
        return f"a{self.number}"

    def some(self, *made: Callable[[], str]) -> str:
        """One of some, of which only that is made."""
        return self.chance.choice(made)()

    # Queries

    def program(self, depth: int) -> str:
        """A query, perhaps with others before it in a WITH."""
        parts = []
        for i in range(self.chance.choice([0, 0, 0, 1, 2])):
            sql, types = self.query(1)
            name = self.chance.choice([f"w{i}", f'"W {i}"'])
            parts.append(f"{name} AS ({sql})")
            self.shared[name] = {f"c{j}": type_ for j, type_ in enumerate(types)}
        sql, _ = self.query(depth)
        return f"WITH {', '.join(parts)} {sql}" if parts else sql

    def query(self, depth: int, wanted: Sequence[str] | None = None) -> tuple[str, list[str]]:
        """A query and the types of its columns.

        Args:
            depth: of queries in it.
            wanted: the types to have, or ones that become them.
        """
        roll = self.chance.random()
        if depth > 0 and roll < 0.12:
            return self.united(depth - 1, wanted)
        if roll < 0.17 and wanted is None:
            return self.recursive(), ["BIGINT", "BIGINT"]
        source = self.joined(depth)
        where = (
            f" WHERE {self.condition(source.columns, depth)}" if self.chance.random() < 0.5 else ""
        )
        text = f"FROM {source.sql}{where}"
        roll = self.chance.random()
        if roll < 0.35:
            return self.grouped(text, source.columns, depth, wanted)
        made = self.items(source.columns, depth, wanted)
        types = [type_ for _, type_ in made]
        if roll < 0.5:
            made[0] = self.windowed(source.columns, made[0][1])
            types[0] = made[0][1]
        items = ", ".join(f"{sql} AS c{i}" for i, (sql, _) in enumerate(made))
        if roll < 0.6:
            return f"SELECT DISTINCT {items} {text}", types
        if roll < 0.72:
            return (
                f"SELECT {items} {text} ORDER BY {self.order(source.columns)} {self.limit()}",
                types,
            )
        if roll < 0.8:
            over = (
                f"PARTITION BY {self.one_of(source.columns)} ORDER BY {self.order(source.columns)}"
            )
            bound = self.chance.choice(["= 1", "<= 2", "> 1"])
            return f"SELECT {items} {text} QUALIFY row_number() OVER ({over}) {bound}", types
        if roll < 0.85:
            on = ", ".join(self.some_of(source.columns, 2))
            order = f"{on}, {self.order(source.columns)}"
            return f"SELECT DISTINCT ON ({on}) {items} {text} ORDER BY {order}", types
        return f"SELECT {items} {text}", types

    def limit(self) -> str:
        n = self.chance.randint(1, 4)
        return f"LIMIT {n}" + self.chance.choice(["", "", " OFFSET 1"])

    def items(self, known: Columns, depth: int, wanted: Sequence[str] | None) -> list[Made]:
        types = wanted or [
            self.chance.choice([*known.values(), *PLAIN]) for _ in range(self.count())
        ]
        made = [(self.of_type(type_, known), type_) for type_ in types]
        if wanted is None and depth > 0 and self.chance.random() < 0.2:
            made.append((self.scalar("BIGINT", known), "BIGINT"))
        return made

    def count(self) -> int:
        return self.chance.randint(1, 3)

    def united(self, depth: int, wanted: Sequence[str] | None) -> tuple[str, list[str]]:
        word = self.chance.choice(
            ["UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"]
        )
        first, types = self.query(
            depth, wanted or [self.chance.choice(PLAIN) for _ in range(self.count())]
        )
        second, _ = self.query(depth, types)
        one, other = self.alias(), self.alias()
        return f"SELECT * FROM ({first}) AS {one} {word} SELECT * FROM ({second}) AS {other}", types

    def recursive(self) -> str:
        """What can be reached, in whole numbers."""
        table = self.chance.choice(self.schema.tables)
        known = {quoted(name): type_ for name, type_ in table.columns.items()}
        a, b = self.of_type("BIGINT", known), self.of_type("BIGINT", known)
        pairs = f"SELECT CAST({a} AS BIGINT) % 5 AS a, CAST({b} AS BIGINT) % 5 AS b FROM {quoted(table.name)}"
        start = self.chance.choice(["", " WHERE a > 1", " WHERE b = 2"])
        return (
            f"SELECT * FROM (WITH RECURSIVE edge AS ({pairs}), r(a, b) AS (SELECT a, b FROM edge{start} "
            "UNION SELECT r.a, edge.b FROM r JOIN edge ON edge.a = r.b) SELECT a AS c0, b AS c1 FROM r)"
        )

    def grouped(
        self, text: str, known: Columns, depth: int, wanted: Sequence[str] | None
    ) -> tuple[str, list[str]]:
        keys = self.some_of(known, self.chance.choice([0, 1, 1, 2]))
        by_key = {key: known[key] for key in keys}
        types = list(wanted or [self.chance.choice(PLAIN) for _ in range(self.count())])
        made = []
        for type_ in types:
            of_key = [key for key in keys if known[key] == type_]
            key = of_key and self.chance.random() < 0.5
            made.append(self.chance.choice(of_key) if key else self.aggregate(type_, known))
        if wanted is None:
            made += keys
            types += by_key.values()
        sql = f"SELECT {', '.join(f'{one} AS c{i}' for i, one in enumerate(made))} {text}"
        if keys:
            how = self.chance.choice(["{}"] * 5 + ["ROLLUP ({})", "CUBE ({})"])
            sql += f" GROUP BY {how.format(', '.join(keys))}"
        if keys and self.chance.random() < 0.3:
            sql += f" HAVING {self.compared(self.aggregate('BIGINT', known), 'BIGINT')}"
        return sql, types

    # Sources

    def source(self, depth: int) -> Source:
        alias = self.alias()
        if depth > 0 and self.chance.random() < 0.35:
            sql, types = self.query(depth - 1)
            return Source(
                f"({sql}) AS {alias}", {f"{alias}.c{i}": type_ for i, type_ in enumerate(types)}
            )
        if self.shared and self.chance.random() < 0.4:
            name = self.chance.choice(list(self.shared))
            return Source(
                f"{name} AS {alias}",
                {f"{alias}.{one}": type_ for one, type_ in self.shared[name].items()},
            )
        table = self.chance.choice(self.schema.tables)
        other = (
            table.name.upper() if table.name.isascii() else table.name
        )  # DuckDB knows only these cases
        name = quoted(self.chance.choice([table.name, other]))
        return Source(
            f"{name} AS {alias}",
            {f"{alias}.{quoted(one)}": type_ for one, type_ in table.columns.items()},
        )

    def joined(self, depth: int) -> Source:
        first = self.source(depth)
        sql, known = first.sql, dict(first.columns)
        for _ in range(self.chance.choice([0, 0, 1, 1, 2])):
            other = self.source(depth - 1)
            kind = self.chance.choice(
                [
                    "JOIN",
                    "JOIN",
                    "JOIN",
                    "LEFT JOIN",
                    "RIGHT JOIN",
                    "FULL JOIN",
                    "SEMI JOIN",
                    "ANTI JOIN",
                ]
            )
            sql += f" {kind} {other.sql} ON {self.equal(known, other.columns)}"
            if self.chance.random() < 0.3:
                both = known | other.columns
                sql += f" AND {self.condition(both, 0)}"
            if kind not in ("SEMI JOIN", "ANTI JOIN"):
                known |= other.columns
        lists = [name for name, type_ in known.items() if type_.startswith("ARRAY")]
        if lists and self.chance.random() < 0.3:
            name, alias = self.chance.choice(lists), self.alias()
            how, on = self.chance.choice([("CROSS JOIN", ""), ("LEFT JOIN", " ON TRUE")])
            sql += f" {how} UNNEST({name}) AS {alias}(e){on}"
            known[f"{alias}.e"] = known[name][6:-1]
        return Source(sql, known)

    def equal(self, left: Columns, right: Columns) -> str:
        """That some of both sides are equal."""
        pairs = [
            (a, b)
            for a, s in left.items()
            for b, t in right.items()
            if s == t or (s in NUMBERS and t in NUMBERS)
        ]
        if not pairs:
            return f"CAST({self.one_of(left)} AS VARCHAR) = CAST({self.one_of(right)} AS VARCHAR)"
        some = self.chance.sample(pairs, min(len(pairs), self.chance.choice([1, 1, 2])))
        sign = self.chance.choice(["=", "=", "=", "IS NOT DISTINCT FROM"])
        return " AND ".join(f"{a} {sign} {b}" for a, b in some)

    # Expressions

    def one_of(self, known: Columns) -> str:
        return self.chance.choice(list(known))

    def some_of(self, known: Columns, n: int) -> list[str]:
        return self.chance.sample(list(known), min(n, len(known)))

    def order(self, known: Columns) -> str:
        """Of all columns, one first: no order among rows that differ is left open."""
        names = self.chance.sample(list(known), len(known))
        parts = []
        for name in names:
            text = f"CAST({name} AS VARCHAR)" if known[name].startswith("MAP") else name
            parts.append(
                f"{text}{self.chance.choice(['', ' DESC'])}{self.chance.choice(['', ' NULLS FIRST'])}"
            )
        return ", ".join(parts)

    def of_type(self, type_: str, known: Columns, depth: int = 2) -> str:
        """An expression of a type."""
        columns = [name for name, one in known.items() if one == type_]
        if depth <= 0 or (columns and self.chance.random() < 0.4):
            return self.chance.choice(columns) if columns else self.constant(type_)
        of = partial(self.of_type, known=known, depth=depth - 1)
        roll = self.chance.random()
        if roll < 0.1:
            return f"CASE WHEN {self.condition(known, 0)} THEN {of(type_)} ELSE {of(type_)} END"
        if roll < 0.15:
            return f"CASE WHEN {self.condition(known, 0)} THEN {of(type_)} END"
        if roll < 0.22:
            return f"coalesce({of(type_)}, {of(type_)})"
        return self.some(*self.functions(type_, of))

    def functions(self, type_: str, of: Callable[[str], str]) -> list[Callable[[], str]]:
        """What gives a type."""
        n = self.chance.randint(1, 3)
        pick = self.chance.choice
        match type_:
            case "JSON":
                return [
                    lambda: f"({of('JSON')} -> '{pick(['a', '$.b.a', '$[0].a'])}')",
                    lambda: f"json_extract({of('JSON')}, {n})",
                    lambda: (
                        f"to_json({of(pick(['BIGINT', 'STRING', 'BOOLEAN', 'DATE', *NESTED]))})"
                    ),
                    lambda: (
                        f"json_object('a', {of(pick(['BIGINT', 'JSON']))}, 'b', {of('STRING')})"
                    ),
                    lambda: f"json_merge_patch({of('JSON')}, {of('JSON')})",
                    lambda: f"nullif({of('JSON')}, {of('JSON')})",
                ]
            case _ if type_ in OTHERS:
                return [
                    lambda: self.constant(type_),
                    lambda: f"{pick(['greatest', 'least'])}({of(type_)}, {of(type_)})",
                    lambda: f"nullif({of(type_)}, {of(type_)})",
                ]
            case "INT":
                return [
                    lambda: f"CAST({of('BIGINT')} AS INT)",
                    lambda: f"CAST({of('BOOLEAN')} AS INT)",
                    lambda: f"CAST({of('INT')} % {n} AS INT)",
                ]
            case "BIGINT":
                return [
                    lambda: f"abs({of('BIGINT')})",
                    lambda: f"-({of('INT')})",
                    lambda: f"({of('BIGINT')} + {of('INT')})",
                    lambda: f"({of('BIGINT')} {pick(['//', '%'])} {pick(['2', '3', '-2'])})",
                    lambda: f"length({of('STRING')})",
                    lambda: f"{pick(['year', 'month', 'day', 'dayofweek'])}({of('DATE')})",
                    lambda: f"{pick(['hour', 'minute', 'day'])}({of('TIMESTAMP')})",
                    lambda: f"len({of(pick(['ARRAY<BIGINT>', 'ARRAY<STRING>']))})",
                    lambda: f"({of('ARRAY<BIGINT>')})[{n}]",
                    lambda: f"({of('STRUCT<a BIGINT, b STRING>')}).a",
                    lambda: f"({of('MAP<STRING, BIGINT>')})['{pick('abc')}']",
                    lambda: f"cardinality({of('MAP<STRING, BIGINT>')})",
                    lambda: f"greatest({of('BIGINT')}, {of('INT')})",
                    lambda: f"nullif({of('BIGINT')}, {n})",
                    lambda: f"date_diff('day', {of('DATE')}, {of('DATE')})",
                    lambda: f"TRY_CAST({of(pick(['STRING', 'JSON']))} AS BIGINT)",
                    lambda: f"json_array_length({of('JSON')})",
                ]
            case "DOUBLE":
                return [
                    lambda: f"({of('DOUBLE')} * {pick(['0.5', '-2', '0.25::DOUBLE'])})",
                    lambda: f"({of('DOUBLE')} + {of(pick(NUMBERS))})",
                    lambda: f"({of('BIGINT')} / {n})",
                    lambda: f"CAST({of(pick(NUMBERS))} AS DOUBLE)",
                    lambda: (
                        f"{pick(['floor', 'ceil', 'round', 'abs', 'sign'])}({of('DOUBLE')})::DOUBLE"
                    ),
                ]
            case "DECIMAL(9, 2)":
                return [
                    lambda: f"CAST({of(pick(['INT', 'BIGINT']))} % 1000 AS DECIMAL(9, 2))",
                    lambda: f"CAST({of('DECIMAL(9, 2)')} + {n} AS DECIMAL(9, 2))",
                    lambda: f"abs({of('DECIMAL(9, 2)')})",
                    lambda: f"CAST({of('DECIMAL(9, 2)')} * 0.5 AS DECIMAL(9, 2))",
                ]
            case "STRING":
                return [
                    lambda: f"{pick(['upper', 'lower', 'reverse', 'trim'])}({of('STRING')})",
                    lambda: f"({of('STRING')} || {of('STRING')})",
                    lambda: f"substr({of('STRING')}, {n}, 1)",
                    lambda: f"({of('STRING')}).replace('a', 'zz')",
                    lambda: (
                        f"CAST({of(pick(['INT', 'BIGINT', 'DECIMAL(9, 2)', 'BOOLEAN', 'DATE']))} "
                        "AS VARCHAR)"
                    ),
                    lambda: f"CAST({of(pick(['TIMESTAMP', *NESTED, *OTHERS]))} AS VARCHAR)",
                    lambda: f"({of('ARRAY<STRING>')})[{n}]",
                    lambda: f"({of('STRUCT<a BIGINT, b STRING>')}).b",
                    lambda: f"concat_ws('-', {of('STRING')}, {of('INT')}, {of('DATE')})",
                    lambda: f"to_json({of(pick(NESTED))})::VARCHAR",
                    lambda: f"strftime({of('DATE')}, '%d.%m')",
                    lambda: f"nullif({of('STRING')}, '')",
                    lambda: f"({of('JSON')} ->> '{pick(['a', '$[1]', '$.a.b'])}')",
                    lambda: f"json_type({of('JSON')})",
                ]
            case "BOOLEAN":
                return [
                    lambda: f"(NOT ({of('BOOLEAN')}))",
                    lambda: f"({of('BOOLEAN')} {pick(['AND', 'OR'])} {of('BOOLEAN')})",
                    lambda: f"({of(type_ := pick(PLAIN))} {pick(SIGNS)} {of(type_)})",
                    lambda: f"({of(pick(EVERY))} IS {pick(['', 'NOT '])}NULL)",
                    lambda: f"({of(type_ := pick(EVERY))} IS DISTINCT FROM {of(type_)})",
                    lambda: (
                        f"({of('STRING')} {pick(['LIKE', 'ILIKE', 'NOT LIKE'])} '{pick(['a%', '_', '%b%'])}')"
                    ),
                    lambda: f"({of('STRING')}).starts_with({of('STRING')})",
                    lambda: f"({of('BIGINT')} IN [{of('INT')}, NULL])",
                    lambda: f"list_contains({of('ARRAY<BIGINT>')}, {of('BIGINT')})",
                    lambda: f"({of('DATE')} < {of('TIMESTAMP')})",
                ]
            case "DATE":
                return [
                    lambda: f"({of('DATE')} + {n})",
                    lambda: f"CAST({of('TIMESTAMP')} AS DATE)",
                    lambda: f"CAST(date_trunc('month', {of('DATE')}) AS DATE)",
                    lambda: f"last_day({of('DATE')})",
                    lambda: f"{pick(['greatest', 'least'])}({of('DATE')}, {of('DATE')})",
                ]
            case "TIMESTAMP":
                return [
                    lambda: f"({of('TIMESTAMP')} + INTERVAL {n} {pick(['MONTH', 'HOUR', 'DAY'])})",
                    lambda: f"date_trunc('{pick(['hour', 'day', 'month'])}', {of('TIMESTAMP')})",
                    lambda: f"({of('TIMESTAMP')} - to_days({n}))",
                    lambda: f"CAST({of('DATE')} AS TIMESTAMPTZ)",
                ]
            case "ARRAY<BIGINT>":
                return [
                    lambda: f"[{of('BIGINT')}, {of('INT')}]",
                    lambda: f"list_sort({of('ARRAY<BIGINT>')})",
                    lambda: f"({of('ARRAY<BIGINT>')} || [{of('BIGINT')}])",
                    lambda: f"[e + {n} FOR e IN {of('ARRAY<BIGINT>')} IF e > 1]",
                    lambda: f"list_distinct({of('ARRAY<BIGINT>')}).list_sort()",
                    lambda: f"map_values({of('MAP<STRING, BIGINT>')})",
                ]
            case "ARRAY<STRING>":
                return [
                    lambda: f"[{of('STRING')}]",
                    lambda: f"string_split({of('STRING')}, 'b')",
                    lambda: f"list_transform({of('ARRAY<STRING>')}, lambda e: e || 'x')",
                    lambda: f"({of('ARRAY<STRING>')})[1:{n}]",
                    lambda: f"map_keys({of('MAP<STRING, BIGINT>')})",
                    lambda: f"json_keys({of('JSON')})",
                    lambda: f"json_extract_string({of('JSON')}, ['$[0]', '$.a'])",
                ]
            case "STRUCT<a BIGINT, b STRING>":
                return [lambda: f"{{'a': {of('BIGINT')}, 'b': {of('STRING')}}}"]
            case _:
                return [lambda: f"MAP {{'a': {of('BIGINT')}, 'c': {of('BIGINT')}}}"]

    def constant(self, type_: str) -> str:
        """A constant of a type."""
        return f"CAST({self.constant_text(type_)} AS {IN_DUCKDB.get(type_, type_)})"

    def constant_text(self, type_: str) -> str:
        pick = self.chance.choice
        match type_:
            case "INT" | "BIGINT":
                return pick(["1", "2", "0", "NULL"])
            case "DOUBLE" | "DECIMAL(9, 2)":
                return pick(["1.5", "0.25", "2"])
            case "STRING":
                return pick(["'a'", "'B'", "''", "NULL", "'用户'"])
            case "BOOLEAN":
                return pick(["TRUE", "FALSE", "NULL"])
            case "DATE":
                return pick(["'2026-02-28'", "'2026-03-01'"])
            case "TIMESTAMP":
                return pick(["'2026-02-28 23:15:00Z'", "'2026-03-01 00:00:00Z'"])
            case "STRUCT<a BIGINT, b STRING>":
                return "{'a': 1, 'b': 'a'}"
            case "MAP<STRING, BIGINT>":
                return "MAP {'a': 1}"
            case "FLOAT":
                return pick(["0.5", "'NaN'"])
            case "DECIMAL(30, 4)":
                return pick(["1", "12345678901234567890.1234"])
            case "TIME":
                return pick(["'12:30:00'", "'23:59:59.999999'"])
            case "INTERVAL":
                return pick(["'1 hour'", "'-1 hour'", "'1 day'"])
            case "UUID":
                return "'264145f2-5a3d-4015-9f9c-a04938edc141'"
            case "BINARY":
                return pick(["'ab'", "''"])
            case "JSON":
                return pick(["'1'", "'[1,{\"a\":2}]'", '\'{"a":{"b":"a"}}\'', "'null'"])
            case "ARRAY<BIGINT>":
                return pick(["[1, 2]", "[]", "[NULL, 3]"])
            case _:
                return pick(["['a', NULL]", "[]"])

    def compared(self, made: str, type_: str) -> str:
        return f"{made} {self.chance.choice(SIGNS)} {self.constant(type_)}"

    def condition(self, known: Columns, depth: int) -> str:
        roll = self.chance.random()
        if depth > 0 and roll < 0.35:
            return self.subquery(known)
        name = self.one_of(known)
        type_ = known[name]
        if roll < 0.75 and not type_.startswith("MAP"):
            return self.compared(name, type_)
        if roll < 0.85 and type_ not in NESTED:
            values = ", ".join(self.constant(type_) for _ in range(self.count()))
            return f"{name} {self.chance.choice(['', 'NOT '])}IN ({values})"
        return self.of_type("BOOLEAN", known, 1)

    def scalar(self, type_: str, outer: Columns) -> str:
        """A subquery of one value."""
        one = self.source(0)
        where = f" WHERE {self.equal(one.columns, outer)}" if self.chance.random() < 0.8 else ""
        return f"(SELECT {self.aggregate(type_, one.columns)} FROM {one.sql}{where})"

    def subquery(self, known: Columns) -> str:
        """A condition with a subquery in it."""
        roll, negated = self.chance.random(), self.chance.choice(["", "NOT "])
        if roll < 0.3:
            type_ = self.chance.choice(PLAIN)
            made = self.of_type(type_, known, 1)
            return f"{made} {self.chance.choice(SIGNS)} {self.scalar(type_, known)}"
        one = self.source(0)
        where = f" WHERE {self.equal(one.columns, known)}"
        if roll < 0.7:
            more = f" AND {self.condition(one.columns | known, 0)}" if roll < 0.5 else ""
            return f"{negated}EXISTS (SELECT 1 FROM {one.sql}{where}{more})"
        name = self.one_of(known)
        type_ = known[name] if known[name] in PLAIN else "STRING"
        made = self.of_type(type_, known, 1)
        inner = self.of_type(type_, one.columns, 1)
        return f"{made} {negated}IN (SELECT {inner} FROM {one.sql}{where if roll < 0.85 else ''})"

    def aggregate(self, type_: str, known: Columns) -> str:
        """An aggregate of a type."""
        of = partial(self.of_type, known=known, depth=1)
        order = self.order(known)
        pick = self.chance.choice
        where = f" FILTER (WHERE {self.condition(known, 0)})" if self.chance.random() < 0.2 else ""
        best = [
            lambda: f"{pick(['min', 'max'])}({of(type_)})",
            lambda: f"{pick(['first', 'last'])}({of(type_)} ORDER BY {order})",
            lambda: f"list({of(type_)} ORDER BY {order}){where}[1]",
        ]
        match type_:
            case "BIGINT":
                best += [
                    lambda: f"count(*){where}",
                    lambda: f"count({of(pick(EVERY))}){where}",
                    lambda: f"count(DISTINCT {of(pick(EVERY))}){where}",
                    lambda: f"CAST(sum({pick(['', 'DISTINCT '])}{of('BIGINT')}){where} AS BIGINT)",
                    lambda: f"{pick(['bit_and', 'bit_or', 'bit_xor'])}({of('BIGINT')})",
                ]
            case "DOUBLE":
                best += [
                    lambda: f"sum({of('DOUBLE')}){where}",
                    lambda: f"avg({of(pick(NUMBERS))}){where}",
                    lambda: f"{pick(['median', 'stddev', 'var_pop'])}({of('BIGINT')})",
                ]
            case "DECIMAL(9, 2)":
                best.append(lambda: f"CAST(sum({of('DECIMAL(9, 2)')}){where} AS DECIMAL(9, 2))")
            case "STRING":
                best.append(lambda: f"string_agg({of('STRING')}, ',' ORDER BY {order}){where}")
            case "BOOLEAN":
                best.append(lambda: f"{pick(['bool_and', 'bool_or'])}({of('BOOLEAN')}){where}")
            case _ if type_.startswith("MAP"):
                best = best[1:]  # a MAP has no order
        return self.some(*best)

    def windowed(self, known: Columns, type_: str) -> Made:
        """A window function, of a type if there is one."""
        per = f"PARTITION BY {self.one_of(known)} " if self.chance.random() < 0.8 else ""
        over = f"OVER ({per}ORDER BY {self.order(known)}"
        pick = self.chance.choice
        frame = pick(["", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING"])
        if type_ == "BIGINT":
            function = pick(["row_number()", "rank()", "count(*)", "lag(1)"])
            return f"{function} {over})", type_
        function = pick(["lag({})", "lead({})", "first_value({})", "last_value({})"])
        moves = function.startswith(("lag", "lead"))
        of = self.of_type(type_, known, 1)
        return f"{function.format(of)} {over}{'' if moves else frame})", type_


def typed_query(schema: Schema, seed: int, depth: int = 2) -> str:
    """A query over a schema, the same for a seed."""
    return _Maker(schema, seed).program(depth)
