"""Casts that no value survives."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.core.schema import Schema
from penstock.errors import SchemaError, UserError
from penstock.expr import compile_expression

SCHEMA = Schema.parse(
    "id BIGINT, at TIMESTAMP, b BOOLEAN, d DATE, u UUID, i INTERVAL, l ARRAY<BIGINT>, "
    "s STRUCT<a TIMESTAMP>, m MAP<STRING, BIGINT>, y BINARY, t TIME, x DOUBLE, k STRING"
)


@pytest.mark.parametrize(
    "text",
    ["at::TIME", "TRY_CAST(at AS TIME)", "coalesce(1, at::INT)", "b::TIMESTAMP", "id::TIMESTAMP", "x::DATE",
     "u::BIGINT", "[at]::TIME[]", "s::STRUCT(a TIME)", "(id + 1)::UUID", "i::DOUBLE", "t::INTERVAL"],
)  # fmt: skip
def test_a_cast_that_no_value_survives_is_refused(text: str) -> None:
    """By its types alone, also where NULL would hide it."""
    with pytest.raises(SchemaError, match="expected a cast that some value survives; found '"):
        compile_expression(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    ["k::TIME", "k::INT", "at::DATE", "(at AT TIME ZONE 'UTC')::TIME", "b::INT", "u::VARCHAR",
     "l::VARCHAR[]", "list_transform(l, e -> e::VARCHAR)", "m::VARCHAR", "NULL::UUID", "id::VARCHAR::DATE",
     "s::STRUCT(a VARCHAR)"],
)  # fmt: skip
def test_a_cast_that_some_value_survives_is_none_of_these(text: str) -> None:
    """Whether a text is a number is seen when it comes."""
    compile_expression(text, SCHEMA)


def test_the_message_says_what_to_write() -> None:
    """In SQL with the place of the cast."""
    app = ps.App("casts")
    app.stream("s", "at TIMESTAMP, id BIGINT")
    with pytest.raises(UserError, match=r"line 1, column 8: .*write \(.* AT TIME ZONE 'UTC'\)"):
        app.view("v", sql="SELECT id, at::TIME AS tod FROM s")
    with pytest.raises(UserError, match=r"write to_timestamp\("):
        app.view("w", sql="SELECT count(*) AS n FROM s WHERE id::TIMESTAMP > '2020-01-01'")
