"""A topic's history by column: what its Iceberg table has, and the log beyond it.

    history = ps.History("clicks", "sqlite:////srv/catalog.db")
    clicks = history.arrow(["user", "at"], start="2026-11-01").read_all()     # Arrow, without a JVM
    per_user = history.spark(session, ["user"]).groupBy("user").count()       # Spark, without a copy

Each record is there once: the table is taken at one snapshot, which says up to which offsets it
covers the topic, and the log from there to its end, as committed, at the moment of the call.
"""

from penstock.history.history import History
from penstock.history.spark import Piece, log_pieces

__all__ = ["History", "Piece", "log_pieces"]
