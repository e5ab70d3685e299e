"""SQLite: triggers write changes to a table of the same file, whichever process makes them."""

from penstock.capture._sqlite._kind import SQLITE

__all__ = ["SQLITE"]
