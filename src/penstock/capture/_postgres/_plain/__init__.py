"""Many changes of tables with plain columns at a time: messages of pgoutput to records, by kernels."""

from penstock.capture._postgres._plain._changes import Changes, Place, Taken

__all__ = ["Changes", "Place", "Taken"]
