"""Random schemas, and rows of them: names, keys and types of every kind."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

__all__ = ["Schema", "Table", "quoted", "random_schema"]

Columns = dict[str, str]
"""Types by name, as a FROM knows them."""

NUMBERS: Final = ("INT", "BIGINT", "DOUBLE", "DECIMAL(9, 2)")
OTHERS: Final = ("FLOAT", "DECIMAL(30, 4)", "TIME", "INTERVAL", "UUID", "BINARY", "JSON")
PLAIN: Final = (*NUMBERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP")
NESTED: Final = ("ARRAY<BIGINT>", "ARRAY<STRING>", "STRUCT<a BIGINT, b STRING>",
                 "MAP<STRING, BIGINT>")  # fmt: skip
EVERY: Final = (*PLAIN, *NESTED, *OTHERS)
KEYS: Final = ("INT", "BIGINT", "STRING", "DATE")
NAMES: Final = ("id", "k", "n", "Total", "order", "group", "two words", "größe", "a-b", "value", "at",
                "select", "x1", "_", "имя", "row", "date", "k2")  # fmt: skip
TABLES: Final = ("orders", "Users", "t-1", "table", "день", "e_2")
DOCUMENTS: Final = (1, -2.5, "a", "1", "", True, [], {}, [1, "b", None], {"a": 1}, {"a": "b"},
                    {"a": [1, 2], "b": {"a": None}}, {"b": 2, "a": 1}, [{"a": 1}, {"a": "a b"}])  # fmt: skip
TEXTS: Final = ("a", "b", "B", "", "ab", "ß", "用户", "a'b", "NULL", "1")
IN_DUCKDB: Final = {
    "STRING": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "BINARY": "BLOB",
    "ARRAY<BIGINT>": "BIGINT[]",
    "ARRAY<STRING>": "VARCHAR[]",
    "STRUCT<a BIGINT, b STRING>": "STRUCT(a BIGINT, b VARCHAR)",
    "MAP<STRING, BIGINT>": "MAP(VARCHAR, BIGINT)",
}


def quoted(name: str) -> str:
    """A name as SQL takes any."""
    return f'"{name}"'


@dataclass(frozen=True)
class Table:
    """A table, or a stream if it has no key."""

    name: str
    columns: Columns
    key: tuple[str, ...]

    def statement(self) -> str:
        """That declares it, in a program."""
        columns = [f"{quoted(name)} {type_}" for name, type_ in self.columns.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        kind = "TABLE" if self.key else "STREAM"
        return f"CREATE {kind} {quoted(self.name)} ({', '.join(columns)}) WITH (topic = '{self.topic()}')"

    def topic(self) -> str:
        """Whose name has fewer letters."""
        return f"topic-{TABLES.index(self.name)}"

    def in_duckdb(self) -> str:
        """The same of DuckDB."""
        columns = [
            f"{quoted(name)} {IN_DUCKDB.get(type_, type_)}" for name, type_ in self.columns.items()
        ]
        return f"CREATE TABLE {quoted(self.name)} ({', '.join(columns)})"

    def insertion(self) -> str:
        """Of a row as JSON says it, into DuckDB's."""
        made = {"BINARY": "from_base64(?)", "INTERVAL": "to_microseconds(?)"}
        values = ", ".join(made.get(type_, "?") for type_ in self.columns.values())
        return f"INSERT INTO {quoted(self.name)} VALUES ({values})"

    def values(self, row: dict[str, Any]) -> list[Any]:
        """A row's values, for `insertion`."""
        return [
            json.dumps(value, separators=(",", ":"))
            if self.columns[name] == "JSON" and value is not None
            else value
            for name, value in row.items()
        ]

    def row(self, chance: random.Random) -> dict[str, Any]:
        """A random row, as JSON says it."""
        return {
            name: None
            if name not in self.key and chance.random() < 0.15
            else _value(chance, type_, few=name in self.key)
            for name, type_ in self.columns.items()
        }


@dataclass(frozen=True)
class Schema:
    """Tables and streams."""

    tables: tuple[Table, ...]


def random_schema(seed: int) -> Schema:
    """Two tables or three, and a stream in two of three; the same for a seed."""
    chance = random.Random(seed)
    names = chance.sample(TABLES, 4)
    keyed = chance.randint(2, 3)
    streams = chance.randint(0, 2) > 0
    return Schema(
        tuple(
            _table(chance, name, keyed=i < keyed) for i, name in enumerate(names[: keyed + streams])
        )
    )


def _table(chance: random.Random, name: str, *, keyed: bool) -> Table:
    names = chance.sample(NAMES, chance.randint(3, 6))
    key = tuple(names[: chance.choice([1, 1, 2])]) if keyed else ()
    columns = {one: chance.choice(KEYS) for one in key}
    for one in names[len(key) :]:
        kinds = chance.choices([PLAIN, NESTED, OTHERS], [6, 2, 2])[0]
        columns[one] = chance.choice(kinds)
    return Table(name, columns, key)


def _value(chance: random.Random, type_: str, *, few: bool) -> Any:
    """A random value as JSON says it."""
    match type_:
        case "INT" | "BIGINT":
            return chance.randint(1, 3) if few or chance.random() < 0.7 else chance.randint(-5, 9)
        case "DOUBLE":
            if chance.random() < 0.05:
                return chance.choice(["NaN", "Infinity", "-Infinity"])
            return chance.choice([0.25 * chance.randint(-6, 9), 0.5, 1.0, 1.0, 2.0])
        case "FLOAT":
            return 0.25 * chance.randint(-6, 9)
        case "DECIMAL(30, 4)":
            return chance.choice(["1", "12345678901234567890.1234", "-0.5", "2.5000"])
        case "TIME":
            return f"{chance.randint(0, 23):02}:{chance.choice([0, 30]):02}:00"
        case "INTERVAL":
            return chance.choice([0, 1, 1_500_000, 86_400_000_000, -3_600_000_000])
        case "UUID":
            return f"264145f2-5a3d-4015-9f9c-a04938edc14{chance.randint(0, 3)}"
        case "JSON":
            return chance.choice(DOCUMENTS)
        case "BINARY":
            return chance.choice(["", "AA==", "/w==", "YWI="])
        case "DECIMAL(9, 2)":
            return chance.choice(["1.00", "2.00", "0.50", f"{chance.randint(-300, 900) / 100:.2f}"])
        case "STRING":
            return chance.choice(TEXTS[:2] if few else TEXTS)
        case "BOOLEAN":
            return chance.random() < 0.5
        case "DATE":
            return str(date(2026, 2, 27) + timedelta(days=chance.randint(0, 2 if few else 6)))
        case "TIMESTAMP":
            return f"2026-02-28T{chance.choice([0, 22, 23])}:{chance.randint(0, 3) * 15:02}:00Z".replace(
                "T0:", "T00:"
            )
        case "STRUCT<a BIGINT, b STRING>":
            return {"a": _maybe(chance, "BIGINT"), "b": _maybe(chance, "STRING")}
        case "MAP<STRING, BIGINT>":
            keys = chance.sample("abc", chance.randint(0, 2))
            return {one: _maybe(chance, "BIGINT") for one in sorted(keys)}
        case _:
            of = type_.removeprefix("ARRAY<").removesuffix(">")
            return [_maybe(chance, of) for _ in range(chance.randint(0, 3))]


def _maybe(chance: random.Random, type_: str) -> Any:
    return None if chance.random() < 0.1 else _value(chance, type_, few=True)
