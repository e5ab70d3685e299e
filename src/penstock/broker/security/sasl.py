"""What a connection may do before it has logged in, and how it logs in (KIP-43, KIP-152, KIP-368).

    START --SaslHandshake--> CHOSEN --SaslAuthenticate (once or twice)--> DONE --lifetime over--> EXPIRED

A connection that is not DONE may send ApiVersions, SaslHandshake and SaslAuthenticate, in small
frames, and must be DONE within `AUTHENTICATION_S_MAX`. One that is DONE may log in again as the same
user; where sessions have a lifetime it must do so before that is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import OrderedDict
from enum import Enum
from typing import Final

from penstock.broker.security.users import Users
from penstock.errors import ProtocolError
from penstock.wire import messages
from penstock.wire.scram import MECHANISMS, PLAIN, ScramError, ServerExchange, read_plain

__all__ = ["Failures", "LogInError", "SaslSession", "Verifier"]

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 16 << 10
"""Largest request before the log-in; SCRAM's take some hundred bytes."""
AUTHENTICATION_S_MAX: Final = 15.0
"""How long a connection may take until it has logged in, TLS handshake included."""
FAILURE_DELAY_S: Final = 0.1
"""How long the answer to a failed log-in is held back, as Kafka does; doubled with each further one
from the same address."""
FAILURE_DELAY_S_MAX: Final = 1.6
FAILURE_MEMORY_S: Final = 60.0
"""How long failed log-ins of an address are remembered."""
FAILURE_ADDRESSES_MAX: Final = 10_000
"""Addresses whose failures are remembered; the oldest are forgotten first."""

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
_ALLOWED: Final = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})


class LogInError(Exception):
    """The log-in failed; the message is for the client and gives nothing away."""


class Failures:
    """Failed log-ins by address. Time is an argument."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, address: str, now_s: float) -> float:
        """Remembers one, and says for how many seconds to hold its answer back."""
        count, since_s = self._of.pop(address, (0, now_s))
        if now_s - since_s > FAILURE_MEMORY_S:
            count, since_s = 0, now_s
        self._of[address] = count + 1, since_s
        while len(self._of) > FAILURE_ADDRESSES_MAX:
            self._of.popitem(last=False)
        return min(FAILURE_DELAY_S * 2.0 ** min(count, 10), FAILURE_DELAY_S_MAX)


class Verifier:
    """Derives keys from passwords in a separate thread: PLAIN's check takes milliseconds."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "penstock-log-in")

    async def fits(self, user: str, password: str) -> bool:
        """Whether this is the user's password."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._users.fits, user, password)

    def close(self) -> None:
        """Waits for nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class State(Enum):
    """Where a connection's log-in stands."""

    START = "start"
    CHOSEN = "chosen"
    DONE = "done"


class SaslSession:
    """One connection's log-in.

    Args:
        users: who may log in.
        verifier: of passwords.
        mechanisms: which are offered.
        lifetime_s: how long a log-in counts; 0: for as long as the connection lives.
    """

    def __init__(
        self, users: Users, verifier: Verifier, mechanisms: tuple[str, ...], lifetime_s: float
    ) -> None:
        self.mechanisms = mechanisms
        self._users = users
        self._verifier = verifier
        self.lifetime_s = lifetime_s
        self._state = State.START
        self._mechanism = ""
        self._exchange: ServerExchange | None = None
        self._expires_s = 0.0
        self.principal: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the connection has logged in."""
        return self._state is State.DONE

    def check(self, api_key: int, size: int, now_s: float) -> None:
        """Whether a request may be served.

        Raises:
            ProtocolError: it may not; the connection is to be closed.
        """
        if api_key in _ALLOWED:
            if self.principal is None and size > UNAUTHENTICATED_FRAME_BYTES_MAX:
                raise ProtocolError(
                    f"expected at most {UNAUTHENTICATED_FRAME_BYTES_MAX} bytes before the log-in; "
                    f"found {size}"
                )
        elif self._state is not State.DONE:
            raise ProtocolError(
                "expected a log-in (SaslHandshake, SaslAuthenticate); found "
                f"{messages.api_name(api_key)}: the client is not configured for SASL"
            )
        elif self._expires_s and now_s >= self._expires_s:
            raise ProtocolError("expected a new log-in before the session's lifetime was over")

    def choose(self, mechanism: str) -> bool:
        """Begins a log-in; False if the mechanism is not offered.

        Raises:
            ProtocolError: one is under way.
        """
        if self._state is State.CHOSEN:
            raise ProtocolError("expected SaslAuthenticate after SaslHandshake; found another one")
        if mechanism not in self.mechanisms:
            return False
        self._mechanism = mechanism
        self._exchange = self._users.exchange(mechanism) if mechanism in MECHANISMS else None
        self._state = State.CHOSEN
        return True

    async def authenticate(self, message: bytes, now_s: float) -> bytes:
        """The answer to a message of the log-in.

        Raises:
            LogInError: it failed.
            ProtocolError: none has begun.
        """
        if self._state is not State.CHOSEN:
            raise ProtocolError("expected SaslHandshake before SaslAuthenticate")
        answer = b""
        try:
            if self._exchange is not None:
                answer = self._exchange.step(message)
                if not self._exchange.is_done:
                    return answer
                user = self._exchange.user
            else:
                assert self._mechanism == PLAIN
                user, password = read_plain(message)
                if not await self._verifier.fits(user, password):
                    raise LogInError("Authentication failed: Invalid username or password")
        except ScramError:
            raise LogInError(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            ) from None
        self._become(f"User:{user}", now_s)
        return answer

    def _become(self, principal: str, now_s: float) -> None:
        if self.principal not in {None, principal}:
            raise LogInError("Cannot change principals during re-authentication")
        self.principal = principal
        self._state = State.DONE
        self._exchange = None
        self._expires_s = now_s + self.lifetime_s if self.lifetime_s else 0.0
