"""Dead letters as columns: a flood of them costs about what its records cost, not a Python object each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.vectors import contiguous, from_int64
from penstock.wire.columns import Records, gather_column, header_bytes

__all__ = ["Letters", "headers_of"]

PART_BYTES_MAX: Final = 8 << 20
"""Of a dead letter's key, and of its value: both fit into a topic's largest record, uncompressed."""
CUT_BYTES: Final = 64 << 10
"""What is left of a larger one: enough to see what it was. The record itself is where it came from."""
ROW_HEADERS: Final = ("identity", "node")
"""Of letters that were no records."""
REASON_CHARS_MAX: Final = 2_000
REASON_BYTES_MAX: Final = 1 << 13  # what so many characters and a mark may take, and more


@dataclass(frozen=True)
class Letters:
    """Records that could not be used, and why.

    Attributes:
        offsets: int64[n], of the records; -1 where they were none.
        keys: binary[n].
        values: binary[n].
        timestamps_ms: int64[n].
        reasons: string[n].
        cut_bytes: int64[n], how long key and value were together, if they were cut; 0: they weren't.
        rows: of letters that were no records: their `identity` and the `node` that refused them, as texts;
            see `penstock.engine.letters.refusals`. None of others.
    """

    offsets: np.ndarray
    keys: Any
    values: Any
    timestamps_ms: np.ndarray
    reasons: Any
    cut_bytes: np.ndarray
    rows: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @staticmethod
    def made(
        offsets: np.ndarray,
        keys: Any,
        values: Any,
        timestamps_ms: np.ndarray,
        reasons: Any,
    ) -> Letters:
        """Letters of whole records; those that are too large are cut, and so are long reasons."""
        sizes = [np.asarray(pc.fill_null(pc.binary_length(part), 0)) for part in (keys, values)]
        large = np.maximum(*sizes) > PART_BYTES_MAX
        cut = np.where(large, sizes[0].astype(np.int64) + sizes[1], 0)
        if large.any():
            keys, values = (
                pc.if_else(
                    pa.array(size > PART_BYTES_MAX), pc.binary_slice(part, 0, CUT_BYTES), part
                )
                for part, size in zip((keys, values), sizes, strict=True)
            )
        long = pc.greater(pc.utf8_length(reasons), pa.scalar(REASON_CHARS_MAX))
        if pc.any(long).as_py():
            parts: list[Any] = [pc.utf8_slice_codeunits(reasons, 0, REASON_CHARS_MAX), "…", ""]
            reasons = pc.if_else(long, pc.binary_join_element_wise(*parts), reasons)
        return Letters(offsets, keys, values, timestamps_ms, reasons, cut)

    @staticmethod
    def of_records(records: Records, rows: np.ndarray, reasons: Any) -> Letters:
        """Letters of some records of a chunk, by their positions in it."""
        return Letters.made(
            records.offset[rows],
            gather_column(records.buffer, records.key_start[rows], records.key_length[rows]),
            gather_column(records.buffer, records.value_start[rows], records.value_length[rows]),
            records.timestamp_ms[rows],
            reasons,
        )

    @staticmethod
    def of_rows(keys: Any, values: Any, timestamp_ms: int, reasons: Any, rows: pa.Table) -> Letters:
        """Letters of rows that were no records."""
        none, times = np.full(len(rows), -1, np.int64), np.full(len(rows), timestamp_ms, np.int64)
        return replace(Letters.made(none, keys, values, times, reasons), rows=rows)

    @staticmethod
    def joined(parts: Sequence[Letters]) -> Letters:
        """All letters, in the order of their offsets; of equal ones, in the order that they have here."""
        rows = [part.rows for part in parts if part.rows is not None]
        assert len(rows) in (0, len(parts)), "letters of rows are by themselves"
        one = Letters(
            np.concatenate([part.offsets for part in parts]),
            pa.concat_arrays([part.keys for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            np.concatenate([part.timestamps_ms for part in parts]),
            pa.concat_arrays([part.reasons for part in parts]),
            np.concatenate([part.cut_bytes for part in parts]),
            pa.concat_tables(rows) if rows else None,
        )
        if (one.offsets[1:] >= one.offsets[:-1]).all():
            return one
        return one.take(np.argsort(one.offsets, kind="stable"))

    def one_each(self) -> Letters:
        """Of letters of rows, the first of each identity, in the order of identity."""
        assert self.rows is not None
        identities = self.rows.column("identity").to_pylist()
        first = {one: at for at, one in reversed(list(enumerate(identities)))}
        return self.take(np.array([first[one] for one in sorted(first)], np.int64))

    def take(self, order: np.ndarray) -> Letters:
        """The letters at some positions."""
        at = from_int64(order)
        return Letters(
            self.offsets[order],
            self.keys.take(at),
            self.values.take(at),
            self.timestamps_ms[order],
            self.reasons.take(at),
            self.cut_bytes[order],
            None if self.rows is None else self.rows.take(at),
        )

    def slice(self, lo: int, hi: int) -> Letters:
        """Letters lo to hi - 1."""
        return Letters(
            self.offsets[lo:hi],
            self.keys[lo:hi],
            self.values[lo:hi],
            self.timestamps_ms[lo:hi],
            self.reasons[lo:hi],
            self.cut_bytes[lo:hi],
            None if self.rows is None else self.rows.slice(lo, hi - lo),
        )


def headers_of(letters: Letters, topic: str, partition: str) -> pa.Array:
    """The headers of letters, each record's as they stand in it: binary[n].

    `penstock.cut` says how many bytes a record had of which only the beginning is here.
    """
    place = header_bytes(
        [("penstock.topic", topic.encode()), ("penstock.partition", partition.encode())]
    )[1:]  # without their count
    texts = {"penstock.offset": pc.cast(pa.array(letters.offsets), pa.string())}
    if letters.rows is not None:
        texts |= {f"penstock.{name}": letters.rows.column(name) for name in ROW_HEADERS}
    count = len(texts) + 3  # with the reason and the place
    cuts = pc.cast(pa.array(letters.cut_bytes), pa.string())
    is_cut = pa.array(letters.cut_bytes > 0)
    as_usual, one_more = (pa.scalar(header_bytes([("", b"")] * n)[:1]) for n in (count, count + 1))
    tails: list[Any] = [*_header("penstock.cut", cuts), b""]
    parts: list[Any] = [
        pc.if_else(is_cut, one_more, as_usual),
        *_header("penstock.reason", letters.reasons),
        place,
        *(part for name, column in texts.items() for part in _header(name, column)),
        pc.if_else(is_cut, pc.binary_join_element_wise(*tails), pa.scalar(b"")),
        b"",
    ]
    made: pa.Array = pc.binary_join_element_wise(*parts)
    return made


def _header(name: str, texts: Any) -> list[Any]:
    """What a header is made of, in columns."""
    values = contiguous(texts).cast(pa.binary())
    return [header_bytes([(name, b"")])[1:-1], _lengths(values), values]


def _lengths(column: Any) -> pa.Array:
    """The lengths of texts as headers have them: binary[n]."""
    sizes: Any = pc.binary_length(column)
    found: pa.Array = _varints().take(sizes)
    return found


@cache
def _varints() -> pa.Array:
    """The length of each size of a header's value, as it stands before it: binary[sizes]."""
    whole = (header_bytes([("", bytes(size))]) for size in range(REASON_BYTES_MAX))
    return pa.array([one[2 : len(one) - size] for size, one in enumerate(whole)], pa.binary())
