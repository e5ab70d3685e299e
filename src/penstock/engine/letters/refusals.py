"""Letters of rows that were no records: behind state, where a row comes, goes, and comes again.

    identity = digest of who gave the row, who refused it, the row's key, and what failed
    a batch writes a letter of an identity <=> the weights of its refused rows come to more than 0

A row that goes fails as it did when it came, so no memory of it is kept: a row that takes the place of one
that failed alike gives no other letter, and each that fails in a version has a letter in it, or before. Where
nothing identifies a row, the whole row is its key.

Which rows there are for a while depends on how batches are cut: what comes and goes within one was never
there. So the identities of all letters are those of the rows that failed in some version. What fails in the
last one is among them, however batches were cut. An identity depends on no other row, and a program that
changes elsewhere keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core import delta, vectors
from penstock.core.delta import NUMBER
from penstock.engine.letters.letters import REASON_CHARS_MAX, Letters
from penstock.flow.graph import Closed, Origin, is_one_row, row_key
from penstock.formats.json import encode_rows
from penstock.ops.rows import Refused

__all__ = ["Blamed", "Refusals", "blamed"]

DIGEST_BYTES: Final = 16


class Blamed(NamedTuple):
    """Rows that a node refused.

    Attributes:
        node: its identity.
        title: what people know it by.
    """

    node: str
    title: str
    refused: Refused


def blamed(node: str, title: str, refused: Iterable[Refused]) -> list[Blamed]:
    """What a node refused."""
    return [Blamed(node, title, one) for one in refused]


class _Part(NamedTuple):
    """Refused rows, and which each is."""

    title: str
    weights: np.ndarray
    keys: Any  # binary[rows]
    values: Any  # binary[rows]
    reasons: Any  # string[rows]
    identities: list[str]


class Refusals:
    """What is refused of the rows of one origin, on one shard in one batch.

    Args:
        origin: of the rows, before steps.
        steps: whether they pass through some.
    """

    def __init__(self, origin: Origin, *, steps: bool = False) -> None:
        self._origin = origin.identity
        self._key = _key_of(origin) if steps else None
        self._parts: list[_Part] = []

    def numbered(self, rows: pa.Table) -> pa.Table:
        """Rows with numbers, by which those that come out of steps are known; where these have keys."""
        if self._key is None:
            return rows
        return rows.append_column(NUMBER, vectors.from_int64(np.arange(len(rows))))

    def take(self, refused: Sequence[Blamed], rows: pa.Table | None = None) -> None:
        """Takes what was refused.

        Args:
            refused: such rows.
            rows: of which they were made, before they got numbers.
        """
        for node, title, bad in refused:
            count = len(bad.rows)
            if not count:
                continue
            weights = delta.weights(bad.rows)
            values = encode_rows(bad.rows).cast(pa.binary())
            keys: Any = pa.nulls(count, pa.binary())
            if bad.key is not None:
                keys = encode_rows(bad.rows, columns=bad.key).cast(pa.binary())
            elif self._key is not None and rows is not None and NUMBER in bad.rows.column_names:
                whole = rows.take(bad.rows.column(NUMBER))
                keys = encode_rows(whole, columns=self._key).cast(pa.binary())
            self._parts.append(
                _Part(
                    title[:REASON_CHARS_MAX],
                    np.ones(count, np.int64) if weights is None else weights,
                    keys,
                    values,
                    _texts(bad.reason, count),
                    self._identities(node, bad.kind, keys, values),
                )
            )

    def _identities(self, node: str, kind: Any, keys: Any, values: Any) -> list[str]:
        """The identity of each row."""
        common = blake2b(f"{self._origin}\0{node}\0".encode(), digest_size=DIGEST_BYTES)
        found = []
        kinds = _texts(kind, len(values)).to_pylist()
        for one, key, value in zip(kinds, keys.to_pylist(), values.to_pylist(), strict=True):
            digest = common.copy()
            digest.update(one.encode())
            digest.update(b"\0row\0" + value if key is None else b"\0key\0" + key)
            found.append(digest.hexdigest())
        return found

    def letters(self, timestamp_ms: int) -> Letters | None:
        """One letter of each identity that has come, in their order; None where none has."""
        parts, self._parts = self._parts, []
        if not parts:
            return None
        identities = pa.array([one for part in parts for one in part.identities], pa.string())
        weights = np.concatenate([part.weights for part in parts])
        codes = vectors.contiguous(identities.dictionary_encode().indices).to_numpy()
        sums = np.zeros(int(codes.max()) + 1, np.int64)
        np.add.at(sums, codes, weights)
        come = np.flatnonzero((weights > 0) & (sums[codes] > 0))
        come = come[np.unique(codes[come], return_index=True)[1]]
        titles = pa.concat_arrays(
            [_texts(part.title, len(part.identities)) for part in parts]
        ).take(vectors.from_int64(come))
        at = vectors.from_int64(come)
        keys, values, reasons = (
            pa.concat_arrays([getattr(part, name) for part in parts]).take(at)
            for name in ("keys", "values", "reasons")
        )
        rows = pa.table({"identity": identities.take(at), "node": titles})
        return Letters.of_rows(keys, values, timestamp_ms, reasons, rows).one_each()


def _key_of(origin: Origin) -> tuple[str, ...] | None:
    """The columns that identify an origin's rows; None where nothing does."""
    made = origin.table if isinstance(origin, Closed) else origin
    return row_key(made) or (() if is_one_row(made) else None)


def _texts(text: Any, count: int) -> Any:
    """A text each, where there is one for all."""
    if isinstance(text, str):
        return pa.repeat(pa.scalar(text), count)
    return vectors.contiguous(text)
