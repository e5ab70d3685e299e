"""PostgreSQL: changes by logical replication with pgoutput, rows by COPY in an exported snapshot."""

from penstock.capture._postgres._kind import POSTGRES
from penstock.capture._postgres._outbox import outbox

__all__ = ["POSTGRES", "outbox"]
