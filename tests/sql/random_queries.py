"""Random queries over the tables of `beside_duckdb`: whatever clauses fit together, nested."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["random_query"]

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


class _Maker:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.number = 0

    def alias(self) -> str:
        self.number += 1
        return f"a{self.number}"

    def source(self, depth: int) -> Source:
        if depth > 0 and self.chance.random() < 0.4:
            sql, columns = self.query(depth - 1)
            alias = self.alias()
            return Source(f"({sql}) AS {alias}", alias, columns)
        name = self.chance.choice(list(TABLES))
        alias = self.alias()
        return Source(f"{name} AS {alias}", alias, TABLES[name])

    def query(self, depth: int) -> tuple[str, dict[str, str]]:
        """A query and its columns."""
        if depth > 0 and self.chance.random() < 0.2:
            return self.united(depth - 1)
        first = self.source(depth)
        known = {f"{first.alias}.{c}": t for c, t in first.columns.items()}
        text = f"FROM {first.sql}"
        for _ in range(self.chance.choice([0, 0, 1, 1, 2])):
            other = self.source(depth - 1)
            both = {f"{other.alias}.{c}": t for c, t in other.columns.items()}
            kind = self.chance.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            text += f" {kind} {other.sql} ON {self.equal(known, both)}"
            if self.chance.random() < 0.3:
                text += f" AND {self.condition({**known, **both}, 0)}"
            known |= both
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
        sql = f"SELECT {', '.join(items)} {text}"
        if keys:
            sql += f" GROUP BY {', '.join(keys)}"
            if self.chance.random() < 0.3:
                sql += (
                    f" HAVING {self.aggregate(known)} {self.compared()} {self.chance.randint(0, 3)}"
                )
        return sql, columns

    def united(self, depth: int) -> tuple[str, dict[str, str]]:
        word = self.chance.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL"])
        sides = []
        for _ in range(2):
            sql, columns = self.query(depth)
            whole = [c for c, t in columns.items() if t == "int"] or ["1"]
            sides.append(f"SELECT {self.chance.choice(whole)} AS c0 FROM ({sql}) AS {self.alias()}")
        return f"{sides[0]} {word} {sides[1]}", {"c0": "int"}

    def equal(self, left: dict[str, str], right: dict[str, str]) -> str:
        pairs = [(a, b) for a, s in left.items() for b, t in right.items() if s == t]
        if not pairs:
            return "TRUE"
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
        name = self.chance.choice(list(TABLES))
        alias = self.alias()
        own = {f"{alias}.{c}": t for c, t in TABLES[name].items()}
        sql = f"SELECT {self.aggregate(own)} FROM {name} AS {alias}"
        if self.chance.random() < 0.7:
            sql += f" WHERE {self.correlated(own, known)}"
        return f"({sql})"

    def correlated(self, own: dict[str, str], outer: dict[str, str]) -> str:
        if self.chance.random() < 0.7:
            return self.equal(own, outer)
        return f"{self.number_of(own)} {self.compared()} {self.number_of(outer)}"

    def condition(self, known: dict[str, str], depth: int) -> str:
        one = f"{self.number_of(known)} {self.compared()} {self.chance.randint(-1, 4)}"
        roll = self.chance.random()
        if depth <= 0 or roll < 0.4:
            return one
        if roll < 0.5:
            return f"({one} OR {self.condition(known, 0)})"
        if roll < 0.6:
            return f"NOT ({one})"
        name = self.chance.choice(list(TABLES))
        alias = self.alias()
        own = {f"{alias}.{c}": t for c, t in TABLES[name].items()}
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
