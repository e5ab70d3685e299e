"""Rows of a query of MySQL or MariaDB, many at a time."""

from penstock.capture._mysql._snapshots._blocks import Makes
from penstock.capture._mysql._snapshots._packets import Packets, read

__all__ = ["Makes", "Packets", "read"]
