"""Many changes of tables with plain columns at a time: messages of pgoutput to records, by kernels."""

from penstock.capture.databases.postgres.plain.changes import Changes, Place, Taken

__all__ = ["Changes", "Place", "Taken"]
