"""The PostgreSQL server that is captured, its publication and partitions."""

from penstock.capture.databases.postgres.server.lookout import Lookout
from penstock.capture.databases.postgres.server.partitions import (
    PARTITIONS,
    partitions_of,
    to_be_read,
)
from penstock.capture.databases.postgres.server.publication import Publication
from penstock.capture.databases.postgres.server.server import Server, has_no_room
from penstock.capture.databases.postgres.server.waits import Waits

__all__ = [
    "PARTITIONS",
    "Lookout",
    "Publication",
    "Server",
    "Waits",
    "has_no_room",
    "partitions_of",
    "to_be_read",
]
