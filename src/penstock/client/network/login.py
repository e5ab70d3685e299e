"""How a client logs in: SaslHandshake and SaslAuthenticate, by hand (KIP-43, KIP-152)."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from typing import Final

from penstock.client.network.errors import broker_error
from penstock.client.network.security import Security
from penstock.errors import BrokerError, ProtocolError
from penstock.wire.protocol import ApiKey
from penstock.wire.scram import ClientExchange, ScramError, plain_message

__all__ = ["log_in"]

NONCE_BYTES: Final = 24

Ask = Callable[[ApiKey, int, bytes], memoryview]
"""Sends a request (API, version, body) and gives back the answer's body."""


def log_in(ask: Ask, security: Security, name: str) -> int:
    """Logs in; the session's lifetime in ms, 0 where it has no end.

    Args:
        ask: sends a request and gives back the answer's body.
        security: who, and with what.
        name: the broker's address, for messages.

    Raises:
        BrokerError: the broker refused; trying again does not help.
        ProtocolError: the answers make no sense, or the broker does not know the password.
    """
    mechanism, user = security.mechanism, security.user or ""
    data = mechanism.encode()
    answer = ask(ApiKey.SASL_HANDSHAKE, 1, struct.pack(">h", len(data)) + data)
    code = struct.unpack_from(">h", answer)[0]
    if code:
        raise broker_error(code, f"accept {mechanism} at {name}", "Name another mechanism")
    if mechanism == "PLAIN":
        return _step(ask, plain_message(user, security.secret()), security, name)[1]
    exchange = ClientExchange(
        mechanism, user, security.secret(), secrets.token_urlsafe(NONCE_BYTES)
    )
    challenge, _ = _step(ask, exchange.first(), security, name)
    verifier, lifetime_ms = _step(ask, exchange.final(challenge), security, name)
    try:
        exchange.verify(verifier)
    except ScramError as error:
        raise BrokerError(f"{error} ({name})") from None
    return lifetime_ms


def _step(ask: Ask, message: bytes, security: Security, name: str) -> tuple[bytes, int]:
    answer = ask(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", len(message)) + message)
    try:
        code, size = struct.unpack_from(">hh", answer)
        text, at = bytes(answer[4 : 4 + max(size, 0)]), 4 + max(size, 0)
        (length,) = struct.unpack_from(">i", answer, at)
        data = bytes(answer[at + 4 : at + 4 + length])
        (lifetime_ms,) = struct.unpack_from(">q", answer, at + 4 + length)
    except struct.error as error:
        raise ProtocolError(f"expected a whole answer to a log-in; found: {error}") from None
    if code:
        raise broker_error(
            code,
            f"let {security.user!r} log in at {name} with {security.mechanism}",
            "Check the user, the password (PENSTOCK_PASSWORD) and the mechanism",
            text.decode(errors="replace") or None,
        )
    return data, lifetime_ms
