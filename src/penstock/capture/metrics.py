"""A capture's figures in Prometheus' text form, made when a scrape asks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from penstock.capture.progress import KIND
from penstock.follow.metrics import Family, follower_families, serve
from penstock.follow.report import PHASES

if TYPE_CHECKING:
    from penstock.capture.capture import Capture

__all__ = ["FAMILIES", "serve_metrics"]

FAMILIES: Final = (
    Family("records", "Records written and committed.", "records", "counter"),
    Family(
        *("transactions", "Transactions of the database with changes of the tables."),
        *("transactions", "counter"),
    ),
    Family("snapshot_rows", "Rows of snapshots that were read.", "snapshot_rows", "counter"),
    Family("unread_values", "Values that couldn't be read or written.", "unread", "counter"),
    Family("dead_letters", "Rows that are dead letters.", "dead", "counter"),
    Family(
        *("state", "1 for the phase that it is in.", "phase"),
        tuple(one for one in PHASES if one != "following"),
    ),
)
"""What a capture serves, with the label `capture`."""


def serve_metrics(host: str, port: int, capture: Capture) -> AbstractContextManager[int]:
    """Serves `/metrics` meanwhile; the port.

    Raises:
        SetupError: the address can't be listened on.
    """
    return serve(
        host, port, lambda: follower_families(KIND, FAMILIES, {capture.name: capture.figures()})
    )
