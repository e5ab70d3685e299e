"""Triggers that write each change of a table's rows to a table of the same file, in the same transaction.

    _penstock_NAME           id, layout, op, at, v0, v1, …   a change: the old row's values, the new one's
    _penstock_NAME_layouts   layout, tbl, info               what columns the values are of

Values stay as SQLite stores them. The number of a layout says when its triggers were made: a table that was
created again, or has other columns, gets another one.

A row that REPLACE deletes because of another row's unique key fires no trigger (SQLite's documentation,
"The ON CONFLICT Clause"). So the rows in its way are written before an insert as candidates `?`, before an
update as `!`, with the new row. If that comes to be, they are gone.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

import orjson

__all__ = ["PREFIX", "Layout", "Triggers", "quoted"]

PREFIX: Final = "_penstock_"
OPS: Final = "cud?!"
"""What triggers are for, in the order in which they are made; the last ones aren't always needed."""
COLUMNS_MAX: Final = 900
"""Of a captured table: both rows of a change are in one row, and SQLite has 2000 columns."""


@dataclass(frozen=True)
class Column:
    """A column: its name, its declared type, its place in the primary key (0: none), whether NOT NULL."""

    name: str
    declared: str
    key: int
    required: bool


@dataclass(frozen=True)
class Layout:
    """What the values of a change are of.

    Attributes:
        table: its name.
        columns: in order, without generated ones.
        number: of the layout; 0 where there is none yet.
        root: the number of the first layout of this table.
        ops: of the triggers that were made; empty where an earlier version has made them.
    """

    table: str
    columns: tuple[Column, ...]
    number: int = 0
    root: int = 0
    ops: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key's columns, in its order."""
        keyed = sorted((one.key, one.name) for one in self.columns if one.key)
        return tuple(name for _, name in keyed)


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


class Triggers:
    """A capture's tables and triggers in a file.

    Args:
        sql: a connection without transactions of Python's.
        name: the capture's.
    """

    def __init__(self, sql: sqlite3.Connection, name: str) -> None:
        self._sql, self._name = sql, name
        #: The table of changes, and as it is written in SQL.
        self.name, self.log = PREFIX + name, quoted(PREFIX + name)
        self._layouts = quoted(f"{PREFIX}{name}_layouts")

    @property
    def is_there(self) -> bool:
        """Whether the file has them."""
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._sql.execute(query, (PREFIX + self._name,)).fetchone() is not None

    def create(self, system: str) -> str:
        """Makes the tables be there; which file it is: what was said when they were made."""
        if not self.is_there:
            self._sql.execute(
                f"CREATE TABLE {self.log} (id INTEGER PRIMARY KEY AUTOINCREMENT, layout, op, at)"
            )
            self._sql.execute(
                f"CREATE TABLE {self._layouts} (layout INTEGER PRIMARY KEY, tbl, info)"
            )
            self._sql.execute(f"INSERT INTO {self._layouts} VALUES (0, '', ?)", (system,))
        query = f"SELECT info FROM {self._layouts} WHERE layout = 0"
        return str(self._sql.execute(query).fetchone()[0])

    def drop(self) -> None:
        """Removes everything."""
        # Not by what names begin with: those of a capture `shop_2` begin as those of `shop`.
        own = re.compile(re.escape(f"{PREFIX}{self._name}_") + rf"\d+_[{OPS}]")
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (name,) in self._sql.execute(query).fetchall():
            if own.fullmatch(name):
                self._sql.execute(f"DROP TRIGGER {quoted(name)}")
        self._sql.execute(f"DROP TABLE IF EXISTS {self.log}")
        self._sql.execute(f"DROP TABLE IF EXISTS {self._layouts}")

    def layouts(self) -> dict[int, Layout]:
        """All that changes may be of."""
        query = f"SELECT layout, info FROM {self._layouts} WHERE layout > 0"
        found = {}
        for number, info in self._sql.execute(query):
            layout = orjson.loads(info)
            columns = tuple(Column(**one) for one in layout["columns"])
            found[number] = Layout(
                layout["table"], columns, number, layout["root"], layout.get("ops", "")
            )
        return found

    @property
    def end(self) -> int:
        """The number of the next change."""
        query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
        found = self._sql.execute(query, (PREFIX + self._name,)).fetchone()
        return int(found[0]) + 1 if found else 1

    # -- tables -----------------------------------------------------------------------------------------

    def look(self, table: str) -> Layout:
        """A table as it is, without a number."""
        rows = self._sql.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        return Layout(
            table,
            tuple(
                Column(name, declared, key, bool(required or key))
                for _, name, declared, required, _, key, hidden in rows
                if not hidden
            ),
        )

    def installed(self, table: str) -> Layout | None:
        """The layout of the triggers that a table has; None where it hasn't those that it needs.

        One that was dropped, and a unique key that came later, have let changes pass.
        """
        found = self._of(table)
        numbers = {number for number, op in found if op == "c"}
        layout = self.layouts().get(max(numbers)) if numbers else None
        if layout is None:
            return None
        its = {op: text for (number, op), text in found.items() if number == layout.number}
        if layout.ops and {*layout.ops} != its.keys():
            return None
        is_same = layout.table == table and layout.columns == self.look(table).columns
        if is_same and {*self._commands(layout)} != {*its.values()}:
            return None
        return layout

    def _of(self, table: str) -> dict[tuple[int, str], str]:
        """The triggers of a table: their layouts' numbers and what they are for, and their texts."""
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        begin, found = f"{PREFIX}{self._name}_", {}
        for name, text in self._sql.execute(query, (table,)).fetchall():
            number, _, op = name.removeprefix(begin).partition("_")
            if name.startswith(begin) and number.isdigit() and op in OPS:
                found[int(number), op] = text
        return found

    def install(self, table: str, position: int) -> Layout:
        """Makes a table have triggers that fit it; in a transaction.

        Args:
            table: which.
            position: changes from there on weren't captured yet. What they say about rows that are still
                there is completed: triggers of another layout didn't know of new columns.
        """
        now, before = self.look(table), self.installed(table)
        if before is not None and before.columns == now.columns and before.table == table:
            return before
        query = f"SELECT max(layout) + 1 FROM {self._layouts}"
        (number,) = self._sql.execute(query).fetchone()
        layout = Layout(table, now.columns, number, before.root if before else number)
        commands = [*self._commands(layout)]
        layout = replace(layout, ops=OPS[: len(commands)])
        info = orjson.dumps(asdict(layout) | {"columns": [asdict(one) for one in layout.columns]})
        self._sql.execute(
            f"INSERT INTO {self._layouts} VALUES (?, ?, ?)", (number, table, info.decode())
        )
        self._widen(2 * len(layout.columns))
        for old, op in self._of(table):
            self._sql.execute(f"DROP TRIGGER {quoted(f'{PREFIX}{self._name}_{old}_{op}')}")
        for command in commands:
            self._sql.execute(command)
        if before is not None:
            self._complete(before, layout, position)
        return layout

    def _widen(self, count: int) -> None:
        has = len(self._sql.execute(f"PRAGMA table_info({self.log})").fetchall()) - 4
        for i in range(has, count):
            self._sql.execute(f"ALTER TABLE {self.log} ADD COLUMN v{i}")

    def _commands(self, layout: Layout) -> Iterator[str]:
        names = [quoted(one.name) for one in layout.columns]
        count, table = len(names), quoted(layout.table)
        old = [f"OLD.{one}" for one in names]
        new = [f"NEW.{one}" for one in names]

        def trigger(op: str, when: str, columns: Iterable[str], source: str = "") -> str:
            name = quoted(f"{PREFIX}{self._name}_{layout.number}_{op}")
            arguments = [*columns]
            places = range(count, count + len(arguments)) if op == "c" else range(len(arguments))
            into = ", ".join(f"v{i}" for i in places)
            return (
                f"CREATE TRIGGER {name} {when} ON {table} BEGIN "
                f"INSERT INTO {self.log}(layout, op, at, {into}) "
                f"SELECT {layout.number}, '{op}', julianday('now'), {', '.join(arguments)}{source}; END"
            )

        yield trigger("c", "AFTER INSERT", new)
        yield trigger("u", "AFTER UPDATE", old + new)
        yield trigger("d", "AFTER DELETE", old)
        uniques = [*self._uniques(layout)]
        if not uniques:
            return
        meets = " OR ".join(
            "(" + " AND ".join(f"p.{quoted(one)} = NEW.{quoted(one)}" for one in some) + ")"
            for some in uniques
        )
        found = [f"p.{one}" for one in names] + new
        yield trigger("?", "BEFORE INSERT", found, f" FROM {table} p WHERE {meets}")
        if len(uniques) > 1 or layout.key not in uniques:
            own = " AND ".join(f"p.{quoted(one)} IS OLD.{quoted(one)}" for one in layout.key)
            own = own or "p.rowid = OLD.rowid"
            source = f" FROM {table} p WHERE ({meets}) AND NOT ({own})"
            yield trigger("!", "BEFORE UPDATE", found, source)

    def _uniques(self, layout: Layout) -> Iterator[tuple[str, ...]]:
        """The columns that unique keys are of; not of those for a part of the rows, or with expressions."""
        if layout.key:
            yield layout.key
        for _, name, is_unique, _, is_partial in self._sql.execute(
            f"PRAGMA index_list({quoted(layout.table)})"
        ).fetchall():
            if not is_unique or is_partial:
                continue
            rows = self._sql.execute(f"PRAGMA index_info({quoted(name)})").fetchall()
            columns = tuple(one[2] for one in rows)
            if None not in columns and set(columns) != set(layout.key):
                yield columns

    def _complete(self, before: Layout, layout: Layout, position: int) -> None:
        """Writes the rows again that changed before the triggers knew of all columns."""
        places = {one.name: i for i, one in enumerate(before.columns)}
        if not layout.key or not set(layout.key) <= places.keys():
            return
        count = len(before.columns)
        met = " AND ".join(f"p.{quoted(one)} IS l.v{count + places[one]}" for one in layout.key)
        columns = ", ".join(f"p.{quoted(one.name)}" for one in layout.columns)
        into = ", ".join(f"v{i}" for i in range(2 * len(layout.columns)))
        self._sql.execute(
            f"INSERT INTO {self.log}(layout, op, at, {into}) "
            f"SELECT DISTINCT {layout.number}, 'u', julianday('now'), {columns}, {columns} "
            f"FROM {self.log} l JOIN {quoted(layout.table)} p ON {met} "
            "WHERE l.layout = ? AND l.id >= ? AND l.op IN ('c', 'u')",
            (before.number, position),
        )
