"""Columns of type JSON in SQL: each view equals DuckDB's answer after every batch."""

from __future__ import annotations

from typing import Final

from tests.sql.beside_duckdb import failing
from tests.sql.chance.schemas import Schema, Table

TABLES: Final = Schema(
    (
        Table("orders", {"id": "INT", "k": "INT", "p": "JSON", "x": "STRING"}, ("id",)),
        Table("Users", {"id": "INT", "p": "JSON", "l": "ARRAY<BIGINT>"}, ("id",)),
        Table("e_2", {"k": "INT", "p": "JSON"}, ()),
    )
)
QUERIES: Final = (
    "SELECT * FROM e_2",
    "SELECT id, p->'a' AS a, p->>'a' AS t, p->'$.b.a' AS n, p->0 AS first FROM orders",
    "SELECT id, json_extract(p, '$.a') AS a, json_extract_string(p, ['$.a', '$.b']) AS s FROM orders",
    "SELECT id, json_type(p) AS t, json_array_length(p) AS n, json_keys(p) AS k FROM orders",
    "SELECT id, TRY_CAST(p AS BIGINT) AS i, TRY_CAST(p->'a' AS BIGINT[]) AS l, p::VARCHAR AS t FROM orders",
    "SELECT id, (p->'a') IS NULL AS missing, (p->'$.b.a') = 'null' AS is_null FROM orders",
    "SELECT o.id, e.key, e.value FROM orders AS o, json_each(o.p) AS e",
    "SELECT o.id, e.key, e.value FROM orders o LEFT JOIN json_each(o.p, '$.a') e ON TRUE",
    "SELECT j.key, count(*) AS n FROM e_2, json_each(p) AS j GROUP BY j.key",
    "SELECT id FROM orders WHERE p->>'a' = '1'",
    "SELECT id FROM orders WHERE p = '{\"a\":1}' OR json_contains(p, '2')",
    "SELECT p, count(*) AS n FROM e_2 GROUP BY p",
    "SELECT k, max(p) AS mx, min(p->'a') AS mi, count(DISTINCT p) AS n FROM orders GROUP BY k",
    "SELECT p->>'a' AS a, count(*) AS n, sum(k) AS s FROM e_2 GROUP BY p->>'a'",
    "SELECT DISTINCT p FROM orders",
    "SELECT o.id, u.id AS other FROM orders o JOIN Users u ON o.p = u.p",
    "SELECT o.id, u.p FROM orders o LEFT JOIN Users u ON o.p->>'a' = u.p->>'a'",
    "SELECT p FROM orders UNION SELECT p FROM Users",
    "SELECT p FROM orders EXCEPT SELECT p->'a' FROM Users",
    "SELECT id, unnest(p->'$[*]') AS item FROM orders",
    "SELECT id, i->>'a' AS a FROM orders, UNNEST(p->'$[*]') AS u(i)",
    "SELECT e.k, i FROM e_2 e LEFT JOIN UNNEST(CAST(e.p->'$.a[*]' AS VARCHAR[])) AS u(i) ON TRUE",
    "SELECT id, p FROM orders ORDER BY p DESC, id LIMIT 3",
    "SELECT id, row_number() OVER (PARTITION BY k ORDER BY p, id) AS n FROM orders",
    "SELECT id, lag(p) OVER (ORDER BY id) AS l FROM orders",
    "SELECT id, to_json(l) AS l, json_object('id', id, 'p', p) AS o, {'p': p, 'l': l}::JSON AS s FROM Users",
    "SELECT id, {'p': p, 'n': id} AS s, [p, p->'a'] AS l, MAP {'p': p} AS m FROM orders",
    "SELECT id, s.p->>'a' AS a FROM (SELECT id, {'p': p} AS s FROM orders)",
    "SELECT id, coalesce(p->'a', p) AS c, CASE WHEN json_type(p) = 'OBJECT' THEN p END AS o FROM orders",
    "SELECT k, list(p ORDER BY id) AS l, string_agg(p->>'a', ',' ORDER BY id) AS s FROM orders GROUP BY k",
    "SELECT json_group_array(k) AS l FROM (SELECT DISTINCT 1 AS k FROM orders)",
    "SELECT id, p.a AS a, p.b.a AS b FROM orders",
    "SELECT id, from_json(p, '{\"a\":\"VARCHAR\"}') AS s FROM orders WHERE json_type(p) = 'OBJECT'",
    "SELECT id, (SELECT max(u.p) FROM Users u WHERE u.id <= o.id) AS m FROM orders o",
    "SELECT id, p IN (SELECT p FROM Users) AS b FROM orders",
    "SELECT DISTINCT ON (k) k, p FROM orders ORDER BY k, p, id",
    "SELECT id, json_merge_patch(p, '{\"z\": 1}') AS m, json_pretty(p) AS t FROM orders",
)


def test_views_equal_duckdb() -> None:
    """Operators, functions, casts, groups, joins, arrays and windows over JSON are DuckDB's."""
    for query, error in failing(QUERIES, seed=1, schema=TABLES):
        error.add_note(query)
        raise error
