"""A pipeline's committed versions and savepoints, for the page."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.core.time import instant_text
from penstock.engine.savepoints import list_savepoints
from penstock.engine.store import Store
from penstock.errors import CorruptError

__all__ = ["versions_of"]


def versions_of(store: Store) -> dict[str, Any]:
    """The versions that are kept, the newest first, and the savepoints, the oldest first."""
    versions = []
    for number in reversed(store.kept(store.newest_version())):
        with contextlib.suppress(CorruptError, FileNotFoundError):  # removed meanwhile
            content = store.version(number)
            at = instant_text(content.wall_us)
            versions.append({"version": number, "at": at, "views": sorted(content.views)})
    savepoints = [
        {
            "name": one.name,
            "version": one.version,
            "created": instant_text(one.created_us),
            "bytes": one.bytes,
            "views": sorted(one.content.views),
        }
        for one in list_savepoints(store)
    ]
    return {"versions": versions, "savepoints": savepoints}
