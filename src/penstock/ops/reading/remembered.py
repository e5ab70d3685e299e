"""What is remembered of kept values, in traces of its own, so that a batch need not read whole groups.

It is kept from the first batch on whose changes somebody asks for, and follows from the kept values: a
group of which nothing is remembered is read whole, so older state, or none, will do.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.ops.partials import group_layout, kept_traces, value_layout
from penstock.ops.reading.frequent import frequent_layout, frequent_name
from penstock.ops.reading.values import COUNTED, counts_name, readings
from penstock.ops.spec import AggregateSpec
from penstock.state.layout import Layout, Value

__all__ = ["remembered"]


def remembered(spec: AggregateSpec, *, exact: bool) -> dict[str, Layout]:
    """The layouts of these traces, by name."""
    keys = group_layout(spec, kept=False).keys
    counts = Layout(keys, (Value(COUNTED, pa.int64(), "sum"),), count=COUNTED, exact=exact)
    found = {}
    for name, kept in kept_traces(spec).items():
        sources = [source for _, source in readings(spec, kept)]
        if "counts" in sources:
            found[counts_name(name)] = counts
        if "often" in sources:
            found[frequent_name(name)] = frequent_layout(value_layout(spec, kept, exact=exact))
    return found
