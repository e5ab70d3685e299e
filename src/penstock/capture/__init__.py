"""Databases' changes into topics: a consistent snapshot, then each committed change, exactly once.

    ps.capture.Capture("postgresql://localhost/shop", ["public.*"], to="shop").run()

docs/capture.md lists the guarantees, and docs/reference/capture.md describes the records.
"""

from penstock.capture._capture import Capture
from penstock.capture._metrics import serve_metrics
from penstock.capture._output import Captured
from penstock.capture._postgres import outbox
from penstock.capture._progress import letters_topic
from penstock.capture._sources import TableSource, mysql, postgres, sqlite
from penstock.capture._status import (
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

__all__ = [
    "Capture",
    "Captured",
    "Status",
    "TableSource",
    "control",
    "drop",
    "letters_topic",
    "mysql",
    "names",
    "outbox",
    "postgres",
    "schemas",
    "serve_metrics",
    "setup",
    "snapshot",
    "sqlite",
    "status",
    "token",
]
