"""Decimals as Debezium writes them by default: base64 of the unscaled number."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors

__all__ = ["unscaled_decimals"]

_DECIMAL_BYTES: Final = 16
_BASE64_MAX: Final = 24  # characters of so many bytes
_PAD, _NO_SIX = ord("="), 0xFF
_SIXES: Final = np.full(256, _NO_SIX, np.uint8)
_SIXES[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"]] = np.arange(64)
_EXACT: Final = Context(prec=40)


def unscaled_decimals(texts: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Decimals of base64 of their unscaled numbers, big-endian and in two's complement.

    Args:
        texts: strings.
        type_: of at most 38 digits.

    Returns: the decimals, NULL where there is none; bool[n], which texts are such or NULL.
    """
    offsets, data = vectors.text(texts)
    start, length = offsets[:-1].astype(np.int64), np.diff(offsets)
    known = texts.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.zeros((len(texts), _DECIMAL_BYTES), np.uint8)
    good = ~known
    for size in np.unique(length[known]).tolist():
        if size == 0 or size % 4 or size > _BASE64_MAX:
            continue
        some = np.flatnonzero(known & (length == size))
        chars = data[start[some][:, None] + np.arange(size)]
        pads = (chars[:, -1] == _PAD).astype(np.int64) + (chars[:, -2:] == _PAD).all(1)
        sixes = _SIXES[chars]
        sixes[:, -1][pads > 0] = 0
        sixes[:, -2][pads > 1] = 0
        fours = sixes.reshape(len(some), size // 4, 4).astype(np.uint32)
        word = fours[:, :, 0] << 18 | fours[:, :, 1] << 12 | fours[:, :, 2] << 6 | fours[:, :, 3]
        bytes_ = np.stack([word >> 16 & 0xFF, word >> 8 & 0xFF, word & 0xFF], 2)
        bytes_ = bytes_.reshape(len(some), -1).astype(np.uint8)
        is_text = (sixes != _NO_SIX).all(1)
        for pad in np.unique(pads).tolist():
            count = bytes_.shape[1] - pad
            if not 0 < count <= _DECIMAL_BYTES:
                continue
            at = np.flatnonzero((pads == pad) & is_text)
            numbers[some[at]] = np.where(bytes_[at, :1] >= 128, 0xFF, 0)
            numbers[some[at], _DECIMAL_BYTES - count :] = bytes_[at, :count]
            good[some[at]] = True
    little = np.ascontiguousarray(numbers[:, ::-1])
    bitmap = pa.py_buffer(np.packbits(known & good, bitorder="little").tobytes())
    buffers: list[Any] = [bitmap, pa.py_buffer(little.tobytes())]
    made: Any = pa.Array.from_buffers(type_, len(texts), buffers)
    digits: Any = type_
    limit = Decimal(10**digits.precision - 1).scaleb(-digits.scale, _EXACT)
    most, least = (pa.scalar(one, type_) for one in (limit, limit.copy_negate()))
    within: Any = pc.and_(pc.less_equal(made, most), pc.greater_equal(made, least))
    fits = pc.fill_null(within, True).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return made, good & fits
