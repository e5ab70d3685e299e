"""JSON in PostgreSQL's dialect: each member equals PostgreSQL's, whatever characters its key has."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import pytest
from tests.databases import postgres

import penstock as ps
from penstock.errors import SchemaError
from penstock.sql import SqlFlow

MEMBERS: Final = (
    "p->'a.b'", "p->>'a.b'", "p->'a'->'b'", "p->'$'", "p->'$.a'", "p->'[0]'", "p->'*'", "p->>'*'", "p->'0'",
    "p->>'-1'", "p->'-'", "p->'01'", "p->'a\"b'", "p->'a\\b'", "p->'\\'", "p->'/a'", "p->'~0'", "p->''",
    "p->'it''s'", "p->>'n'", "p->E'a\\nb'", "p->0", "p->>-1", "p->-2", "p->'l'->1->-1", "p->NULL", "p->k",
    "p->>k", "p->(k || '')", "p->i", "p->>(i + 1)", "p->i::smallint", "p->max(k) OVER ()",
    "p->CASE WHEN i > 0 THEN 'a' ELSE '*' END", "p->k->>'b'", "p->(p->>0)", "(p->'a'->>'b')::int + 1",
    "json_extract_path(p, 'a.b')", "json_extract_path_text(p, 'a', 'b')", "json_extract_path(p, '0')",
    "json_extract_path(p, '*')", "json_extract_path(p, '01')", "json_extract_path(p, '-1')",
    "json_extract_path(p, k)", "json_extract_path_text(p, 'l', '-2', k)", "p#>'{a,b}'", "p#>>'{l,1}'",
    "p#>'{-1}'", "p#>>'{a,\"b\"}'", "p#>'{}'", "p#>ARRAY['l', '0']", "p#>>ARRAY[k]", "p->'l'#>>'{1,0}'",
    "jsonb_extract_path(p::jsonb, 'a', 'b')",
)  # fmt: skip
DOCUMENTS: Final[tuple[Any, ...]] = (
    {"a": {"b": 1}, "a.b": 2, "$": 3, "$.a": 4, "[0]": 5, "*": 6, "0": 7, 'a"b': 8, "a\\b": 9, "\\": 23,
     "/a": 10, "~0": 11, "": 12, "it's": 13, "n": None, "l": [1, [2, 3], None], "-1": 14, "-": 15,
     "a\nb": 16, "01": 17},
    [1, [2, 3], None], 3, None, "a", [], {}, [{"a.b": 5, "a": [7]}],
)  # fmt: skip
KEYS: Final = ("a.b", "*", "$", "$.a", "0", "", 'a"b', "-1", "/a", "a", None, "~0")
ROWS: Final = tuple(
    (n, document, KEYS[n % len(KEYS)], (0, -1, 1, None)[n // len(KEYS) % 4])
    for n, document in enumerate(one for one in DOCUMENTS for _ in KEYS)
)


def _value(found: Any) -> Any:
    """A member of JSON, or its text, with which JSON's null counts as none."""
    try:
        return json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return found


@pytest.mark.slow
def test_members_equal_postgresqls() -> None:
    """Keys that DuckDB would take for paths or wildcards, computed keys, elements from both ends, paths."""
    columns = ", ".join(f"({member}) AS c{i}" for i, member in enumerate(MEMBERS))
    app = ps.App("members")
    app.table("t", "id INT, p JSON, k STRING, i INT", key="id")
    app.view("v", sql=f"SELECT id, {columns} FROM t", dialect="postgres")
    run = ps.testing.run(app, shaken=False)
    with postgres() as server, psycopg.connect(server.url(), autocommit=True) as con:
        con.execute("CREATE TABLE t (id int, p json, k text, i int)")
        for id_, document, key, i in ROWS:
            con.execute(
                "INSERT INTO t VALUES (%s, %s, %s, %s)", (id_, json.dumps(document), key, i)
            )
            run.send("t", id=id_, p=document, k=key, i=i)
        texts = ", ".join(f"({member})::text" for member in MEMBERS)
        expected = {row[0]: row[1:] for row in con.execute(f"SELECT id, {texts} FROM t")}
    found = {row.pop("id"): tuple(row.values()) for row in run.view("v").rows()}
    assert found.keys() == expected.keys()
    for id_, document, key, i in ROWS:
        for member, got, want in zip(MEMBERS, found[id_], expected[id_], strict=True):
            assert _value(got) == _value(want), (member, document, key, i)
    assert run.dead_letters() == []


def test_keys_are_no_paths() -> None:
    """Neither a key that is written out nor one that a row has."""
    app = ps.App("members")
    app.table("t", "id INT, p JSON, k STRING", key="id")
    query = "SELECT id, p->'*' AS a, p->>k AS b, p->'' AS c, p#>>'{l,-1}' AS d FROM t"
    app.view("v", sql=query, dialect="postgres")
    run = ps.testing.run(app, shaken=False)
    for id_, key in enumerate(("*", "$.a", "", "0")):
        run.send("t", id=id_, p={"a": 1, "*": 2, "$.a": 3, "": 4, "0": 5, "l": [6, 7]}, k=key)
    rows = sorted(run.view("v").rows(), key=lambda row: row["id"])
    assert [row["b"] for row in rows] == ["2", "3", "4", "5"]
    assert {(row["a"], row["c"], row["d"]) for row in rows} == {(2, 4, "7")}


def test_a_path_that_is_not_written_out_is_refused() -> None:
    """The message has its place, and says how to write it."""
    app = SqlFlow("members")
    app.table("t", "id INT, p JSON, k STRING", key="id")
    with pytest.raises(
        SchemaError, match=r"column 8: expected a path that is written out.*ARRAY\['a', k\]"
    ):
        app.view("v", sql="SELECT p #> k AS x FROM t", dialect="postgres")
    with pytest.raises(
        SchemaError, match=r"expected keys and numbers, as in '\{a,0\}'; found '\{a,,b\}'"
    ):
        app.view("v", sql="SELECT p #> '{a,,b}' AS x FROM t", dialect="postgres")
