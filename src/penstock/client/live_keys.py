"""Which keys a topic has: those whose newest record has a value.

A topic may have far more records than keys: records are folded now and then, so that a key is in memory once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["LiveKeys"]

FOLDED_BYTES: Final = 64 << 20
"""Keys of records that are in memory, in addition to as many as those that are different."""


class LiveKeys:
    """The keys whose newest record has a value, of records in their order; each is in memory once."""

    def __init__(self) -> None:
        self._keys: list[pa.Array[Any]] = []
        self._nothing: list[pa.Array[Any]] = []
        self._bytes, self._bytes_max = 0, FOLDED_BYTES

    def add(self, keys: pa.Array[Any], nothing: pa.Array[Any] | None = None) -> None:
        """Takes records: keys (binary), and whether they have no value (bool; by default they have)."""
        self._keys.append(keys)
        self._nothing.append(pa.repeat(False, len(keys)) if nothing is None else nothing)  # noqa: FBT003
        self._bytes += keys.nbytes
        if self._bytes > self._bytes_max:
            self._fold()

    def array(self) -> pa.Array[Any]:
        """Them; binary, without NULL."""
        self._fold()
        return self._keys[0]

    def _fold(self) -> None:
        coded = pa.chunked_array(self._keys, pa.binary()).combine_chunks().dictionary_encode()
        has_key = np.asarray(coded.indices.is_valid())
        newest = np.zeros(len(coded.dictionary), np.bool_)
        # Of several assignments to one place the last one counts.
        is_null = np.asarray(pa.chunked_array(self._nothing, pa.bool_()).combine_chunks())
        newest[np.asarray(coded.indices.fill_null(0))[has_key]] = is_null[has_key]
        kept = coded.dictionary.filter(pa.array(~newest))
        self._keys, self._nothing = [kept], [pa.repeat(False, len(kept))]  # noqa: FBT003
        self._bytes = kept.nbytes
        self._bytes_max = max(FOLDED_BYTES, 2 * kept.nbytes)
