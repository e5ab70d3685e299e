"""What one request takes of its client's quotas, and how the client is throttled.

A request is always served and answered (KIP-219). The answer has the time for which the connection is
not read from.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.broker.security.quotas import Quota, Quotas
from penstock.wire.batches import Buffer
from penstock.wire.messages import response_codec

__all__ = ["Meter", "Metered"]

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
HEAD_BYTES: Final = 8
"""An answer's length and correlation id."""
_INT32 = struct.Struct(">i")


class Metered(Protocol):
    """A connection, as quotas see it."""

    @property
    def principal(self) -> str:
        """`User:NAME`."""
        ...

    @property
    def muted_s(self) -> float:
        """For how many seconds nothing more is read from it."""
        ...

    def mute(self, seconds: float) -> None:
        """Serves nothing more of it for a while."""


class Meter:
    """One request's use of quotas.

    Args:
        quotas: whose.
        connection: where the request came from.
        api_key: its type.
        version: its version.
        client: its client id.
        size: its bytes.
        now_s: the loop's time.
    """

    __slots__ = ("_api_key", "_began_s", "_connection", "_key", "_quotas", "_version")

    def __init__(
        self,
        quotas: Quotas,
        connection: Metered,
        api_key: int,
        version: int,
        client: str,
        size: int,
        now_s: float,
    ) -> None:
        self._quotas = quotas
        self._connection = connection
        self._api_key = api_key
        self._version = version
        self._key = connection.principal.removeprefix("User:"), client
        self._began_s = time.perf_counter()
        if api_key == PRODUCE:
            connection.mute(quotas.take(Quota.PRODUCE, *self._key, size, now_s))

    def served(self, now_s: float) -> None:
        """The request has taken its time of the broker's thread."""
        percent = (time.perf_counter() - self._began_s) * 100
        self._connection.mute(self._quotas.take(Quota.REQUEST, *self._key, percent, now_s))

    def settle(self, answer: Sequence[Buffer], now_s: float) -> None:
        """The answer is about to be sent: says in it for how long the connection is silent."""
        if self._api_key == FETCH:
            size = sum(len(part) for part in answer)
            self._connection.mute(self._quotas.take(Quota.FETCH, *self._key, size, now_s))
        throttle_ms = math.ceil(self._connection.muted_s * 1000)
        at = self._place(answer) if throttle_ms and answer else None
        if at is not None:
            head = answer[0]
            assert isinstance(head, bytearray)
            assert head[at : at + 4] == b"\0\0\0\0"
            _INT32.pack_into(head, at, throttle_ms)

    def _place(self, answer: Sequence[Buffer]) -> int | None:
        """Where the answer has its throttle time; None where it has none, or it isn't in front."""
        codec = response_codec(self._api_key, self._version)
        if self._api_key == PRODUCE:
            return len(answer[0]) - 4 - codec.flexible
        if self._api_key == API_VERSIONS or codec.first != "throttle_time":
            return None
        return HEAD_BYTES + codec.flexible
