"""SQLite: triggers write changes to a table of the same file, whichever process makes them."""

from penstock.capture.databases.sqlite.kind import SQLITE

__all__ = ["SQLITE"]
