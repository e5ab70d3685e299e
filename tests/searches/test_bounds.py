"""Bounds of ranges, as queries write them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.searches.bounds import codes_of, span


@pytest.mark.parametrize(
    ("text", "type_", "values"),
    [
        ("3", pa.int32(), (3, 3)),
        ("1.5", pa.int64(), (2, 1)),  # no whole number is equal to it
        ("1e999", pa.float64(), None),
        ("1" * 200, pa.int64(), None),
        ("nan", pa.float64(), None),
        ("-0.0", pa.float64(), (0.0, 0.0)),
        ("0.1", pa.float32(), (0.1, 0.1)),
        ("1.25", pa.decimal128(5, 2), (Decimal("1.25"), Decimal("1.25"))),
        ("true", pa.bool_(), (True, True)),
        ("yes", pa.bool_(), None),
        ("2024-02", pa.date32(), (dt.date(2024, 2, 1), dt.date(2024, 2, 29))),
        ("2024-02-30", pa.date32(), None),
        ("2024", pa.date32(), (dt.date(2024, 1, 1), dt.date(2024, 12, 31))),
    ],
)
def test_a_bound_is_the_values_that_it_stands_for(
    text: str, type_: pa.DataType, values: tuple[object, object] | None
) -> None:
    """A bound has the codes of the first and the last of these; what is none is an error."""
    if values is None:
        with pytest.raises(ValueError, match=r"number|time|true"):
            span(text, type_)
        return
    assert span(text, type_) == tuple(codes_of(pa.array(values, type_)).tolist())


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2024-12", "2024-12-01T00:00:00", "2024-12-31T23:59:59.999999"),
        ("2024-03-05 10", "2024-03-05T10:00:00", "2024-03-05T10:59:59.999999"),
        ("2024-03-05T10:30", "2024-03-05T10:30:00", "2024-03-05T10:30:59.999999"),
        ("2024-03-05T10:30:00+02:00", "2024-03-05T08:30:00", "2024-03-05T08:30:00.999999"),
        ("2024-03-05T10:30:00.5Z", "2024-03-05T10:30:00.500000", "2024-03-05T10:30:00.599999"),
    ],
)
def test_a_time_is_as_long_as_it_is_vague(text: str, first: str, last: str) -> None:
    """A month, a minute or a tenth of a second is a bound with its first or its last microsecond."""
    instants = [dt.datetime.fromisoformat(one).replace(tzinfo=dt.UTC) for one in (first, last)]
    column = pa.array(instants, pa.timestamp("us", "UTC"))
    assert span(text, pa.timestamp("us", "UTC")) == tuple(codes_of(column).tolist())
