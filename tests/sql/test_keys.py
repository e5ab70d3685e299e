"""What identifies the rows of a query, as sinks write it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.errors import FlowError
from penstock.flow.graph import row_key
from penstock.sql import SqlFlow

GROUPS = "SELECT id, list(v ORDER BY v) AS vs FROM s GROUP BY id"
OTHERS = "SELECT id, max(m) AS m FROM u GROUP BY id"
BY_G = "SELECT g, count(*) AS n FROM s GROUP BY g"
BY_FK = "SELECT fk, count(*) AS m FROM u GROUP BY fk"
NUMBERED = "row_number() OVER (PARTITION BY g ORDER BY v DESC) AS n"
KEYS = [
    ("SELECT id, count(*) AS n FROM s GROUP BY id", "id"),
    (GROUPS, "id"),
    ("SELECT id, median(v) AS m FROM s GROUP BY id HAVING count(*) > 1", "id"),
    ("SELECT g, id, string_agg(x, ',' ORDER BY v) AS xs FROM s GROUP BY g, id", "g id"),
    ("SELECT t.id, t.n, u.m FROM t LEFT JOIN u ON t.id = u.id", "id"),
    ("SELECT t.id, u.m FROM t LEFT JOIN u ON t.fk = u.id", "id"),
    ("SELECT t.id, u.m FROM t LEFT JOIN u ON t.fk = u.id AND u.m > t.n", "id"),
    ("SELECT t.id, u.m FROM t RIGHT JOIN u ON t.id = u.fk", None),
    ("SELECT t.n, u.id FROM t RIGHT JOIN u ON t.id = u.fk", "id"),
    ("SELECT t.id AS a, u.id AS b FROM t FULL JOIN u ON t.fk = u.fk", "a b"),
    ("SELECT t.id AS a, u.id AS b FROM t JOIN u ON t.fk = u.fk", "a b"),
    (f"SELECT a.id, b.id AS u, a.vs, b.m FROM ({GROUPS}) a FULL JOIN ({OTHERS}) b ON a.id = b.id", "id u"),
    (f"SELECT a.g, b.fk, n, m FROM ({BY_G}) a FULL JOIN ({BY_FK}) b ON a.g = b.fk", None),
    (f"SELECT a.g, b.fk, n, m FROM ({BY_G}) a FULL JOIN ({BY_FK}) b ON a.g = b.fk AND n < m", None),
    (f"SELECT a.g, b.fk FROM ({BY_G}) a FULL JOIN ({BY_FK}) b ON a.g IS NOT DISTINCT FROM fk", "g fk"),
    (f"SELECT g, fk FROM ({BY_G}) a FULL JOIN ({BY_FK}) b ON g IS NOT DISTINCT FROM fk AND n < m", None),
    (f"SELECT a.g, b.fk, n, m FROM ({BY_G}) a LEFT JOIN ({BY_FK}) b ON a.g = b.fk", "g"),
    ("SELECT t.id AS a, u.n FROM t JOIN u ON t.fk = u.fk", None),
    ("SELECT u.id, t.n FROM t JOIN u ON t.id = u.fk", "id"),
    ("SELECT t.n, u.id FROM t JOIN u ON t.id = u.id", "id"),
    ("SELECT t.id, w.at, w.r FROM t ASOF JOIN w ON t.fk = w.fk AND t.n >= w.at", "id"),
    ("SELECT id FROM t SEMI JOIN u ON t.fk = u.fk", "id"),
    (f"SELECT * FROM (SELECT g, v, {NUMBERED} FROM s) WHERE n <= 2", "g n"),
    (f"SELECT * FROM (SELECT g, id, {NUMBERED} FROM (SELECT *, n AS v FROM t)) WHERE n <= 2", "id"),
    (f"SELECT * FROM (SELECT g, {NUMBERED} FROM (SELECT *, n AS v FROM t)) WHERE n <= 2", "g n"),
    ("SELECT id, max(n) OVER (PARTITION BY g) AS m FROM t", "id"),
    ("SELECT id, v FROM s ORDER BY v LIMIT 3", None),
    ("SELECT id FROM s EXCEPT SELECT id FROM t", "id"),
    (f"SELECT a.id, a.vs, b.m FROM ({GROUPS}) a LEFT JOIN ({OTHERS}) b ON a.id = b.id", "id"),
    ("SELECT t.id, c.n FROM t, (SELECT count(*) AS n FROM s) c", "id"),
    ("SELECT t.id, x FROM t, UNNEST([1, 2]) AS e(x)", None),
]  # fmt: skip
"""Queries, and the columns of the key; None: a sink of upserts is refused."""


def flow() -> SqlFlow:
    app = SqlFlow("shop")
    app.stream("s", "id BIGINT, g BIGINT, v BIGINT, x STRING")
    app.table("t", "id BIGINT, g BIGINT, n BIGINT, fk BIGINT", key="id")
    app.table("u", "id BIGINT, n BIGINT, m BIGINT, fk BIGINT", key="id")
    app.table("w", "fk BIGINT, at BIGINT, r BIGINT", key=("fk", "at"))
    return app


@pytest.mark.parametrize(("query", "key"), KEYS, ids=range(len(KEYS)))
def test_the_key_of_a_query_follows_from_it(query: str, key: str | None) -> None:
    """From those of its tables and groups; rows that nothing identifies can't be upserts."""
    app = flow()
    if key is None:
        with pytest.raises(FlowError, match="expected columns that identify"):
            app.sql(f"CREATE SINK o INTO out AS {query} EMIT UPSERTS")
        return
    app.sql(f"CREATE SINK o INTO out AS {query} EMIT UPSERTS")
    assert list(app.graph().outputs[0].keys) == key.split()


@pytest.mark.parametrize("is_required", [False, True])
def test_rows_of_both_sides_of_a_full_join_may_be_null(is_required: bool) -> None:
    """NULL is equal to nothing: two rows have it, which no key distinguishes, unless one side is NOT NULL."""
    app = ps.App("full")
    k = f"k BIGINT{' NOT NULL' if is_required else ''}"
    one = app.stream("one", k).group_by("k").agg(n=ps.count())
    two = app.stream("two", "k BIGINT").group_by("k").agg(m=ps.count())
    both = one.join(two, on="k", how="full")
    app.view("both", both)
    assert row_key(both.node) == (("k",) if is_required else ())
    if is_required:
        both.to("out", emit="upserts")
    else:
        with pytest.raises(FlowError, match=r"in a full join are identified by columns"):
            both.to("out", emit="upserts")
        both.to("out", emit="changes")
    run = ps.testing.run(app, shaken=False)
    for topic in ("one", "two"):
        for key in (1, None):
            run.send(topic, k=key)
    rows = run.view("both").rows()
    nulls = {(row["n"], row["m"]) for row in rows if row["k"] is None}
    assert nulls == ({(None, 1)} if is_required else {(1, None), (None, 1)})
    added = [one for one in run.topic("out") if b'"k":null' in (one.value or b"")]
    assert len(added) == len(nulls)


def test_a_key_that_is_a_part_of_what_a_full_join_is_on() -> None:
    """Rows that differ in another column aren't joined: both are there, with one key of each side."""
    app = ps.App("full")
    one = app.table("one", "k BIGINT, j BIGINT NOT NULL, a STRING", key="k")
    two = app.table("two", "k BIGINT, j BIGINT NOT NULL, b STRING", key="k")
    both = one.join(two, on=("k", "j"), how="full")
    assert row_key(both.node) == ("k", "j")
    both.to("out", emit="upserts")
    run = ps.testing.run(app, shaken=False)
    run.send("one", k=1, j=1, a="a")
    run.send("two", k=1, j=2, b="b")
    assert len({one.key for one in run.topic("out")}) == 2


@pytest.mark.parametrize("text", ["count(*)", "list(v)", "count(*) + sum(v)"])
def test_an_aggregate_of_all_rows_is_one_row(text: str) -> None:
    """Its changes are of one key, whatever computes it."""
    app = SqlFlow("shop")
    app.stream("s", "v BIGINT")
    for emit in ("UPSERTS", "CHANGES"):
        app.sql(f"CREATE SINK {emit} INTO {emit} AS SELECT {text} AS n FROM s EMIT {emit}")
    run = ps.testing.run(app, shaken=False)
    for _ in range(2):
        run.send("s", v=1)
        run.settle()
    assert {one.key for one in run.topic("UPSERTS")} == {b"{}"}
    assert [b'"op":"u"' in one.value for one in run.topic("CHANGES")][-1]
    assert all(one.value for one in run.topic("UPSERTS"))


@pytest.mark.parametrize(
    ("how", "on"), [("inner", "id = u.fk"), ("left", "fk = u.id"), ("inner", "id = u.id")]
)
def test_the_same_join_in_python_and_in_sql_has_one_key(how: Any, on: str) -> None:
    """An inner one is one node; the key is the same, whichever language it is written in."""
    app = flow()
    mine, theirs = on.replace("u.", "").split(" = ")
    left, right = app.named["t"].select("id", "fk"), app.named["u"].select(uid="id", ufk="fk")
    other = {"id": "uid", "fk": "ufk"}[theirs]
    in_python = left.join(right, on={mine: other}, how=how)
    rest = {"uid": "ufk", "ufk": "uid"}[other]
    text = f"SELECT l.id, l.fk, r.{rest} FROM l {how} JOIN r ON l.{mine} = r.{other}"
    app.named["l"], app.named["r"] = left, right
    in_sql = app.view("v", sql=text)
    assert row_key(in_python.node) == row_key(in_sql.node)
    if how == "inner":
        assert in_python.node in [in_sql.node, *in_sql.node.inputs]
