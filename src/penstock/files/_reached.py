"""How far files move the watermark of a pipeline that reads their rows.

A file that begins before that is late from its first row on, mostly because the order of the files' names
isn't that of time. With rows spread over partitions, each has a watermark of its own, so this says where to
look and isn't a count of late rows.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Field, Schema
from penstock.core.time import instant_text
from penstock.flow.times import EventTime
from penstock.formats.json import JsonDecoder

__all__ = ["Reached"]

WARNED_MAX: Final = 3
"""Files that are named: where names aren't in the order of time, mostly many of them are affected."""
_log = logging.getLogger(__name__)


class Reached:
    """Follows the event time of files that are read one after the other.

    Args:
        time: when rows happened. Of producers with watermarks of their own, markers, and clocks that are
            corrected, nothing is known here.
    """

    def __init__(self, time: EventTime | None) -> None:
        self.behind = 0
        self._newest_us: int | None = None
        self._mark_us: int | None = None  # of the files before the one that is being read
        self._begun: Path | None = None
        self._lateness_us = 0 if time is None else time.lateness_us
        self._decoder: JsonDecoder | None = None
        is_plain = time is not None and not (time.sent or time.producer or time.punctuated)
        if time is not None and is_plain and time.column is not None:
            self._decoder = JsonDecoder(Schema((Field(time.column, TIMESTAMP),)))

    def take(self, path: Path, values: pa.Array) -> None:
        """Notes rows of a file, as JSON objects, in their order; warns where it begins too early."""
        if self._decoder is None or not len(values):
            return
        times = _times(self._decoder, values)
        if not len(times):
            return
        if path != self._begun:
            self._begun, self._mark_us = path, self._newest_us
            self._begin(path, int(times[0]))
        self._newest_us = max(int(times.max()), self._newest_us or int(times[0]))

    def _begin(self, path: Path, first_us: int) -> None:
        if self._mark_us is None or first_us >= self._mark_us - self._lateness_us:
            return
        self.behind += 1
        if self.behind <= WARNED_MAX:
            _log.warning(
                "expected %s to begin at %s or later, the event time that earlier files have reached, less "
                "the lateness; found that it begins at %s. Its rows are late. Files are read in the order of "
                "their names: name them by time, or raise the lateness%s",
                path,
                instant_text(self._mark_us - self._lateness_us),
                instant_text(first_us),
                ". Further files are counted only" if self.behind == WARNED_MAX else "",
            )


def _times(decoder: JsonDecoder, values: pa.Array) -> np.ndarray:
    """The instants of rows that have one, in µs."""
    buffers: list[Any] = values.buffers()
    _, places, data = buffers
    starts = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1]
    buffer = np.frombuffer(data if data is not None else b" ", np.uint8)
    decoded = decoder.decode(buffer, starts[:-1].astype(np.int64), np.diff(starts))
    column: Any = decoded.columns.column(0).drop_null()
    found: np.ndarray = column.cast(pa.int64()).to_numpy()
    return found
