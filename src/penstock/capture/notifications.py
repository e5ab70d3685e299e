"""Debezium's notifications: how far snapshots are, as records of a topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

__all__ = ["INCREMENTAL", "INITIAL", "Notifications"]

INITIAL: Final = "Initial Snapshot"
INCREMENTAL: Final = "Incremental Snapshot"


class Notifications:
    """Makes the records.

    Args:
        topic: where to; None: nowhere.
        name: the source's.
    """

    def __init__(self, topic: str | None, name: str) -> None:
        self.topic, self._name = topic, name

    def record(
        self,
        which: str,
        what: str,
        id_: str,
        now_ms: int,
        tables: Iterable[str] = (),
        **more: str | int,
    ) -> tuple[bytes, bytes]:
        """Key and value of a notification.

        Args:
            which: `INITIAL` or `INCREMENTAL`.
            what: `STARTED`, `IN_PROGRESS`, `TABLE_SCAN_COMPLETED`, `COMPLETED`, `PAUSED`, `RESUMED`,
                `ABORTED` or `SKIPPED`.
            id_: the same one in all of a snapshot.
            now_ms: since 1970.
            tables: that are to be read.
            more: members of `additional_data`, whose values are texts.
        """
        data: dict[str, Any] = {name: str(value) for name, value in more.items()}
        data["connector_name"] = self._name
        if listed := ",".join(tables):
            data["data_collections"] = listed
        value = {
            "id": id_,
            "type": what,
            "aggregate_type": which,
            "additional_data": data,
            "timestamp": now_ms,
        }
        return orjson.dumps({"id": id_}), orjson.dumps(value)
