"""The PostgreSQL server that is captured, and its publication."""

from penstock.capture._postgres._server._lookout import Lookout
from penstock.capture._postgres._server._publication import Publication
from penstock.capture._postgres._server._server import Server, has_no_room
from penstock.capture._postgres._server._waits import Waits

__all__ = ["Lookout", "Publication", "Server", "Waits", "has_no_room"]
