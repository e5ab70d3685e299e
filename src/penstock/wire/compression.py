"""Compression of record batches: gzip, snappy, lz4, zstd, in the framings Kafka's clients use.

Whatever the bytes claim, no more is allocated than a limit: a compressed batch comes from outside,
and a kilobyte of zstd can stand for a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, LimitError, UserError
from penstock.wire.codecs import CODECS

Bytes: TypeAlias = npt.NDArray[np.uint8]

_cramjam: Any = cramjam  # its stubs ask for a Buffer, which NumPy declares from Python 3.12 on

# What one call may unpack to: far above a broker's largest batch, below a small machine's memory.
DECOMPRESSED_BYTES_MAX: Final = 1 << 30

_OUTPUT_BYTES_MIN: Final = 64 << 10  # the first guess at an unpacked size, for tiny batches
_EXPECTED_RATIO: Final = 8  # the first guess at a ratio: few text batches exceed it
_GROWTH: Final = 4
_TOO_SMALL: Final = "write whole buffer"  # what cramjam says when the output is full

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
"""Version, compatible version."""
_XERIAL_BLOCK_BYTES: Final = 32 << 10  # the block size of snappy-java's streams


def codec_number(name: str) -> int:
    """The codec's number in a batch's attributes.

    Raises:
        UserError: there is no such codec.

    >>> codec_number("zstd")
    4
    """
    if name not in CODECS:
        raise UserError(f"expected a compression of {', '.join(CODECS)}; found {name!r}")
    return CODECS.index(name)


def compress(codec: int, data: memoryview | bytes, level: int | None = None) -> bytes:
    """Compresses a batch's records with codec 1 to 4, at its default level or a given one (snappy has
    none).
    """
    match codec:
        case 1:
            return bytes(_cramjam.gzip.compress(data, level))
        case 2:
            return _compress_xerial(memoryview(data))
        case 3:  # Kafka's Java client reads only frames whose blocks are independent
            frame = _cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case 4:
            return bytes(_cramjam.zstd.compress(data, level))
    raise UserError(f"expected a compression codec from 1 to 4; found {codec}")


def decompress(codec: int, data: Bytes, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Bytes:
    """Unpacks a batch's records.

    Args:
        codec: 1 to 4, from the batch's attributes.
        data: the compressed bytes.
        bytes_max: the most that may come out.

    Raises:
        CorruptError: these are not bytes of that codec.
        LimitError: more than `bytes_max` would come out.
    """
    match codec:
        case 1:
            return _grow(_cramjam.gzip.decompress_into, "gzip", data, bytes_max)
        case 2:
            return _decompress_snappy(data, bytes_max)
        case 3:
            return _grow(_cramjam.lz4.decompress_into, "lz4", data, bytes_max)
        case 4:
            return _grow(_cramjam.zstd.decompress_into, "zstd", data, bytes_max)
    raise CorruptError(f"expected a compression codec from 0 to 4 in a batch; found {codec}")


def _too_much(name: str, bytes_max: int) -> LimitError:
    """The error for an output over the limit."""
    return LimitError(
        f"expected {name} records of at most {bytes_max} bytes once unpacked "
        f"(DECOMPRESSED_BYTES_MAX is {DECOMPRESSED_BYTES_MAX}, for all batches of one read); found "
        "more. Read in smaller chunks, or have the producer send smaller batches"
    )


def _grow(into: Callable[[Bytes, Bytes], int], name: str, data: Bytes, bytes_max: int) -> Bytes:
    """Unpacks into ever larger outputs until it fits or the limit is reached."""
    size = min(bytes_max, max(_OUTPUT_BYTES_MIN, _EXPECTED_RATIO * len(data)))
    while True:
        output = np.empty(size, np.uint8)
        try:
            return output[: into(data, output)]
        except (_cramjam.DecompressionError, OSError, ValueError) as e:
            if _TOO_SMALL not in str(e):
                raise CorruptError(f"expected {name} data in a record batch; found: {e}") from e
        if size >= bytes_max:
            raise _too_much(name, bytes_max)
        size = min(bytes_max, size * _GROWTH)


def _compress_xerial(data: memoryview) -> bytes:
    """Snappy blocks in snappy-java's stream format, which Kafka's Java client expects."""
    parts = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(_cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _decompress_snappy(data: Bytes, bytes_max: int) -> Bytes:
    """Snappy in either of the forms that clients send: snappy-java's stream, or one raw block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unpack_blocks([data], bytes_max)
    blocks = []
    at = len(_XERIAL_HEADER)
    while at < len(data):
        length = int.from_bytes(bytes(data[at : at + 4]), "big")
        at += 4
        if length == 0 or length > len(data) - at:
            raise CorruptError(
                f"expected a snappy block within {len(data)} bytes of records; "
                f"found one of {length} bytes at {at}"
            )
        blocks.append(data[at : at + length])
        at += length
    return _unpack_blocks(blocks, bytes_max)


def _unpack_blocks(blocks: list[Bytes], bytes_max: int) -> Bytes:
    """Unpacks raw snappy blocks one after another."""
    try:
        sizes = [_cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > bytes_max:
            raise _too_much("snappy", bytes_max)
        output = np.empty(sum(sizes), np.uint8)
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                at += _cramjam.snappy.decompress_raw_into(block, output[at : at + size])
    except (_cramjam.DecompressionError, OSError, ValueError) as e:
        raise CorruptError(f"expected snappy data in a record batch; found: {e}") from e
    return output[:at]
