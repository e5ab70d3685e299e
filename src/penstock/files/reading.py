"""What is in a file: pieces of records and of what can't be one, from any place on.

A place is a number of bytes (JSON lines, CSV: of the unpacked text) or of rows (Parquet), and the number
of lines or rows before it. Reading from the place that a piece ends at gives what comes after it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.core.keymatch import key_texts
from penstock.core.schema import JSON, TIME_OF_DAY, Schema
from penstock.errors import UserError
from penstock.formats.json import JsonDecoder, encode_rows
from penstock.formats.lines import TextDecoder
from penstock.formats.members import MemberFinder, Texts
from penstock.formats.payloads import normalised
from penstock.wire.columns import gather_column

__all__ = ["FORMATS", "Letter", "NoKeyError", "Piece", "Place", "Shape", "UnreadableError", "read"]

BLOCK_BYTES: Final = 4 << 20
"""Read at a time: a piece's records are in memory a few times over."""
LINE_BYTES_MAX: Final = 16 << 20
"""Of one line: more than any broker takes as a record. The file is refused."""
PIECE_ROWS: Final = 20_000
"""Rows of a piece of a Parquet file."""
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"
_NO_NAME: Final = "\x01"
"""A member that no object has: only whether a line is an object matters then."""


class UnreadableError(Exception):
    """The file isn't what its format says; the message says why."""


class NoKeyError(UnreadableError):
    """It has no column of the key's name."""


@dataclass(frozen=True)
class Place:
    """Where in a file.

    Attributes:
        at: bytes or rows before it.
        line: lines or rows before it, for people.
    """

    at: int = 0
    line: int = 0


@dataclass(frozen=True)
class Letter:
    """What can't be a record.

    Attributes:
        line: its number, from 1 on.
        value: as it stands in the file.
        reason: why.
    """

    line: int
    value: bytes
    reason: str


@dataclass(frozen=True)
class Piece:
    """Some records.

    Attributes:
        keys: of each, binary; None where none has one.
        values: JSON objects, binary.
        letters: what lies between them and isn't a record.
        end: the place after it.
    """

    keys: pa.Array | None
    values: pa.Array
    letters: tuple[Letter, ...]
    end: Place


@dataclass(frozen=True)
class Shape:
    """What rows are.

    Attributes:
        format: `json`, `csv` or `parquet`.
        schema: of the rows; None takes them as they are.
        key: the column whose text is the record's key, if any.
    """

    format: str
    schema: Schema | None = None
    key: str | None = None


def read(path: Path, shape: Shape, start: Place) -> Iterator[Piece]:
    """The pieces of a file.

    Raises:
        UnreadableError: the file isn't what the format says, from here on.
        OSError: it can't be read.
    """
    return FORMATS[shape.format](path, shape, start)


# JSON lines


def _read_json(path: Path, shape: Shape, start: Place) -> Iterator[Piece]:
    finder = MemberFinder([shape.key or _NO_NAME])
    decoder = None if shape.schema is None else JsonDecoder(shape.schema)
    with path.open("rb") as file:
        for block, at, line in _line_blocks(_unpacked(file, start.at), start):
            yield _json_piece(block, Place(at, line), shape, finder, decoder)


def _json_piece(
    block: bytes, begin: Place, shape: Shape, finder: MemberFinder, decoder: JsonDecoder | None
) -> Piece:
    """The lines of a block that ends with a line's end, or the file's."""
    data = np.frombuffer(block + b" ", np.uint8)
    ends = np.flatnonzero(data[:-1] == ord("\n"))
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64)
    if begin.at == 0 and block.startswith(_MARK):
        starts[0] = len(_MARK)
    lengths = (ends - starts).astype(np.int32)
    returned = (lengths > 0) & (data[np.maximum(ends - 1, 0)] == ord("\r"))
    lengths -= returned
    numbers = begin.line + 1 + np.arange(len(ends))
    filled = lengths > 0
    rows = Texts(data, starts[filled], lengths[filled])
    numbers = numbers[filled]
    found = finder.find(rows)
    bad = dict(found.bad)
    if decoder is not None:
        decoded = decoder.decode(rows.buffer, rows.start, rows.length)
        bad |= dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
    letters = tuple(Letter(int(numbers[row]), rows.text(row), bad[row]) for row in sorted(bad))
    good = np.ones(len(rows), np.bool_)
    good[list(bad)] = False
    chosen = rows.take(np.flatnonzero(good))
    keys = None
    if shape.key is not None and decoder is not None:
        place = np.zeros(len(rows), np.int64)
        place[decoded.rows] = np.arange(len(decoded.rows))
        index: Any = pa.array(place[good])
        keys = _keys(decoded.columns.column(shape.key).take(index))
    elif shape.key is not None:
        keys = _key_texts(found.of[shape.key].take(np.flatnonzero(good)))
    values = gather_column(chosen.buffer, chosen.start, chosen.length)
    end = Place(begin.at + len(block), begin.line + len(ends))
    return Piece(keys, values, letters, end)


def _key_texts(found: Texts) -> pa.Array:
    """The text of JSON values: of strings what they say."""
    quoted = found.first() == ord('"')
    start = np.where(quoted, found.start + 1, found.start)
    length = np.where(quoted, found.length - 2, found.length).astype(np.int32)
    keys: Any = gather_column(found.buffer, start, length)
    if not pc.any(pc.match_substring(keys, "\\")).as_py():
        return cast("pa.Array", keys)
    decoder = JsonDecoder(Schema.parse("x STRING"))
    out = []
    for text, is_text in zip(keys.to_pylist(), quoted.tolist(), strict=True):
        if is_text and b"\\" in text:
            row = np.frombuffer(b'{"x":"' + text + b'"}', np.uint8)
            one = decoder.decode(row, np.zeros(1, np.int64), np.array([len(row)], np.int32))
            out.append(one.columns.column(0)[0].as_py().encode())
        else:
            out.append(text)
    return pa.array(out, pa.binary())


def _line_ends(block: bytes) -> np.ndarray:
    return np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))


def _line_blocks(
    blocks: Iterator[bytes], start: Place, ends_of: Callable[[bytes], np.ndarray] = _line_ends
) -> Iterator[tuple[bytes, int, int]]:
    """Blocks that end where lines do, with the bytes and lines before each."""
    at, line, rest = start.at, start.line, b""
    for block in blocks:
        rest += block
        ends = ends_of(rest)
        if not len(ends):
            if len(rest) > LINE_BYTES_MAX:
                raise UnreadableError(
                    f"expected lines of at most {LINE_BYTES_MAX} bytes (LINE_BYTES_MAX); found a longer "
                    f"one after line {line}"
                )
            continue
        cut = int(ends[-1]) + 1
        whole, rest = rest[:cut], rest[cut:]
        yield whole, at, line
        at, line = at + len(whole), line + len(ends)
    if rest:
        yield rest, at, line


def _unpacked(file: IO[bytes], skip: int) -> Iterator[bytes]:
    """The bytes of a file from a place on, gzipped or not."""
    if file.read(2) != _GZIP:
        file.seek(skip)
        while block := file.read(BLOCK_BYTES):
            yield block
        return
    file.seek(0)
    unpack = zlib.decompressobj(wbits=31)
    data, ended = file.read(BLOCK_BYTES), False
    try:
        while data:
            if ended:  # gzip files may be joined end to end; zeros may follow
                data = data.lstrip(b"\0")
                if data:
                    unpack, ended = zlib.decompressobj(wbits=31), False
                else:
                    data = file.read(BLOCK_BYTES)
                continue
            block = unpack.decompress(data, BLOCK_BYTES)
            data = unpack.unconsumed_tail
            if unpack.eof:
                data, ended = unpack.unused_data, True
            if len(block) > skip:
                yield block[skip:]
            skip = max(skip - len(block), 0)
            data = data or file.read(BLOCK_BYTES)
    except zlib.error as error:
        raise UnreadableError(f"expected gzip data; found: {error}") from None
    if not ended:
        raise UnreadableError("expected whole gzip data; found its end too early")


# CSV


def _read_csv(path: Path, shape: Shape, start: Place) -> Iterator[Piece]:
    header, begin = _csv_header(path)
    _check_columns(shape, header)
    decoder = None if shape.schema is None else TextDecoder(shape.schema)
    start = max(start, begin, key=lambda place: place.at)
    with path.open("rb") as file:
        for block, at, line in _line_blocks(_unpacked(file, start.at), start, _record_ends):
            if block.count(b'"') % 2 and _is_cut(block, header):
                raise UnreadableError(
                    f"expected an end of the quotes in the record after line {line}; found the file's end"
                )
            yield _csv_piece(block, Place(at, line), header, shape, decoder)


def _csv_header(path: Path) -> tuple[list[str], Place]:
    """The names in the first line, and the place after it."""
    with path.open("rb") as file:
        blocks = _line_blocks(_unpacked(file, 0), Place(), _record_ends)
        block = next((one for one, _, _ in blocks), b"")
    ends = _record_ends(block)
    at = int(ends[0]) + 1 if len(ends) else len(block)
    found, wrong = _parsed(block[:at].removeprefix(_MARK), None)
    assert not wrong, "one line says how many columns there are"
    try:
        return list(found.column_names), Place(at, 1)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"expected names of columns in UTF-8; found: {error}") from None


def _is_cut(block: bytes, names: list[str]) -> bool:
    """Whether a file ends within quotes: then another line isn't another record."""
    line_end = b"" if block.endswith((b"\n", b"\r")) else b"\n"
    more = block + line_end + b",".join([b"0"] * len(names)) + b"\n"
    counts = [
        len(rows) + len(wrong) for rows, wrong in (_parsed(one, names) for one in (block, more))
    ]
    return counts[0] == counts[1]


def _record_ends(block: bytes) -> np.ndarray:
    """Where records of CSV end: at LF, CR LF, or CR, in no quotes (RFC 4180).

    A CR as the last byte ends nothing yet, as an LF may follow.
    """
    data = np.frombuffer(block, np.uint8)
    is_end = data == ord("\n")
    is_end[:-1] |= (data[:-1] == ord("\r")) & ~is_end[1:]
    ends = np.flatnonzero(is_end)
    quotes = np.flatnonzero(data == ord('"'))
    return ends[np.searchsorted(quotes, ends) % 2 == 0] if len(quotes) else ends


def _parsed(block: bytes, names: list[str] | None) -> tuple[pa.Table, list[Any]]:
    """Records of CSV as columns of bytes, and those that have more or fewer."""
    wrong: list[Any] = []

    def skip(row: Any) -> Literal["skip"]:
        wrong.append(row)
        return "skip"

    types = None if names is None else dict.fromkeys(names, pa.binary())
    try:
        rows = pacsv.read_csv(
            cast("Any", pa.BufferReader(block)),
            read_options=pacsv.ReadOptions(use_threads=False, column_names=names),
            parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        if names is None or "Empty CSV" not in str(error):
            raise UnreadableError(f"expected CSV; found: {error}") from None
        rows = pa.table({name: pa.array([], pa.binary()) for name in names})
    return rows, wrong


def _check_columns(shape: Shape, names: list[str]) -> None:
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UnreadableError(
            f"expected each column once; found {twice[0]!r} {names.count(twice[0])} times"
        )
    wanted = [*(shape.schema.names if shape.schema else ()), *([shape.key] if shape.key else ())]
    missing = [name for name in wanted if name not in names]
    if missing:
        error = NoKeyError if missing == [shape.key] else UnreadableError
        raise error(f"expected the columns {', '.join(wanted)}; found {', '.join(names) or 'none'}")


def _csv_piece(
    block: bytes, begin: Place, header: list[str], shape: Shape, decoder: TextDecoder | None
) -> Piece:
    """The records of a block that ends with a record's end, or the file's."""
    rows, wrong = _parsed(block, header)
    letters = [
        Letter(
            begin.line + (row.number or 1),
            (row.text or "").encode(),
            f"expected {row.expected_columns} columns; found {row.actual_columns}",
        )
        for row in wrong
    ]
    others = [row.number for row in wrong if row.number is not None]
    at = np.setdiff1d(np.arange(1, len(rows) + len(others) + 1), others)
    rows, unreadable = _decoded(rows)
    bad = [(row, "expected text in UTF-8; found other bytes") for row in unreadable]
    chosen = np.ones(len(rows), np.bool_)
    chosen[unreadable] = False
    taken = rows
    if decoder is not None:
        found = decoder.decode({name: _whole(rows, name) for name in decoder.schema.names})
        bad += zip(found.bad_rows.tolist(), found.reasons, strict=True)
        chosen[found.bad_rows] = False
        place = np.full(len(rows), -1, np.int64)
        place[found.rows] = np.arange(len(found.rows))
        taken = pa.Table.from_batches([found.columns])
        index: Any = pa.array(place[chosen])
        taken = taken.take(index)
    elif bad:
        taken = rows.filter(pa.array(chosen))
    for row, reason in bad:
        text = encode_rows(rows.slice(row, 1), columns=rows.column_names)[0].as_py()
        letters.append(Letter(begin.line + int(at[row]), text.encode(), reason))
    keys = None
    if shape.key is not None and decoder is not None:
        keys = _keys(taken.column(shape.key))
    elif shape.key is not None:
        keys = _keys(rows.column(shape.key).filter(pa.array(chosen)))
    ends = len(_record_ends(block)) + (not block.endswith(b"\n"))
    end = Place(begin.at + len(block), begin.line + ends)
    return Piece(keys, _values(taken), tuple(letters), end)


def _decoded(rows: pa.Table) -> tuple[pa.Table, list[int]]:
    """Columns of text; rows with bytes that are none, whose text is what can be read of it."""
    bad: set[int] = set()
    columns: list[Any] = []
    for column in rows.columns:
        try:
            columns.append(column.cast(pa.string()))
        except pa.ArrowInvalid:
            texts: list[bytes] = column.to_pylist()  # type: ignore[assignment] # bytes: it is no text
            for row, text in enumerate(texts):
                try:
                    text.decode()
                except UnicodeDecodeError:
                    bad.add(row)
            columns.append(pa.chunked_array([[text.decode(errors="replace") for text in texts]]))
    return pa.table(columns, names=rows.column_names), sorted(bad)


# Parquet


def _read_parquet(path: Path, shape: Shape, start: Place) -> Iterator[Piece]:
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(shape, file.schema_arrow.names)
            names = None if shape.schema is None else list(shape.schema.names)
            done = 0
            for batch in file.iter_batches(PIECE_ROWS, columns=names):
                if done + len(batch) > start.at:
                    rows = pa.Table.from_batches([batch]).slice(max(start.at - done, 0))
                    rows = _cut_to_micros(rows)
                    rows = _small_texts(rows)
                    if shape.schema is not None:
                        rows = _as_declared(rows, shape.schema)
                    keys = _keys(rows.column(shape.key)) if shape.key else None
                    end = done + len(batch)
                    yield Piece(keys, _values(rows), (), Place(end, end))
                done += len(batch)
    except (pa.ArrowException, UserError, ValueError) as error:
        raise UnreadableError(f"expected a Parquet file of rows; found: {error}") from None


def _small_texts(rows: pa.Table) -> pa.Table:
    """Texts as STRING, however many bytes their columns may have: Arrow's other type is JSON here."""
    for at, field in enumerate(rows.schema):
        if field.type == JSON:
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.string()))
    return rows


def _as_declared(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows with the types of a schema; texts of a JSON column are JSON."""
    for one in schema:
        if one.type == JSON:
            at = rows.schema.get_field_index(one.name)
            made, wrong = normalised(rows.column(at).cast(pa.string()))
            if wrong.any():
                found = rows.column(at)[int(np.argmax(wrong))].as_py()
                raise UnreadableError(
                    f"expected JSON in the column {one.name!r}; found {found[:60]!r}. Declare it STRING"
                )
            rows = rows.set_column(at, one.name, made)
    return rows.cast(schema.arrow)


def _cut_to_micros(rows: pa.Table) -> pa.Table:
    """Instants and times without digits past the microsecond, as in all other formats."""
    for at, field in enumerate(rows.schema):
        kind: Any = field.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            cut = rows.column(at).cast(pa.timestamp("us", kind.tz), safe=False)
            rows = rows.set_column(at, field.name, cut)
        elif pa.types.is_time64(kind) and kind.unit == "ns":
            rows = rows.set_column(at, field.name, rows.column(at).cast(TIME_OF_DAY, safe=False))
    return rows


def _values(rows: pa.Table) -> pa.Array:
    found: Any = (
        encode_rows(rows, columns=rows.column_names) if len(rows) else pa.array([], pa.string())
    )
    return cast("pa.Array", found.cast(pa.binary()))


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()


def _keys(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Records' keys, as pipelines write and check them."""
    if pa.types.is_nested(column.type):
        raise UnreadableError(f"expected a key that isn't nested; found {column.type}")
    return cast("pa.Array", key_texts(column).cast(pa.binary()))


_Reads: TypeAlias = Callable[[Path, Shape, Place], Iterator[Piece]]
FORMATS: Final[dict[str, _Reads]] = {
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
"""What reads a format's files."""
