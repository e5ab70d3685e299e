"""Databases' changes into topics: a consistent snapshot, then each committed change, exactly once.

    ps.capture.Capture("postgresql://localhost/shop", ["public.*"], to="shop").run()

docs/capture.md lists the guarantees, and docs/reference/capture.md describes the records.
"""

from penstock.capture.capture import Capture
from penstock.capture.database import Condition, Database, Kind, Settings, Snapshot, Stream
from penstock.capture.databases.postgres import outbox
from penstock.capture.kinds import kind_called
from penstock.capture.metrics import serve_metrics
from penstock.capture.output import Captured
from penstock.capture.overview import (
    Status,
    control,
    drop,
    names,
    schemas,
    setup,
    snapshot,
    status,
    token,
)
from penstock.capture.progress import letters_topic
from penstock.capture.sources import TableSource, from_address, mysql, postgres, source_of, sqlite

__all__ = [
    "Capture",
    "Captured",
    "Condition",
    "Database",
    "Kind",
    "Settings",
    "Snapshot",
    "Status",
    "Stream",
    "TableSource",
    "control",
    "drop",
    "from_address",
    "kind_called",
    "letters_topic",
    "mysql",
    "names",
    "outbox",
    "postgres",
    "schemas",
    "serve_metrics",
    "setup",
    "snapshot",
    "source_of",
    "sqlite",
    "status",
    "token",
]
