"""Clauses that no view keeps. They are refused, as what isn't looked at would be ignored."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.walks import nodes_of
from penstock.sql.places import within

__all__ = ["check_supported"]


LOOKED_AT: Final = (
    exp.TableSample, exp.Lock, exp.Into, exp.HistoricalData, exp.Version, exp.Join, exp.LimitOptions,
    exp.CTE, exp.Collate,
)  # fmt: skip


def check_supported(tree: exp.Expr) -> frozenset[type[exp.Expr]]:
    """Checks that a query has no clause that would be ignored.

    Returns:
        The classes of its nodes: a rule that rewrites others has nothing to look for.

    Raises:
        SchemaError: it has; the message says what to write instead.
    """
    kinds: set[type[exp.Expr]] = set()
    for node in nodes_of(tree):
        kinds.add(type(node))
        reason = _odd(node) if isinstance(node, LOOKED_AT) else None
        if reason is not None:
            with within(node if node.parent is None else node.parent), within(node):
                raise SchemaError(reason)
    return frozenset(kinds)


def _odd(node: exp.Expr) -> str | None:
    """What is wrong with a node; None: nothing."""
    match node:
        case exp.TableSample():
            return "expected a table without TABLESAMPLE or USING SAMPLE, as chance gives no view"
        case exp.Lock():
            return "expected a query that only reads; found FOR UPDATE or FOR SHARE"
        case exp.Into():
            return "expected SELECT without INTO; CREATE MATERIALIZED VIEW … AS SELECT … keeps its rows"
        case exp.HistoricalData() | exp.Version():
            return (
                "expected a table as it is; found one as of a version. AS OF reads a view's past, in the "
                "query over the view"
            )
        case exp.Join() if (node.method or "").upper() == "POSITIONAL":
            return (
                "expected a join by columns; found POSITIONAL JOIN, but the rows of a table have no "
                "order. Number both by row_number() OVER (ORDER BY …), and join by the number"
            )
        case exp.LimitOptions() if node.args.get("percent") or node.args.get("with_ties"):
            return (
                "expected LIMIT with a number of rows; found a share of them, or WITH TIES. "
                "QUALIFY percent_rank() OVER (ORDER BY …) <= 0.5 keeps a share, and QUALIFY rank() OVER "
                "(ORDER BY …) <= 3 keeps ties"
            )
        case exp.CTE() if node.args.get("key_expressions"):
            return (
                "expected WITH RECURSIVE without USING KEY, where the order of rows decides which one is "
                "kept. Aggregate its rows instead, such as min(distance) … GROUP BY node"
            )
        case exp.Collate():
            return (
                f"expected text that is compared as it is; found {node.sql(dialect='duckdb')!r}. Compare "
                "lower(x) for NOCASE, strip_accents(x) for NOACCENT, icu_sort_key(x, 'de') for a language"
            )
        case _:
            return None
