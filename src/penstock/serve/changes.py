"""What has changed in a view between two versions.

A version is the whole state, of which most files are those of the version before: shards whose state is
the same are not read. Of the others the rows of both versions are compared; each row has a weight, 1 for
one that has come, -1 for one that has gone.
"""

from __future__ import annotations

import contextlib
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import QueryError
from penstock.expr.duck import confine, known
from penstock.serve.answers import Answer, Counting
from penstock.serve.parts import ViewPart
from penstock.serve.views import Views

__all__ = ["WEIGHT", "changes"]

WEIGHT: Final = "weight"
"""The column with 1 for a row that came and -1 for one that went; behind the view's own."""


def changes(views: Views, name: str, since: int | None, version: int | None = None) -> Answer:
    """The rows by which a view differs between two versions.

    Args:
        views: the pipeline's.
        name: of the view.
        since: the version that the reader knows; None: none, and all rows have come.
        version: to which it is brought; None: the last one.

    Returns:
        The view's columns and `weight`, the last one; equal rows are one, with the sum of their weights.
        `version` is the one that the changes lead to. `since` is None, and the rows are all there are,
        also where that version isn't kept any more, or the view had other columns. `failures` has what
        failed in the shards that were compared.

    Raises:
        QueryError: there is no such view, or the version isn't kept any more.
    """
    return views.read(version, lambda snapshot: _changes(views, snapshot.part(name), name, since))


def _changes(views: Views, new: ViewPart, name: str, since: int | None) -> Answer:
    before: tuple[pa.Table, set[int]] | None = None
    if since is not None:
        with contextlib.suppress(QueryError):  # it isn't kept any more, or the view is new
            before = views.read(since, lambda snapshot: _before(views, snapshot.part(name), new))
    if before is None:
        since, before = None, (new.schema.empty_table(), set(new.traces))
    rows, shards = before
    counting = Counting(name)
    found = _difference(rows, _read(views, new, shards, counting))
    views.report(name, counting.failures)
    return Answer(found, len(found), (), (), new.version, since, {name: counting.failures})


def _before(views: Views, old: ViewPart, new: ViewPart) -> tuple[pa.Table, set[int]] | None:
    """The rows of shards that have changed, as they were, and which; None: the columns have changed."""
    if old.schema != new.schema:
        return None
    same_steps = (old.spec, old.steps) == (new.spec, new.steps)
    shards = {
        one
        for one in old.traces.keys() | new.traces.keys()
        if not same_steps or old.traces.get(one) != new.traces.get(one)
    }
    return _read(views, old, shards), shards


def _read(
    views: Views, part: ViewPart, shards: set[int], counting: Counting | None = None
) -> pa.Table:
    kept = ViewPart(
        part.version, part.spec, {n: t for n, t in part.traces.items() if n in shards}, part.steps
    )
    rows = list(kept.read(views.store.files, None, counting))
    return pa.concat_tables(rows) if rows else part.schema.empty_table()


def _difference(old: pa.Table, new: pa.Table) -> pa.Table:
    """The rows of `new` that `old` lacks, and the other way round, with their weights."""
    names = new.column_names
    if not len(old) and not len(new):
        return old.append_column(WEIGHT, pa.array([], pa.int64()))
    columns = ", ".join(f"c{i}" for i in range(new.num_columns))  # a view may have one called w
    old, new = (known(one).rename_columns(columns.split(", ")) for one in (old, new))
    with duckdb.connect(":memory:") as con:
        con.execute("SET threads = 1")
        confine(con)
        con.register("old_rows", old)
        con.register("new_rows", new)
        found: pa.Table = con.sql(
            f"SELECT {columns}, CAST(sum(w) AS BIGINT) AS weight FROM ("
            f"SELECT {columns}, 1 AS w FROM new_rows UNION ALL SELECT {columns}, -1 FROM old_rows"
            f") GROUP BY {columns} HAVING sum(w) <> 0 ORDER BY weight"
        ).to_arrow_table()
    return found.rename_columns([*names, WEIGHT])
