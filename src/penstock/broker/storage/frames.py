"""The heads of a registry's records, of a whole batch at once.

What decodes batches as columns takes a second of processor time to load. So
`penstock.broker.storage.contracts` imports this in a thread, and reads records one by one until then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.wire import batches
from penstock.wire.batches import Buffer, Header
from penstock.wire.columns import decode

__all__ = ["faults_of", "warm"]

UNFRAMED = -1
"""In place of an id, of what has no head; as in `contracts`, which doesn't import this at first."""
HEAD_BYTES = 5
Faults: TypeAlias = list[tuple[int, int, int]]


def faults_of(
    batch: Buffer, header: Header, wanted: Sequence[tuple[int, Collection[int]]], most: int
) -> tuple[int, Faults]:
    """Keys and values that don't begin with the head of a known schema; NULL is none.

    Args:
        batch: one record batch.
        header: its header.
        wanted: for 0 (keys) and 1 (values), the ids that are known.
        most: the most faults to return.

    Returns: how many there are; the first of them, each as the record's index, 0 or 1, and the id or
        `UNFRAMED`.

    Raises:
        CorruptError: the records are not what the header says.
        LimitError: they unpack to too many bytes.
    """
    records = decode(batch, verify_crc=False)
    if len(records) != header.record_count:
        raise CorruptError(f"{len(records)} records")
    found: list[tuple[npt.NDArray[Any], int, npt.NDArray[Any]]] = []
    for part, known in wanted:
        start, length = (
            (records.value_start, records.value_length)
            if part
            else (records.key_start, records.key_length)
        )
        ids = _ids(records.buffer, start, length)
        distinct = np.unique(ids)
        strange = np.array([int(one) for one in distinct.tolist() if one not in known], np.int64)
        if len(strange):
            bad = np.flatnonzero(np.isin(ids, strange) & (length >= 0))
            found.append((bad, part, ids[bad]))
    rows = [
        row
        for bad, part, ids in found
        for row in zip(bad[:most].tolist(), [part] * most, ids[:most].tolist(), strict=False)
    ]
    return sum(len(bad) for bad, _, _ in found), sorted(rows)[:most]


def warm() -> None:
    """Loads what `faults_of` needs."""
    batch = batches.build([(None, bytes(HEAD_BYTES))])
    faults_of(batch, batches.parse(batch), [(0, ()), (1, ())], 1)


def _ids(
    buffer: npt.NDArray[Any], start: npt.NDArray[Any], length: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """int64[n]: the ids in the heads; `UNFRAMED` where there is none."""
    ids = np.full(len(start), UNFRAMED, np.int64)
    rows = np.flatnonzero(length >= HEAD_BYTES)
    rows = rows[buffer[start[rows]] == 0]
    if len(rows):
        heads = buffer[start[rows, None] + np.arange(1, HEAD_BYTES)]
        ids[rows] = np.ascontiguousarray(heads).view(">u4")[:, 0]
    return ids
