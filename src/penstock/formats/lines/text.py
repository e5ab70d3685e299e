"""Columns of text to columns of a schema: what CSV files and patterns give.

The rules are those of JSON rows (`penstock.formats.json`), with three more: a text that is empty is NULL
where the column isn't STRING, white space around it doesn't count there, and a number may have
leading zeros or begin with its point.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.schema import JSON, Field, Schema, type_text
from penstock.errors import SchemaError
from penstock.formats.json import Decoded, JsonDecoder, encode_rows
from penstock.formats.payloads import normalised

__all__ = ["TextDecoder"]

FOUND_MAX: Final = 60
"""Characters of a wrong value that a reason shows."""

_QUOTED: Final = (
    *(pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration),
    pa.types.is_fixed_size_binary,
)
_BARE: Final = r"^(true|false|-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?)$"
"""What may stand in JSON without quotes; anything else is quoted, and then refused with its reason."""


class TextDecoder:
    """Decodes columns of text. It holds no state between batches.

    Args:
        schema: the columns that come of it; none is an array.

    Raises:
        SchemaError: text can't hold such a column.

    >>> decoder = TextDecoder(Schema.parse("n INT, at DATE"))
    >>> found = decoder.decode({"n": pa.array(["007", "x"]), "at": pa.array(["", "2026-11-22"])})
    >>> found.columns.to_pylist(), found.bad_rows.tolist()
    ([{'n': 7, 'at': None}], [1])
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._decoders: dict[str, JsonDecoder] = {}
        for one in schema:
            if pa.types.is_nested(one.type):
                raise SchemaError(
                    f"expected columns of single values; found {one.name} {type_text(one.type)}"
                )
            self._decoders[one.name] = JsonDecoder(Schema((Field("x", one.type, one.required),)))

    def decode(self, texts: dict[str, pa.Array]) -> Decoded:
        """Decodes the rows.

        Args:
            texts: for each column of the schema its texts, as many for each.
        """
        count = len(next(iter(texts.values())))
        reasons: dict[int, str] = {}
        columns: list[Any] = []
        for one in self.schema:
            found = self._column(one, texts[one.name])
            for row, reason in zip(found.bad_rows.tolist(), found.reasons, strict=True):
                reasons.setdefault(row, reason.replace("field 'x'", f"column {one.name!r}"))
            place = np.full(count, -1, np.int64)
            place[found.rows] = np.arange(len(found.rows))
            index: Any = pa.array(place, mask=place < 0)
            columns.append(found.columns.column(0).take(index))
        bad = np.array(sorted(reasons), np.int64)
        good = np.ones(count, np.bool_)
        good[bad] = False
        rows = np.flatnonzero(good)
        chosen: Any = pa.array(rows)
        arrays = [one.take(chosen) for one in columns] if len(bad) else columns
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)
        return Decoded(batch, rows, bad, [reasons[row] for row in bad.tolist()])

    def _column(self, field: Field, texts: Any) -> Decoded:
        if field.type == JSON:
            return _json(field, texts)
        if not pa.types.is_string(field.type):
            texts = pc.utf8_trim_whitespace(texts)
            texts = pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, pa.string()), texts)
        quoted = encode_rows(pa.table({"x": texts}))
        if pa.types.is_string(field.type) or any(is_one(field.type) for is_one in _QUOTED):
            rows: Any = quoted
        else:
            bare = pc.replace_substring_regex(texts, r"^(-?)0+([0-9])", r"\1\2")
            bare = pc.replace_substring_regex(bare, r"^(-?)\.", r"\10.")
            if pa.types.is_boolean(field.type):
                bare = pc.utf8_lower(bare)
            plain = pc.fill_null(pc.match_substring_regex(bare, _BARE), False)  # noqa: FBT003
            parts: list[Any] = [
                '{"x":',
                pc.replace_substring_regex(bare, r"\.($|[eE])", r".0\1"),
                "}",
                "",
            ]
            rows = pc.if_else(plain, pc.binary_join_element_wise(*parts), quoted)
        return self._decoders[field.name].decode(*_stretches(rows.cast(pa.string())))


def _json(field: Field, texts: Any) -> Decoded:
    """JSON, which a text is."""
    column: Any = texts.cast(pa.string())
    found, wrong = normalised(pc.if_else(pc.equal(column, pa.scalar("")), None, column))
    shown: list[Any] = column.filter(pa.array(wrong)).to_pylist()
    bad = {
        row: f"field 'x': expected JSON; found {text[:FOUND_MAX]!r}"
        for row, text in zip(np.flatnonzero(wrong).tolist(), shown, strict=True)
    }
    if field.required:
        missing = "field 'x': expected a value (NOT NULL); found none"
        nulls = np.flatnonzero(np.asarray(found.is_null().to_numpy(zero_copy_only=False)))
        bad = dict.fromkeys(nulls.tolist(), missing) | bad
    rows = np.setdiff1d(np.arange(len(found)), list(bad))
    batch = pa.RecordBatch.from_arrays([found.take(vectors.from_int64(rows))], names=["x"])
    order = sorted(bad)
    return Decoded(batch, rows, np.array(order, np.int64), [bad[row] for row in order])


def _stretches(texts: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where texts without NULLs lie: buffer, starts, lengths."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.zeros(1, np.uint8), np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int32)
    at = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8), at[:-1].astype(np.int64), np.diff(at)
