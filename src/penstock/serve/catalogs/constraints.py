"""PostgreSQL's catalogs of constraints and indexes: of each view, the columns that identify its rows.

They are a primary key if none of them may be NULL, and else a unique constraint that takes NULLs for equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.serve.catalogs.presets import Row

if TYPE_CHECKING:
    from penstock.serve.views import Snapshot

__all__ = ["ROWS", "Key", "definitions", "keys_of"]

KEY_OID: Final = 1 << 20
"""Of the first view's constraint; views' own lie below. Indexes follow behind constraints."""
INDEX_OID: Final = 1 << 21
PUBLIC, OWNER, BTREE = 2200, 10, 403


class Key(NamedTuple):
    """What identifies the rows of a view.

    Attributes:
        view: its name.
        number: which of the views it is.
        columns: the names of the columns.
        numbers: which of the view's columns these are, from 1 on.
        is_primary: whether none of them may be NULL.
    """

    view: str
    number: int
    columns: list[str]
    numbers: list[int]
    is_primary: bool

    @property
    def name(self) -> str:
        """Of the constraint and the index."""
        return f"{self.view}_pkey" if self.is_primary else f"{self.view}_key"

    @property
    def constraint_text(self) -> str:
        """As PostgreSQL writes it."""
        names = ", ".join(_identifier(one) for one in self.columns)
        kind = "PRIMARY KEY" if self.is_primary else "UNIQUE NULLS NOT DISTINCT"
        return f"{kind} ({names})"

    @property
    def index_text(self) -> str:
        """The statement that would make it."""
        names = ", ".join(_identifier(one) for one in self.columns)
        return (
            f"CREATE UNIQUE INDEX {_identifier(self.name)} ON public.{_identifier(self.view)} "
            f"USING btree ({names})"
        )


def keys_of(snapshot: Snapshot) -> Iterator[Key]:
    """What identifies the rows of each view, where something does."""
    for number, view in enumerate(snapshot.names()):
        columns = snapshot.row_key(view)
        if columns:
            schema = snapshot.schema(view)
            is_primary = not any(schema.field(one).nullable for one in columns)
            numbers = [schema.get_field_index(one) + 1 for one in columns]
            yield Key(view, number, columns, numbers, is_primary)


def _identifier(name: str) -> str:
    is_plain = name.isidentifier() and name.isascii() and name == name.lower() and name != "user"
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def _constraints(snapshot: Snapshot, first_oid: int) -> list[Row]:
    return [
        {
            "oid": KEY_OID + one.number, "conname": one.name, "connamespace": PUBLIC,
            "contype": "p" if one.is_primary else "u", "condeferrable": False, "condeferred": False,
            "convalidated": True, "conrelid": first_oid + one.number, "contypid": 0,
            "conindid": INDEX_OID + one.number, "conparentid": 0, "confrelid": 0,
            "confupdtype": " ", "confdeltype": " ", "confmatchtype": " ", "conislocal": True,
            "coninhcount": 0, "connoinherit": True, "conkey": one.numbers,
        }
        for one in keys_of(snapshot)
    ]  # fmt: skip


def _indexes(snapshot: Snapshot, first_oid: int) -> list[Row]:
    return [
        {
            "indexrelid": INDEX_OID + one.number, "indrelid": first_oid + one.number,
            "indnatts": len(one.numbers), "indnkeyatts": len(one.numbers), "indisunique": True,
            "indnullsnotdistinct": not one.is_primary, "indisprimary": one.is_primary,
            "indisexclusion": False, "indimmediate": True, "indisclustered": False,
            "indisvalid": True, "indcheckxmin": False, "indisready": True, "indislive": True,
            "indisreplident": False, "indkey": one.numbers, "indoption": [0] * len(one.numbers),
            "indclass": [0] * len(one.numbers), "indcollation": [0] * len(one.numbers),
        }
        for one in keys_of(snapshot)
    ]  # fmt: skip


def _index_classes(snapshot: Snapshot, _: int) -> list[Row]:
    return [
        {
            "oid": INDEX_OID + one.number, "relname": one.name, "relnamespace": PUBLIC, "relkind": "i",
            "reltype": 0, "reloftype": 0, "relowner": OWNER, "relam": BTREE, "relfilenode": 0,
            "reltablespace": 0, "relpages": 0, "reltuples": -1.0, "relallvisible": 0,
            "reltoastrelid": 0, "relhasindex": False, "relisshared": False, "relpersistence": "p",
            "relnatts": len(one.numbers), "relchecks": 0, "relhasrules": False,
            "relhastriggers": False, "relhassubclass": False, "relrowsecurity": False,
            "relforcerowsecurity": False, "relispopulated": True, "relreplident": "n",
            "relispartition": False, "relrewrite": 0,
        }
        for one in keys_of(snapshot)
    ]  # fmt: skip


def _index_attributes(snapshot: Snapshot, first_oid: int) -> list[Row]:
    """The columns of indexes; types are the view's columns'."""
    del first_oid
    return [
        {
            "attrelid": INDEX_OID + one.number, "attname": name, "attnum": i, "atttypid": 0,
            "attlen": -1, "attndims": 0, "atttypmod": -1, "attbyval": False, "attalign": "i",
            "attstorage": "p", "attcompression": "", "attnotnull": False, "atthasdef": False,
            "atthasmissing": False, "attidentity": "", "attgenerated": "", "attisdropped": False,
            "attislocal": True, "attinhcount": 0, "attcollation": 0, "attstattarget": -1,
        }
        for one in keys_of(snapshot)
        for i, name in enumerate(one.columns, 1)
    ]  # fmt: skip


def _pg_indexes(snapshot: Snapshot, _: int) -> list[Row]:
    return [
        {
            "schemaname": "public", "tablename": one.view, "indexname": one.name,
            "indexdef": one.index_text,
        }
        for one in keys_of(snapshot)
    ]  # fmt: skip


def _table_constraints(snapshot: Snapshot, _: int) -> list[Row]:
    return [
        {
            **_place(one), "constraint_type": "PRIMARY KEY" if one.is_primary else "UNIQUE",
            "is_deferrable": "NO", "initially_deferred": "NO", "enforced": "YES",
            "nulls_distinct": "YES" if one.is_primary else "NO",
        }
        for one in keys_of(snapshot)
    ]  # fmt: skip


def _key_columns(snapshot: Snapshot, _: int) -> list[Row]:
    return [
        {**_place(one), "column_name": name, "ordinal_position": i}
        for one in keys_of(snapshot)
        for i, name in enumerate(one.columns, 1)
    ]


def _used_columns(snapshot: Snapshot, _: int) -> list[Row]:
    return [
        {**_place(one), "column_name": name} for one in keys_of(snapshot) for name in one.columns
    ]


def _place(one: Key) -> Row:
    place = {"catalog": "penstock", "schema": "public"}
    found: Row = {f"constraint_{what}": name for what, name in place.items()}
    found |= {f"table_{what}": name for what, name in place.items()}
    return found | {"constraint_name": one.name, "table_name": one.view}


Rows: TypeAlias = Callable[["Snapshot", int], list[Row]]
ROWS: Final[dict[tuple[str, str], Rows]] = {
    ("pg_catalog", "pg_class"): _index_classes,
    ("pg_catalog", "pg_attribute"): _index_attributes,
    ("pg_catalog", "pg_constraint"): _constraints,
    ("pg_catalog", "pg_index"): _indexes,
    ("pg_catalog", "pg_indexes"): _pg_indexes,
    ("information_schema", "table_constraints"): _table_constraints,
    ("information_schema", "key_column_usage"): _key_columns,
    ("information_schema", "constraint_column_usage"): _used_columns,
}
"""Rows of relations other than views themselves; called with the first view's OID."""


def definitions(snapshot: Snapshot) -> tuple[str, str]:
    """What `pg_get_constraintdef` and `pg_get_indexdef` give: SQL over their argument `a0`."""
    constraints = {KEY_OID + one.number: one.constraint_text for one in keys_of(snapshot)}
    indexes = {INDEX_OID + one.number: one.index_text for one in keys_of(snapshot)}
    return _chosen(constraints), _chosen(indexes)


def _chosen(texts: dict[int, str]) -> str:
    cases = "".join(
        f" WHEN {oid} THEN '{text.replace(chr(39), chr(39) * 2)}'" for oid, text in texts.items()
    )
    return f"CASE CAST(a0 AS BIGINT){cases} END" if cases else "CAST(NULL AS VARCHAR)"
