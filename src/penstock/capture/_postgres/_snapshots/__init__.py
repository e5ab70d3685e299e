"""Rows of PostgreSQL's tables, before changes are captured and meanwhile; values that changes leave out."""

from penstock.capture._postgres._snapshots._incremental import PostgresWays
from penstock.capture._postgres._snapshots._initial import Snapshot, slot_name
from penstock.capture._postgres._snapshots._large import LargeValues

__all__ = ["LargeValues", "PostgresWays", "Snapshot", "slot_name"]
