"""PostgreSQL: changes by logical replication with pgoutput, rows by COPY in an exported snapshot."""

from penstock.capture.databases.postgres.kind import POSTGRES
from penstock.capture.databases.postgres.outboxes import outbox

__all__ = ["POSTGRES", "outbox"]
