"""The part of a fetch that concerns object storage: what must be loaded before it is answered.

A fetch of old offsets waits in its own connection until their bytes are loaded, at most `WAIT_MS_MIN`
or its own maximum wait. A load that takes longer continues; the client gets an empty answer and finds
the bytes when it retries. A store that is away, or silent for seconds, gives KAFKA_STORAGE_ERROR, which
clients retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.storage.topics import Hosted
from penstock.log.errors import DamagedError, OffsetRangeError, StorageError
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.tier.tiering import Tiering

__all__ = ["READ_BYTES_MAX", "Wanted", "cold", "load"]

READ_BYTES_MAX: Final = 4 << 20
"""Bytes of one partition that an answer brings from object storage: a copy in memory each."""
PARTITIONS_MAX: Final = 4
"""Partitions of one request that are brought at once; the others' turn comes with the next."""
WAIT_MS_MIN: Final = 500
"""How long an answer is awaited at least, as Kafka's remote.fetch.max.wait.ms."""


class Wanted(Protocol):
    """A partition of a request."""

    offset: int
    bytes_max: int
    hosted: Hosted | None
    code: int


def cold(wanted: Iterable[Wanted]) -> list[Wanted]:
    """The partitions whose offset is read in object storage."""
    return [
        one
        for one in wanted
        if one.hosted is not None and not one.code and one.hosted.log.is_remote(one.offset)
    ]


async def load(
    tiering: Tiering, wanted: list[Wanted], bytes_max: int, max_wait_ms: int
) -> list[object]:
    """Brings what partitions want; gives what must be held until the answer is rendered."""
    wait_s = max(max_wait_ms, WAIT_MS_MIN) / 1000
    held = await asyncio.gather(
        *(_load_one(tiering, one, bytes_max, wait_s) for one in wanted[:PARTITIONS_MAX])
    )
    return list(held)


async def _load_one(tiering: Tiering, wanted: Wanted, bytes_max: int, wait_s: float) -> object:
    assert wanted.hosted is not None
    log = wanted.hosted.log
    limit = max(min(bytes_max, wanted.bytes_max, READ_BYTES_MAX), 0)
    try:
        return await asyncio.wait_for(
            tiering.cache.loaded(lambda: log.read(wanted.offset, limit)), wait_s
        )
    except (OffsetRangeError, DamagedError):
        return None  # the answer says so
    except TimeoutError:
        if tiering.cache.is_failing:
            wanted.code = ErrorCode.KAFKA_STORAGE_ERROR
        return None
    except StorageError:
        wanted.code = ErrorCode.KAFKA_STORAGE_ERROR
        return None
