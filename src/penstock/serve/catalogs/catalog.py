"""PostgreSQL's catalogs over views: what clients ask on their own, which tables there are, of what columns.

`catalog.json` has every relation of `pg_catalog` and `information_schema` with its columns, as
PostgreSQL 16 has them, and the rows of `pg_type` that can occur. A query that names one of them is
rewritten: relations are DuckDB tables made for this query alone, most of them empty; functions and
casts that DuckDB lacks are macros. Views are tables of the schema `public`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import duckdb
import orjson
import pyarrow as pa
import sqlglot
from sqlglot import exp

from penstock.errors import QueryError
from penstock.serve.catalogs import constraints
from penstock.serve.catalogs.functions import CALLABLE, CALLS, DEFINITIONS
from penstock.serve.catalogs.presets import Row, keyword_rows, setting_rows
from penstock.serve.catalogs.types import type_of
from penstock.serve.texts.words import read

if TYPE_CHECKING:
    from penstock.serve.views import Snapshot

__all__ = ["Catalog", "is_about", "is_type_tree", "plain"]

FIRST_OID: Final = 16384
"""Of the first view; lower numbers are PostgreSQL's own."""
PUBLIC, PG_CATALOG, INFORMATION, OWNER, DATABASE, HEAP = 2200, 11, 13000, 10, 5, 2
ARRAY_IN: Final = 750
"""The function that reads an array: by it, clients distinguish types of arrays from others."""
SCHEMAS: Final = {"pg_catalog": "pgc", "information_schema": "info"}
"""What the schemas are called in DuckDB, which has some of the same names itself."""
_ABOUT: Final = re.compile(
    r"\bpg_|\binformation_schema\b|\breg(class|type|proc)\b|\bcurrent_(schema|database|catalog|setting)"
    r"|\bversion\s*\(|\b(session|current)_user\b|\b(obj|col|shobj)_description\b|\bformat_type\b",
    re.IGNORECASE,
)
_TEXT: Final = re.compile(r"'(?:[^']|'')*+'")
_ARRAYS: Final = (
    (re.compile(r"::\s*(pg_catalog\.)?(oid|xid|int2vector)\s*\[\]", re.IGNORECASE), "::bigint[]"),
    (re.compile(r'::\s*(pg_catalog\.)?(name|"char"|reg\w+)\s*\[\]', re.IGNORECASE), "::text[]"),
)
"""Arrays of PostgreSQL's own types, which sqlglot doesn't parse."""


def plain(query: str) -> str:
    """A query about catalogs without types that sqlglot doesn't know."""
    for pattern, other in _ARRAYS:
        query = pattern.sub(other, query)
    return query


def is_type_tree(query: str) -> bool:
    """Whether asyncpg asks for types that it doesn't know, with a parameter `oid[]`."""
    return "typeinfo_tree" in query


def is_about(query: str) -> bool:
    """Whether a query may be about catalogs: it names one, or a function of PostgreSQL's, not in a text."""
    named = _TEXT.sub("''", query)
    return _ABOUT.search(named) is not None or CALLS.search(named) is not None


class _Type(NamedTuple):
    """A type of PostgreSQL's: the columns of `pg_type` that differ, and what `format_type` calls it."""

    oid: int
    typname: str
    typlen: int
    typbyval: bool
    typtype: str
    typcategory: str
    typispreferred: bool
    typdelim: str
    typelem: int
    typarray: int
    typbasetype: int
    shown: str


@dataclass(frozen=True)
class _Known:
    """What `catalog.json` has.

    Attributes:
        relations: by schema and name, the columns as DuckDB declares them.
        types: that can occur.
        keywords: by category; see `keyword_rows`.
    """

    relations: Mapping[str, Mapping[str, str]]
    types: Sequence[_Type]
    keywords: Mapping[str, str]


@functools.cache
def _known() -> _Known:
    content = orjson.loads((Path(__file__).parent / "catalog.json").read_bytes())
    content["pg_catalog"][KEYWORDS] = (
        '"word" VARCHAR, "catcode" VARCHAR, "barelabel" BOOLEAN, "catdesc" VARCHAR, "baredesc" VARCHAR'
    )
    relations = {schema: content[schema] for schema in SCHEMAS}
    return _Known(relations, [_Type(*one) for one in content["types"]], content["keywords"])


_ARRAY_TYPES: Final = """
    SELECT t.oid, 'pg_catalog' AS ns, t.typname AS name, 'b' AS kind, CAST(NULL AS BIGINT) AS basetype,
        t.typelem AS elemtype, e.typdelim AS elemdelim, CAST(NULL AS BIGINT) AS range_subtype,
        CAST(NULL AS VARCHAR[]) AS attrtypoids, CAST(NULL AS VARCHAR[]) AS attrnames, 0 AS depth,
        CAST(NULL AS VARCHAR) AS basetype_name, e.typname AS elemtype_name,
        CAST(NULL AS VARCHAR) AS range_subtype_name
    FROM pgc.pg_type AS t JOIN pgc.pg_type AS e ON e.oid = t.typelem
"""
"""What asyncpg asks for with a recursive query of a hundred lines, before it reads an array."""
KEYWORDS: Final = "pg_get_keywords"
_RELATIONS: Final = {KEYWORDS: KEYWORDS, "pg_show_all_settings": "pg_settings"}
"""Functions that give the rows of a relation."""
_EMPTY_TABLES: Final = frozenset(
    {"pg_partition_ancestors", "pg_get_publication_tables", "pg_options_to_table", "aclexplode"}
)


class Catalog:
    """The catalogs of one version's views, for one query."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._named: set[tuple[str, str]] = set()
        self._functions: set[str] = set()

    def tables(self) -> Mapping[str, Mapping[str, str]]:
        """All relations: their columns, and what DuckDB calls their types; for parameters."""
        found: dict[str, dict[str, str]] = {}
        for relations in _known().relations.values():
            for relation, ddl in relations.items():
                columns = found.setdefault(relation, {})
                for column in ddl.split(", "):
                    name, _, kind = column.rpartition(" ")
                    columns.setdefault(name.strip('"'), kind)
        return found

    def rewritten(self, query: str) -> str:
        """A query of PostgreSQL's as DuckDB's over these catalogs.

        Raises:
            QueryError: it isn't SQL.
        """
        if is_type_tree(query):
            self._named.add(("pg_catalog", "pg_type"))
            return _ARRAY_TYPES
        try:
            trees = read(query, "postgres", lambda name: name != "TO_CHAR")
        except sqlglot.errors.SqlglotError as error:
            raise QueryError(
                f"expected a SELECT; found {query!r}: {str(error).splitlines()[0]}"
            ) from None
        if len(trees) != 1 or not isinstance(trees[0], exp.Query):
            raise QueryError(f"expected one SELECT; found {query!r}")
        tree = trees[0]
        ctes = {one.alias_or_name for one in tree.find_all(exp.CTE)}
        for table in list(tree.find_all(exp.Table)):
            self._place(table, ctes)
        _name_outputs(tree)
        for node in reversed(list(tree.walk())):  # what is within a node comes before it
            other = self._replaced(node)
            if other is not node:
                node.replace(other)
        return tree.sql("duckdb")

    def _place(self, table: exp.Table, ctes: set[str]) -> None:
        name, schema = table.name.lower(), table.db.lower()
        called = table.this.name.lower() if isinstance(table.this, exp.Anonymous) else ""
        if called in _RELATIONS:
            name, schema = _RELATIONS[called], "pg_catalog"
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(called)))
        elif isinstance(table.this, exp.Anonymous | exp.Func):
            table.set("db", None)
            if table.this.name.lower() in _EMPTY_TABLES:
                nothing = sqlglot.parse_one("(SELECT CAST(NULL AS BIGINT) WHERE FALSE)")
                table.set("this", nothing)
            alias = table.args.get("alias")
            if (
                isinstance(alias, exp.TableAlias) and not alias.columns
            ):  # its one column has its name
                alias.set("columns", [exp.to_identifier(alias.name)])
                if isinstance(table.this, exp.StringToArray):
                    table.set("this", exp.select(table.this.copy()).subquery())
            return
        if not schema and name not in ctes and name in _known().relations["pg_catalog"]:
            schema = "pg_catalog"
        if schema in SCHEMAS:
            if name not in _known().relations[schema]:
                raise QueryError(
                    f'expected a relation of {schema}; relation "{name}" does not exist'
                )
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
            table.set("this", exp.to_identifier(name, quoted=True))
            table.set("db", exp.to_identifier(SCHEMAS[schema]))
            table.set("catalog", None)
            self._named.add((schema, name))
        elif schema == "public":
            table.set("db", None)
            table.set("catalog", None)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        """One node as DuckDB has it; its children have been replaced."""
        match node:
            case exp.Collate():
                operand: exp.Expr = node.this
                return operand
            case exp.Operator():
                return _operator(node)
            case exp.Dot() if node.this.name in SCHEMAS:
                within: exp.Expr = node.expression
                return within
            case exp.Column() if node.db and node.table.lower() in _known().relations["pg_catalog"]:
                node.set("db", None)  # pg_catalog.pg_class.oid
                return node
            case exp.CurrentSchema() | exp.CurrentUser() | exp.SessionUser() | exp.CurrentCatalog():
                return self._call(node.sql_name().lower(), [])
            case exp.CurrentDatabase() | exp.CurrentVersion() if not node.args.get("this"):
                name = "version" if isinstance(node, exp.CurrentVersion) else "current_database"
                return self._call(name, [])
            case exp.Column() if (
                node.name.lower() == "user" and not node.table and not node.this.quoted
            ):
                return self._call("current_user", [])
            case exp.Anonymous() if node.name.lower() in CALLABLE:
                return self._call(node.name.lower(), node.expressions)
            case exp.Anonymous() if node.name.lower() in (
                "json_build_object",
                "jsonb_build_object",
            ):
                return exp.Anonymous(this="json_object", expressions=node.expressions)
            case exp.Anonymous() if node.name.lower().startswith("pg_"):
                return exp.Null()
            case exp.Cast():
                return self._cast(node)
        return node

    def _call(self, name: str, arguments: list[exp.Expr]) -> exp.Expr:
        self._functions.add(name)
        return exp.Anonymous(this=f"own_{name}", expressions=arguments)

    def _cast(self, node: exp.Cast) -> exp.Expr:
        kind = node.to.sql("postgres").lower().removeprefix("pg_catalog.").strip('"')
        inner = node.this
        match kind:
            case "regclass" | "regtype":
                is_name = isinstance(inner, exp.Literal | exp.Placeholder | exp.Parameter)
                is_name = is_name or (
                    isinstance(inner, exp.Cast) and isinstance(inner.this, exp.Null | exp.Literal)
                )
                return self._call(f"{kind}_oid" if is_name else f"{kind}_name", [inner])
            case "regproc" if isinstance(inner, exp.Literal):
                is_array = inner.name.removeprefix("pg_catalog.") == "array_in"
                return exp.Literal.number(ARRAY_IN if is_array else 0)
            case (
                "regproc"
                | "regnamespace"
                | "regrole"
                | "regoper"
                | "regprocedure"
                | "name"
                | "char"
            ):
                return exp.cast(inner, "VARCHAR")
            case "oid" | "xid" | "cid":
                if isinstance(inner, exp.Anonymous) and inner.name.endswith("_name"):
                    name = inner.name.removeprefix("own_").replace("_name", "_oid")
                    return self._call(name, inner.expressions)
                return exp.cast(inner, "BIGINT")
            case "text" | "unknown" | "pg_node_tree" | "aclitem[]" | "inet" | "cstring":
                return exp.cast(inner, "VARCHAR")
            case "oid[]" | "int2vector" | "oidvector":
                return exp.cast(inner, "BIGINT[]", dialect="duckdb")
            case "name[]" | "char[]" | "regtype[]" | "regclass[]":
                return exp.cast(inner, "VARCHAR[]", dialect="duckdb")
        if node.to.sql("postgres").lower().startswith("pg_catalog."):
            return exp.cast(inner, kind, dialect="postgres")
        if kind.endswith("[]") and isinstance(inner, exp.Literal) and inner.name.startswith("{"):
            node.set("this", exp.Literal.string("[" + inner.name[1:-1] + "]"))
        return node

    def make(self, con: duckdb.DuckDBPyConnection) -> None:
        """Makes what the rewritten query needs."""
        for schema in SCHEMAS.values():
            con.execute(f"CREATE SCHEMA {schema}")
        bodies = " ".join(CALLABLE[name] for name in self._functions)
        if "type_names" in bodies:
            rows: list[Row] = [
                {"type_oid": one.oid, "type_name": one.typname, "format_name": one.shown}
                for one in _known().types
            ]
            con.execute(
                "CREATE TABLE pgc.type_names (type_oid BIGINT, type_name VARCHAR, format_name VARCHAR)"
            )
            _fill(con, "pgc.type_names", rows)
        if "pgc.pg_class" in bodies:
            self._named.add(("pg_catalog", "pg_class"))
        for schema, name in sorted(self._named):
            table = f'{SCHEMAS[schema]}."{name}"'
            con.execute(f"CREATE TABLE {table} ({_known().relations[schema][name]})")
            made = _ROWS.get((schema, name))
            rows = [] if made is None else made(self._snapshot)
            keyed = constraints.ROWS.get((schema, name))
            more = [] if keyed is None else keyed(self._snapshot, FIRST_OID)
            _fill(con, table, rows + more)
        for name in sorted(self._functions):
            con.execute(f"CREATE MACRO own_{self._macro(name)}")

    def _macro(self, name: str) -> str:
        if name not in DEFINITIONS:
            return CALLABLE[name]
        of_constraint, of_index = constraints.definitions(self._snapshot)
        arguments = CALLABLE[name].partition(" AS ")[0]
        return f"{arguments} AS {of_index if name == 'pg_get_indexdef' else of_constraint}"


def _fill(con: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    if rows:
        con.register("filling", pa.Table.from_pylist(rows))
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM filling")
        con.unregister("filling")


def _operator(node: exp.Operator) -> exp.Expr:
    """`a OPERATOR(pg_catalog.~) b`."""
    sign = str(node.args["operator"]).rpartition(".")[2]
    left, right = node.this, node.expression
    match sign:
        case "~":
            return exp.RegexpLike(this=left, expression=right)
        case "!~":
            return exp.not_(exp.RegexpLike(this=left, expression=right))
        case "~*":
            return exp.RegexpILike(this=left, expression=right)
        case "=":
            return exp.EQ(this=left, expression=right)
    return node


def _name_outputs(tree: exp.Query) -> None:
    """Gives a query's columns the names that PostgreSQL gives them, where they have none of their own."""
    for select in [tree] if isinstance(tree, exp.Select) else []:
        named: list[exp.Expr] = []
        for one in select.expressions:
            inner = one.expression if isinstance(one, exp.Dot) else one
            while isinstance(inner, exp.Cast):
                inner = inner.this
            if isinstance(one, exp.Alias | exp.Column | exp.Star):
                named.append(one)
                continue
            if isinstance(inner, exp.Anonymous):
                name = inner.name.lower()
            elif isinstance(inner, exp.CurrentVersion):
                name = "version"
            elif isinstance(inner, exp.Column):
                name = inner.name
            elif isinstance(inner, exp.Func) and not isinstance(inner, exp.Case):
                name = inner.sql_name().lower()
            else:
                name = "case" if isinstance(inner, exp.Case) else "?column?"
            named.append(exp.alias_(one, name, quoted=True))
        select.set("expressions", named)


Rows: TypeAlias = Callable[["Snapshot"], list[Row]]


def _namespaces(_: Snapshot) -> list[Row]:
    known = {"pg_catalog": PG_CATALOG, "public": PUBLIC, "information_schema": INFORMATION}
    return [{"oid": oid, "nspname": name, "nspowner": OWNER} for name, oid in known.items()]


def _classes(snapshot: Snapshot) -> list[Row]:
    found: list[Row] = []
    for number, name in enumerate(snapshot.names()):
        found.append(
            {
                "oid": FIRST_OID + number, "relname": name, "relnamespace": PUBLIC, "relkind": "r",
                "reltype": 0, "reloftype": 0, "relowner": OWNER, "relam": HEAP, "relfilenode": 0,
                "reltablespace": 0, "relpages": 0, "reltuples": -1.0, "relallvisible": 0,
                "reltoastrelid": 0, "relhasindex": bool(snapshot.row_key(name)), "relisshared": False,
                "relpersistence": "p", "relnatts": len(snapshot.schema(name)), "relchecks": 0,
                "relhasrules": False, "relhastriggers": False, "relhassubclass": False,
                "relrowsecurity": False, "relforcerowsecurity": False, "relispopulated": True,
                "relreplident": "d", "relispartition": False, "relrewrite": 0,
            }
        )  # fmt: skip
    return found


def _attributes(snapshot: Snapshot) -> list[Row]:
    found: list[Row] = []
    for number, view in enumerate(snapshot.names()):
        for i, field in enumerate(snapshot.schema(view), 1):
            kind, is_array = type_of(field.type)
            found.append(
                {
                    "attrelid": FIRST_OID + number, "attname": field.name, "attnum": i,
                    "atttypid": kind.array if is_array else kind.oid,
                    "attlen": -1 if is_array else kind.size, "attndims": int(is_array),
                    "atttypmod": _modifier(field.type), "attbyval": False, "attalign": "i",
                    "attstorage": "p", "attcompression": "", "attnotnull": not field.nullable,
                    "atthasdef": False, "atthasmissing": False, "attidentity": "",
                    "attgenerated": "", "attisdropped": False, "attislocal": True,
                    "attinhcount": 0, "attcollation": 0,
                    "attstattarget": -1,
                }
            )  # fmt: skip
    return found


def _modifier(arrow: pa.DataType) -> int:
    """What `numeric` keeps of its digits."""
    if pa.types.is_decimal(arrow):
        return (int(arrow.precision) << 16 | int(arrow.scale)) + 4
    return -1


def _types(_: Snapshot) -> list[Row]:
    same: Row = {
        "typnamespace": PG_CATALOG, "typowner": OWNER, "typrelid": 0, "typisdefined": True,
        "typnotnull": False, "typtypmod": -1, "typndims": 0, "typcollation": 0, "typsubscript": 0,
        "typinput": 0, "typoutput": 0, "typreceive": 0, "typsend": 0,
    }  # fmt: skip
    found = []
    for one in _known().types:
        row: Row = {name: value for name, value in one._asdict().items() if name != "shown"}
        found.append(row | same | {"typinput": ARRAY_IN if one.typcategory == "A" else 0})
    return found


def _tables(snapshot: Snapshot) -> list[Row]:
    return [
        {
            "table_catalog": "penstock", "table_schema": "public", "table_name": name,
            "table_type": "BASE TABLE", "is_insertable_into": "NO", "is_typed": "NO",
        }
        for name in snapshot.names()
    ]  # fmt: skip


def _columns(snapshot: Snapshot) -> list[Row]:
    names = {one.oid: (one.typname, one.shown) for one in _known().types}
    found: list[Row] = []
    for view in snapshot.names():
        for i, field in enumerate(snapshot.schema(view), 1):
            kind, is_array = type_of(field.type)
            udt, shown = names.get(kind.array if is_array else kind.oid, ("text", "text"))
            found.append(
                {
                    "table_catalog": "penstock", "table_schema": "public", "table_name": view,
                    "column_name": field.name, "ordinal_position": i,
                    "is_nullable": "YES" if field.nullable else "NO",
                    "data_type": "ARRAY" if is_array else shown, "udt_catalog": "penstock",
                    "udt_schema": "pg_catalog", "udt_name": udt, "is_identity": "NO",
                    "is_generated": "NEVER", "is_updatable": "NO", "is_self_referencing": "NO",
                    "dtd_identifier": str(i),
                }
            )  # fmt: skip
    return found


def _statistics(snapshot: Snapshot) -> list[Row]:
    """What was done with each view. Nobody counts it: all is 0, as after a reset."""
    columns = _known().relations["pg_catalog"]["pg_stat_all_tables"].split(", ")
    counts = {one.split('"')[1]: 0 for one in columns if one.endswith(" BIGINT")}
    return [
        {**counts, "relid": FIRST_OID + number, "schemaname": "public", "relname": view}
        for number, view in enumerate(snapshot.names())
    ]


_OWNER: Final[Row] = {
    "oid": OWNER, "rolname": "penstock", "rolsuper": False, "rolinherit": True,
    "rolcreaterole": False, "rolcreatedb": False, "rolcanlogin": True, "rolreplication": False,
    "rolbypassrls": False, "rolconnlimit": -1,
}  # fmt: skip
_ROWS: Final[dict[tuple[str, str], Rows]] = {
    ("pg_catalog", "pg_namespace"): _namespaces,
    ("pg_catalog", "pg_class"): _classes,
    ("pg_catalog", "pg_attribute"): _attributes,
    ("pg_catalog", "pg_type"): _types,
    ("pg_catalog", "pg_settings"): lambda _: setting_rows(),
    ("pg_catalog", "pg_stat_all_tables"): _statistics,
    ("pg_catalog", "pg_stat_user_tables"): _statistics,
    ("pg_catalog", KEYWORDS): lambda _: keyword_rows(_known().keywords),
    ("pg_catalog", "pg_tables"): lambda s: [
        {"schemaname": "public", "tablename": name, "tableowner": "penstock"} for name in s.names()
    ],
    ("pg_catalog", "pg_roles"): lambda _: [_OWNER],
    ("pg_catalog", "pg_user"): lambda _: [{"usename": "penstock", "usesysid": OWNER}],
    ("pg_catalog", "pg_am"): lambda _: [
        {"oid": HEAP, "amname": "heap", "amtype": "t"},
        {"oid": constraints.BTREE, "amname": "btree", "amtype": "i"},
    ],
    ("pg_catalog", "pg_database"): lambda _: [
        {
            "oid": DATABASE,
            "datname": "penstock",
            "datdba": OWNER,
            "encoding": 6,
            "datlocprovider": "c",
            "datistemplate": False,
            "datallowconn": True,
            "datcollate": "C",
            "datctype": "C",
            "dattablespace": 1663,
            "datconnlimit": -1,
        }
    ],
    ("pg_catalog", "pg_collation"): lambda _: [
        {"oid": 100, "collname": "default", "collnamespace": PG_CATALOG}
    ],
    ("information_schema", "schemata"): lambda _: [
        {"catalog_name": "penstock", "schema_name": one, "schema_owner": "penstock"}
        for one in ("public", "pg_catalog", "information_schema")
    ],
    ("information_schema", "tables"): _tables,
    ("information_schema", "columns"): _columns,
}
