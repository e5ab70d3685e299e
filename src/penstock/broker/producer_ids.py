"""Producer ids: numbers that are given out once, ever.

A block of them is reserved on disk before its first one is given out; a restart skips what is left.
"""

from __future__ import annotations

from typing import Final

from penstock.log import documents
from penstock.log.files import LogFiles

__all__ = ["ProducerIds"]

BLOCK: Final = 1000
"""Ids that are reserved at a time."""
PATH: Final = "producer_ids.json"


class ProducerIds:
    """The ids of a data directory.

    Args:
        files: where it is written what was reserved.
    """

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        content = files.load(PATH)
        reserved = documents.load(content, PATH) if content is not None else {"next": 0}
        self._next = self._end = int(reserved["next"])

    def take(self) -> int:
        """An id that was never given out before."""
        if self._next >= self._end:
            end = self._next + BLOCK
            self._files.store(PATH, documents.dump({"next": end}))
            self._end = end
        self._next += 1
        return self._next - 1
