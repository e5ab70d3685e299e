"""Random queries over the tables of `beside_duckdb`: whatever clauses fit together, nested."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.sql.chance.forms import rich_forms

__all__ = ["random_program", "random_query", "random_timed"]

TABLES = {
    "s": {"k": "int", "v": "int", "x": "text"},
    "t": {"id": "int", "k": "int", "v": "int", "x": "text"},
    "u": {"id": "int", "k": "int", "w": "int", "y": "text"},
}


@dataclass(frozen=True)
class Source:
    """Something in a FROM."""

    sql: str
    alias: str
    columns: dict[str, str]


KINDS = ("JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN",
         "ANTI JOIN")  # fmt: skip
EVENTS = {"k": "int", "v": "int", "x": "text"}


class _Maker:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.number = 0
        self.tables = dict(TABLES)
        self.timed = False  # whether there are sources with an event time, and constants

    def alias(self) -> str:
        self.number += 1
        return f"a{self.number}"

    def source(self, depth: int) -> Source:
        if depth > 0 and self.chance.random() < 0.4:
            sql, columns = self.query(depth - 1)
            alias = self.alias()
            return Source(f"({sql}) AS {alias}", alias, columns)
        if self.timed and self.chance.random() < 0.5:
            return self.special()
        name = self.chance.choice(list(self.tables))
        alias = self.alias()
        return Source(f"{name} AS {alias}", alias, self.tables[name])

    def special(self) -> Source:
        """A temporal filter, windows, an interval join, a window function, or constants."""
        alias, roll = self.alias(), self.chance.random()
        minutes = self.chance.randint(1, 25)
        if self.chance.random() < 0.35:
            return Source(f"({self.windowed()}) AS {alias}", alias, EVENTS)
        if roll < 0.35:
            bound = self.chance.choice(
                [
                    f"ts > now() - INTERVAL {minutes} MINUTES",
                    f"ts >= now() - INTERVAL {minutes} MINUTES AND v <> 2",
                    f"ts BETWEEN now() - INTERVAL {minutes} MINUTES AND now()",
                    f"now() - ts > INTERVAL {minutes} MINUTES",
                    "ts <= now()",
                ]
            )
            return Source(f"(SELECT k, v, x FROM e WHERE {bound}) AS {alias}", alias, EVENTS)
        if roll < 0.6:
            kind = self.chance.choice(["JOIN", "JOIN", "SEMI JOIN"])
            x = "l.x" if kind == "SEMI JOIN" else "r.x"
            joined = (
                f"SELECT l.k, l.v, {x} FROM e AS l {kind} e AS r ON l.k = r.k AND "
                f"r.ts BETWEEN l.ts - INTERVAL {minutes} MINUTES AND l.ts + INTERVAL 3 MINUTES"
            )
            return Source(f"({joined}) AS {alias}", alias, EVENTS)
        if roll < 0.8:
            function = self.chance.choice(
                ["row_number()", "lag(v)", "sum(v)", "count(*)", "last_value(v)", "ntile(2)"]
            )
            frame = (
                ""
                if "(v)" not in function and function != "count(*)"
                else self.chance.choice(
                    ["", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING"]
                )
            )
            over = f"PARTITION BY k ORDER BY v, x, id{'' if function.startswith('lag') else frame}"
            sql = f"SELECT k, x, CAST({function} OVER ({over}) AS BIGINT) AS v FROM t"
            return Source(f"({sql}) AS {alias}", alias, EVENTS)
        rows = ", ".join(
            f"({self.chance.choice(['NULL', '1', '2'])}, {self.chance.randint(-2, 4)}, '{letter}')"
            for letter in self.chance.sample("abc", self.chance.randint(1, 3))
        )
        # The first row fixes the types.
        return Source(f"(VALUES (3, 0, 'a'), {rows}) AS {alias}(k, v, x)", alias, EVENTS)

    def windowed(self) -> str:
        """Aggregates of windows of event time, of groups of `k`."""
        minutes = self.chance.randint(1, 25)
        interval = f"INTERVAL {minutes} MINUTES"
        of = self.chance.choice(
            [
                f"TUMBLE(e, ts, {interval})",
                f"HOP(e, ts, {interval}, INTERVAL {minutes * self.chance.randint(1, 3)} MINUTES)",
                f"SESSION(e, ts, {interval})",
                f"SLIDE(e, ts, {interval})",
            ]
        )
        value = self.chance.choice(
            ["count(*)", "sum(v)", "max(v)", "count(DISTINCT v)", "minute(window_start)",
             "epoch_us(window_end) // 1000000 % 7919"]
        )  # fmt: skip
        having = self.chance.choice(["", "", " HAVING count(*) > 1", " HAVING min(v) < 3"])
        filtered = self.chance.choice(["", "", " WHERE v > 0", " WHERE x <> 'b' OR k = 1"])
        return (
            f"SELECT k, CAST({value} AS BIGINT) AS v, min(x) AS x FROM {of}{filtered} "
            f"GROUP BY window_start, window_end, k{having}"
        )

    def query(self, depth: int) -> tuple[str, dict[str, str]]:
        """A query and its columns."""
        if depth > 0 and self.chance.random() < 0.2:
            return self.united(depth - 1)
        if self.chance.random() < 0.15:
            return self.whole()
        first = self.source(depth)
        known = {f"{first.alias}.{c}": t for c, t in first.columns.items()}
        text = f"FROM {first.sql}"
        for _ in range(self.chance.choice([0, 0, 1, 1, 2])):
            other = self.source(depth - 1)
            both = {f"{other.alias}.{c}": t for c, t in other.columns.items()}
            kind = self.chance.choice(KINDS)
            text += f" {kind} {other.sql} ON {self.equal(known, both)}"
            if self.chance.random() < 0.3:
                text += f" AND {self.joining(known, both, kind, depth)}"
            if kind not in ("SEMI JOIN", "ANTI JOIN"):
                known |= both
        if depth > 0 and self.chance.random() < 0.1:
            sql, added = self.beside(known)
            text, known = text + sql, known | added
        if self.chance.random() < 0.6:
            text += f" WHERE {self.condition(known, depth)}"
        if self.chance.random() < 0.4:
            return self.grouped(text, known, depth)
        return self.plain(text, known, depth)

    def plain(self, text: str, known: dict[str, str], depth: int) -> tuple[str, dict[str, str]]:
        items, columns = [], {}
        for i in range(self.chance.randint(1, 3)):
            sql, type_ = self.value(known, depth)
            items.append(f"{sql} AS c{i}")
            columns[f"c{i}"] = type_
        if self.chance.random() < 0.2:
            over = self.chance.choice(list(known))
            per = self.chance.choice(list(known))
            items.append(f"rank() OVER (PARTITION BY {per} ORDER BY {over}) AS r")
            columns["r"] = "int"
        distinct = "DISTINCT " if self.chance.random() < 0.25 else ""
        return f"SELECT {distinct}{', '.join(items)} {text}", columns

    def grouped(self, text: str, known: dict[str, str], depth: int) -> tuple[str, dict[str, str]]:
        keys = self.chance.sample(list(known), self.chance.randint(0, min(2, len(known))))
        items, columns = [], {}
        for i, key in enumerate(keys):
            items.append(f"{key} AS g{i}")
            columns[f"g{i}"] = known[key]
        for i in range(self.chance.randint(1, 2)):
            items.append(f"{self.aggregate(known)} AS n{i}")
            columns[f"n{i}"] = "int"
        how = self.chance.choice(
            ["{}"] * 5 + ["ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())"]
        )
        if keys and how != "{}" and self.chance.random() < 0.5:
            items.append(f"grouping({', '.join(keys)}) AS h")
            columns["h"] = "int"
        if keys and depth > 0 and self.chance.random() < 0.15:
            items.append(f"{self.scalar({key: known[key] for key in keys})} AS z")
            columns["z"] = "int"
            how = "{}"
        sql = f"SELECT {', '.join(items)} {text}"
        if keys:
            sql += f" GROUP BY {how.format(', '.join(keys))}"
            if self.chance.random() < 0.3:
                sql += (
                    f" HAVING {self.aggregate(known)} {self.compared()} {self.chance.randint(0, 3)}"
                )
                if depth > 0 and how == "{}" and self.chance.random() < 0.5:
                    sql += f" AND {self.subquery({key: known[key] for key in keys})}"
        return sql, columns

    def united(self, depth: int) -> tuple[str, dict[str, str]]:
        word = self.chance.choice(
            ["UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"]
        )
        sides = []
        for _ in range(2):
            sql, columns = self.query(depth)
            whole = [c for c, t in columns.items() if t == "int"] or ["1"]
            sides.append(f"SELECT {self.chance.choice(whole)} AS c0 FROM ({sql}) AS {self.alias()}")
        return f"{sides[0]} {word} {sides[1]}", {"c0": "int"}

    def table(self) -> Source:
        name = self.chance.choice(list(self.tables))
        alias = self.alias()
        return Source(f"{name} AS {alias}", alias, self.tables[name])

    def whole(self) -> tuple[str, dict[str, str]]:
        """A query of a form of its own, over a table: first rows, an ordered aggregate, recursion."""
        one = self.chance.choice("tu")
        number, text = ("v", "x") if one == "t" else ("w", "y")
        down = self.chance.choice(["", " DESC", " NULLS FIRST", " DESC NULLS FIRST"])
        rest = f"{one} WHERE {number} {self.compared()} {self.chance.randint(-1, 4)}"
        n = self.chance.randint(1, 3)
        forms = [
            f"SELECT DISTINCT ON (k) k AS c0, id AS c1 FROM {rest} ORDER BY k, {number}{down}, id",
            f"SELECT id AS c0, {number} AS c1 FROM {rest} ORDER BY {number}{down}, id LIMIT {n}",
            f"SELECT id AS c0, k AS c1 FROM {rest} ORDER BY {number}{down}, id LIMIT {n} OFFSET 1",
            (f"SELECT id AS c0, k AS c1 FROM {rest} QUALIFY row_number() OVER "
            f"(PARTITION BY k ORDER BY {number}{down}, id) <= {n}"),
            f"SELECT id AS c0, {self.over(number)} AS c1 FROM {rest}",
            f"SELECT k AS c0, len(string_agg({text}, ',' ORDER BY id{down})) AS c1 FROM {rest} GROUP BY k",
            f"SELECT k AS c0, list({number} ORDER BY id{down})[{n}] AS c1 FROM {rest} GROUP BY ALL",
            f"SELECT {{'a': k, 'b': {number}}}.b AS c0, [id, k][{n}] AS c1 FROM {rest}",
            f"SELECT MAP {{'a': k, 'b': id}}['b'] AS c0, len(json_object('a', k)) AS c1 FROM {rest}",
            (f"SELECT z.id AS c0, p.e AS c1 FROM (SELECT id, [k, {number}, {n}] AS a FROM {rest}) AS z, "
            "UNNEST(z.a) AS p(e)"),
            (f"WITH RECURSIVE r(a) AS (SELECT k FROM {rest} UNION SELECT u.w FROM u JOIN r ON r.a = u.k) "
            "SELECT a AS c0, a + 1 AS c1 FROM r"),
            (f"WITH a AS (SELECT k, sum({number}) AS n FROM {rest} GROUP BY k) "
            "SELECT a.k AS c0, b.n AS c1 FROM a JOIN a AS b ON a.k <= b.n"),
            ("SELECT t.id AS c0, u.id AS c1 FROM t ASOF JOIN (SELECT id, k, id AS w FROM u) AS u "
            "ON t.k = u.k AND t.v >= u.w"),
            (f"SELECT k AS c0, count(*) FILTER (WHERE {number} = {n}) AS c1 FROM {rest} GROUP BY k "
            f"HAVING EXISTS (SELECT 1 FROM u WHERE u.k = {one}.k)"),
            (f"SELECT id AS c0, k AS c1 FROM t WHERE v {self.compared()} "
            f"{self.chance.choice(['ANY', 'ALL'])} (SELECT w FROM u WHERE u.k = t.k)"),
            *self.more_forms(rest, number, text, n),
            *rich_forms(self.chance, rest, number, text, n),
        ]  # fmt: skip
        return f"SELECT c0, c1 FROM ({self.chance.choice(forms)}) AS {self.alias()}", {
            "c0": "int",
            "c1": "int",
        }

    def more_forms(self, rest: str, number: str, text: str, n: int) -> list[str]:
        """PIVOT and UNPIVOT, BY NAME, USING, recursion over pairs, and subqueries in each place."""
        total, every = self.chance.choice(["sum", "max", "count"]), self.chance.choice(["", " ALL"])
        side = self.chance.choice(["", "LEFT ", "RIGHT ", "FULL "])
        inner = f"SELECT {self.chance.choice(['sum', 'max', 'count'])}(w) FROM u WHERE u.k = t.k"
        kinds = f"{self.chance.choice(['ROLLUP', 'CUBE'])} (k, {text})"
        return [
            (f'SELECT "1" AS c0, "{n}" AS c1 FROM (PIVOT (SELECT * FROM {rest}) ON k IN (1, 2, 3) '
            f"USING {total}({number}) GROUP BY {text})"),
            (f'SELECT p."1_n" AS c0, p."2_m" AS c1 FROM (SELECT id, k, {number} AS v FROM {rest}) '
            f"PIVOT (count(*) AS n, {total}(v) AS m FOR k IN (1, 2) GROUP BY id) AS p"),
            (f"SELECT val AS c0, len(name) AS c1 FROM (UNPIVOT (SELECT id, k, {number} FROM {rest}) "
            f"ON k, {number} INTO NAME name VALUE val)"),
            (f"SELECT val AS c0, id AS c1 FROM (SELECT id, k, {number} AS v FROM {rest}) "
            "UNPIVOT INCLUDE NULLS (val FOR name IN (k, v)) WHERE name <> 'z'"),
            (f"SELECT id AS c0, k AS c1 FROM {rest} UNION{every} BY NAME "
            f"SELECT {self.chance.choice(['w AS c1, k AS c0', 'id AS c1', 'k AS c0'])} FROM u"),
            (f"SELECT k AS c0, count(*) + 10 * grouping(k) + 20 * grouping({text}) AS c1 FROM {rest} "
            f"GROUP BY {kinds}"),
            f"SELECT k AS c0, w AS c1 FROM t {side}JOIN u USING (k)",
            f"SELECT id AS c0, count(*) AS c1 FROM t NATURAL {side}JOIN u GROUP BY id",
            (f"WITH RECURSIVE r(a, b) AS (SELECT k, {number} FROM {rest} UNION "
            "SELECT r.a, u.w FROM u JOIN r ON r.b = u.k) SELECT a AS c0, b AS c1 FROM r"),
            (f"WITH RECURSIVE r(a, b) AS (SELECT k, 1 FROM {rest} UNION{every} "
            f"SELECT u.w, r.b + 1 FROM u JOIN r ON r.a = u.k WHERE r.b < {n}) "
            "SELECT a AS c0, b AS c1 FROM r"),
            f"SELECT id AS c0, CASE WHEN v > 0 THEN ({inner}) ELSE k END AS c1 FROM t",
            f"SELECT ({inner}) AS c0, count(*) AS c1 FROM t GROUP BY ALL",
            f"SELECT k AS c0, sum(({inner})) AS c1 FROM t GROUP BY k",
            f"SELECT k AS c0, count(*) AS c1 FROM t GROUP BY k HAVING ({inner}) {self.compared()} {n}",
            (f"SELECT t.id AS c0, u.id AS c1 FROM t {side}JOIN u ON t.k = u.k AND ({inner}) "
            f"{self.compared()} {n}"),
            f"SELECT id AS c0, k AS c1 FROM t ORDER BY ({inner}), id LIMIT {n}",
            f"SELECT id AS c0, rank() OVER (PARTITION BY k ORDER BY ({inner})) AS c1 FROM t",
            f"SELECT id AS c0, k AS c1 FROM t QUALIFY row_number() OVER (ORDER BY id) <= ({inner})",
            ("SELECT id AS c0, k AS c1 FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.w "
            f"{self.compared()} (SELECT count(*) FROM t AS i WHERE i.v = t.v AND i.k = u.k))"),
            ("SELECT t.id AS c0, l.n AS c1 FROM t, LATERAL (SELECT count(*) AS n FROM u WHERE u.k = t.k "
            "AND u.w IN (SELECT v FROM t AS i WHERE i.id <> t.id)) AS l"),
            (f"SELECT t.id AS c0, l.w AS c1 FROM t, LATERAL (SELECT w FROM u WHERE u.k = t.k "
            f"ORDER BY w, id LIMIT {n}) AS l"),
            (f"SELECT id AS c0, (SELECT list(w ORDER BY w, id) FROM u WHERE u.k = t.k)[{n}] AS c1 FROM t"),
            (f"SELECT k AS c0, {total}(v) AS c1 FROM (SELECT k, v FROM t UNION ALL SELECT k, w FROM u) "
            f"GROUP BY k ORDER BY c1, k NULLS FIRST LIMIT {n}"),
        ]  # fmt: skip

    def over(self, number: str) -> str:
        function = self.chance.choice([f"sum({number})", "count(*)", f"max({number})"])
        frame = self.chance.choice(
            ["", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " RANGE BETWEEN 2 PRECEDING AND CURRENT ROW",
             " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"]
        )  # fmt: skip
        return f"CAST({function} OVER (PARTITION BY k ORDER BY id{frame}) AS BIGINT)"

    def beside(self, known: dict[str, str]) -> tuple[str, dict[str, str]]:
        """A LATERAL that depends on what is known."""
        one, alias = self.table(), self.alias()
        own = {f"{one.alias}.{c}": t for c, t in one.columns.items()}
        where = self.correlated(own, known)
        item = self.number_of(own)
        inner = self.chance.choice(
            [
                f"SELECT {item} AS c0 FROM {one.sql} WHERE {where}",
                f"SELECT {self.aggregate(own)} AS c0 FROM {one.sql} WHERE {where}",
                f"SELECT DISTINCT {item} AS c0 FROM {one.sql} WHERE {where}",
            ]
        )
        left = self.chance.random() < 0.5
        sql = f" LEFT JOIN LATERAL ({inner}) AS {alias} ON TRUE" if left else ""
        return sql or f" CROSS JOIN LATERAL ({inner}) AS {alias}", {f"{alias}.c0": "int"}

    def joining(self, left: dict[str, str], right: dict[str, str], kind: str, depth: int) -> str:
        """A condition of a join besides an equality; a subquery in it is about one side, if it is outer."""
        both, roll = {**left, **right}, self.chance.random()
        if roll < 0.4 or depth <= 0:
            return self.condition(both, 0)
        if roll < 0.6:
            return f"({self.condition(left, 0)} OR {self.condition(right, 0)})"
        side = both if kind == "JOIN" else self.chance.choice([left, right])
        return self.condition(side, 1)

    def equal(self, left: dict[str, str], right: dict[str, str]) -> str:
        pairs = [(a, b) for a, s in left.items() for b, t in right.items() if s == t]
        if not pairs:  # as text: on no equality, two streams can't be joined
            return f"CAST({next(iter(left))} AS VARCHAR) = CAST({next(iter(right))} AS VARCHAR)"
        a, b = self.chance.choice(pairs)
        return f"{a} = {b}"

    def compared(self) -> str:
        return self.chance.choice(["=", "<>", "<", "<=", ">", ">="])

    def number_of(self, known: dict[str, str]) -> str:
        whole = [c for c, t in known.items() if t == "int"]
        return self.chance.choice(whole) if whole else "1"

    def aggregate(self, known: dict[str, str]) -> str:
        of = self.number_of(known)
        what = self.chance.choice(
            ["count(*)", "count({})", "sum({})", "min({})", "max({})", "count(DISTINCT {})"]
        )
        where = f" FILTER (WHERE {self.number_of(known)} > 0)" if self.chance.random() < 0.2 else ""
        return what.format(of) + where

    def value(self, known: dict[str, str], depth: int) -> tuple[str, str]:
        if depth > 0 and self.chance.random() < 0.2:
            return self.scalar(known), "int"
        column = self.chance.choice(list(known))
        if known[column] == "text":
            return self.chance.choice([column, f"coalesce({column}, 'z')"]), "text"
        text = self.chance.choice(["{}", "{} + 1", "CASE WHEN {} > 1 THEN 1 ELSE 0 END", "abs({})"])
        return text.format(column), "int"

    def scalar(self, known: dict[str, str]) -> str:
        name = self.chance.choice(list(self.tables))
        alias = self.alias()
        own = {f"{alias}.{c}": t for c, t in self.tables[name].items()}
        sql = f"SELECT {self.aggregate(own)} FROM {name} AS {alias}"
        if self.chance.random() < 0.7:
            sql += f" WHERE {self.correlated(own, known)}"
        return f"({sql})"

    def correlated(self, own: dict[str, str], outer: dict[str, str]) -> str:
        if self.chance.random() < 0.7:
            return self.equal(own, outer)
        unequal = f"{self.number_of(own)} {self.compared()} {self.number_of(outer)}"
        if any(name.endswith(".id") for name in own):
            return unequal
        return f"{self.equal(own, outer)} AND {unequal}"  # by that alone, streams are refused

    def condition(self, known: dict[str, str], depth: int) -> str:
        one = f"{self.number_of(known)} {self.compared()} {self.chance.randint(-1, 4)}"
        roll = self.chance.random()
        if depth <= 0 or roll < 0.4:
            return one
        if roll < 0.5:
            return f"({one} OR {self.condition(known, 0)})"
        if roll < 0.6:
            return f"NOT ({one})"
        return self.subquery(known)

    def subquery(self, known: dict[str, str]) -> str:
        """A condition with a subquery in it."""
        roll = self.chance.uniform(0.6, 1)
        name = self.chance.choice(list(self.tables))
        alias = self.alias()
        own = {f"{alias}.{c}": t for c, t in self.tables[name].items()}
        where = f" WHERE {self.correlated(own, known)}" if self.chance.random() < 0.7 else ""
        negated = "NOT " if self.chance.random() < 0.4 else ""
        if roll < 0.8:
            return f"{negated}EXISTS (SELECT 1 FROM {name} AS {alias}{where})"
        if roll < 0.9:
            inner = f"SELECT {self.number_of(own)} FROM {name} AS {alias}{where}"
            return f"{self.number_of(known)} {negated}IN ({inner})"
        return f"{self.number_of(known)} {self.compared()} {self.scalar(known)}"


def random_query(seed: int, depth: int = 2) -> str:
    """A query that DuckDB takes, the same for a seed."""
    return _Maker(seed).query(depth)[0]


def random_timed(seed: int, depth: int = 1) -> str:
    """A query with an event time in it, the same for a seed."""
    return _timed(seed).query(depth)[0]


def _timed(seed: int) -> _Maker:
    """What makes queries over sources that have an event time, among others."""
    maker = _Maker(seed)
    maker.tables = {name: columns for name, columns in TABLES.items() if name != "s"}
    maker.tables["e"] = EVENTS
    maker.timed = True
    return maker


def random_program(seed: int) -> tuple[dict[str, str], str]:
    """Some views, each over tables and the views before it, and a query over all; the same for a seed."""
    maker, views = _timed(seed), {}
    for i in range(maker.chance.randint(0, 2)):
        views[f"view{i}"], columns = maker.query(1)
        maker.tables[f"view{i}"] = columns
    return views, maker.query(2)[0]
