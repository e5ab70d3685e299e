"""An aggregate: `longest(name)` is the longest text of a group, of equally long ones the least."""

from __future__ import annotations

import pyarrow as pa

from penstock.expr import AggregateFunction


def _longest(lists: pa.ListArray) -> pa.Array:
    found = [
        min(texts, key=lambda one: (-len(one), one), default=None) for texts in lists.to_pylist()
    ]
    return pa.array(found, pa.string())


LONGEST = AggregateFunction(
    name="longest",
    help="The longest text; of equally long ones the least.",
    argument="STRING",
    result="STRING",
    compute=_longest,
)
