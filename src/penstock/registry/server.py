"""The registry's server: HTTP in a thread of its own, next to a broker or on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.client.schemas import PASSWORD
from penstock.registry.http import create_app
from penstock.registry.service import Registry
from penstock.registry.store import LogStore
from penstock.web import Server, check_password

__all__ = ["PASSWORD", "PORT", "RegistryServer"]

PORT: Final = 8081
"""Where Confluent's registry is, and where its clients look for one."""


class RegistryServer(Server):
    """Serves a registry until `close`.

    Args:
        broker: the address of the log that it is kept in, or what gives it once it is asked for.
        host: an address of this machine; beyond loopback it needs a password.
        port: the port; 0 takes a free one.
        password: that every request must bring (HTTP Basic, any user name); None: none.
        tls: paths of a certificate (with its chain) and of its key, in PEM; None serves plain HTTP.

    Raises:
        SetupError: the port is taken, or certificate and key can't be used.
        UserError: an address beyond loopback without a password, or a short one.

    Example:
        >>> server = RegistryServer("127.0.0.1:9092", port=0)    # doctest: +SKIP
        >>> server.url                                           # doctest: +SKIP
        'http://127.0.0.1:40123'
    """

    def __init__(
        self,
        broker: str | Callable[[], str],
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        password: str | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        check_password(host, password, what="the registry", variable=PASSWORD)
        self._store = LogStore(broker)
        self._listen(host, port, tls)
        hosts = ("127.0.0.1", "localhost", "[::1]", "::1", host)
        self._start(create_app(Registry(self._store), hosts=hosts, password=password))

    def close(self) -> None:
        """Stops the server, and lets go of the log."""
        super().close()
        self._store.close()
