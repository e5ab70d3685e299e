"""Runs on files: written once, mapped, checked.

A *piece* is an Arrow IPC file of one record batch, uncompressed, sorted by a trace's layout. A *run* is a
sequence of pieces whose ranges follow one another. A reference to a piece contains its length and
CRC-32C, so a file that was cut, changed or swapped is found out before a kernel walks over it:
every piece is verified when a process opens it for the first time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.sketches.blocks import filter_of, may_have
from penstock.core.vectors import Vector
from penstock.errors import CorruptError
from penstock.state.files import StateFiles
from penstock.state.layout import Layout, concat, hashes, windows
from penstock.state.nulls import cleared
from penstock.wire.checksum import crc32c

PIECE_ROWS_MAX: Final = 1 << 19
"""Rows: one piece is made in memory; some 25 MB of an aggregate's state."""
LINK_ROWS_MIN: Final = 1 << 14
"""Rows: merges copy smaller pieces, so that files don't stay small."""
KEPT_BYTES_MAX: Final = 1 << 20
"""A piece just written stays in memory up to this; bigger ones are mapped."""
COPIED_BYTES_MAX: Final = 1 << 18
"""Rows of so many bytes are copied into one buffer to be written."""
OPEN_PIECES_MAX: Final = 1024
"""Mapped pieces that a process keeps: bounds address space and kernel maps."""

_ADVICE: Final = (
    "The state can be rebuilt from the log: run the pipeline with --rebuild; or restore the directory from a "
    "backup"
)


@dataclass(frozen=True)
class Piece:
    """A file of a run, and what it must be."""

    path: str
    rows: int
    bytes: int
    crc: int
    first: tuple[int, int]  # window, hash of the first row
    last: tuple[int, int]

    def __hash__(self) -> int:
        """Of the path alone: a step hashes all pieces, and no two of a trace have one path."""
        return hash(self.path)

    def describe(self) -> list[Any]:
        """The same as JSON."""
        return [self.path, self.rows, self.bytes, self.crc, *self.first, *self.last]

    @staticmethod
    def parse(data: Sequence[Any]) -> Piece:
        """Reads what `describe` gave."""
        path, rows, size, crc, w, h, last_w, last_h = data
        return Piece(path, rows, size, crc, (w, h), (last_w, last_h))


@dataclass(frozen=True)
class Run:
    """Pieces in order; each (window, hash, identity) at most once."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Rows in all pieces."""
        return sum(piece.rows for piece in self.pieces)

    def since(self, low_us: int) -> Run:
        """The run without the pieces that lie below a window."""
        if not self.pieces or self.pieces[0].last[0] >= low_us:
            return self
        return Run(tuple(p for p in self.pieces if p.last[0] >= low_us))


class _Sink:
    """Collects what an Arrow writer writes, without copying the columns."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[bytes | pa.Buffer] = []
        self.size = 0
        self.crc = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        view = memoryview(data)
        self.chunks.append(data)
        self.size += view.nbytes
        self.crc = crc32c(view, self.crc)
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None: ...
    def close(self) -> None: ...
    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class Writer:
    """Names and writes the pieces of one attempt at one version.

    Args:
        files: where.
        directory: of the trace, such as `"views/clicks/0003"`.
        version: being written.
        attempt: text that no other attempt at this version has, so that a retried or a zombie
            task never writes over another's files.
    """

    def __init__(self, files: StateFiles, directory: str, version: int, attempt: str) -> None:
        self.files = files
        self.prefix = f"{directory}/{version:012d}-{attempt}"
        self.written = 0  # files
        self.rows = 0
        self.bytes = 0

    def write(self, rows: pa.RecordBatch) -> Piece:
        """Writes one piece; `rows` is sorted and not empty."""
        assert len(rows), "a piece has rows"
        path = f"{self.prefix}-{self.written:04d}.arrow"
        rows = _exact(rows)
        chunks, size, crc = _encoded(rows)
        self.files.write(path, chunks)
        self.written += 1
        self.bytes += size
        self.rows += len(rows)
        w, h = windows(rows), hashes(rows)
        first, last = (int(w[0]), int(h[0])), (int(w[-1]), int(h[-1]))
        piece = Piece(path, len(rows), size, crc, first, last)
        if piece.bytes <= KEPT_BYTES_MAX:
            OPEN.put(self.files, piece, rows)
        return piece

    def run(self, rows: pa.RecordBatch) -> Run:
        """Writes rows as a run."""
        pieces: list[Piece] = []
        at = 0
        for end in (*_cuts(windows(rows)), len(rows)):
            cuts = range(at, end, PIECE_ROWS_MAX)
            pieces += [self.write(rows.slice(cut, min(PIECE_ROWS_MAX, end - cut))) for cut in cuts]
            at = end
        return Run(tuple(pieces))


def _cuts(column: Vector) -> tuple[int, ...]:
    """Cuts sorted rows, by their windows, into a beginning, a middle and an end: empty if there is no middle.

    Rows mostly come in the order of time, so a run has only the windows at its ends in common with the runs
    before and after it. The beginning and the end have whole windows, and just over `LINK_ROWS_MIN` rows. As
    pieces of their own they are merged without the middle, which is linked.
    """
    if len(column) < 4 * LINK_ROWS_MIN:
        return ()
    first = int(np.searchsorted(column, column[LINK_ROWS_MIN], side="right"))
    last = int(np.searchsorted(column, column[-1 - LINK_ROWS_MIN], side="left"))
    return (first, last) if first + LINK_ROWS_MIN <= last else ()


def _encoded(rows: pa.RecordBatch) -> tuple[Sequence[bytes | pa.Buffer], int, int]:
    """Rows as an Arrow IPC file: its bytes in some parts, how many they are, and their CRC-32C.

    The columns of many rows aren't copied; those of a few are, as a part costs more than it has bytes.
    """
    if rows.nbytes <= COPIED_BYTES_MAX:
        whole = pa.BufferOutputStream()
        with pa.ipc.new_file(whole, rows.schema) as stream:
            stream.write_batch(rows)
        data = whole.getvalue()
        return [data], data.size, crc32c(memoryview(data))
    sink: Any = _Sink()  # Arrow calls it as a file
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), rows.schema) as stream:
        stream.write_batch(rows)
    return sink.chunks, sink.size, sink.crc


def _exact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in memory of their own, where Arrow would write bytes or bits that lie next to them.

    So the same rows are the same bytes, whatever they were a part of.
    """
    for i, column in enumerate(rows.columns):
        if column.null_count or pa.types.is_nested(column.type):
            rows = rows.set_column(i, rows.schema.field(i), cleared(column))
    alone = rows.get_total_buffer_size() == rows.nbytes
    if not alone or any(_has_loose_bits(column) for column in rows.columns):
        return concat([rows, rows.slice(0, 0)])
    return rows


def _has_loose_bits(column: pa.Array) -> bool:
    """Whether the last byte of a bitmap may have bits beyond the last row."""
    if pa.types.is_nested(column.type):
        return True
    bits = len(column) % 8
    if not bits:
        return False
    bitmaps = column.buffers()[: 2 if pa.types.is_boolean(column.type) else 1]
    return any(b is not None and bool(b[len(column) // 8] >> bits) for b in bitmaps)


@dataclass(frozen=True)
class Opened:
    """A piece's rows, and the columns that they are found by."""

    rows: pa.RecordBatch
    windows: Vector
    hashes: Vector
    _longs: dict[str, Vector | None] = field(default_factory=dict, repr=False)
    _sums: dict[str, Vector] = field(default_factory=dict, repr=False)
    _codes: dict[str, Vector] = field(default_factory=dict, repr=False)
    _filters: list[Vector] = field(default_factory=list, repr=False)  # none, or one

    def may_have(self, hashes: Vector) -> Vector:
        """bool[n]: which hashes may be among the rows'; of the others, no row has to be read.

        The filter is made at the first call. The process that opened the piece has just read all of it.
        """
        if not self._filters:
            self._filters.append(filter_of(self.hashes))
        return may_have(self._filters[0], hashes)

    def sums(self, name: str) -> Vector:
        """Sums of a column of numbers of 64 bits: int64[rows + 1], of the rows before each. Remembered."""
        if name not in self._sums:
            found = np.zeros(len(self.rows) + 1, np.int64)
            np.cumsum(vectors.raw(self.rows.column(name)), out=found[1:])
            self._sums[name] = found
        return self._sums[name]

    def codes(self, name: str) -> Vector:
        """The codes of a column: int64[rows]. Remembered."""
        if name not in self._codes:
            self._codes[name] = vectors.codes(self.rows.column(name))
        return self._codes[name]

    def longs(self, name: str) -> Vector | None:
        """A column of numbers of 64 bits, none of them NULL, as int64[rows]; None: it isn't such a column.

        No copy. It is remembered: Arrow takes some microseconds to say where a column lies.
        """
        if name not in self._longs:
            column = self.rows.column(name)
            plain = _is_number(column.type) and not column.null_count
            self._longs[name] = vectors.int64s(column) if plain else None
        return self._longs[name]


def gathered(
    parts: Sequence[tuple[Opened, Vector]], fields: Sequence[pa.Field]
) -> list[pa.RecordBatch]:
    """Some columns of rows of some pieces: as one batch, where all columns are numbers.

    A piece often has few of the rows, and there are many: Arrow takes some tens of microseconds for each.
    """
    schema = pa.schema(fields)
    columns: list[pa.Array] = []
    for field_ in fields:
        values = [piece.longs(field_.name) for piece, _ in parts]
        chosen = [one[at] for one, (_, at) in zip(values, parts, strict=True) if one is not None]
        if len(chosen) < len(parts):
            break
        joined: Any = np.concatenate(chosen)
        buffers = [None, pa.py_buffer(joined)]
        columns.append(pa.Array.from_buffers(field_.type, len(joined), buffers))
    else:
        return [pa.RecordBatch.from_arrays(columns, schema=schema)]
    return [piece.rows.select(schema.names).take(vectors.from_int64(at)) for piece, at in parts]


def _is_number(type_: pa.DataType) -> bool:
    """Whether values of the type are 64 bits that stand for themselves."""
    return type_.num_buffers == 2 and vectors.is_fixed(type_) and type_.bit_width == 64


class OpenPieces:
    """The pieces that this process has mapped and verified, least recently used first."""

    def __init__(self, pieces_max: int = OPEN_PIECES_MAX) -> None:
        self.pieces_max = pieces_max
        self._open: OrderedDict[tuple[str, str, int], Opened] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, files: StateFiles, piece: Piece, rows: pa.RecordBatch) -> Opened:
        """Remembers a piece."""
        opened = Opened(rows, windows(rows), hashes(rows))
        with self._lock:
            self._open[files.identity, piece.path, piece.crc] = opened
            while len(self._open) > self.pieces_max:
                self._open.popitem(last=False)
        return opened

    def get(self, files: StateFiles, piece: Piece, layout: Layout) -> Opened:
        """The piece's rows.

        Raises:
            CorruptError: the file is missing, or not what was written.
        """
        key = (files.identity, piece.path, piece.crc)
        with self._lock:
            opened = self._open.get(key)
            if opened is not None:
                self._open.move_to_end(key)
                return opened
        return self.put(files, piece, load(files, piece, layout))

    def forget(self, files: StateFiles, pieces: Iterable[Piece]) -> None:
        """Lets go of pieces, so that a deleted file's room is free; who still needs one maps it again."""
        with self._lock:
            for piece in pieces:
                self._open.pop((files.identity, piece.path, piece.crc), None)

    def clear(self) -> None:
        """Forgets all pieces: the next reader verifies them again."""
        with self._lock:
            self._open.clear()


OPEN: Final = OpenPieces()


def load(files: StateFiles, piece: Piece, layout: Layout) -> pa.RecordBatch:
    """Maps and verifies a piece.

    Raises:
        CorruptError: the file is missing, or not what was written.
    """
    try:
        data = files.map(piece.path)
    except FileNotFoundError:
        raise CorruptError(
            f"expected the state file {piece.path!r} ({piece.bytes} bytes); found none. {_ADVICE}"
        ) from None
    if data.size != piece.bytes:
        raise CorruptError(
            f"expected {piece.bytes} bytes in the state file {piece.path!r}; found {data.size}. {_ADVICE}"
        )
    crc = crc32c(memoryview(data))
    if crc != piece.crc:
        raise CorruptError(
            f"expected the state file {piece.path!r} to have the CRC-32C {piece.crc:#010x}; "
            f"found {crc:#010x}. {_ADVICE}"
        )
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        rows = reader.get_batch(0)
    if rows.schema != layout.schema:
        raise CorruptError(
            f"expected the columns {layout.schema.names} in the state file {piece.path!r}; found "
            f"{rows.schema.names}: the pipeline's definition has changed. {_ADVICE}"
        )
    return rows


def schema_of(files: StateFiles, piece: Piece) -> pa.Schema | None:
    """The columns of a piece, of which nothing else is read; None: it is missing, or no such file."""
    try:
        with pa.ipc.open_file(pa.BufferReader(files.map(piece.path))) as reader:
            return reader.schema
    except (OSError, pa.ArrowInvalid):
        return None


def referenced(description: Mapping[str, Any]) -> Iterator[str]:
    """The files that a trace's description names."""
    groups = [*description["runs"], *(merge["output"] for merge in description["merges"])]
    for pieces in groups:
        for piece in pieces:
            yield piece[0]
