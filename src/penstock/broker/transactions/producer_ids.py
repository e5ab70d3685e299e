"""Producer ids: numbers that are never given out twice.

    DATA/producer_ids.json          {"next": the first id that was not reserved yet}

A block of ids is reserved on disk before its first one is given out; a restart skips the rest. The
file is there from the first start on. Where it is missing, damaged, or older than what the logs know
(a restored backup), ids continue far above the highest known one, because a producer may have an id
that no log knows. A new producer under an earlier id would have its first records taken for
repetitions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from penstock.errors import SetupError
from penstock.log.disk import documents
from penstock.log.disk.files import LogFiles

__all__ = ["ProducerIds"]

BLOCK: Final = 1000
"""Ids that are reserved at a time."""
SKIPPED: Final = 1 << 32
"""Ids that are skipped where it isn't known which were given out: more than producers ever ask for, and
few of the 2^63 in all."""
GIVEN_MAX: Final = 1 << 62
"""No id from here on was ever given out. A client may write under an id that it made up."""
PATH: Final = "producer_ids.json"
_log = logging.getLogger(__name__)


class ProducerIds:
    """The ids of a data directory.

    Args:
        files: where it is written what was reserved.
        known: ids that something in the directory knows of.
        is_new: the directory is served for the first time, so no id was given out.
    """

    def __init__(self, files: LogFiles, known: Iterable[int], *, is_new: bool) -> None:
        self._files = files
        above = 1 + max((one for one in known if one < GIVEN_MAX), default=-1)
        reserved = 0 if is_new else self._reserved()
        if reserved is None or reserved < above:
            if reserved is not None:
                _log.warning(
                    "%s: expected all ids below %d; found %d in use: the file is an old copy, or a "
                    "client made its id up",
                    *(PATH, reserved, above - 1),
                )
            reserved = above + SKIPPED
            _log.warning("producer ids continue from %d", reserved)
            is_new = True
        self._next = self._end = reserved
        if is_new:
            with contextlib.suppress(OSError):  # a full disk: the first id that is taken reserves
                self._reserve(reserved)

    def _reserved(self) -> int | None:
        """The first id that was not reserved; None where nothing says so."""
        content = self._files.load(PATH)
        if content is None:
            return None  # `lost_files` reports that
        try:
            return int(documents.load(content, PATH)["next"])
        except (SetupError, KeyError, TypeError, ValueError) as error:
            _log.error("%s: %s", PATH, error)
            return None

    def _reserve(self, end: int) -> None:
        self._files.store(PATH, documents.dump({"next": end}))
        self._end = end

    def take(self) -> int:
        """An id that was never given out before."""
        if self._next >= self._end:
            self._reserve(self._next + BLOCK)
        self._next += 1
        return self._next - 1
