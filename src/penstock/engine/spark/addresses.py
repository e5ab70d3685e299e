"""Where workers reach the driver: this machine's address on the way to Spark's master.

Spark itself takes the machine's first address that isn't loopback, or what its host name stands for, which
on many machines is 127.0.1.1. Only the route says at which of its addresses the master sees this machine.
"""

from __future__ import annotations

import re
import socket
from typing import Final

__all__ = ["LOOPBACK", "address_towards"]

LOOPBACK: Final = "127.0.0.1"
_URL: Final = re.compile(r"(?:spark|k8s)://(?:https?://)?(?P<places>[^/]+)")
_PORT: Final = 7077  # nothing is sent there; a route needs some port


def address_towards(master: str | None) -> str | None:
    """This machine's IPv4 address on the way to a master.

    Args:
        master: Spark's name of it; several of `spark://a:7077,b:7077` are tried in their order.

    Returns:
        Loopback where Spark runs in this process; None where the name has no address, as `yarn`.

    Raises:
        OSError: none of the master's addresses is known, or has a route to it.

    >>> address_towards("local[2]"), address_towards("spark://127.0.0.1:7077"), address_towards("yarn")
    ('127.0.0.1', '127.0.0.1', None)
    """
    if master is None or master.startswith("local"):
        return LOOPBACK
    named = _URL.match(master)
    if named is None:
        return None
    failures = []
    for place in named["places"].split(","):
        host = place.rpartition(":")[0] or place
        try:
            return _source_address(host)
        except OSError as error:
            failures.append(f"{host}: {error.strerror or error}")
    raise OSError(
        f"expected a route to Spark's master {master!r}; found none ({'; '.join(failures)}). Check the name, "
        "and that this machine reaches it"
    )


def _source_address(host: str) -> str:
    """The address from which this machine would send to another. A datagram socket sends nothing for that."""
    [*found] = socket.getaddrinfo(host, _PORT, socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(found[0][4])
        address: str = probe.getsockname()[0]
    return address
