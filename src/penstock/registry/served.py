"""A schema registry next to whatever a command runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.broker.listeners import split_address
from penstock.registry.server import PASSWORD, RegistryServer
from penstock.web import is_loopback

__all__ = ["registry_served"]


@contextlib.contextmanager
def registry_served(
    broker: str | Callable[[], str],
    listen: str | None,
    say: Callable[[str], None],
    *,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[None]:
    """Serves a registry for a while, if there is an address to do it at.

    Args:
        broker: the address of the log, or what gives it once it is asked for.
        listen: host and port; None serves nothing.
        say: shows a text to the user.
        tls: paths of a certificate and of its key.
    """
    if listen is None:
        yield
        return
    host, port = split_address(listen)
    password = os.environ.get(PASSWORD) or None
    server = RegistryServer(broker, host=host, port=port, password=password, tls=tls)
    try:
        say(f"the schema registry is at {server.url}")
        if tls is None and not is_loopback(host):
            say(
                "The registry and its password are not encrypted: use --tls-cert, or a proxy with TLS."
            )
        yield
    finally:
        server.close()
