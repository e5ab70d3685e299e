"""Files of deleted segments, which stay on the disk for `file.delete.delay.ms`.

They keep their names. Where the process ends before they are gone, they lie before the log's start: the
next one takes them for what is left of a deletion that was cut short, and deletes them.
"""

from __future__ import annotations

from collections import deque

from penstock.log.disk.files import LogFiles
from penstock.log.segments.segment import Segment

__all__ = ["DoomedSegments", "remove_segment"]


class DoomedSegments:
    """Those of one partition, oldest first."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._new: list[Segment] = []
        self._waiting: deque[tuple[int, Segment]] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._waiting)

    def add(self, segment: Segment) -> None:
        """From now on its files wait for their end, without a descriptor."""
        segment.file.rest()
        self._new.append(segment)

    def remove(self, now_ms: int, delay_ms: int) -> None:
        """Removes the files that have waited for so long. Those that are new begin to wait."""
        self._waiting.extend((now_ms, one) for one in self._new)
        self._new.clear()
        while self._waiting and self._waiting[0][0] + delay_ms <= now_ms:
            remove_segment(self._files, self._waiting.popleft()[1])

    def remove_all(self) -> None:
        """Removes all of them now."""
        for one in [*(segment for _, segment in self._waiting), *self._new]:
            remove_segment(self._files, one)
        self._waiting.clear()
        self._new.clear()


def remove_segment(files: LogFiles, segment: Segment) -> None:
    """Removes a segment's files; the index first: one without its segment is evidence of a loss."""
    files.delete(segment.index_path)
    files.delete(segment.path)
