"""SASL's SCRAM and PLAIN mechanisms, both sides, without I/O (RFC 5802, RFC 7677, RFC 4616).

Invariant: who knows a `Credential` (or reads an exchange on the wire) does not know the password,
and can't log in without it: the server keeps H(ClientKey) and ServerKey, never ClientKey. Secrets
are compared in constant time and are in no repr. Names and passwords are UTF-8 as they stand, as
Kafka takes them (no SASLprep). Nonces come in as arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolError

__all__ = [
    "ITERATIONS",
    "ITERATIONS_MAX",
    "ITERATIONS_MIN",
    "MECHANISMS",
    "PLAIN",
    "ClientExchange",
    "Credential",
    "ScramError",
    "ServerExchange",
    "plain_message",
    "read_plain",
    "salt_password",
]

PLAIN: Final = "PLAIN"
MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms and their hash functions."""
ITERATIONS: Final = 8192
"""Rounds of key derivation for new credentials, Kafka's own default: some milliseconds."""
ITERATIONS_MIN: Final = 4096
"""RFC 7677's least."""
ITERATIONS_MAX: Final = 16_384
"""Most rounds that a server stores, as Kafka: verifying PLAIN costs the server that much."""
PEER_ITERATIONS_MAX: Final = 1_000_000
"""Most rounds that a client computes because a server says so: about a second."""
NAME_BYTES_MAX: Final = 1024
"""Longest user name."""

_CLIENT_FIRST: Final = re.compile(
    r"[ny],(?:a=([^,]*))?,(m=[^,]*,)?n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(,.*)?"
)
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=(\d{1,9})(?:,.*)?"
)
_CLIENT_FINAL: Final = re.compile(
    r"(c=([A-Za-z0-9+/=]+),r=([^,]+)(?:,[^,]+)*?),p=([A-Za-z0-9+/=]+)"
)


class ScramError(ProtocolError):
    """An exchange that does not follow the RFC, or does not prove what it should."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a server keeps of a password.

    Attributes:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        salt: random bytes of this credential's own.
        iterations: rounds of PBKDF2.
        stored_key: H(ClientKey).
        server_key: what the server proves itself with.
    """

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def from_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
    ) -> Credential:
        """Derives the keys; takes milliseconds."""
        salted = salt_password(mechanism, password, salt, iterations)
        return cls.from_salted(mechanism, salted, salt, iterations)

    @classmethod
    def from_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
        """The same from the salted password, which Kafka's administration clients send."""
        client_key = _mac(mechanism, salted, b"Client Key")
        server_key = _mac(mechanism, salted, b"Server Key")
        return cls(mechanism, salt, iterations, _hash(mechanism, client_key), server_key)

    def fits(self, password: str) -> bool:
        """Whether this is the password; takes milliseconds, whatever the answer."""
        salted = salt_password(self.mechanism, password, self.salt, self.iterations)
        client_key = _mac(self.mechanism, salted, b"Client Key")
        return hmac.compare_digest(_hash(self.mechanism, client_key), self.stored_key)


class ServerExchange:
    """The server's side of one SCRAM log-in: `step` twice, then `user` has proven itself.

    Args:
        mechanism: which.
        credential_of: a user's credential. For an unknown user it makes one up, so that an exchange
            does not reveal who exists.
        nonce: fresh random text without commas.
        nameless: whether the message may leave the user's name out, as PostgreSQL's clients do: they say
            it before the log-in.
    """

    def __init__(
        self,
        mechanism: str,
        credential_of: Callable[[str], Credential],
        nonce: str,
        *,
        nameless: bool = False,
    ) -> None:
        self._mechanism, self._nameless = mechanism, nameless
        self._credential_of = credential_of
        self._nonce = nonce
        self._credential: Credential | None = None
        self._transcript = ""
        self._gs2 = ""
        self.user = ""
        self.is_done = False

    def step(self, message: bytes) -> bytes:
        """The answer to the client's next message.

        Raises:
            ScramError: the message makes no sense, or its proof does not hold.
        """
        assert not self.is_done
        text = _text(message)
        return self._first(text) if self._credential is None else self._final(text)

    def _first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None or not (found[3] or self._nameless):
            raise ScramError("expected a SCRAM client-first-message without channel binding")
        authorization, mandatory, name, client_nonce, extensions = found.groups()
        self.user = _unescape(name)
        if mandatory or "tokenauth=true" in (extensions or ""):
            raise ScramError("expected no SCRAM extensions (delegation tokens are not served)")
        if authorization and _unescape(authorization) != self.user:
            raise ScramError("expected no authorization id other than the user's name")
        self._gs2 = text[: text.index(",", 2) + 1]
        self._nonce = client_nonce + self._nonce
        self._credential = self._credential_of(self.user)
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._transcript = f"{text[len(self._gs2) :]},{answer},"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise ScramError("expected a SCRAM client-final-message")
        without_proof, binding, nonce, proof_text = found.groups()
        if not hmac.compare_digest(nonce, self._nonce):
            raise ScramError("expected the nonce of this exchange; found another")
        if _decode(binding) != self._gs2.encode():
            raise ScramError("expected the first message's channel binding; found another")
        transcript = (self._transcript + without_proof).encode()
        signature = _mac(mechanism, credential.stored_key, transcript)
        proof = _decode(proof_text)
        if len(proof) != len(signature):
            raise ScramError(f"expected a proof of {len(signature)} bytes; found {len(proof)}")
        client_key = _xor(proof, signature)
        if not hmac.compare_digest(_hash(mechanism, client_key), credential.stored_key):
            raise ScramError("expected a proof of the password; found another")
        self.is_done = True
        verifier = _mac(mechanism, credential.server_key, transcript)
        return b"v=" + base64.b64encode(verifier)


class ClientExchange:
    """The client's side of one SCRAM log-in: `first`, `final`, `verify`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        self._verifier = b""

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof.

        Raises:
            ScramError: the server's message makes no sense, or asks for too few or many rounds.
        """
        text = _text(server_first)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise ScramError("expected a SCRAM server-first-message to this exchange")
        iterations = int(found[3])
        if not ITERATIONS_MIN <= iterations <= PEER_ITERATIONS_MAX:
            raise ScramError(
                f"expected {ITERATIONS_MIN} to {PEER_ITERATIONS_MAX} iterations; found {iterations}"
            )
        salted = salt_password(self._mechanism, self._password, _decode(found[2]), iterations)
        client_key = _mac(self._mechanism, salted, b"Client Key")
        without_proof = f"c=biws,r={found[1]}"  # biws: "n,," in base 64
        transcript = f"{self._bare},{text},{without_proof}".encode()
        signature = _mac(self._mechanism, _hash(self._mechanism, client_key), transcript)
        server_key = _mac(self._mechanism, salted, b"Server Key")
        self._verifier = _mac(self._mechanism, server_key, transcript)
        proof = base64.b64encode(_xor(client_key, signature)).decode()
        return f"{without_proof},p={proof}".encode()

    def verify(self, server_final: bytes) -> None:
        """Checks that the server knows the credential, too.

        Raises:
            ScramError: it does not: it may be an impostor.
        """
        text = _text(server_final)
        sent = _decode(text[2:].partition(",")[0]) if text.startswith("v=") else b""
        if not self._verifier or not hmac.compare_digest(sent, self._verifier):
            raise ScramError("expected the server to prove that it knows the user; it does not")


def plain_message(user: str, password: str) -> bytes:
    """PLAIN's only message."""
    return f"\0{user}\0{password}".encode()


def read_plain(message: bytes) -> tuple[str, str]:
    """The user and the password in PLAIN's message.

    Raises:
        ScramError: it makes no sense, or asks to act for another user.
    """
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise ScramError("expected PLAIN's message: authorization id, user, password")
    if parts[0] and parts[0] != parts[1]:
        raise ScramError("expected no authorization id other than the user's name")
    return parts[1], parts[2]


def salt_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's SaltedPassword, which Kafka's administration clients send; takes milliseconds."""
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)


def _mac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, MECHANISMS[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(MECHANISMS[mechanism], data).digest()


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("expected a SASL message in UTF-8; found other bytes") from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("expected base 64; found other characters") from None


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name) or len(name.encode()) > NAME_BYTES_MAX:
        raise ScramError(f"expected an escaped name of at most {NAME_BYTES_MAX} bytes")
    return name.replace("=2C", ",").replace("=3D", "=")
