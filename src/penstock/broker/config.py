"""What a broker is told when it starts, and the limits that bound it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import SetupError, UserError

__all__ = ["BrokerConfig", "split_address"]

FRAME_BYTES_MAX: Final = 100 << 20
"""Largest request, Kafka's socket.request.max.bytes. A larger one closes the connection."""
MESSAGE_BYTES_MAX: Final = 16 << 20
"""Largest request other than Produce: such a request becomes Python objects, which are larger than
its bytes."""
RECEIVE_BYTES_TOTAL_MAX: Final = 1 << 30
"""Bytes of half-received requests over all connections; the connection that would go beyond is
closed."""
CONNECTIONS_MAX: Final = 4096
"""Open connections; each holds a descriptor and a receive buffer of 64 KiB. Further ones are
closed."""
IN_FLIGHT_MAX: Final = 32
"""Requests of one connection that await their answer (Produce with acks=all); reading pauses
beyond."""
WRITE_BYTES_MAX: Final = 1 << 20
"""Unsent bytes of a connection from which on it is not served until its reader catches up."""
FETCH_BYTES_MAX: Final = 55 << 20
"""Largest answer to a Fetch, Kafka's fetch.max.bytes. It is mostly a view of mapped files, not
memory."""
IDLE_MS_MAX: Final = 10 * 60 * 1000
"""A connection without a request for this long is closed, Kafka's connections.max.idle.ms."""
TOPICS_MAX: Final = 5_000
"""Topics of one broker; each is a directory that is opened at the start."""
PARTITIONS_MAX: Final = 10_000
"""Partitions of one broker; each holds a descriptor and 2 KB."""
PARTITIONS_PER_TOPIC_MAX: Final = 1_000
"""Partitions of one topic: one process serves all of them, so more give no more speed."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """How to serve a data directory.

    Attributes:
        data: the data directory; made where it is missing.
        listen: `HOST:PORT`; port 0 picks a free one.
        advertise: `HOST:PORT` that clients are told to connect to; None: where they have reached
            the broker.
        allow_remote: permit an address beyond this machine's loopback. Nothing is authenticated, so
            whoever reaches the port can read and delete everything.
        default_partitions: partitions of a topic that is made on first use, or with a count of -1.
        auto_create_topics: make a topic when a client asks for its metadata, as Kafka does by
            default.
        rebalance_delay_ms: how long a new consumer group waits for more members before its first
            generation.
        flush_interval_ms: records that nobody waits for (acks=1) are made durable this often.
        retention_interval_ms: how often old segments are looked for.
        lock_wait_s: how long to wait for a predecessor that is still stopping.
        tier: a URI (`s3://bucket/prefix`, `file:///srv/tier`) that closed segments of topics with
            `remote.storage.enable` are copied to; None: nowhere.
        tier_cache_bytes: memory for what is read back from there.
        tier_interval_ms: how often closed segments are looked for.
    """

    data: Path
    listen: str = "127.0.0.1:9092"
    advertise: str | None = None
    allow_remote: bool = False
    default_partitions: int = 1
    auto_create_topics: bool = True
    rebalance_delay_ms: int = 0
    flush_interval_ms: int = 1000
    retention_interval_ms: int = 30_000
    lock_wait_s: float = 5.0
    tier: str | None = None
    tier_cache_bytes: int = 128 << 20
    tier_interval_ms: int = 1000

    def __post_init__(self) -> None:
        host, _ = split_address(self.listen)
        if self.advertise is not None:
            split_address(self.advertise)
        if not self.allow_remote and not _is_loopback(host):
            raise SetupError(
                f"expected a loopback address such as 127.0.0.1, found {host!r}; the broker has no "
                "authentication: pass --allow-remote if everyone who can reach it may use it"
            )
        if not 1 <= self.default_partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise UserError(
                f"expected 1 to {PARTITIONS_PER_TOPIC_MAX} default partitions, found "
                f"{self.default_partitions}"
            )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` (`[::1]:9092` for IPv6).

    >>> split_address("127.0.0.1:9092"), split_address("[::1]:0")
    (('127.0.0.1', 9092), ('::1', 0))
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"expected HOST:PORT such as 127.0.0.1:9092, found {address!r}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
