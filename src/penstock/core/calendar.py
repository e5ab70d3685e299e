"""Calendars: days, weeks, months and years of a time zone, as instants.

A calendar is a sequence of boundaries, strictly ascending instants. The i-th one is the first instant at
which the zone's clocks show the i-th multiple of a step, or later: a boundary that clocks leave out
is where they jump over it, and one that they show twice is the first of the two. So steps have no gaps
and don't overlap; a day has 23, 24 or 25 hours; and one that a zone left out altogether is none.

Offsets from UTC are found through `zoneinfo`, sampled every three days and then bisected to the second, once
for each zone and 64 years; all else is vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND_US
from penstock.core.vectors import Vector

__all__ = ["Calendar"]

BLOCK: Final = 1_024
"""Boundaries that are computed together: three years of days, once for a program's life."""
YEARS: Final = 64
"""Years whose offsets are found together."""
EDGE_US: Final = 2 * DAY_US
"""No zone is further from UTC; some have been 25 hours apart from day to day."""
SAMPLE_S: Final = 3 * 86_400
"""Clocks that are set forth and back within it look as if they were not. Brazil did so within a week, in
2000, Sierra Leone within four days, in 1939; nobody has within three."""
MONDAY_US: Final = -3 * DAY_US  # of the week of 1970-01-01, a Thursday


@dataclass(frozen=True)
class Calendar:
    """Steps of some months or some days.

    Weeks begin on Monday, months on the first, years in January, all at midnight, plus an offset.

    Args:
        zone: a name of the tz database, such as `"Europe/Berlin"`.
        months: of a step, or 0.
        days: of a step, or 0; one of the two is above it.
        offset_months: boundaries are so much later; of steps of months.
        offset_us: and so much, by the zone's clocks.
    """

    zone: str
    months: int = 0
    days: int = 0
    offset_months: int = 0
    offset_us: int = 0

    @property
    def step_us(self) -> int:
        """What no step is longer than."""
        return (31 * self.months + self.days + 2) * DAY_US

    def boundaries(self, lo_us: int, hi_us: int, margin: int) -> Vector:
        """Boundaries around some instants: int64[n], ascending.

        Args:
            lo_us: the first instant; those that no format can name count as the nearest that they can.
            hi_us: the last.
            margin: how many boundaries there are at least before the last one at `lo_us` or before, and
                after the first one behind `hi_us`.
        """
        first = self._number(_clipped(lo_us) - EDGE_US) - 2 * margin - 2
        last = self._number(_clipped(hi_us) + EDGE_US) + 2 * margin + 2
        return _boundaries(self, first // BLOCK, last // BLOCK + 1)

    def _number(self, local_us: int) -> int:
        """How many steps the zone's clocks have made since 1970 when they show this."""
        if self.days:
            return (local_us - self._origin_us) // (self.days * DAY_US)
        shown = np.datetime64(local_us - self.offset_us, "us").astype("datetime64[M]")
        return (int(shown.astype(np.int64)) - self.offset_months) // self.months

    def _shown(self, numbers: Vector) -> Vector:
        """What clocks show at some boundaries: int64[n], us."""
        if self.days:
            return numbers * (self.days * DAY_US) + self._origin_us
        months = (numbers * self.months + self.offset_months).view("datetime64[M]")
        return months.astype("datetime64[us]").view(np.int64) + self.offset_us

    @property
    def _origin_us(self) -> int:
        return self.offset_us + (MONDAY_US if self.days % 7 == 0 else 0)


@lru_cache(maxsize=256)
def _boundaries(calendar: Calendar, first_block: int, end_block: int) -> Vector:
    shown = calendar._shown(np.arange(first_block * BLOCK, end_block * BLOCK))  # noqa: SLF001
    found = np.asarray(np.unique(_instants(calendar.zone, shown)))
    found.flags.writeable = False
    return found


def _clipped(us: int) -> int:
    return min(max(us, INSTANT_MIN_US), INSTANT_MAX_US)


def _instants(zone: str, shown_us: Vector) -> Vector:
    """The first instants at which clocks show these times or later: int64[n]."""
    starts, offsets = _offsets(zone, _year(int(shown_us[0])), _year(int(shown_us[-1])) + 1)
    ends_shown = np.append(starts[1:], np.iinfo(np.int64).max // 2) + offsets
    at = np.searchsorted(np.maximum.accumulate(ends_shown), shown_us, side="right")
    return np.asarray(np.maximum(starts[at], shown_us - offsets[at]))


def _year(us: int) -> int:
    return int(np.datetime64(us, "us").astype("datetime64[Y]").astype(np.int64)) + 1970


@lru_cache(maxsize=256)
def _offsets(zone: str, first_year: int, end_year: int) -> tuple[Vector, Vector]:
    """When a zone's offset changed in some years, and what it was from then on: int64[n], us, each."""
    blocks = range(first_year // YEARS, (end_year - 1) // YEARS + 1)
    changes = [change for block in blocks for change in _changes(zone, block)]
    kept = [one for i, one in enumerate(changes) if not i or one[1] != changes[i - 1][1]]
    starts = np.array([at for at, _ in kept], np.int64) * SECOND_US
    starts[0] = np.iinfo(np.int64).min // 2
    return starts, np.array([offset for _, offset in kept], np.int64) * SECOND_US


@lru_cache(maxsize=1_024)
def _changes(zone: str, block: int) -> list[tuple[int, int]]:
    """Offsets of 64 years, in seconds, each with the second from which it holds; the first from the start."""
    info = ZoneInfo(zone)
    least, most = ((us // SECOND_US) for us in (INSTANT_MIN_US + EDGE_US, INSTANT_MAX_US - EDGE_US))

    def offset(second: int) -> int:
        found = datetime.fromtimestamp(min(max(second, least), most), info).utcoffset()
        assert found is not None, "a zone has an offset"
        return int(found.total_seconds())

    first, end = (
        int(np.datetime64(year - 1970, "Y").astype("datetime64[s]").astype(np.int64))
        for year in (block * YEARS, (block + 1) * YEARS)
    )
    here, known = first, offset(first)
    found = [(first, known)]
    if zone == "UTC" or end <= least or first >= most:  # no change, or none that can be named
        return found
    while here < end:
        there = min(here + SAMPLE_S, end)
        if offset(there) != known:
            low = here  # bisect: the offset is still known at `low`, and another at `there`
            while there - low > 1:
                middle = (low + there) // 2
                low, there = (middle, there) if offset(middle) == known else (low, middle)
            known = offset(there)
            if there < end:
                found.append((there, known))
        here = there
    return found
