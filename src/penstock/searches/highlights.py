"""Which words of a document a query wanted, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector
from penstock.searches.words import Occurrences

__all__ = ["HIGHLIGHT", "highlighted"]

HIGHLIGHT = pa.struct(
    [
        pa.field("field", pa.string()),
        pa.field("value", pa.int32()),
        pa.field("start", pa.int32()),
        pa.field("end", pa.int32()),
    ]
)
"""A stretch of a field's text, in characters; `value` counts the values of a list from 0."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)


def highlighted(
    found: Sequence[Occurrences], matches: int, match: Vector, places: Vector
) -> tuple[pa.Array, pa.Array]:
    """Words of matches.

    Args:
        found: where leaves are in the documents.
        matches: how many there are.
        match: int32[n], of each word its match.
        places: int64[n], of each word its place in all of `found`, one behind another.

    Returns:
        Of each match its distinct words, as the documents have them but in lower case, and its stretches.
    """
    begin = 0
    columns: list[tuple[Vector, ...]] = []
    texts: list[Any] = []
    for number, one in enumerate(found):
        end = begin + len(one.rows)
        mine = (places >= begin) & (places < end)
        if one.terms is not None and one.values is not None and mine.any():
            at = one.words[places[mine] - begin]
            words = one.terms.words
            value = words.value[at]
            offsets, data = vectors.text(one.values.values.cast(pa.string()))
            starts, ends = (
                _characters(offsets, data, value, side[at]) for side in (words.start, words.end)
            )
            rows = one.values.rows
            in_row = value - np.searchsorted(rows, rows[value], "left").astype(np.int32)
            fields = np.full(len(at), number, np.int32)
            columns.append((match[mine], fields, in_row, starts, ends))
            texts.append(words.texts.take(pa.array(at)))
        begin = end
    if not columns:
        nothing = np.zeros(matches + 1, np.int32)
        return _lists(nothing, pa.array([], pa.string())), _lists(nothing, pa.array([], HIGHLIGHT))
    joined = [np.concatenate(one) for one in zip(*columns, strict=True)]
    names = [one.values.name if one.values else "" for one in found]
    return _both(matches, joined, pa.concat_arrays(texts), names)


def _both(
    matches: int, columns: list[Vector], texts: Any, names: list[str]
) -> tuple[pa.Array, pa.Array]:
    """Words and stretches in the order of fields, values and places, each once."""
    order = np.lexsort(columns[::-1])
    ordered = np.stack([one[order] for one in columns])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    match, field, value, start, end = ordered[:, is_new]
    fields: Any = pa.array(names, pa.string()).take(pa.array(field))
    parts = [fields, *(pa.array(one, pa.int32()) for one in (value, start, end))]
    stretches = pa.StructArray.from_arrays(parts, fields=list(HIGHLIGHT))
    words = texts.take(pa.array(order[is_new])).dictionary_encode()
    pairs = match.astype(np.int64) << 32 | words.indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(pairs, return_index=True)
    first.sort()
    distinct = words.take(pa.array(first)).dictionary_decode()
    return _lists(_begins(match[first], matches), distinct), _lists(
        _begins(match, matches), stretches
    )


def _begins(match: Vector, matches: int) -> Vector:
    found: Vector = np.searchsorted(match, np.arange(matches + 1)).astype(np.int32)
    return found


def _lists(begins: Vector, values: pa.Array) -> pa.Array:
    made: pa.Array = pa.ListArray.from_arrays(pa.array(begins, pa.int32()), values)
    return made


@njit(types.int32[::1](_I32, _BYTES, _I32, _I32), cache=True, nogil=True)
def _characters(offsets: Any, data: Any, value: Any, places: Any) -> Any:
    """Of bytes in texts, the numbers of characters."""
    out = np.zeros(len(places), np.int32)
    for i in range(len(places)):
        begin = offsets[value[i]]
        for at in range(begin, begin + places[i]):
            if data[at] & 0xC0 != 0x80:
                out[i] += 1
    return out
