"""How far files move the watermark of a pipeline that reads their rows.

A file that begins before that is late from its first row on, mostly because the order of the files' names
isn't that of time. With rows spread over partitions, each has a watermark of its own, so this says where to
look and isn't a count of late rows.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Field, Schema
from penstock.core.time import instant_text
from penstock.expr import compile_expression
from penstock.flow.checks import quoted
from penstock.flow.times import EventTime, check_time
from penstock.formats.json import JsonDecoder
from penstock.ops.rows import Explanations, Select

__all__ = ["Reached"]

WARNED_MAX: Final = 3
"""Files that are named: where names aren't in the order of time, mostly many of them are affected."""
_AT: Final = "at"
_log = logging.getLogger(__name__)


class Reached:
    """Follows the event time of files that are read one after the other.

    Args:
        time: when rows happened. Of producers with watermarks of their own, markers, and clocks that are
            corrected, nothing is known here.
        schema: of the rows; None: it isn't known.

    Raises:
        UserError: the event time doesn't fit the schema.
    """

    def __init__(self, time: EventTime | None, schema: Schema | None = None) -> None:
        self.behind = 0
        self._newest_us: int | None = None
        self._mark_us: int | None = None  # of the files before the one that is being read
        self._begun: Path | None = None
        self._lateness_us = 0 if time is None else time.lateness_us
        self._clock: _Clock | None = None
        is_plain = time is not None and not (time.sent or time.producer or time.punctuated)
        self._time = time if time is not None and is_plain and time.source is not None else None
        if self._time is not None and schema is not None:
            self._clock = _Clock(check_time(self._time, schema), schema)

    def take(self, path: Path, values: pa.Array) -> None:
        """Notes rows of a file, as JSON objects, in their order; warns where it begins too early."""
        if self._time is None or not len(values):
            return
        if self._clock is None:
            self._clock = _clock_of(self._time, values)
        if self._clock is None:
            self._time = None
            return
        times = self._clock.times(values)
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


class _Clock:
    """Reads the event time of rows.

    Args:
        time: by a column or an expression, as `check_time` gives it.
        schema: with the columns that it names.
    """

    def __init__(self, time: EventTime, schema: Schema) -> None:
        assert time.source is not None, "nothing is known of the records' own times"
        text = quoted(time.source) if time.computed is None else time.computed
        expression = compile_expression(text, schema)
        fields = [one for one in schema if one.name in expression.columns] or schema.fields[:1]
        # What is NOT NULL is for others to check.
        self._decoder = JsonDecoder(Schema(tuple(replace(one, required=False) for one in fields)))
        self._select = Select(((_AT, expression),))

    def times(self, values: pa.Array) -> np.ndarray:
        """The instants of rows that have one, in µs."""
        buffers: list[Any] = values.buffers()
        _, places, data = buffers
        starts = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1]
        buffer = np.frombuffer(data if data is not None else b" ", np.uint8)
        decoded = self._decoder.decode(buffer, starts[:-1].astype(np.int64), np.diff(starts))
        rows = pa.Table.from_batches([decoded.columns])
        made, _ = self._select.apply(rows, Explanations(0))
        column: Any = made.column(_AT).drop_null()
        found: np.ndarray = column.cast(pa.int64()).to_numpy()
        return found


def _clock_of(time: EventTime, values: pa.Array) -> _Clock | None:
    """The clock of rows without a schema, by the first one; None: it needs one."""
    name = time.column or ""
    if name.isidentifier() or name in orjson.loads(values[0].as_py()):
        schema = Schema((Field(name, TIMESTAMP if time.unit is None else pa.float64()),))
        return _Clock(check_time(time, schema), schema)
    _log.warning(
        "expected schema=… or columns=…, as the event time %s is an expression; found none. The order of "
        "files isn't compared with their event time",
        name,
    )
    return None
