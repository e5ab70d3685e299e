"""Records' keys against columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.keymatch import keys_match


def match(keys: list[bytes | None], column: pa.Array) -> list[bool]:
    """Calls the kernel as the engine does."""
    buffer = np.frombuffer(b"".join(key or b"" for key in keys) + b"\0", np.uint8)
    length = np.array([-1 if key is None else len(key) for key in keys], np.int32)
    start = np.concatenate(([0], np.cumsum(np.maximum(length, 0)))).astype(np.int64)[:-1]
    return keys_match(buffer, start, length, column, "k").tolist()


integers = st.integers(-(2**63), 2**63 - 1)
keys = st.one_of(st.none(), integers.map(lambda i: str(i).encode()), st.binary(max_size=21))


@given(st.lists(st.tuples(keys, st.one_of(st.none(), integers)), min_size=1))
def test_integers(rows: list[tuple[bytes | None, int | None]]) -> None:
    """A key matches an integer if it is its decimal text, and nothing if both are missing."""
    # Half of the rows get a key that fits, or nearly.
    rows += [(None if v is None else str(v).encode(), v) for _, v in rows]
    rows += [(b"0" + str(v).encode(), v) for _, v in rows if v is not None]
    column = pa.array([v for _, v in rows], pa.int64())
    expected = [k == (None if v is None else str(v).encode()) for k, v in rows]
    assert match([k for k, _ in rows], column) == expected


@given(st.lists(st.tuples(st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.text()))))
def test_text(rows: list[tuple[bytes | None, str | None]]) -> None:
    """A key matches a text if it is its UTF-8."""
    rows += [(None if v is None else v.encode(), v) for _, v in rows]
    column = pa.array([v for _, v in rows], pa.string())
    expected = [k == (None if v is None else v.encode()) for k, v in rows]
    assert match([k for k, _ in rows], column) == expected


def test_null_is_no_key_or_an_object_that_says_so() -> None:
    """As topics of tables have it, which may be compacted."""
    keys = [None, b'{"k":null}', b'{"j":null}', b"null", b'{"k":null}']
    for column in (pa.array([None] * 4 + [1]), pa.array([None] * 4 + ["x"])):
        assert match(keys, column.cast(column.type)) == [True, True, False, False, False]
