"""WITH RECURSIVE: computed as a whole whenever a table that it reads changes."""

from __future__ import annotations

from sqlglot import exp

from penstock.sql.relation import Relation
from penstock.sql.rules.constants import constant
from penstock.sql.scope import Environment

__all__ = ["recursive"]


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
    head = f"{name}({', '.join(columns)})" if columns else name
    body = tree.this.sql(dialect="duckdb")
    query = f"WITH RECURSIVE {head} AS ({body}) SELECT * FROM {name}"
    if not relations:
        return constant(env.flow, query)
    first, *others = relations
    # It is asked of no rows, too: an aggregate of none is a row.
    return first.query(others, [() for _ in relations], query, always=True)
