"""SQL: a query over streams and tables as a table that stays up to date.

    flow         an app's sql=… and sql(…)
    statements   programs: CREATE STREAM, TABLE, VIEW …
    views        text -> a table of the flow: qualified by sqlglot, checked by DuckDB
    queries      a query's tree -> relations
    subqueries   scalar subqueries, IN, EXISTS, ANY, ALL
    sources      FROM and JOIN
    tables       what stands for a table in FROM: TUMBLE and its like
    aggregation  GROUP BY
    ordering     ORDER BY with LIMIT, DISTINCT ON
    rules        VALUES, conditions on now()
    patterns     MATCH_RECOGNIZE, patterns in WINDOW
    recursion    WITH RECURSIVE
    scope        what names mean
    places       where in the text a mistake is
    relation     rows, and operations on them: nodes of the flow

What the engine's operators keep up change by change is made of them; the rest is computed again for the
groups that change (`penstock.ops.keyed.query`).
"""

from penstock.sql.flow import SqlFlow

__all__ = ["SqlFlow"]
