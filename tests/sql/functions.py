"""Which of DuckDB's functions a view may call, and how a view with them is kept up to date.

DuckDB's own catalogue lists the functions. What each does in a view is asked of the code that compiles
queries (`aggregation`) and of the one that refuses them (`expr.purity`), so this can't differ from them.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

import sqlglot

from penstock.expr.duck import connection
from penstock.expr.purity import makes_rows, names_aggregate, varies
from penstock.sql.aggregation import call_of

__all__ = ["Kind", "functions", "markdown"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_INNER: Final = re.compile(
    r"penstock_.*|"
    r"(icu_)?collate_.*|pg_.*|has_.*_privilege|inet_.*|.*_byte_comparable|.*_is_visible|json_copy_.*|"
    r"array_to_string_comma_default|col_description|obj_description|shobj_description|"
    r"format_pg_type|format_type|map_to_pg_oid|get_block_size|combine_aggr|variant_group_.*|"
    r"parse_duckdb_log_message|decimal_average|combine|finalize|invoke|index_key|create_sort_key|"
    r"constant_or_null|to_aggregate_state|current_role|current_user|current_catalog|session_user|user"
)
"""Names of PostgreSQL's catalog, of a session, and of what DuckDB's planner calls itself."""
_CALLS: Final = ("{}(x)", "{}(x, y)", "{}(x, 0.5)", "{}(x, 9, 0.5)", "{}()")


@dataclass(frozen=True)
class Kind:
    """Functions that are treated alike.

    Attributes:
        what: they are.
        how: a view with them is kept up to date, or why it is refused.
        names: in order.
    """

    what: str
    how: str
    names: tuple[str, ...]


@functools.cache
def functions() -> tuple[Kind, ...]:
    """All functions of DuckDB that a query can name, by what becomes of them in a view."""
    rows = connection().execute(
        "SELECT lower(function_name), list(DISTINCT function_type) FROM duckdb_functions() "
        "WHERE function_type IN ('scalar', 'macro', 'aggregate', 'window') GROUP BY ALL ORDER BY ALL"
    )
    found = {
        name: set(types)
        for name, types in rows.fetchall()
        if _NAME.fullmatch(name) and not _INNER.fullmatch(name)
    }
    refused = {name for name in found if varies(connection(), name, arguments=2)}
    many = {name for name in found if makes_rows(connection(), name)}
    of_rows = {n for n, types in found.items() if types & {"scalar", "macro"}} - refused - many
    aggregates = {name for name in found if names_aggregate(connection(), name)} - refused
    by_change = {name for name in aggregates if _is_kept(name, windowed=False)}
    of_windows = {name for name in aggregates if _is_kept(name, windowed=True)} - by_change
    of_partitions = {n for n, types in found.items() if "window" in types} - aggregates - refused

    def kind(what: str, how: str, names: set[str]) -> Kind:
        return Kind(what, how, tuple(sorted(names)))

    return (
        kind("aggregates", "by change", by_change),
        kind(
            "aggregates",
            "by change in windows of event time; elsewhere a group is computed again when it changes",
            of_windows,
        ),
        kind(
            "aggregates",
            "a group is computed again when it changes; refused in windows of event time",
            aggregates - by_change - of_windows,
        ),
        kind(
            "window functions",
            "by change, or a partition is computed again: [which](../sql.md#window-functions)",
            of_partitions,
        ),
        kind("functions of a row", "row by row", of_rows - aggregates),
        kind("refused", "they depend on the clock, on chance, or on the session", refused),
        kind("refused", "they make rows: write UNNEST of an array", many),
    )


def markdown() -> str:
    """The functions as the table of docs/reference/sql.md; `python -m tests.sql.functions` prints it."""
    lines = ["| | how a view is updated | |", "|---|---|---|"]
    for one in functions():
        names = ", ".join(f"`{name}`" for name in one.names)
        lines.append(f"| {one.what} | {one.how} | {names} |")
    return "\n".join(lines)


def _is_kept(name: str, *, windowed: bool) -> bool:
    return any(_called(call.format(name), windowed=windowed) for call in _CALLS)


def _called(sql: str, *, windowed: bool) -> bool:
    try:
        tree = sqlglot.parse_one(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return False
    return call_of(tree, windowed=windowed) is not None


if __name__ == "__main__":
    print(markdown())
