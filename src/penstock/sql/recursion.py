"""WITH RECURSIVE: computed as a whole whenever a table that it reads changes.

With UNION ALL, rows that form a cycle would give rows without end. So each row has the number of its step,
and how many rows came before; beyond a bound, the query fails and names a row. With UNION, a row that was
there is no new one, so a cycle ends by itself.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from penstock.sql.relation import Relation
from penstock.sql.rules.constants import constant
from penstock.sql.scope import Environment

__all__ = ["recursive"]

STEPS_MAX: Final = 10_000
"""Of a recursion: they take some seconds. Trees and chains of real data are less deep."""
ROWS_MAX: Final = 10_000_000
"""That a recursion with UNION ALL gives: they are held in memory, some hundred megabytes."""
STEP: Final = '"$step"'
ROWS: Final = '"$rows"'


def recursive(cte: exp.CTE, env: Environment) -> Relation:
    """The rows of a recursive table.

    Args:
        cte: `name AS (… UNION [ALL] …)`, its names qualified.
        env: the tables that it may read.
    """
    name = cte.alias
    tree = cte.copy()
    inside = {one.alias.lower() for one in tree.find_all(exp.CTE)}
    relations: list[Relation] = []
    known: dict[str, str] = {}
    for table in tree.this.find_all(exp.Table):
        called = table.name.lower()
        if called in inside:
            continue
        if called not in known:
            named = env.table(called)
            rows = named.rows.project(
                {label: f'"{column}"' for label, column in named.columns.items()}
            )
            known[called] = f"rows{len(relations)}"
            relations.append(rows)
        alias = table.alias_or_name
        table.set("this", exp.to_identifier(known[called]))
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias)))
    columns = tree.alias_column_names
    body = tree.this
    if isinstance(body, exp.Union) and not body.args.get("distinct"):
        query = _bounded(name, columns, body)
    else:
        head = f"{name}({', '.join(columns)})" if columns else name
        query = f"WITH RECURSIVE {head} AS ({body.sql(dialect='duckdb')}) SELECT * FROM {name}"
    if not relations:
        return constant(env.flow, query)
    first, *others = relations
    # It is asked of no rows, too: an aggregate of none is a row.
    return first.query(others, [() for _ in relations], query, always=True)


def _bounded(name: str, columns: list[str], body: exp.Union) -> str:
    """The query of a recursive table whose steps and rows are counted."""
    start, step = (one.sql(dialect="duckdb") for one in (body.this, body.expression))
    labels = f"({', '.join(columns)})" if columns else ""
    found = (
        f"'expected the recursion of {name.replace(chr(39), '')} to end within {STEPS_MAX} steps and "
        f"{ROWS_MAX} rows; found more, such as ' || CAST(s AS VARCHAR) || '. Its rows may "
        "form a cycle: write UNION in place of UNION ALL, or a condition that ends it'"
    )
    return (
        f"WITH RECURSIVE {name} AS (SELECT s.*, 0 AS {STEP}, CAST(count(*) OVER () AS BIGINT) AS {ROWS} "
        f"FROM ({start}) AS s{labels} UNION ALL SELECT s.*, d.step, d.before + count(*) OVER () "
        f"FROM ({step}) AS s, (SELECT max({STEP}) + 1 AS step, max({ROWS}) AS before FROM {name}) AS d "
        f"WHERE CASE WHEN d.step > {STEPS_MAX} OR d.before > {ROWS_MAX} THEN error({found}) IS NULL "
        f"ELSE TRUE END) SELECT * EXCLUDE ({STEP}, {ROWS}) FROM {name}"
    )
