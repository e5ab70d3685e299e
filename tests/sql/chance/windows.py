"""Random window functions over the table `t` of `beside_duckdb`: whatever functions and frames there are."""

from __future__ import annotations

import random

__all__ = ["random_windows"]

RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
PLACES = ("row_number()", "ntile(2)", "ntile(3)", "lag(v)", "lead(v)", "lag(v, 2, -1)",
          "lead(x, 3, 'none')", "lag(v, 0)", "lag(v, -1)", "lead(k, 1, v)", "lag(v + k, 1, id)")  # fmt: skip
VALUES = ("first_value({})", "last_value({})", "nth_value({}, 2)", "nth_value({}, 3)")
AGGREGATES = ("count(*)", "count({})", "sum(v)", "sum({} * 0.5)", "avg(v)", "min({})", "max({})")
RARE = ("string_agg({}, ',')", "count(DISTINCT {})", "first_value({} IGNORE NULLS)",
        "last_value({} IGNORE NULLS)", "list({})", "max({}, 2)", "sum(DISTINCT {})")  # fmt: skip
ORDERED = ("string_agg", "first_value", "last_value", "list")
"""What depends on the order of a frame's rows."""
BOUNDS = ("UNBOUNDED PRECEDING", "3 PRECEDING", "1 PRECEDING", "CURRENT ROW", "1 FOLLOWING",
          "2 FOLLOWING", "9 FOLLOWING", "UNBOUNDED FOLLOWING")  # fmt: skip
EXCLUDED = ("CURRENT ROW", "GROUP", "TIES", "NO OTHERS")


class _Maker:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def partition(self) -> str:
        keys = self.chance.choice(["", "k", "k", "k", "x", "k, x", "coalesce(k, 0) + 1"])
        return f"PARTITION BY {keys} " if keys else ""

    def order(self, *, whole: bool) -> str:
        """Of some columns; whole: no two rows are equal in it."""
        columns = self.chance.sample(["v", "x", "k", "v * 2"], self.chance.randint(1, 2))
        parts = [
            f"{one} {self.chance.choice(['', 'DESC'])} "
            f"{self.chance.choice(['', 'NULLS FIRST', 'NULLS LAST'])}"
            for one in columns
        ]
        if whole:
            parts.append(self.chance.choice(["id", "id DESC"]))
        return "ORDER BY " + ", ".join(parts)

    def frame(self, unit: str) -> str:
        lo, hi = sorted(self.chance.choices(range(len(BOUNDS)), k=2))
        lo, hi = min(lo, len(BOUNDS) - 2), max(hi, 1)
        if self.chance.random() < 0.3:
            lo, hi = 0, BOUNDS.index("CURRENT ROW")
        exclude = self.chance.random() < 0.1
        rest = f" EXCLUDE {self.chance.choice(EXCLUDED)}" if exclude else ""
        return f" {unit} BETWEEN {BOUNDS[lo]} AND {BOUNDS[hi]}{rest}"

    def function(self) -> str:
        roll, column = self.chance.random(), self.chance.choice(["v", "k", "id"])
        per = self.partition()
        if roll < 0.15:
            return f"{self.chance.choice(RANKS)} OVER ({per}{self.order(whole=False)})"
        if roll < 0.4:
            return f"{self.chance.choice(PLACES)} OVER ({per}{self.order(whole=True)})"
        if roll < 0.6:
            call = self.chance.choice(VALUES).format(self.chance.choice([column, "x"]))
            frame = self.frame("ROWS") if self.chance.random() < 0.7 else ""
            return f"{call} OVER ({per}{self.order(whole=True)}{frame})"
        call = self.chance.choice(RARE if roll < 0.65 else AGGREGATES).format(column)
        if roll >= 0.65 and self.chance.random() < 0.3:
            call += f" FILTER (WHERE {self.chance.choice(['v > 0', 'x IS NOT NULL', 'k = 1'])})"
        roll = self.chance.random()
        if roll < 0.15:
            if not call.startswith(ORDERED):
                return f"{call} OVER ({per.strip()})"
        elif roll < 0.4 and not call.startswith(ORDERED):
            return f"{call} OVER ({per}{self.order(whole=False)})"  # up to the last peer
        elif roll < 0.55 and not call.startswith(ORDERED):
            down = self.chance.choice(["", " DESC"])
            return f"{call} OVER ({per}ORDER BY id{down}{self.frame('RANGE')})"
        unit = "GROUPS" if self.chance.random() < 0.15 else "ROWS"
        return f"{call} OVER ({per}{self.order(whole=True)}{self.frame(unit)})"


def random_windows(seed: int) -> str:
    """A query of window functions, the same for a seed."""
    maker = _Maker(seed)
    made = [f"{maker.function()} AS w{i}" for i in range(maker.chance.randint(1, 3))]
    source = maker.chance.choice(
        ["t", "t", "t", "(SELECT id, k, w AS v, y AS x FROM u)",
         "(SELECT t.id * 10 + u.id AS id, t.k, u.w AS v, t.x FROM t JOIN u ON t.k = u.k)"]
    )  # fmt: skip
    sql = f"SELECT id, v, {', '.join(made)} FROM {source} AS t"
    roll, bound = maker.chance.random(), maker.chance.choice(["<= 1", "<= 2", "< 4", "= 1", "= 2"])
    number = f"row_number() OVER ({maker.partition()}{maker.order(whole=True)})"
    if roll < 0.15:
        sql += f" QUALIFY {number} {bound}"
    elif roll < 0.3:
        sql = f"SELECT * FROM ({sql.replace(' FROM', f', {number} AS n FROM', 1)}) AS r WHERE n {bound}"
    return sql
