"""Forms of queries that nest badly in others' clauses, each with two whole numbers as its columns."""

from __future__ import annotations

import random

__all__ = ["rich_forms"]

COMPARED = ("=", "<>", "<", "<=", ">", ">=")
SIDES = ("", "LEFT ", "RIGHT ", "FULL ")


def rich_forms(chance: random.Random, rest: str, number: str, text: str, n: int) -> list[str]:
    """Objects as keys, joins in parentheses, other types, and rarer clauses.

    Args:
        chance: for what a form leaves open.
        rest: a table, `t` or `u`, and a condition.
        number: a column of it.
        text: another.
        n: from 1 to 3.
    """
    return [
        *_of_objects(chance, rest, number, text, n),
        *_of_joins(chance, n),
        *_of_groups(chance, rest, number, text, n),
        *_of_types(chance, rest, number, text, n),
    ]


def _of_objects(chance: random.Random, rest: str, number: str, text: str, n: int) -> list[str]:
    made = chance.choice(
        [
            f"{{'a': k, 'b': {text}}}",
            f"[k, {number}]",
            "MAP {'k': k}",
            f"[{{'a': {number}, 'l': [k]}}]",
        ]
    )
    word = chance.choice(
        ["UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"]
    )
    how = chance.choice(["JOIN", "LEFT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"])
    second = "t.k" if how in ("SEMI JOIN", "ANTI JOIN") else "u.w"
    return [
        f"SELECT count(*) AS c0, sum({number}) AS c1 FROM (SELECT *, {made} AS o FROM {rest}) GROUP BY o",
        f"SELECT count(*) AS c0, {n} AS c1 FROM (SELECT DISTINCT {made} AS o FROM {rest})",
        ("SELECT o.a AS c0, len(o.l) AS c1 FROM (SELECT {'a': k, 'l': [v]} AS o FROM t "
        f"{word} SELECT {{'a': w, 'l': [k]}} FROM u)"),
        (f"SELECT t.id AS c0, {second} AS c1 FROM t {how} u "
        "ON {'k': t.k, 'n': t.v} = {'k': u.k, 'n': u.w}"),
        (f"SELECT count(DISTINCT o) AS c0, max(o)[1] AS c1 FROM (SELECT k, [{number}, k] AS o FROM {rest}) "
        "GROUP BY k"),
        (f"SELECT id AS c0, o.a AS c1 FROM (SELECT id, {{'a': {number}, 'b': {text}}} AS o FROM {rest}) "
        f"ORDER BY o, id LIMIT {n}"),
        (f"SELECT z.id AS c0, p.a AS c1 FROM (SELECT id, [{{'a': k}}, {{'a': {number}}}] AS l FROM {rest}) "
        f"AS z, UNNEST(z.l) AS p{chance.choice(['', ' WHERE p.a > 1'])}"),
        f"SELECT id AS c0, len([e FOR e IN [k, {number}, {n}] IF e > {n - 1}]) AS c1 FROM {rest}",
        (f"SELECT id AS c0, ARRAY(SELECT w FROM u WHERE u.k = t.k ORDER BY w DESC, id)[{n}] AS c1 FROM t"),
        (f"SELECT id AS c0, (SELECT {chance.choice(['sum', 'max', 'count'])}(p.e) "
        f"FROM UNNEST([t.k, t.v]) AS p(e) WHERE p.e {chance.choice(COMPARED)} t.id) AS c1 FROM t"),
        f"SELECT id AS c0, k AS c1 FROM t WHERE {n} IN (SELECT p.e FROM UNNEST([t.k, t.v]) AS p(e))",
        "SELECT t.id AS c0, z.w AS c1 FROM t, (VALUES (t.k), (t.v)) AS z(w)",
        f"SELECT id AS c0, unnest([k, {number}]) + {n} AS c1 FROM {rest}",
        f"SELECT unnest([k, {number}]) AS c0, count(*) AS c1 FROM {rest} GROUP BY c0",
        (f"SELECT DISTINCT unnest(l) AS c0, k AS c1 FROM (SELECT k, list({number} ORDER BY id) AS l "
        f"FROM {rest} GROUP BY k) ORDER BY c0 DESC, k LIMIT {n}"),
        (f"SELECT t.id AS c0, e.n AS c1 FROM t {chance.choice(['LEFT JOIN', 'JOIN'])} "
        f"UNNEST(CASE WHEN v > {n} THEN [t.k, t.v] WHEN v > 0 THEN [] END) WITH ORDINALITY AS e(x, n) "
        "ON TRUE"),
        f"SELECT t.id AS c0, g.i AS c1 FROM t LEFT JOIN generate_series({n}, t.v) AS g(i) ON TRUE",
        (f"SELECT id AS c0, rank() OVER (PARTITION BY {made} ORDER BY id) AS c1 FROM {rest}"),
    ]  # fmt: skip


def _of_joins(chance: random.Random, n: int) -> list[str]:
    side, inner = chance.choice(SIDES), chance.choice(SIDES)
    compared = chance.choice(COMPARED)
    negated = chance.choice(["", "NOT "])
    values = ", ".join(str(chance.randint(-3, 5)) for _ in range(300)) + chance.choice(
        ["", ", NULL"]
    )
    return [
        (f"SELECT t.id AS c0, o.id AS c1 FROM t {side}JOIN (u {inner}JOIN t AS o ON u.w = o.v) "
        f"ON t.k = u.k{chance.choice(['', ' AND t.v ' + compared + ' o.v'])}"),
        ("SELECT id AS c0, k AS c1 FROM t WHERE EXISTS (SELECT 1 FROM (u JOIN t AS o ON u.w = o.v) "
        "WHERE o.k = t.k)"),
        f"SELECT id AS c0, k AS c1 FROM t WHERE v {negated}IN ({values})",
        f"SELECT id AS c0, k AS c1 FROM t WHERE {negated}(v IN (SELECT w FROM u) AND k = {n})",
        f"SELECT id AS c0, k AS c1 FROM t WHERE v {negated}IN (SELECT w FROM u WHERE u.k {compared} t.k)",
        f"SELECT t.id AS c0, u.id AS c1 FROM t {side}JOIN u ON t.k IS NOT DISTINCT FROM u.k AND t.v = u.w",
        (f"SELECT t.id AS c0, u.id AS c1 FROM t {side}JOIN u ON upper(t.x) = upper(u.y) AND t.v + {n} "
        f"{compared} u.w"),
        f"SELECT t.id AS c0, u.id AS c1 FROM t {side}JOIN u ON t.v {compared} u.w AND t.k = {n}",
        (f"SELECT t.id AS c0, l.n AS c1 FROM t LEFT JOIN LATERAL (SELECT max(w) + t.v AS n FROM u "
        f"WHERE u.w {compared} t.v HAVING count(*) > 1) AS l ON TRUE"),
        ("SELECT id AS c0, (SELECT (SELECT max(o.w) FROM u AS o WHERE o.k = u.k AND o.w < t.v) FROM u "
        "WHERE u.id = t.id) AS c1 FROM t"),
    ]  # fmt: skip


def _of_groups(chance: random.Random, rest: str, number: str, text: str, n: int) -> list[str]:
    sets = chance.choice(
        [f"GROUPING SETS ((k), (k), (k, {text}), (), ())", f"ROLLUP (k), CUBE ({text})",
         f"k, ROLLUP ({text})", f"GROUPING SETS (ROLLUP (k, {text}), {text})"]
    )  # fmt: skip
    order = chance.choice(["id", "id DESC"])
    lit = f"{number} {chance.choice(COMPARED)} {n}"
    return [
        (f"SELECT count(*) AS c0, max({number}) AS c1 FROM {rest} GROUP BY {sets} "
        f"HAVING count(*) {chance.choice(COMPARED)} {n}"),
        (f"SELECT len(string_agg(DISTINCT {text}, ',' ORDER BY {text})) AS c0, k AS c1 FROM {rest} "
        "GROUP BY k"),
        (f"SELECT len(string_agg({text}, '' ORDER BY {order}) FILTER (WHERE {lit})) AS c0, "
        f"list(DISTINCT {number} ORDER BY {number} DESC)[{n}] AS c1 FROM {rest} GROUP BY k"),
        f"SELECT sum(DISTINCT {number}) AS c0, count(DISTINCT {text}) FILTER (WHERE {lit}) AS c1 FROM {rest}",
        f"SELECT k AS c0, max({number}, 2)[{n}] AS c1 FROM {rest} GROUP BY k",
        (f"SELECT arg_max({number}, id) AS c0, first({number} ORDER BY {order}) AS c1 FROM {rest} "
        f"GROUP BY {text}"),
        f"SELECT DISTINCT ON (k, {text}) id AS c0, k AS c1 FROM {rest} ORDER BY k, {text}, {order}",
        (f"SELECT id AS c0, k AS c1 FROM {rest} QUALIFY rank() OVER (PARTITION BY k ORDER BY {number}) "
        f"{chance.choice(COMPARED)} {n}"),
        (f"SELECT count(*) + count(*) OVER (ORDER BY k) AS c0, sum(sum({number})) OVER (ORDER BY k) AS c1 "
        f"FROM {rest} GROUP BY k"),
        f"SELECT k AS c0, sum({number}) AS c1 FROM {rest} GROUP BY ALL ORDER BY ALL LIMIT {n}",
        (f"WITH RECURSIVE c(a) AS (SELECT min(k) FROM {rest} UNION ALL SELECT a + 1 FROM c "
        f"WHERE a < (SELECT max(k) FROM u)) SELECT a AS c0, {n} AS c1 FROM c"),
        ("WITH RECURSIVE p(a, b, l) AS (SELECT k, v, [k, v] FROM t UNION ALL SELECT p.a, u.w, l || [u.w] "
        "FROM p JOIN u ON p.b = u.k WHERE NOT list_contains(l, u.w)) SELECT a AS c0, b AS c1 FROM p"),
    ]  # fmt: skip


def _of_types(chance: random.Random, rest: str, number: str, text: str, n: int) -> list[str]:
    total = chance.choice(["sum", "max", "avg"])
    at = f"(TIMESTAMPTZ '2026-01-31 22:00:00+00' + to_hours({number}))"
    step = chance.choice(["INTERVAL 1 MONTH", "INTERVAL 90 MINUTES", "to_days(k)"])
    path = chance.choice(["$.a", "$.l[1]", "$.o.x"])
    return [
        (f"SELECT k AS c0, CAST({total}({number}::DECIMAL(9, 2) / 4) * 100 AS BIGINT) AS c1 FROM {rest} "
        "GROUP BY k"),
        (f"SELECT t.id AS c0, (SELECT count(*) FROM u WHERE u.w * {chance.choice(['-0.0', '0.5'])} = "
        f"t.v * {chance.choice(['0.0', '0.5'])}::DOUBLE) AS c1 FROM t"),
        (f"SELECT count(*) AS c0, CAST(max({number}) AS BIGINT) AS c1 FROM (SELECT * REPLACE "
        f"({number} * -0.0::DOUBLE AS {number}) FROM {rest}) GROUP BY {number}"),
        (f"SELECT id AS c0, CAST(({number}::HUGEINT * 1000000000000) // {n} % 1000 AS BIGINT) AS c1 "
        f"FROM {rest}"),
        f"SELECT id AS c0, day({at} + {step}) * 100 + hour({at} - {step}) AS c1 FROM {rest}",
        (f"SELECT dayofyear(date_trunc('day', {at})) AS c0, count(*) AS c1 FROM {rest} GROUP BY "
        f"date_trunc('day', {at})"),
        (f"SELECT id AS c0, CAST(json_extract_string(json_object('a', k, 'l', [id, {number}], 'o', "
        f"{{'x': {text}}}), '{path}') = '1' AS BIGINT) AS c1 FROM {rest}"),
        (f"SELECT id AS c0, hour({at} AT TIME ZONE 'Europe/Berlin') AS c1 FROM {rest} -- a comment; ' \"\n"
        f"AND {number} IS NOT NULL /* another; */"),
        (f'SELECT "ID" AS c0, "N n" AS c1 FROM (SELECT Id, {number.upper()} + {n} AS "N n" FROM {rest}) '
        'AS "Q q" WHERE "Q q"."n N" > 0'),
        f"SELECT id AS c0, {'(' * 8}k{')' * 8}{' + 1' * 8} AS c1 FROM {rest}",
        (f"SELECT id AS c0, list_sum(list_transform([k, {number}], lambda e: e * {n})) AS c1 FROM {rest}"),
        f"SELECT id AS c0, CASE {text} WHEN 'a' THEN 1 WHEN 'b' THEN k END AS c1 FROM {rest}",
    ]  # fmt: skip
