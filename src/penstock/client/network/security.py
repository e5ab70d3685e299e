"""How a client reaches a broker, and says who it is: addresses, TLS, SASL.

    kafka://host:port[,host:port]                   neither
    kafka+tls://host:port?ca=ca.pem                 TLS; `certificate` and `key` for mutual TLS
    kafka+tls://user@host:port                      TLS and a log-in, SCRAM-SHA-256 if not `mechanism=…`
    kafka+sasl://user@host:port?mechanism=PLAIN     a log-in without TLS

A password is never part of an address: addresses are logged and shown. It is a parameter, or comes
from the environment, PENSTOCK_PASSWORD.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, unquote

from penstock.errors import UserError

__all__ = ["VARIABLE", "Security", "Target", "parse_target"]

VARIABLE: Final = "PENSTOCK_PASSWORD"
DEFAULT_PORT: Final = 9092
DEFAULT_MECHANISM: Final = "SCRAM-SHA-256"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OPTIONS: Final = ("ca", "certificate", "key", "mechanism")


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are secured.

    Attributes:
        tls: whether they are encrypted, and the broker's certificate is verified.
        ca: a file of certificates (PEM) to trust; None: the system's.
        certificate: this client's certificate (PEM), for mutual TLS.
        key: its private key, where that is in another file.
        user: who logs in; None: no log-in.
        password: of the user; None: PENSTOCK_PASSWORD in the environment.
        mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    """

    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    mechanism: str = DEFAULT_MECHANISM

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise UserError(
                f"expected a mechanism of {', '.join(MECHANISMS)}; found {self.mechanism!r}"
            )
        if not self.tls and (self.ca or self.certificate or self.key):
            raise UserError("expected certificates with TLS alone: kafka+tls://host:port")

    def secret(self, environment: Mapping[str, str] = os.environ) -> str:
        """The user's password.

        Raises:
            UserError: there is none.
        """
        found = self.password or environment.get(VARIABLE)
        if not found:
            raise UserError(
                f"expected a password for {self.user!r}; found none. Give one as a parameter, or "
                f"in the environment: {VARIABLE}"
            )
        return found

    def context(self) -> ssl.SSLContext:
        """What connections are encrypted with."""
        return _context(self.ca, self.certificate, self.key)


@functools.lru_cache(maxsize=16)
def _context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise UserError(
            f"expected certificates in PEM in ca={ca!r}, certificate={certificate!r}, key={key!r}; "
            f"found: {error}"
        ) from None
    return context


@dataclass(frozen=True, slots=True)
class Target:
    """Where a cluster is, and how to reach it."""

    addresses: tuple[tuple[str, int], ...]
    security: Security


def parse_target(text: str, security: Security | None = None) -> Target:
    """Reads an address; `security` says what the address does not.

    Raises:
        UserError: it isn't of that form.

    >>> parse_target("kafka+tls://ann@a:1,[::1]:2?mechanism=PLAIN").security.user
    'ann'
    """
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme not in {"kafka", "kafka+tls", "kafka+sasl"}:
        raise UserError(
            f"expected kafka://, kafka+tls:// or kafka+sasl:// before an address; found {scheme!r}"
        )
    rest, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    user, at, hosts = rest.rpartition("@")
    if ":" in user or set(options) - set(_OPTIONS):
        hint = "a password" if ":" in user else f"{', '.join(set(options) - set(_OPTIONS))}"
        raise UserError(
            f"expected USER@HOST:PORT and options of {', '.join(_OPTIONS)} in an address; found "
            f"{hint}. A password is a parameter, or in the environment: {VARIABLE}"
        )
    found = security or Security()
    changes: dict[str, object] = dict(options)
    if at:
        changes["user"] = unquote(user)
    if scheme == "kafka+tls":
        changes["tls"] = True
    if changes:
        found = replace(found, **changes)  # type: ignore[arg-type] # each as its field says
    if scheme == "kafka+sasl" and not found.user:
        raise UserError("expected a user: kafka+sasl://user@host:port")
    return Target(tuple(parse_addresses(hosts)), found)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """The addresses in "host:port[,host:port]"; the port is 9092 where it is left out.

    Raises:
        UserError: it isn't of that form.

    >>> parse_addresses("a:1,[::1]:2,b")
    [('a', 1), ('::1', 2), ('b', 9092)]
    """
    addresses = []
    for item in text.split(","):
        host, colon, port = item.strip().rpartition(":")
        if not colon or "]" in port:
            host, port = item.strip(), str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UserError(
                f"expected broker addresses as host:port[,host:port]; found {text!r}. "
                "Name a host and a port from 1 to 65535, for example 127.0.0.1:9092"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
