"""`bloom_filter_agg`: a Bloom filter as a value, of which expressions ask whether it may have another value.

A filter (see `penstock.core.sketches.bloom`) is a function of its group's values. What is kept of a group are
the words of it that have bits, so that a filter with few values is small. It can't forget: a bit may have
been set by several values.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.sketches.bloom import BITS_MAX, HASHES_MAX, Shape, bits_of, filters
from penstock.errors import FlowError
from penstock.ops.aggregates.function import Function, Part, Rows, check_kept
from penstock.state.layout import Value
from penstock.state.sketches import entries_of, sketches

__all__ = ["BloomFilter"]


class BloomFilter(Function):
    """The Bloom filter of a column's values; NULL is none.

    The parameter is its shape: how many words of 64 bits, and how many hashes.
    """

    kind: ClassVar[str] = "bloom_filter_agg"
    counts: ClassVar[bool] = True
    parametric: ClassVar[bool] = True
    takes: ClassVar = "ordered"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.parameter, tuple) or len(self.parameter) != 2:
            raise FlowError(f"expected words and hashes of a filter; found {self.parameter!r}")
        words, hashes = self.parameter
        if not 1 <= words <= BITS_MAX // 64 or not 1 <= hashes <= HASHES_MAX:
            raise FlowError(
                f"expected up to {BITS_MAX // 64} words and {HASHES_MAX} hashes; found {self.parameter!r}"
            )

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.binary()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        check_kept(self.of, self.kind, retracts=retracts)
        return (Part(Value(self._name, pa.binary(), "bits"), self._lift),)

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`.

        Raises:
            ValueError: the filters of all groups together are larger than a column may be.
        """
        return filters(self._shape, *entries_of("bits", full.column(self._name)), len(full))

    @property
    def _shape(self) -> Shape:
        assert isinstance(self.parameter, tuple), "checked when it was made"
        return Shape(*self.parameter)

    @property
    def _name(self) -> str:
        return f"$bits.{self.of.name}.{self._shape.words}.{self._shape.hashes}"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column, ids, shape = rows.columns[self.of.name], rows.ids, self._shape
        many = [np.full(len(column), one, np.int64) for one in (shape.bits, shape.hashes)]
        bits = bits_of(column, *many)
        valid = vectors.validity(column)
        if valid is not None:
            bits, ids = bits[valid], ids[valid]
        each = np.repeat(ids, shape.hashes)
        bits = bits.ravel()
        values = np.left_shift(np.int64(1), bits & 63)
        return [sketches("bits", bits >> 6, values, each, rows.groups)]
