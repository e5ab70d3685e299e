"""`approx_count_distinct` and `approx_quantile`: from sketches that don't grow with the rows.

Both sketches are exact functions of the rows (see `penstock.state.sketches`): no chance, no dependence on
how rows were batched or merged, so a batch that is repeated gives the same bytes.

Distinct values. HyperLogLog (Flajolet et al., 2007): a hash of 64 bits chooses one of 2**12 registers, which
keeps the greatest number of leading zeros, plus one, of the other 52. Registers that are 0 aren't kept, so
small sets are small. The estimate is Ertl's (*New cardinality estimation algorithms for HyperLogLog
sketches*, 2017), which needs no corrections for small or large sets.

Quantiles. A histogram whose bins are those of a double's leading bits: sign, exponent, 6 of the mantissa. So
each power of two has 64 bins, and a value is known to within 1/128 of itself, as in HdrHistogram and DDSketch
(Masson et al., 2019). Counts can be subtracted, so rows may be taken back.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.keys import hash_columns
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.ops.aggregates.function import (
    Function,
    Part,
    Rows,
    check_kept,
)
from penstock.state.layout import Value
from penstock.state.sketches import entries_of, sketches

__all__ = ["ApproxCountDistinct", "ApproxQuantile"]

INDEX_BITS: Final = 12  # 4,096 registers: a standard error of 1.04 / 64, at most 12 KiB
REST_BITS: Final = 64 - INDEX_BITS
RANK_MAX: Final = REST_BITS + 1  # of a hash whose other bits are all 0
GROUPS_AT_ONCE: Final = 20_000  # groups whose registers are counted together: some 10 MB
BIN_SHIFT: Final = 52 - 6  # bits of a double below its bin


class ApproxCountDistinct(Function):
    """About how many different values a column has; NULL is none."""

    kind: ClassVar[str] = "approx_count_distinct"
    counts: ClassVar[bool] = True
    takes: ClassVar = "ordered"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.int64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        instead = "Use count_distinct, which is exact and keeps all values"
        check_kept(self.of, self.kind, retracts=retracts, instead=instead)
        return (Part(Value(self._name, pa.binary(), "registers"), self._lift),)

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        rows, _, ranks = entries_of("registers", full.column(self._name))
        out = np.empty(len(full), np.int64)
        for first in range(0, len(full), GROUPS_AT_ONCE):
            end = min(first + GROUPS_AT_ONCE, len(full))
            lo, hi = np.searchsorted(rows, [first, end])
            code = (rows[lo:hi] - first) * (RANK_MAX + 1) + ranks[lo:hi]
            count = np.bincount(code, minlength=(end - first) * (RANK_MAX + 1))
            out[first:end] = _estimate(count.reshape(end - first, RANK_MAX + 1))
        return vectors.from_int64(out)

    @property
    def _name(self) -> str:
        return f"$registers.{self.of.name}"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column, ids = rows.columns[self.of.name], rows.ids
        h = hash_columns([column], len(column)).view(np.uint64)
        valid = vectors.validity(column)
        if valid is not None:
            h, ids = h[valid], ids[valid]
        rest = (h & np.uint64((1 << REST_BITS) - 1)).astype(np.float64)  # exact: 52 bits
        ranks = RANK_MAX - np.frexp(rest)[1]
        index = (h >> np.uint64(REST_BITS)).astype(np.int64)
        return [sketches("registers", index, ranks.astype(np.int64), ids, rows.groups)]


def _estimate(count: Vector) -> Vector:
    """Ertl's estimate: int64[groups], of how many registers have each rank: int64[groups, ranks]."""
    registers = float(1 << INDEX_BITS)
    count = count.astype(np.float64)
    count[:, 0] = registers - count[:, 1:].sum(axis=1)
    z = registers * _tau(1 - count[:, RANK_MAX] / registers)
    for rank in range(RANK_MAX - 1, 0, -1):
        z = 0.5 * (z + count[:, rank])
    z += registers * _sigma(count[:, 0] / registers)
    return np.asarray(np.rint(registers * registers / (2 * np.log(2) * z)).astype(np.int64))


def _sigma(x: Vector) -> Vector:
    """X + the sum of x**(2**k) * 2**(k - 1) for k from 1 on; infinite at 1."""
    found, factor = x.copy(), 1.0
    with np.errstate(over="ignore"):
        for _ in range(64):
            x = x * x
            found += x * factor
            factor += factor
    found[x == 1] = np.inf
    return found


def _tau(x: Vector) -> Vector:
    """(1 - x - the sum of (1 - x**(2**-k))**2 * 2**-k for k from 1 on) / 3."""
    found, factor = 1 - x, 1.0
    for _ in range(64):
        x = np.sqrt(x)
        factor *= 0.5
        found -= (1 - x) ** 2 * factor
    found[(x == 0) | (x == 1)] = 0.0
    return np.asarray(found / 3)


class ApproxQuantile(Function):
    """About the value below which a share of a column's values lies; NULL without values.

    The parameter is the share, 0 to 1.
    """

    kind: ClassVar[str] = "approx_quantile"
    parametric: ClassVar[bool] = True
    takes: ClassVar = "numbers"

    def __post_init__(self) -> None:
        share = self.parameter
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise FlowError(f"expected a share of 0 to 1, such as 0.95; found {share!r}")
        super().__post_init__()

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        return (Part(Value(self._name, pa.binary(), "histogram"), self._lift),)

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        assert isinstance(self.parameter, int | float), "checked when it was made"
        rows, bins, counts = entries_of("histogram", full.column(self._name))
        total = np.bincount(rows, weights=counts, minlength=len(full)).astype(np.int64)
        base = np.cumsum(total) - total
        some = np.flatnonzero(total > 0)
        wanted = base[some] + np.floor((total[some] - 1) * self.parameter).astype(np.int64)
        at = np.searchsorted(np.cumsum(counts), wanted, side="right")
        found = np.zeros(len(full))
        found[some] = self._middles(bins[at])
        return pa.array(found, mask=total <= 0)

    @property
    def _name(self) -> str:
        return f"$histogram.{self.of.name}"  # one for all shares

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column, ids = rows.columns[self.of.name], rows.ids
        bins = vectors.float_codes(vectors.raw(column).astype(np.float64)) >> BIN_SHIFT
        weights = np.ones(len(ids), np.int64) if rows.weights is None else rows.weights
        valid = vectors.validity(column)
        if valid is not None:
            bins, ids, weights = bins[valid], ids[valid], weights[valid]
        return [sketches("histogram", bins, weights, ids, rows.groups)]

    def _middles(self, bins: Vector) -> Vector:
        """The middle of each bin; of whole numbers the one that is nearest to 0 there."""
        codes = (bins << BIN_SHIFT) | (1 << (BIN_SHIFT - 1))
        bits = codes ^ ((codes >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
        found = bits.view(np.float64)
        exponent = (bits >> 52) & 0x7FF
        found = np.where((exponent == 0x7FF) & (bins != NAN_BIN), np.copysign(np.inf, found), found)
        found = np.where(bins == NAN_BIN, np.nan, found)
        tiny = (bins == 0) | (bins == -1)
        found = np.where(tiny, 0.0, found)
        return found if vectors.is_float(self.of.type) else np.trunc(found)


NAN_BIN: Final = int(vectors.float_codes(np.array([np.nan]))[0]) >> BIN_SHIFT
