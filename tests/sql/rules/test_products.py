"""Joins on no equality: refused of two streams that keep all rows, kept up where one side is small."""

from __future__ import annotations

import pytest
from tests.sql.beside_duckdb import flow

from penstock.errors import SchemaError

ENDLESS = [
    "SELECT a.v, b.v AS w FROM s a, e b",
    "SELECT a.v, b.v AS w FROM s a, s b WHERE a.v < b.v",
    "SELECT a.v, b.v AS w FROM s a LEFT JOIN e b ON a.v < b.v",
    "SELECT a.v FROM s a ANTI JOIN e b ON a.v < b.v",
    "SELECT a.v, b.v AS w FROM (SELECT s.v FROM s JOIN t USING (k)) a, (SELECT v FROM e WHERE v > 0) b",
]
DEPENDENT = [
    "SELECT a.v FROM s a WHERE EXISTS (SELECT 1 FROM e b WHERE b.v > a.v)",
    "SELECT a.v FROM s a WHERE NOT EXISTS (SELECT 1 FROM s b WHERE b.v > a.v)",
    "SELECT a.v FROM s a WHERE a.v IN (SELECT b.v FROM e b WHERE b.v > a.k)",
    "SELECT a.v, (SELECT count(*) FROM e b WHERE b.v < a.v) AS n FROM s a",
    "SELECT a.v, x.n FROM s a, LATERAL (SELECT max(b.v) AS n FROM e b WHERE b.v < a.v) AS x",
    "SELECT a.v, x.v AS w FROM s a LEFT JOIN LATERAL (SELECT b.v FROM e b WHERE b.v < a.v) AS x ON TRUE",
    "SELECT v FROM s WHERE EXISTS (SELECT 1 FROM e WHERE EXISTS (SELECT 1 FROM t WHERE t.v < e.v + s.v))",
]
BOUNDED = [
    "SELECT a.id, b.id AS w FROM t a, t b WHERE a.v < b.v",
    "SELECT s.v, u.w FROM s, u WHERE s.v < u.w",
    "SELECT s.v, q.n FROM s, (SELECT count(*) AS n FROM e) q",
    "SELECT s.v, q.v AS w FROM s, (SELECT v FROM e ORDER BY v LIMIT 3) q",
    "SELECT s.v, q.v AS w FROM s, (SELECT v FROM e WHERE ts > now() - INTERVAL 1 HOUR) q",
    "SELECT s.v, q.v AS w FROM s, (VALUES (1), (2)) q(v)",
    "SELECT a.v, b.v AS w FROM e a JOIN e b ON b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 MINUTE",
    "SELECT a.v FROM s a WHERE EXISTS (SELECT 1 FROM e b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT a.v FROM s a WHERE EXISTS (SELECT 1 FROM t WHERE t.v > a.v)",
    "SELECT a.v FROM t a WHERE EXISTS (SELECT 1 FROM e b WHERE b.v > a.v)",
    "SELECT a.v FROM (SELECT DISTINCT v FROM s) a WHERE EXISTS (SELECT 1 FROM e b WHERE b.v > a.v)",
    "SELECT s.v FROM s WHERE s.v > (SELECT avg(b.v) FROM e b)",
    "SELECT s.v FROM s WHERE s.v > ALL (SELECT b.v FROM e b)",
]


@pytest.mark.parametrize("query", ENDLESS)
def test_a_product_of_endless_streams_is_refused(query: str) -> None:
    with pytest.raises(SchemaError, match="grow as the square of the streams"):
        flow().view("q", sql=query)


@pytest.mark.parametrize("query", DEPENDENT)
def test_a_subquery_of_an_endless_stream_for_each_row_of_another_is_refused(query: str) -> None:
    with pytest.raises(SchemaError, match="grow as the square of the streams"):
        flow().view("q", sql=query)


@pytest.mark.parametrize("query", BOUNDED)
def test_a_product_with_a_small_side_is_kept_up(query: str) -> None:
    assert flow().view("q", sql=query) is not None
