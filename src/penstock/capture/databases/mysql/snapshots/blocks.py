"""Many rows of a query to JSON at a time. Pure.

    packets  ->  where each value is  ->  JSON of rows and of their keys

Whole numbers and texts are copied from the packets; dates and times that all have one form are made JSON of
together, and other values one by one. `Makes` gives the same JSON as `converter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.chunked import PLAIN, TEXT, Raw, Rows
from penstock.capture.databases.mysql.columns import Column, Definition
from penstock.capture.databases.mysql.snapshots import kernels
from penstock.capture.databases.mysql.snapshots.packets import Packets
from penstock.capture.databases.mysql.texts import as_base64, as_text, as_wrapped, converter, read
from penstock.capture.envelope import Values
from penstock.capture.unread import Losses, Lost
from penstock.errors import CorruptError

__all__ = ["Makes"]

_Numbers: TypeAlias = npt.NDArray[np.int64]
_Fields: TypeAlias = npt.NDArray[np.uint8]
"""Values of one size, one a row."""
_Made: TypeAlias = tuple[npt.NDArray[np.bool_], bytes, _Numbers]
"""Which of some values were made JSON of; that, one after another; its sizes."""
_SAME: Final = 18
"""Digits of numbers of 64 bits up to which all are the same with a sign and without one."""
_ZERO, _T, _Z, _QUOTE = 48, 84, 90, 34
_DAY_US: Final = 86_400_000_000
_MILLIS: Final = 3
"""Digits of a second up to which a datetime is in milliseconds."""
_DATE, _SECONDS, _MICROS = (
    len("2024-02-29"),
    len("2024-02-29 13:45:30"),
    len("2024-02-29 13:45:30.123456"),
)


class Makes:
    """Makes JSON of a table's rows.

    Args:
        definition: the table's.
        values: how they are written.
        table: its name.
    """

    def __init__(self, definition: Definition, values: Values, table: str = "") -> None:
        self._columns, self._key, self._values = definition.columns, definition.key, values
        self._losses = Losses(table, definition.key)
        self._names = [one.name for one in definition.columns]
        self._places = [self._names.index(one) for one in definition.key]
        self._converters = [converter(one, values) for one in definition.columns]

    def rows(self, packets: Packets) -> Rows:
        """The rows of packets, which have all columns.

        Raises:
            CorruptError: a packet has something else.
            LimitError: the rows are longer than Arrow's offsets reach.
        """
        texts = np.array(
            [
                one in (as_text, as_base64) and not is_bytes
                for one, is_bytes in zip(self._converters, packets.is_bytes, strict=True)
            ],
            np.bool_,
        ).view(np.uint8)
        raw, special = _found(packets, len(self._columns), texts)
        last = tuple(  # before JSON of values takes their place
            _key_text(raw.value(raw.rows - 1, i) or b"", is_bytes=packets.is_bytes[i])
            for i in self._places
        )
        self._lost: dict[int, tuple[Lost, ...]] = {}
        kinds = [
            self._prepare(raw, i, special if texts[i] else None, is_bytes=packets.is_bytes[i])
            for i in range(len(self._columns))
        ]
        return Rows(
            raw.objects(self._key, self._places, [kinds[i] for i in self._places]),
            raw.objects(self._names, range(len(self._names)), kinds),
            last,
            self._lost,
        )

    def _prepare(self, raw: Raw, i: int, special: Any, *, is_bytes: bool) -> int:
        """How a column's values are written; those that aren't copied are made JSON of.

        Args:
            raw: the rows.
            i: which column.
            special: which of its texts can't be copied; None: it has none.
            is_bytes: whether its values are bytes.
        """
        convert, its = self._converters[i], slice(i, None, raw.columns)
        if special is not None:
            self._convert(raw, i, np.flatnonzero(special[its]), is_bytes=is_bytes)
            return TEXT
        some = np.flatnonzero(raw.size[its] >= 0)
        if not len(some):
            return PLAIN
        at, size = raw.at[its][some], raw.size[its][some]
        if convert in (int, as_wrapped) and not is_bytes:
            # `007` of ZEROFILL is no number of JSON.
            is_other = (raw.array[at] == _ZERO) & (size > 1)
            if convert is as_wrapped:
                is_other |= size > _SAME
            some = some[is_other]
        elif (make := self._together(self._columns[i])) is not None and (size == size[0]).all():
            is_made, made, sizes = make(raw.array[at[:, None] + np.arange(size[0])])
            raw.put_all(i, some[is_made], made, sizes)
            some = some[~is_made]
        self._convert(raw, i, some, is_bytes=is_bytes)
        return PLAIN

    def _convert(self, raw: Raw, i: int, some: _Numbers, *, is_bytes: bool) -> None:
        """Makes JSON of values one by one."""
        convert, dumps = self._converters[i], orjson.dumps
        made, losses, name = [], self._losses, self._names[i]
        for row in some.tolist():
            data = raw.value(row, i) or b""
            value = data if is_bytes else data.decode("utf-8", "replace")
            made.append(dumps(read(convert, value, losses, name)))
            if losses.found:
                self._lost[row] = (*self._lost.get(row, ()), *losses.take())
        raw.put(i, some, made)

    def _together(self, column: Column) -> Callable[[_Fields], _Made] | None:
        """What makes JSON of values of one form, together."""
        if column.kind == "timestamp":
            return lambda fields: _instants(fields, fields[:, :4].max(axis=1) > _ZERO)
        if column.kind not in {"date", "datetime"}:
            return None
        if self._values == "readable":
            return lambda fields: _instants(fields, _times(fields)[0])
        if column.kind == "date":
            return lambda fields: _numbers(fields, _DAY_US)
        return lambda fields: _numbers(fields, 1000 if column.digits <= _MILLIS else 1)


def _found(
    packets: Packets, columns: int, texts: npt.NDArray[np.uint8]
) -> tuple[Raw, npt.NDArray[np.uint8]]:
    count = packets.rows * columns
    at, size = np.empty(count, np.int64), np.empty(count, np.int64)
    special = np.empty(count, np.uint8)
    data = np.frombuffer(packets.data, np.uint8)
    if not kernels.find_values(data, 0, packets.length, columns, texts, at, size, special):
        raise CorruptError(
            f"expected {packets.rows} rows of {columns} values each; found {packets.data[:60]!r}"
        )
    return Raw(packets.data, columns, at, size), special


def _key_text(value: bytes, *, is_bytes: bool) -> str:
    """A value of a key, for a state and for SQL."""
    return value.hex() if is_bytes else value.decode("utf-8", "replace")


def _digits(fields: _Fields, begin: int, end: int) -> _Numbers:
    """Numbers of digits."""
    found = np.zeros(len(fields), np.int64)
    for i in range(begin, end):
        found = found * 10 + (fields[:, i].astype(np.int64) - _ZERO)
    return found


def _times(fields: _Fields) -> tuple[npt.NDArray[np.bool_], _Numbers]:
    """Which dates and times there are, and their microseconds since 1970.

    Args:
        fields: their bytes, of the form `2024-02-29`, or `2024-02-29 13:45:30.5`.
    """
    width = fields.shape[1]
    year, month, day = _digits(fields, 0, 4), _digits(fields, 5, 7), _digits(fields, 8, 10)
    us = np.zeros(len(fields), np.int64)
    if width > _DATE:
        clock = (_digits(fields, 11, 13) * 60 + _digits(fields, 14, 16)) * 60
        us = (clock + _digits(fields, 17, 19)) * 1_000_000
        if width > _SECONDS:
            us += _digits(fields, _SECONDS + 1, width) * 10 ** (_MICROS - width)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1
    past = (months + 1).astype("datetime64[D]").astype(np.int64)
    is_one = (year > 0) & (month > 0) & (day > 0) & (days < past)
    return is_one, days * _DAY_US + us


def _numbers(fields: _Fields, unit_us: int) -> _Made:
    """Dates and times as numbers of a unit since 1970."""
    is_one, us = _times(fields)
    made: Any = pa.array(us[is_one] // unit_us).cast(pa.string()).cast(pa.binary())
    sizes = pc.binary_length(made).to_numpy().astype(np.int64)
    return is_one, b"".join(made.to_pylist()), sizes


def _instants(fields: _Fields, is_one: npt.NDArray[np.bool_]) -> _Made:
    """Dates and times as texts."""
    width = fields.shape[1]
    is_time = width > _DATE
    made = np.empty((int(is_one.sum()), width + 2 + is_time), np.uint8)
    made[:, 1 : width + 1] = fields[is_one]
    made[:, 0] = made[:, -1] = _QUOTE
    if is_time:
        made[:, _DATE + 1], made[:, -2] = _T, _Z
    return is_one, made.tobytes(), np.full(len(made), made.shape[1], np.int64)
