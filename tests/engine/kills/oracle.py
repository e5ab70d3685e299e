"""What DuckDB makes of the whole input at once: the views of `program.py` that SQL can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import duckdb
import pyarrow as pa

from penstock.client import Client, Reader

__all__ = ["expected", "rows_of"]

LATENESS_MS: Final = 2_000

INPUT: Final = f"""
CREATE TABLE good AS
    SELECT partition, "offset", value->>'user' AS user, value->>'page' AS page,
        TRY_CAST(value->>'v' AS BIGINT) AS v, CAST(value->>'at' AS BIGINT) AS ms
    FROM events WHERE TRY_CAST(value->>'v' AS BIGINT) IS NOT NULL;
CREATE TABLE marked AS
    SELECT *, max(ms) OVER (
        PARTITION BY partition ORDER BY "offset"
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) - {LATENESS_MS} AS mark FROM good;
CREATE TABLE timely AS SELECT * EXCLUDE mark FROM marked WHERE mark IS NULL OR ms >= mark;
CREATE TABLE totals AS
    SELECT page, user, count(*) AS n, sum(v)::BIGINT AS total FROM good GROUP BY page, user;
CREATE TABLE versions AS
    SELECT "offset", value->>'page' AS page, CAST(value->>'price' AS BIGINT) AS price,
        CAST(value->>'at' AS BIGINT) AS ms
    FROM prices;
"""

QUERIES: Final = {
    "charged": """
        SELECT one.page, count(*) AS n, sum(price * v)::BIGINT AS paid
        FROM (SELECT * FROM timely WHERE v % 4 = 0) AS one
        ASOF JOIN versions ON one.page = versions.page AND one.ms >= versions.ms
        GROUP BY one.page
    """,
    # Matches are looked for in the same second and its neighbours; a plain FULL JOIN tries all pairs.
    "pairs": """
        WITH numbered AS (
            SELECT *, (partition::BIGINT << 40) + "offset" AS id, ms // 1000 AS second FROM timely
        ),
        low AS (SELECT * FROM numbered WHERE v < 100),
        high AS (SELECT * FROM numbered WHERE v >= 900),
        near AS (SELECT *, unnest([second - 1, second, second + 1]) AS bucket FROM high),
        matched AS (
            SELECT low.user, low.id AS left_id, near.id AS right_id
            FROM low JOIN near ON low.user = near.user AND low.second = near.bucket
                AND near.ms BETWEEN low.ms - 1000 AND low.ms + 1000
        ),
        pairs AS (
            FROM matched
            UNION ALL SELECT user, id, NULL FROM low WHERE id NOT IN (SELECT left_id FROM matched)
            UNION ALL SELECT user, NULL, id FROM high WHERE id NOT IN (SELECT right_id FROM matched)
        )
        SELECT user, count(*) AS n, count(left_id) AS low, count(right_id) AS high
        FROM pairs GROUP BY user
    """,
    "visits": """
        SELECT user, count(*) AS n, sum(v)::BIGINT AS total,
            min(ms) AS window_start, max(ms) + 3000 AS window_end
        FROM (
            SELECT *, sum(opens) OVER (PARTITION BY user ORDER BY ms) AS session
            FROM (
                SELECT *, CASE WHEN ms - lag(ms) OVER (PARTITION BY user ORDER BY ms) < 3000
                    THEN 0 ELSE 1 END AS opens
                FROM timely WHERE v < 20
            )
        )
        GROUP BY user, session
    """,
    "spread": """
        SELECT page, count(*) AS users, max(n) AS most
        FROM (SELECT page, user, count(*) AS n FROM good GROUP BY ALL) GROUP BY page
    """,
    "found": """
        WITH documents AS (SELECT page, count(*) AS n FROM good GROUP BY page),
        searches AS (
            SELECT page AS topic, v AS least, count(*) AS times FROM good
            WHERE v BETWEEN 0 AND 39 GROUP BY ALL
        )
        SELECT least, count(*) AS documents, sum(times)::BIGINT AS times
        FROM documents JOIN searches ON topic = page AND n >= least GROUP BY least
    """,
    "silent": """
        SELECT user, count(*) AS n, sum(v)::BIGINT AS total FROM timely AS low
        WHERE v < 30 AND NOT EXISTS (
            SELECT 1 FROM timely AS high
            WHERE high.user = low.user AND high.v >= 950 AND high.ms BETWEEN low.ms AND low.ms + 1000
        )
        GROUP BY user
    """,
    "joined": """SELECT user, sum(v)::BIGINT AS total FROM good GROUP BY user""",
}
"""By view. Times are in milliseconds since 1970."""


VIEWS_SQL: Final = {
    "per_user": """
        SELECT user, ms // 10_000 * 10_000 AS window_start, count(*) AS n, min(v) AS low
        FROM marked WHERE mark IS NULL OR window_start + 10_000 > mark GROUP BY ALL
    """,
    "priced": """
        WITH latest AS (SELECT page, arg_max(price, "offset") AS price FROM versions GROUP BY page)
        SELECT latest.page, price, user, n * price AS paid
        FROM latest LEFT JOIN totals ON totals.page = latest.page AND total > 1000
    """,
    "leaders": """
        SELECT page, user, total, row_number() OVER (PARTITION BY page ORDER BY total DESC, user) AS place
        FROM totals QUALIFY place <= 3
    """,
    "frequent": """
        WITH users AS (SELECT user, count(*) AS n FROM good GROUP BY user)
        SELECT user, n FROM users WHERE n > (SELECT avg(n) FROM users)
    """,
}
"""By view of `views.sql`."""


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A view's rows, or an answer of DuckDB's, as they can be compared."""
    times = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
    for name in times:
        at = table.column(name).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        table = table.set_column(table.column_names.index(name), name, at)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def expected(address: str, queries: Mapping[str, str] = QUERIES) -> dict[str, pa.Table]:
    """The content of each view."""
    with duckdb.connect() as connection:
        for topic in ("events", "prices"):
            connection.register(f"raw_{topic}", _records(address, topic))
            connection.execute(
                f'CREATE TABLE {topic} AS SELECT partition, "offset", value::VARCHAR::JSON AS value '
                f"FROM raw_{topic}"
            )
        connection.execute(INPUT)
        return {view: connection.sql(q).to_arrow_table() for view, q in queries.items()}


def _records(address: str, topic: str) -> pa.Table:
    parts = []
    with Client(address) as client, Reader(address) as reader:
        for partition, end in client.offsets(topic, "latest").items():
            for records in reader.read(topic, partition, 0, end):
                batch = records.to_arrow()
                parts.append(
                    pa.table(
                        {
                            "partition": pa.array([partition] * len(batch), pa.int32()),
                            "offset": batch.column("offset"),
                            "value": batch.column("value").cast(pa.string()),
                        }
                    )
                )
    return pa.concat_tables(parts)
