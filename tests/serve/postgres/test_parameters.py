"""Parameters of queries: where they are, and the types that PostgreSQL announces for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import QueryError
from penstock.serve.catalogs.types import duck_of_oid, oid_of_duck
from penstock.serve.texts.parameters import parameter_types
from penstock.serve.texts.words import parameters, substituted

# What PostgreSQL 18 announces, by the names of pg_type, before the query.
LINES = (Path(__file__).parent / "parameters.txt").read_text().splitlines()
ANNOUNCED = [(query, types.split()) for types, _, query in (one.partition(" | ") for one in LINES)]
COLUMNS = {
    "id": "int8", "small": "int2", "i": "int4", "name": "text", "d": "date", "at": "timestamptz",
    "ts": "timestamp", "price": "numeric", "ratio": "float8", "ok": "bool", "iv": "interval",
    "tags": "text[]", "ids": "int8[]", "u": "uuid", "data": "json", "tm": "time", "b": "bytea",
}  # fmt: skip
OIDS = {
    "int8": 20, "int2": 21, "int4": 23, "text": 25, "date": 1082, "timestamptz": 1184, "timestamp": 1114,
    "numeric": 1700, "float8": 701, "float4": 700, "bool": 16, "interval": 1186, "uuid": 2950, "json": 114,
    "time": 1083, "bytea": 17, "_text": 1009, "_int8": 1016, "_int4": 1007,
}  # fmt: skip
ALIASES = {"text[]": "_text", "int8[]": "_int8", "varchar": "text", "jsonb": "json"}
"""PostgreSQL's text has two names, and its JSON two types; views have one of each."""


def test_parameters_have_the_types_that_postgresql_announces() -> None:
    """By operators, functions, lists, branches, subqueries and clauses, in queries of every kind."""
    table = {name: duck_of_oid(OIDS[ALIASES.get(one, one)]) or "" for name, one in COLUMNS.items()}
    names = {oid: name for name, oid in OIDS.items()}
    for query, expected in ANNOUNCED:
        found = [names[oid_of_duck(one)] for one in parameter_types(query, [], {"t": table})]
        assert (query, found) == (query, expected)


@pytest.mark.slow
def test_postgresql_announces_what_the_list_says() -> None:
    """The list of types is PostgreSQL's own."""
    databases = pytest.importorskip("tests.databases")
    import psycopg

    with databases.postgres() as server, psycopg.connect(server.url()) as con:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        con.execute(f"CREATE TABLE t ({columns})")
        names = dict(con.execute("SELECT oid, typname FROM pg_type").fetchall())
        for query, expected in ANNOUNCED:
            con.pgconn.prepare(b"", query.encode())
            said = con.pgconn.describe_prepared(b"")
            found = [names[said.param_type(i)] for i in range(said.nparams)]
            assert (query, [ALIASES.get(one, one) for one in found]) == (query, expected)


def test_adjacent_parameters_are_no_dollar_quotes() -> None:
    """`$1,$2` and `$1||$2` are two parameters; texts between dollars, quotes and comments have none."""
    query = (
        "SELECT $1||$2, x IN ($1,$2), coalesce($10,$2), '$3', \"$4\", $$ $5 $$, $a$ $6 $a$ -- $7"
    )
    assert [number for _, _, number in parameters(query)] == [1, 2, 1, 2, 10, 2]
    assert substituted("SELECT $1||$2, a$1", ["'a'", "'b'"]) == "SELECT 'a'||'b', a$1"
    with pytest.raises(QueryError, match=r"from \$1 to \$1; found \$2"):
        substituted("SELECT $1,$2", ["1"])
    with pytest.raises(QueryError, match=r"at most 65535 parameters; found \$99999"):
        parameter_types("SELECT $99999", [], {})
