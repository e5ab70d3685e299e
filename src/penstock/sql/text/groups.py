"""What DuckDB finds wrong with groups, aggregates and window functions, in own words.

A SELECT has its parts in this order: WHERE, GROUP BY, aggregates, HAVING, window functions, QUALIFY. Most
mistakes name a part of a later one; the message says where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["ordered"]

_RANKED: Final = "in a subquery, as in SELECT … FROM (SELECT *, rank() OVER (…) AS r FROM …)"
_FORMS: Final[Mapping[str, str]] = {
    r'column "(.+?)" must appear in the GROUP BY clause': (
        "expected a column of GROUP BY, or an aggregate, in a query with groups or aggregates; found '{0}'. "
        "Add it to GROUP BY, or write an aggregate such as any_value({0})"
    ),
    "HAVING clause cannot contain window functions": (
        "expected a condition of groups in HAVING; found a window function, which is over the groups that "
        "HAVING leaves. Write the condition in QUALIFY"
    ),
    "WHERE clause cannot contain window functions": (
        "expected a condition of single rows in WHERE or ON; found a window function, which is over the rows "
        "that WHERE leaves. Write the condition in QUALIFY"
    ),
    "WHERE clause cannot contain aggregates": (
        "expected a condition of single rows in WHERE or ON; found an aggregate. Write the condition "
        "in HAVING"
    ),
    "GROUP BY clause cannot contain window functions": (
        f"expected groups by columns of the rows; found a window function. Compute it {_RANKED}"
    ),
    "GROUP BY clause cannot contain aggregates": (
        "expected groups by columns of the rows; found an aggregate. Remove it from GROUP BY, or compute it "
        "in a subquery, as in SELECT … FROM (SELECT *, sum(x) OVER (…) AS s FROM …)"
    ),
    "aggregate function calls cannot contain window function calls": (
        "expected an aggregate of the rows' columns; found a window function, which is computed after "
        f"aggregates. Compute it {_RANKED}"
    ),
    "window function calls cannot be nested|window functions are not allowed in window definitions": (
        f"expected a window function of columns; found one within another. Compute the inner one {_RANKED}"
    ),
    "aggregate function calls cannot be nested": (
        "expected an aggregate of the rows' columns; found one within another. Compute the inner one in a "
        "subquery with its own GROUP BY, or write sum(sum(x)) OVER (…) for the sum of all groups"
    ),
    "Cannot group on a window clause": (
        "expected GROUP BY with the columns of a group; found GROUP BY ALL and a window function in SELECT. "
        "Name the columns"
    ),
    "Cannot mix aggregates with non-aggregated columns": (
        "expected GROUP BY with the columns of a group; found GROUP BY ALL, and an expression in SELECT that "
        "has both an aggregate and another column. Name the columns"
    ),
}
"""What it says, and what to say instead."""
_NEAR: Final[Mapping[str, str]] = {
    "not allowed in window definitions": "over",
    "Cannot group on": "group by",
    "Cannot mix aggregates": "group by",
}
"""The word near which the mistake is, where DuckDB doesn't say."""
_OF_GROUPS: Final = (
    ", or sum(sum({0})) OVER (…) and rank() OVER (ORDER BY max({0})), as a window function is over "
    "the groups"
)


def ordered(said: str, query: str) -> tuple[str, str | None] | None:
    """What to write instead of what DuckDB refuses; None: it refuses something else.

    Args:
        said: DuckDB's message.
        query: that it refuses.

    Returns:
        The message, and the word near which the mistake is where DuckDB doesn't say.
    """
    for pattern, message in _FORMS.items():
        if (found := re.search(pattern, said)) is not None:
            names = found.groups()
            more = _OF_GROUPS if names and re.search(r"\bOVER\b", query, re.IGNORECASE) else ""
            near = next((word for words, word in _NEAR.items() if words in said), None)
            return (message + more).format(*names), near
    return None
