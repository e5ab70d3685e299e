"""The PostgreSQL server that is captured, its publication and partitions."""

from penstock.capture._postgres._server._lookout import Lookout
from penstock.capture._postgres._server._partitions import PARTITIONS, partitions_of, to_be_read
from penstock.capture._postgres._server._publication import Publication
from penstock.capture._postgres._server._server import Server, has_no_room
from penstock.capture._postgres._server._waits import Waits

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
