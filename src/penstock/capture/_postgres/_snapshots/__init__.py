"""Rows of PostgreSQL's tables: as they are before changes are captured, and meanwhile."""

from penstock.capture._postgres._snapshots._incremental import PostgresWays
from penstock.capture._postgres._snapshots._initial import Snapshot, slot_name

__all__ = ["PostgresWays", "Snapshot", "slot_name"]
