"""A scalar function: `initials('Ada Lovelace', '.')` is `A.L.`."""

from __future__ import annotations

import pyarrow as pa

from penstock.expr import ScalarFunction


def _initials(names: pa.Array, marks: pa.Array) -> pa.Array:
    pairs = zip(names.to_pylist(), marks.to_pylist(), strict=True)
    return pa.array(["".join(word[0] + mark for word in name.split(" ")) for name, mark in pairs])


INITIALS = ScalarFunction(
    name="initials",
    help="The first letter of each word, with a mark behind it.",
    arguments=("STRING", "STRING"),
    result="STRING",
    compute=_initials,
)
