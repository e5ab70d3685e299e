"""The delta: an Arrow table of rows with an integer weight; the only thing that flows.

A row of weight +1 appears, of -1 disappears; an update is both. A delta without the weight column
only gains rows (every weight is +1): what comes from a topic is of that kind, and operators then skip
the work that retractions need.

Penstock's own columns begin with `$`; a user's can't.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WEIGHT: Final = "$weight"  # int64
TIME: Final = "$time"  # timestamp, the event time of a row
WATERMARK: Final = "$watermark"  # int64, the watermark before the row in µs; of a source's rows
OFFSET: Final = "$offset"  # int64, of the record that the row was
DELETED: Final = "$deleted"  # boolean, of a table's topic: whether the row of this key is gone

EXPIRY: Final = "$expiry"
"""int8, of the changes of a table with retention: whom a change concerns.

0, `FOLLOWING` or `SUMMING`. Who follows the table (a join, a topic, a group of all time) sees rows go when
retention takes them. Who sums up its windows by longer ones doesn't: these keep what they have counted.
Where a window changes in the batch in which it goes, each gets its part.
"""
FOLLOWING: Final = 1
SUMMING: Final = 2


def expiring(both: pa.Table, following: pa.Table, summing: pa.Table) -> pa.Table:
    """The changes of a table with retention, with `$expiry`: those of everybody, and of either."""
    parts = [following, summing, both]
    audiences = np.repeat(np.array([FOLLOWING, SUMMING, 0], np.int8), [len(part) for part in parts])
    return pa.concat_tables(parts).append_column(EXPIRY, pa.array(audiences))


def followed(delta: pa.Table) -> pa.Table:
    """A table's changes as those see them who follow it."""
    return _without(delta, SUMMING)


def summed(delta: pa.Table) -> pa.Table:
    """A table's changes as those see them who sum up its windows."""
    return _without(delta, FOLLOWING)


def _without(delta: pa.Table, audience: int) -> pa.Table:
    if EXPIRY not in delta.column_names:
        return delta
    visible = pc.not_equal(delta.column(EXPIRY), pa.scalar(audience, pa.int8()))
    return delta.filter(visible).drop_columns([EXPIRY])


def weights(delta: pa.Table) -> np.ndarray | None:
    """The weights as an int64 array of one per row, or None where every one is +1."""
    if WEIGHT not in delta.column_names:
        return None
    return delta.column(WEIGHT).to_numpy()


def rows(delta: pa.Table) -> pa.Table:
    """The delta's columns without the weight."""
    return delta.drop_columns([WEIGHT]) if WEIGHT in delta.column_names else delta
