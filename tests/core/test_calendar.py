"""Calendars against Python's and DuckDB's."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.calendar import Calendar
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, instant_us

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "Australia/Lord_Howe",
         "America/Havana", "Pacific/Apia", "Africa/Casablanca", "UTC"]  # fmt: skip


def starts(calendar: Calendar, times: np.ndarray) -> np.ndarray:
    """The boundary at each time or before."""
    grid = calendar.boundaries(int(times.min()), int(times.max()), 1)
    return grid[np.searchsorted(grid, times, side="right") - 1]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("unit", "calendar"),
    [
        ("day", Calendar("", days=1)),
        ("week", Calendar("", days=7)),
        ("month", Calendar("", months=1)),
        ("quarter", Calendar("", months=3)),
        ("year", Calendar("", months=12)),
    ],
    ids=["day", "week", "month", "quarter", "year"],
)
def test_steps_begin_where_duckdb_truncates(zone: str, unit: str, calendar: Calendar) -> None:
    """Days, weeks, months, quarters and years are those of `date_trunc` in the zone."""
    calendar = Calendar(zone, calendar.months, calendar.days)
    lo, hi = (instant_us(at) for at in ("1971-01-01", "2025-01-01"))
    spread = np.random.default_rng(7).integers(lo, hi, 5_000)
    near = np.arange(instant_us("2010-01-01"), instant_us("2013-01-01"), 1_800_000_000)
    times = np.concatenate([spread, near])
    table = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))})
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        connection.register("events", table)
        found = connection.sql(
            f'SELECT epoch_us(date_trunc({unit!r}, "at")) FROM events'
        ).fetchnumpy()
    [expected] = found.values()
    ours = starts(calendar, times)
    wrong = np.flatnonzero(ours != expected)
    # Where clocks skip midnight, or show it twice, DuckDB may take the other of two instants.
    info = ZoneInfo(zone)
    for i in wrong:
        begin, wanted = (
            datetime.fromtimestamp(us / 1e6, info) for us in (int(ours[i]), int(expected[i]))
        )
        assert abs(int(ours[i]) - int(expected[i])) <= 3_600_000_000, (begin, wanted)
        before = datetime.fromtimestamp(int(ours[i]) / 1e6 - 1, info)
        assert before.date() < begin.date() or before.utcoffset() != begin.utcoffset()
    assert len(wrong) <= len(times) // 20


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 - in UTC, below
    st.integers(1, 20),
    st.integers(0, 86_399),
)
def test_a_boundary_is_the_first_instant_that_clocks_show_it(
    zone: str, at: datetime, days: int, offset: int
) -> None:
    """At a boundary clocks show its time or a later one, and a second before an earlier one."""
    calendar = Calendar(zone, days=days, offset_us=offset * 1_000_000)
    info, us = ZoneInfo(zone), instant_us(at)
    start = int(starts(calendar, np.array([us]))[0])
    assert start <= us
    monday = date(1969, 12, 29) if days % 7 == 0 else date(1970, 1, 1)

    def step(second: int) -> int:
        shown = datetime.fromtimestamp(second, info).replace(tzinfo=None)
        shown -= timedelta(seconds=offset)
        return (shown.date() - monday).days // days

    begin = start // 1_000_000
    assert step(begin - 1) < step(begin)
    assert step(begin) <= step(us // 1_000_000) + 1
    # No step begins between the boundary and the time.
    later = [step(s) for s in range(begin, us // 1_000_000, 1_800)]
    assert max(later, default=step(begin)) == step(begin)


def test_days_have_23_24_or_25_hours() -> None:
    """In Berlin, one of each year is an hour short, and one an hour long."""
    calendar = Calendar("Europe/Berlin", days=1)
    lo, hi = instant_us("2025-01-01"), instant_us("2025-12-31")
    grid = calendar.boundaries(lo, hi, 1)
    hours = np.diff(grid[(grid >= lo) & (grid <= hi)]) / 3_600_000_000
    assert sorted(set(hours)) == [23, 24, 25]
    assert [(hours == n).sum() for n in (23, 25)] == [1, 1]


def test_a_day_that_a_zone_left_out_is_none() -> None:
    """Samoa had no 30th of December in 2011: boundaries still ascend."""
    calendar = Calendar("Pacific/Apia", days=1)
    lo, hi = instant_us("2011-12-28"), instant_us("2012-01-03")
    grid = calendar.boundaries(lo, hi, 1)
    shown = [
        datetime.fromtimestamp(at / 1e6, ZoneInfo("Pacific/Apia")).day
        for at in grid
        if lo <= at < hi
    ]
    assert shown == [28, 29, 31, 1, 2, 3]
    assert (np.diff(grid) > 0).all()


def test_months_begin_with_an_offset() -> None:
    """A fiscal year begins in April; a billing month on the 15th at six."""
    at = np.array([instant_us("2026-03-31T23:00:00Z")])
    fiscal = Calendar("UTC", months=12, offset_months=3)
    assert starts(fiscal, at)[0] == instant_us("2025-04-01")
    billing = Calendar("UTC", months=1, offset_us=14 * DAY_US + 6 * 3_600_000_000)
    assert starts(billing, at)[0] == instant_us("2026-03-15T06:00:00Z")
    assert starts(billing, at - 17 * DAY_US)[0] == instant_us("2026-02-15T06:00:00Z")


def test_the_first_and_the_last_year_have_boundaries() -> None:
    """Instants at the limits, and beyond them, have a boundary before and after."""
    for calendar in (Calendar("Europe/Berlin", days=1), Calendar("Asia/Kolkata", months=12)):
        for at in (INSTANT_MIN_US, INSTANT_MAX_US):
            grid = calendar.boundaries(at, at, 3)
            assert (grid <= at).sum() >= 3
            assert (grid > at).sum() >= 3


def test_a_summer_of_a_week_is_seen() -> None:
    """Recife's clocks were an hour ahead from 8 to 15 October 2000."""
    calendar = Calendar("America/Recife", days=1)
    lo, hi = instant_us("2000-10-05"), instant_us("2000-10-18")
    grid = calendar.boundaries(lo, hi, 1)
    hours = np.diff(grid[(grid >= lo) & (grid <= hi)]) / 3_600_000_000
    assert min(hours) == 23
    assert max(hours) == 25
