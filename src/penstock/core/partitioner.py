"""Kafka's default partitioner: which partition a key belongs to.

The same function as `org.apache.kafka.common.utils.Utils.murmur2` (MurmurHash2 by Austin Appleby,
seed 0x9747b28c), so that records written by any Kafka client and by Penstock lie together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.kernels import njit, types
from penstock.errors import UserError

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_NO_PARTITION: Final = -1

_READ = types.Array(types.uint8, 1, "C", readonly=True)
_READ32 = types.Array(types.int32, 1, "C", readonly=True)


@njit(
    types.void(_READ32, _READ, types.int32, types.int32[::1]),
    cache=True,
    nogil=True,
)
def _murmur2(at: Any, data: Any, partitions: Any, out: Any) -> None:
    """Hashes each `data[at[i]:at[i + 1]]` to a partition; offsets are within the data."""
    for i in range(len(out)):
        p = np.int64(at[i])
        end = np.int64(at[i + 1])
        h = _SEED ^ np.uint32(end - p)
        while end - p >= 4:
            k = (
                np.uint32(data[p])
                | np.uint32(data[p + 1]) << np.uint32(8)
                | np.uint32(data[p + 2]) << np.uint32(16)
                | np.uint32(data[p + 3]) << np.uint32(24)
            )
            k = np.uint32(k * _M)
            k ^= k >> np.uint32(24)
            h = np.uint32(np.uint32(h * _M) ^ np.uint32(k * _M))
            p += 4
        rest = end - p
        if rest >= 3:
            h ^= np.uint32(data[p + 2]) << np.uint32(16)
        if rest >= 2:
            h ^= np.uint32(data[p + 1]) << np.uint32(8)
        if rest >= 1:
            h ^= np.uint32(data[p])
            h = np.uint32(h * _M)
        h ^= h >> np.uint32(13)
        h = np.uint32(h * _M)
        h ^= h >> np.uint32(15)
        out[i] = np.int32(h & np.uint32(0x7FFFFFFF)) % partitions


def murmur2_partitions(
    keys: pa.Array[Any] | pa.ChunkedArray[Any], partitions: int
) -> npt.NDArray[np.int32]:
    """The partition of each key, as Kafka's clients choose it.

    Args:
        keys: binary or string.
        partitions: how many there are.

    Returns:
        int32[n]; -1 for a null key, which may go anywhere.

    >>> murmur2_partitions(pa.array(["21", "foobar", None]), 5).tolist()
    [0, 1, -1]
    """
    if partitions < 1:
        raise UserError(f"expected one partition or more; found {partitions}")
    array: Any = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if array.type not in (pa.binary(), pa.string()):
        try:
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise UserError(f"expected keys as binary or string; found {array.type}") from e
    out = np.empty(len(array), np.int32)
    if len(array):
        _, offsets, data = array.buffers()
        at = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        body = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        _murmur2(np.require(at, requirements="A"), body, partitions, out)
        if array.null_count:
            out[np.asarray(array.is_null())] = _NO_PARTITION
    return out
