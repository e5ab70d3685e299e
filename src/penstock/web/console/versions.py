"""A pipeline's committed versions and savepoints, for the page."""

from __future__ import annotations

import contextlib
from typing import TypedDict

from penstock.core.time import instant_text
from penstock.engine.savepoints import list_savepoints
from penstock.engine.store import Store
from penstock.errors import CorruptError

__all__ = ["KeptVersion", "KeptVersions", "NamedSavepoint", "versions_of"]


class KeptVersion(TypedDict):
    """A committed version, when it was made, and its views."""

    version: int
    at: str
    views: list[str]


class NamedSavepoint(TypedDict):
    """A savepoint: its version, when it was created, the bytes of its state, and its views."""

    name: str
    version: int
    created: str
    bytes: int
    views: list[str]


class KeptVersions(TypedDict):
    """The versions that are kept, the newest first, and the savepoints, the oldest first."""

    versions: list[KeptVersion]
    savepoints: list[NamedSavepoint]


def versions_of(store: Store) -> KeptVersions:
    """The versions that are kept, and the savepoints."""
    versions: list[KeptVersion] = []
    for number in reversed(store.kept(store.newest_version())):
        with contextlib.suppress(CorruptError, FileNotFoundError):  # removed meanwhile
            content = store.version(number)
            at = instant_text(content.wall_us)
            versions.append({"version": number, "at": at, "views": sorted(content.views)})
    savepoints: list[NamedSavepoint] = [
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
