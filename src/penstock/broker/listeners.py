"""Where a broker listens, and how connections there say who they are.

127.0.0.1:9092                 no authentication; for this machine alone
SSL://0.0.0.0:9093             TLS; with a client CA, by the client's certificate
SASL_SSL://0.0.0.0:9094        TLS and a log-in with a password
SASL_PLAINTEXT://127.0.0.1:1   a log-in without encryption
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from penstock.errors import UserError

__all__ = [
    "LISTENERS_MAX",
    "Listener",
    "SecurityProtocol",
    "TlsFiles",
    "parse_listeners",
    "split_address",
]

LISTENERS_MAX: Final = 16
"""Listeners of one broker; one per security protocol and network is plenty."""


class SecurityProtocol(StrEnum):
    """Kafka's names for how a listener is secured."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Whether connections log in."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate is.

    Attributes:
        certificate: PEM: the broker's certificate and those that lead to its root.
        key: PEM: the private key; None: it is in the certificate's file.
        client_ca: PEM: who issues clients' certificates. A listener that authenticates by TLS alone
            (SSL) then asks each client for one.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(slots=True)
class Listener:
    """One address. The port is the one that was bound, once that has happened."""

    protocol: SecurityProtocol
    host: str
    port: int
    advertise: tuple[str, int] | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def address(self) -> str:
        """`HOST:PORT`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listeners(text: str, advertise: str | None = None) -> list[Listener]:
    """The listeners in `[PROTOCOL://]HOST:PORT[,…]`, advertised as `HOST:PORT[,…]` in that order.

    One with nothing between the commas is advertised as the address at which a client has reached it.

    >>> [one.protocol.value for one in parse_listeners("127.0.0.1:9092,SASL_SSL://[::]:9094")]
    ['PLAINTEXT', 'SASL_SSL']
    """
    listeners = []
    for item in text.split(","):
        protocol, separator, address = item.strip().rpartition("://")
        name = protocol.upper() if separator else SecurityProtocol.PLAINTEXT.value
        if name not in SecurityProtocol.__members__:
            raise UserError(
                f"expected one of {', '.join(SecurityProtocol)} before '://'; found {protocol!r}"
            )
        listeners.append(Listener(SecurityProtocol(name), *split_address(address)))
    texts = [one.strip() for one in advertise.split(",")] if advertise else []
    advertised = [split_address(one) if one else None for one in texts]
    if len(advertised) not in {0, len(listeners)} or len(listeners) > LISTENERS_MAX:
        raise UserError(
            f"expected 1 to {LISTENERS_MAX} listeners and as many advertised addresses; found "
            f"{len(listeners)} and {len(advertised)}"
        )
    for listener, shown in zip(listeners, advertised, strict=False):
        listener.advertise = shown
    return listeners


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` (`[::1]:9092` for IPv6).

    >>> split_address("127.0.0.1:9092"), split_address("[::1]:0")
    (('127.0.0.1', 9092), ('::1', 0))
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"expected HOST:PORT such as 127.0.0.1:9092; found {address!r}")
    return host.strip("[]"), int(port)
