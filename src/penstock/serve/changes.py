"""What has changed in a view between two versions.

A version is the whole state, of which most files are those of the version before: shards whose state is
the same are not read. Of the others the rows of both versions are compared; each row has a weight, 1 for
one that has come, -1 for one that has gone.
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import QueryError
from penstock.expr.duck import confine, known
from penstock.serve.parts import ViewPart
from penstock.serve.views import Answer, Views

__all__ = ["WEIGHT", "changes"]

WEIGHT: Final = "weight"
"""The column with 1 for a row that came and -1 for one that went; behind the view's own."""


def changes(views: Views, name: str, since: int | None, version: int) -> Answer:
    """The rows by which a view differs between two versions.

    Args:
        views: the pipeline's.
        name: of the view.
        since: the version that the reader knows; None: none, and all rows have come.
        version: to which it is brought.

    Returns:
        The view's columns and `weight`; equal rows are one, with the sum of their weights. `version` is
        the one that the changes lead to. `since` is None, and the rows are all there are, also where that
        version isn't kept any more, or the view had other columns.

    Raises:
        QueryError: there is no such view, or the version isn't kept any more.
    """
    new = views.snapshot(version).part(name)
    if since is None:
        rows = _read(views, new, set(new.traces))
        weights = pa.array([1] * len(rows), pa.int64())
        return Answer(rows.append_column(WEIGHT, weights), len(rows), (), (), version)
    try:
        old = views.snapshot(since).part(name)
    except QueryError:  # it isn't kept any more, or the view is new
        return changes(views, name, None, version)
    if old.schema != new.schema:
        return changes(views, name, None, version)
    same_steps = (old.spec, old.steps) == (new.spec, new.steps)
    shards = {
        one
        for one in old.traces.keys() | new.traces.keys()
        if not same_steps or old.traces.get(one) != new.traces.get(one)
    }
    found = _difference(_read(views, old, shards), _read(views, new, shards))
    return Answer(found, len(found), (), (), version, since)


def _read(views: Views, part: ViewPart, shards: set[str]) -> pa.Table:
    kept = ViewPart(
        part.version, part.spec, {n: t for n, t in part.traces.items() if n in shards}, part.steps
    )
    rows = list(kept.read(views.store.files))
    return pa.concat_tables(rows) if rows else part.schema.empty_table()


def _difference(old: pa.Table, new: pa.Table) -> pa.Table:
    """The rows of `new` that `old` lacks, and the other way round, with their weights."""
    if not len(old) and not len(new):
        return old.append_column(WEIGHT, pa.array([], pa.int64()))
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in new.column_names)
    with duckdb.connect(":memory:") as con:
        con.execute("SET threads = 1")
        confine(con)
        con.register("old_rows", known(old))
        con.register("new_rows", known(new))
        found: pa.Table = con.sql(
            f"SELECT {columns}, CAST(sum(w) AS BIGINT) AS {WEIGHT} FROM ("
            f"SELECT {columns}, 1 AS w FROM new_rows UNION ALL SELECT {columns}, -1 FROM old_rows"
            f") GROUP BY {columns} HAVING sum(w) <> 0 ORDER BY {WEIGHT}"
        ).to_arrow_table()
    return found
