"""Records that are lines of text, by schema: CSV, and whatever a pattern describes.

The texts that a line is made of become columns as `penstock.formats.lines.text` says; of a line that doesn't
fit, as of JSON rows, the reason is reported, and others aren't touched by it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.formats.avro import Avro, Lookups
from penstock.formats.json import Decoded, JsonDecoder
from penstock.formats.lines.instants import instants
from penstock.formats.lines.kinds import Decoder, Named
from penstock.formats.lines.text import TextDecoder
from penstock.formats.registered import JsonSchema, Protobuf
from penstock.wire.columns import gather_column

__all__ = ["Csv", "Decoder", "LineDecoder", "LineFormat", "Pattern", "decoder_for"]

SHOWN_CHARACTERS_MAX: Final = 100
"""Of a line, in the reason why it doesn't fit."""


@dataclass(frozen=True)
class Csv:
    """Lines of CSV (RFC 4180), each a record's value, with the schema's columns in their order.

    Attributes:
        delimiter: between values.
        null: a text that stands for NULL, next to the empty one.
    """

    delimiter: str = ","
    null: str = ""

    def decoder(self, schema: Schema, *_: object) -> Decoder:
        """See `Format`."""
        return _CsvDecoder(schema, self)


@dataclass(frozen=True)
class Pattern:
    """Lines in which a regular expression finds the columns, by the names of its groups.

    Attributes:
        expression: in RE2's syntax.
        time_format: of TIMESTAMP columns, as for `strptime`; None is ISO 8601.
        null: a text that stands for NULL, next to the empty one.
    """

    expression: str
    time_format: str | None = None
    null: str = ""

    def decoder(self, schema: Schema, *_: object) -> Decoder:
        """See `Format`."""
        return _PatternDecoder(schema, self)


LineFormat = Csv | Pattern | Avro | JsonSchema | Protobuf | Named
"""What a stream's values may be other than JSON: each makes its decoder, see `Format`."""


@functools.lru_cache(maxsize=256)
def decoder_for(
    schema: Schema,
    format_: LineFormat | None,
    columns: frozenset[str] | None = None,
    registry: Lookups | None = None,
) -> Decoder:
    """What decodes records' values; one for all batches, as decoders hold nothing between them.

    Args:
        schema: of the values.
        format_: of the values; None is JSON.
        columns: that are wanted; None is all. A decoder may give others, too.
        registry: gives what asks a schema registry; None: it knows no schema.

    Raises:
        SchemaError: the format doesn't have these columns.
    """
    if format_ is None:
        return JsonDecoder(schema, columns)
    return format_.decoder(schema, columns, registry)


class LineDecoder:
    """Decodes values that are lines of text: a subclass says which texts of a line are the columns'.

    Args:
        schema: of the values.
        null: a text that stands for NULL, next to the empty one.
    """

    def __init__(self, schema: Schema, null: str = "") -> None:
        self.schema = schema
        self._null = null
        self._texts = TextDecoder(schema)

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """See `Decoder`."""
        reasons: dict[int, str] = {}
        for row in np.flatnonzero(length < 0).tolist():
            reasons[row] = "expected a line; found no value (null)"
        lines: Any = gather_column(buffer, start, np.maximum(length, 0))
        try:
            texts = lines.cast(pa.string())
        except pa.ArrowInvalid:
            for row, line in enumerate(lines.to_pylist()):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    reasons[row] = f"expected text in UTF-8; found other bytes ({error.reason})"
            index: Any = pa.array([row in reasons for row in range(len(lines))])
            texts = pc.if_else(index, pa.scalar(b"", pa.binary()), lines).cast(pa.string())
        columns, found = self.columns(texts)
        reasons = {**found, **reasons}
        good = np.ones(len(texts), np.bool_)
        good[list(reasons)] = False
        rows = np.flatnonzero(good)
        chosen: Any = pa.array(rows)
        taken = {name: self._known(column.take(chosen)) for name, column in columns.items()}
        decoded = self._texts.decode(taken)
        for row, reason in zip(rows[decoded.bad_rows].tolist(), decoded.reasons, strict=True):
            reasons[row] = reason
        bad = np.array(sorted(reasons), np.int64)
        return Decoded(
            decoded.columns, rows[decoded.rows], bad, [reasons[row] for row in bad.tolist()]
        )

    def _known(self, texts: Any) -> Any:
        """The texts, but for those that stand for NULL."""
        if not self._null:
            return texts
        return pc.if_else(
            pc.equal(texts, pa.scalar(self._null)), pa.scalar(None, pa.string()), texts
        )

    def columns(self, lines: Any) -> tuple[dict[str, Any], dict[int, str]]:
        """For each column the texts of every line, NULL where it has none; and by line why some don't fit.

        Args:
            lines: an Arrow array of texts.
        """
        raise NotImplementedError


class _PatternDecoder(LineDecoder):
    def __init__(self, schema: Schema, pattern: Pattern) -> None:
        super().__init__(schema, pattern.null)
        self._pattern = pattern
        try:
            empty = pc.extract_regex(pa.array([""]), pattern.expression)
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"expected a regular expression (RE2's syntax) in which all groups have names; found "
                f"{pattern.expression!r}: {error}"
            ) from None
        groups = [one.name for one in empty.type]
        missing = [name for name in schema.names if name not in groups]
        if missing:
            raise SchemaError(
                f"expected a group (?P<{missing[0]}>…) in the pattern for the column {missing[0]!r}; "
                f"found groups {', '.join(groups)}"
            )
        if pattern.time_format is not None:
            instants(pa.array([""]), pattern.time_format)
        self._instants = [one.name for one in schema if pa.types.is_timestamp(one.type)]

    def columns(self, lines: Any) -> tuple[dict[str, Any], dict[int, str]]:
        """See `LineDecoder`."""
        found: Any = pc.extract_regex(lines, self._pattern.expression)
        missed = np.flatnonzero(~np.asarray(found.is_valid().to_numpy(zero_copy_only=False)))
        reasons = {
            row: f"expected a line that the pattern describes; found {_shown(lines[row].as_py())}"
            for row in missed.tolist()
        }
        columns = {name: pc.struct_field(found, name) for name in self.schema.names}
        if self._pattern.time_format is not None:
            for name in self._instants:
                columns[name] = self._iso(columns[name])
        return columns, reasons

    def _iso(self, texts: Any) -> Any:
        """Instants as ISO 8601; what isn't one stays as it is, and is refused with its reason."""
        assert self._pattern.time_format is not None
        found = instants(texts, self._pattern.time_format)
        iso: Any = pc.strftime(found.cast(pa.timestamp("us")), format="%Y-%m-%dT%H:%M:%SZ")
        return pc.coalesce(iso, texts)


class _CsvDecoder(LineDecoder):
    def __init__(self, schema: Schema, csv: Csv) -> None:
        super().__init__(schema, csv.null)
        self._parse = csv

    def columns(self, lines: Any) -> tuple[dict[str, Any], dict[int, str]]:
        """All lines are parsed at once, where it is certain that one doesn't run into the next."""
        trimmed = pc.utf8_rtrim(lines, "\r\n")
        quotes = pc.count_substring(trimmed, '"').to_numpy()
        empty = pc.binary_length(trimmed).to_numpy() == 0
        reasons = dict.fromkeys(
            np.flatnonzero(empty).tolist(),
            f"expected {len(self.schema.names)} columns; found an empty line",
        )
        odd = np.flatnonzero(quotes % 2 == 1).tolist()
        reasons |= dict.fromkeys(odd, "expected quotes in pairs; found one that isn't closed")
        rows = np.array([row for row in range(len(lines)) if row not in reasons], np.int64)
        index: Any = pa.array(rows)
        taken = trimmed.take(index)
        found, wrong = (
            self._parsed("\n".join(taken.to_pylist()).encode()) if len(rows) else ({}, {})
        )
        if len(rows) and len(found[self.schema.names[0]]) + len(wrong) != len(rows):
            found, wrong = self._one_by_one(taken)
        reasons |= {int(rows[row]): reason for row, reason in wrong.items()}
        good = np.array([row for row in range(len(rows)) if row not in wrong], np.int64)
        place = np.full(len(lines), -1, np.int64)
        place[rows[good] if len(rows) else rows] = np.arange(len(good))
        spread: Any = pa.array(place, mask=place < 0)
        none = pa.array([], pa.string())
        return {name: found.get(name, none).take(spread) for name in self.schema.names}, reasons

    def _parsed(self, data: bytes) -> tuple[dict[str, Any], dict[int, str]]:
        """Records of CSV as columns, and those that have more or fewer, by their number."""
        import pyarrow.csv as pacsv

        wrong: list[Any] = []
        names = list(self.schema.names)

        def skip(row: Any) -> str:
            wrong.append(row)
            return "skip"

        source: Any = pa.BufferReader(data)
        handler: Any = skip
        try:
            table = pacsv.read_csv(
                source,
                read_options=pacsv.ReadOptions(
                    use_threads=False, column_names=names, block_size=max(len(data) + 1, 1 << 16)
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=self._parse.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=handler,
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" not in str(error):
                raise
            table = pa.table({name: pa.array([], pa.string()) for name in names})
        columns = {name: table.column(name).combine_chunks() for name in names}
        reasons = {
            row.number - 1: f"expected {row.expected_columns} columns; found {row.actual_columns}"
            for row in wrong
        }
        return columns, reasons

    def _one_by_one(self, lines: Any) -> tuple[dict[str, Any], dict[int, str]]:
        """Where some of the values aren't one record."""
        parts: list[dict[str, Any]] = []
        wrong: dict[int, str] = {}
        for row, line in enumerate(lines.to_pylist()):
            found, refused = self._parsed(line.encode())
            count = len(found[self.schema.names[0]])
            if refused:
                wrong[row] = refused[min(refused)]
            elif count != 1:
                wrong[row] = f"expected one line; found {count}"
            else:
                parts.append(found)
        names = self.schema.names
        none = pa.array([], pa.string())
        return {n: pa.concat_arrays([none, *(one[n] for one in parts)]) for n in names}, wrong


def _shown(line: str) -> str:
    shown = line[:SHOWN_CHARACTERS_MAX]
    return re.sub(r"\s+$", "", repr(shown)) + ("…" if len(line) > len(shown) else "")
