"""Rows of a query of MySQL or MariaDB, many at a time."""

from penstock.capture.databases.mysql.snapshots.blocks import Makes
from penstock.capture.databases.mysql.snapshots.packets import Packets, read

__all__ = ["Makes", "Packets", "read"]
