"""Steps of operators without the keys for which they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.engine.letters.culprits import Guard, is_of_rows
from penstock.engine.physical import Placed
from penstock.ops import Context, Step
from penstock.ops.routed import Routed
from penstock.ops.rows import Refused

__all__ = ["stepped"]

_LOG = logging.getLogger(__name__)
PARTS: Final = 4_096
"""Into how many parts, by key, a shard's rows are cut to find those for which a step fails."""


def stepped(
    guard: Guard,
    placed: Placed,
    state: Any,
    inputs: Sequence[Sequence[Any]],
    context: Callable[..., Context],
) -> tuple[Step, list[Refused]]:
    """An operator's step, and the rows that came for keys for which it fails.

    Args:
        guard: finds them.
        placed: the operator.
        state: before the batch.
        inputs: of each port, parcels.
        context: gives one for each attempt; `alone=True`: which shares no traces with other operators, as
            what they made has the rows that are left out.
    """
    try:
        made = placed.operator.step(state, inputs, context())
    except Exception as error:
        if guard.stops or not is_of_rows(error):
            raise
    else:
        if made.refused:
            _LOG.error(
                "expected %s to work for all rows; found that it fails for some, which are dead letters: %s",
                *(placed.name, _first_text(made.refused[0].reason)),
            )
        return made, []
    parts = PARTS * placed.shards  # what is on this shard is cut further by a multiple
    cut = [[parcel.cut(parts) for parcel in port] for port in inputs]
    there = sorted({i for port in cut for one in port for i, part in enumerate(one) if part.rows})
    found: list[Step] = []

    def on(index: np.ndarray | None) -> None:
        some = there if index is None else [there[i] for i in index]
        left = [[part for one in port for i in some if (part := one[i]).rows] for port in cut]
        found[:] = [placed.operator.step(state, left, context(alone=True))]

    bad, reasons = guard.search(placed.name, on, len(there))
    refused = [
        Refused(_rows_of(one[there[i]]), reason)
        for i, reason in zip(bad.tolist(), reasons, strict=True)
        for port in cut
        for one in port
        if one[there[i]].rows
    ]
    return found[0], refused


def _first_text(reason: Any) -> str:
    return reason if isinstance(reason, str) else str(reason[0])


def _rows_of(parcel: Any) -> pa.Table:
    """A parcel's rows, as far as it has whole ones."""
    if isinstance(parcel, Routed):
        rows = pa.Table.from_batches([parcel.batch])
        return rows.select([n for n in rows.column_names if n == "$weight" or n[0] != "$"])
    return pa.table({"rows": [parcel.rows]})
