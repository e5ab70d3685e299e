"""Rows of PostgreSQL's tables, before changes are captured and meanwhile; values that changes leave out."""

from penstock.capture.databases.postgres.snapshots.incremental import PostgresWays
from penstock.capture.databases.postgres.snapshots.initial import Snapshot, slot_name
from penstock.capture.databases.postgres.snapshots.large import LargeValues

__all__ = ["LargeValues", "PostgresWays", "Snapshot", "slot_name"]
