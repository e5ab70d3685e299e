"""Cross products that no machine can keep: of two inputs that never stop growing.

A join on no equality has a row for each pair. It is kept where one side is small: a table, whose rows are as
many as its keys, groups, first rows, or what now() bounds. Of two streams that keep all of their rows, the
pairs grow as the square of what has come. A subquery that depends on the rows around it is such a join, too:
of the combinations of the columns that it sees.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.flow.algebra.sizes import grows
from penstock.sql.scope import Carry, Scope

__all__ = ["check_product"]


def check_product(left: Scope, right: Scope, carry: Carry | None = None) -> None:
    """Checks two sides that are joined on no equality.

    Args:
        left: one side; of a subquery that depends on the query around it with the columns that it sees.
        right: the other.
        carry: these columns.

    Raises:
        SchemaError: both grow as long as their streams do.
    """
    outer = carry is not None and carry.of is not None and grows(carry.of.node)
    if not (outer or grows(left.rows.node)) or not grows(right.rows.node):
        return
    one, two = (
        exp.to_identifier(next((of for of, _ in side.names), None) or "a stream").name
        for side in (left, right)
    )
    if outer:
        raise SchemaError(
            "expected a subquery over a stream to depend on the stream around it by an equality, as in b.k = "
            f"a.k; found it computed of all rows of {two!r} for each of {one!r}, whose pairs grow as the "
            "square of the streams. Or bound one side: group it, take its first rows, or filter it by now(); "
            "for rows that are near in time, a SEMI JOIN b ON b.at BETWEEN a.at - INTERVAL … AND a.at"
        )
    raise SchemaError(
        "expected a join of two streams on an equality, as in a.k = b.k, or an interval join; found all "
        f"rows of {one!r} with all of {two!r}, whose pairs grow as the square of the streams. Or bound one "
        "side: group it, take its first rows, or filter it by now()"
    )
