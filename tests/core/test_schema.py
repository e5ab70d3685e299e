"""Schemas as text: arrays in both of their forms."""

from __future__ import annotations

import pytest

from penstock.core.schema import NESTING_MAX, Schema
from penstock.errors import SchemaError


def test_brackets_behind_a_type_are_arrays() -> None:
    read = Schema.parse(
        "a STRING[] NOT NULL, b BIGINT[][], c MAP<STRING, DECIMAL(5, 2)[]>, d ARRAY<INT[]>"
    )
    assert read == Schema.parse(
        "a ARRAY<STRING> NOT NULL, b ARRAY<ARRAY<BIGINT>>, c MAP<STRING, ARRAY<DECIMAL(5, 2)>>, "
        "d ARRAY<ARRAY<INT>>"
    )
    assert Schema.parse(read.text) == read


@pytest.mark.parametrize("type_", ["INT[3]", "INT[", "INT]", "INT" + "[]" * (NESTING_MAX + 1)])
def test_brackets_that_are_no_array_are_refused(type_: str) -> None:
    with pytest.raises(SchemaError, match="expected"):
        Schema.parse(f"a {type_}")
