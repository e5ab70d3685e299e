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

WEIGHT: Final = "$weight"  # int64
TIME: Final = "$time"  # timestamp, the event time of a row
WATERMARK: Final = "$watermark"  # int64, the watermark before the row in µs; of a source's rows
OFFSET: Final = "$offset"  # int64, of the record that the row was
DELETED: Final = "$deleted"  # boolean, of a table's topic: whether the row of this key is gone


def weights(delta: pa.Table) -> np.ndarray | None:
    """The weights as an int64 array of one per row, or None where every one is +1."""
    if WEIGHT not in delta.column_names:
        return None
    return delta.column(WEIGHT).to_numpy()


def rows(delta: pa.Table) -> pa.Table:
    """The delta's columns without the weight."""
    return delta.drop_columns([WEIGHT]) if WEIGHT in delta.column_names else delta
