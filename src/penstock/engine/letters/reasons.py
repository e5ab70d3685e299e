"""Why records of a chunk are dead letters: texts by offset, made of columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, instant_text
from penstock.core.vectors import from_int64

__all__ = ["Reasons", "instant_texts", "late_texts"]


def _no_offsets() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass
class Reasons:
    """What is known of a chunk's records.

    Attributes:
        offsets: int64[n], ascending, each once.
        texts: string[n].
        partly: offsets of records that are late for some windows and count in others.
    """

    offsets: np.ndarray = field(default_factory=_no_offsets)
    texts: Any = field(default_factory=lambda: pa.array([], pa.string()))
    partly: np.ndarray = field(default_factory=_no_offsets)

    def note_partly(self, offsets: np.ndarray) -> None:
        """Notes records that are late for some of their windows."""
        self.partly = np.union1d(self.partly, offsets)

    def note_late(
        self, offsets: np.ndarray, times_us: np.ndarray, marks_us: np.ndarray, name: str
    ) -> None:
        """Notes records that are late for an operator; its name is added to what was late for others."""
        offsets, first = np.unique(offsets, return_index=True)
        known = np.isin(self.offsets, offsets, assume_unique=True)
        if known.any():
            more: list[Any] = [self.texts, f"; and for {name}", ""]
            self.texts = pc.if_else(pa.array(known), pc.binary_join_element_wise(*more), self.texts)
            fresh = ~np.isin(offsets, self.offsets, assume_unique=True)
            offsets, first = offsets[fresh], first[fresh]
        self._put(offsets, late_texts(times_us[first], marks_us[first], name))

    def note(self, offsets: np.ndarray, reasons: Any) -> None:
        """Notes records that can't be used for another reason, which takes the place of what was known.

        Args:
            offsets: int64[n]; of a record that stands in it several times, the first reason counts.
            reasons: a text for all, or string[n].
        """
        offsets, first = np.unique(offsets, return_index=True)
        if isinstance(reasons, str):
            texts = pa.repeat(pa.scalar(reasons), len(offsets))
        else:
            texts = reasons.take(from_int64(first))
        stay = np.flatnonzero(~np.isin(self.offsets, offsets, assume_unique=True))
        self.offsets, self.texts = self.offsets[stay], self.texts.take(pa.array(stay))
        self._put(offsets, texts)

    def leave_out(self, offsets: np.ndarray) -> None:
        """Forgets some records, which have a letter from before."""
        stay = np.flatnonzero(~np.isin(self.offsets, offsets))
        if len(stay) < len(self.offsets):
            self.offsets, self.texts = self.offsets[stay], self.texts.take(pa.array(stay))

    def late(self) -> int:
        """How many records are late, wholly or for some windows."""
        return len(np.union1d(self.offsets, self.partly))

    def _put(self, offsets: np.ndarray, texts: Any) -> None:
        if not len(self.offsets):
            self.offsets, self.texts = offsets, texts
            return
        both = np.concatenate([self.offsets, offsets])
        order = np.argsort(both)
        self.offsets = both[order]
        self.texts = pa.concat_arrays([self.texts, texts]).take(pa.array(order))


def late_texts(times_us: np.ndarray, marks_us: np.ndarray, name: str) -> pa.Array:
    """Why rows are late for an operator: string[n]."""
    parts: list[Any] = [
        "late: its event time is ",
        instant_texts(times_us),
        ", the watermark was already ",
        instant_texts(marks_us),
        f", and what it belongs to was closed; for {name}",
        "",
    ]
    made: pa.Array = pc.binary_join_element_wise(*parts)
    return made


def instant_texts(times_us: np.ndarray) -> pa.Array:
    """Instants as `instant_text` writes them: string[n]."""
    known, number = np.unique(times_us, return_inverse=True)
    fits = (known >= INSTANT_MIN_US) & (known <= INSTANT_MAX_US)
    if not fits.all():
        texts = [instant_text(one) for one in known.tolist()]
        return pa.array(texts, pa.string()).take(from_int64(number))
    long: Any = pc.cast(pa.array(known).view(pa.timestamp("us")), pa.string())
    long = pc.utf8_replace_slice(long, 10, 11, "T")
    whole = pa.array(known % 1_000_000 == 0)
    parts: list[Any] = [pc.if_else(whole, pc.utf8_slice_codeunits(long, 0, 19), long), "Z", ""]
    made: pa.Array = pc.binary_join_element_wise(*parts)
    return made.take(from_int64(number))
