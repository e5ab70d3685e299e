"""`theta_sketch_agg` and `theta_union_agg`: sketches as values, of which expressions compute sizes of sets.

A sketch (see `penstock.core.sketches.theta`) is a function of its group's values, and what is kept of a group
is its sketch. It can't forget: a value that is taken back may have been there twice, or not be kept.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.sketches.murmur import theta_hashes
from penstock.core.sketches.theta import ALL, EMPTY, merged, sketch, written
from penstock.ops.aggregates.function import Function, Part, Rows, check_kept
from penstock.state.layout import Value

__all__ = ["ThetaSketch", "ThetaUnion"]


class ThetaSketch(Function):
    """The theta sketch of a column's values; NULL is none."""

    kind: ClassVar[str] = "theta_sketch_agg"
    counts: ClassVar[bool] = True
    takes: ClassVar = "ordered"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.binary()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        check_kept(self.of, self.kind, retracts=retracts)
        return (Part(Value(f"${self.kind}.{self.of.name}", pa.binary(), "theta"), self._lift),)

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        return super().result(full).fill_null(EMPTY)

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column, ids = rows.columns[self.of.name], rows.ids
        hashes = theta_hashes(column)
        valid = vectors.validity(column)
        if valid is not None:
            hashes, ids = hashes[valid], ids[valid]
        made = sketch(hashes, ids, np.full(rows.groups, ALL))
        return [written(made, missing=made.empty)]


class ThetaUnion(ThetaSketch):
    """The union of a column's theta sketches; NULL is none. All are right: an expression has read them."""

    kind: ClassVar[str] = "theta_union_agg"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        return [merged(rows.columns[self.of.name], rows.ids, rows.groups)]
