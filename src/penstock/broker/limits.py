"""The limits that bound a broker as a whole; those of its parts stand with the parts."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CONNECTIONS_MAX",
    "CONNECTIONS_MAX_EVER",
    "FETCH_BYTES_MAX",
    "FRAME_BYTES_MAX",
    "IDLE_MS_MAX",
    "IN_FLIGHT_MAX",
    "MESSAGE_BYTES_MAX",
    "PARTITIONS_MAX",
    "PARTITIONS_PER_TOPIC_MAX",
    "RECEIVE_BYTES_TOTAL_MAX",
    "TOPICS_MAX",
    "WRITE_BYTES_MAX",
]

FRAME_BYTES_MAX: Final = 100 << 20
"""Largest request, Kafka's socket.request.max.bytes. A larger one closes the connection."""
MESSAGE_BYTES_MAX: Final = 16 << 20
"""Largest request other than Produce: such a request becomes Python objects, which are larger than
its bytes."""
RECEIVE_BYTES_TOTAL_MAX: Final = 1 << 30
"""Bytes of half-received requests over all connections; the connection that would go beyond is
closed."""
CONNECTIONS_MAX: Final = 4096
"""Open connections unless `max.connections` says otherwise; each holds a descriptor and a receive buffer
of 64 KiB. Further ones are closed."""
CONNECTIONS_MAX_EVER: Final = 32_768
"""Most that it may say: half of the descriptors that the process asks for."""
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
