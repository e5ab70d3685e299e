"""All followers of a log, as their reports say: those that run, and those that have ended.

A report lasts as long as the offsets of a group without members, which a broker removes after some days.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.client.groups import GroupAdmin, GroupPosition
from penstock.follow.report import group_of, phase_of, reported

__all__ = ["Listed", "forget", "listed"]


@dataclass(frozen=True)
class Listed:
    """A follower, as its last report says.

    Attributes:
        kind: what it is, such as `sink`.
        name: its name.
        report: see `Follower.figures`; None: it never made one, or a release that made none has written
            the group's offsets.
        positions: of its group.
    """

    kind: str
    name: str
    report: Mapping[str, Any] | None = None
    positions: tuple[GroupPosition, ...] = field(default=(), repr=False)

    @property
    def about(self) -> Mapping[str, Any]:
        """The report; empty where there is none."""
        return self.report or {}

    @property
    def phase(self) -> str:
        """One of `PHASES`, `silent` or `unknown`; see `phase_of`."""
        return phase_of(self.about, _now_ms())

    @property
    def topics(self) -> list[str]:
        """The topics next to whose offsets it reports."""
        return sorted({one.topic for one in self.positions})

    @property
    def lag(self) -> int | None:
        """Records of its topic that it has yet to read; None: it reads no topic, or that isn't known."""
        if self.kind == "sink":
            return sum(one.lag for one in self.positions)
        lag = self.about.get("lag")
        return lag if isinstance(lag, int) else None

    @property
    def behind_s(self) -> float | None:
        """Seconds since it last had all there was, up to now; None: that isn't known."""
        at_ms, behind_ms = self.about.get("at_ms"), self.about.get("behind_ms")
        if self.lag == 0:
            return 0.0
        if not isinstance(at_ms, int) or not isinstance(behind_ms, int):
            return None
        return (behind_ms + max(_now_ms() - at_ms, 0)) / 1_000

    @property
    def last_error(self) -> str:
        """Why it waits or has failed, or the last error before."""
        return str(self.about.get("trouble") or self.about.get("last_error", ""))


def listed(address: str, kind: str | None = None, **settings: Any) -> list[Listed]:
    """Each follower that has reported to a log, by kind and name.

    Args:
        address: the broker's.
        kind: of followers; all by default.
        settings: further arguments of `penstock.client.Client`.
    """
    found = []
    with GroupAdmin(address, **settings) as admin:
        for one in admin.list_groups():
            space, _, rest = one.name.partition(".")
            its_kind, _, name = rest.partition(".")
            if space != "penstock" or not name or kind not in (None, its_kind):
                continue
            positions = tuple(admin.positions(one.name))
            reports = [report for p in positions if (report := reported(p.metadata)) is not None]
            report = max(reports, key=_at_ms, default=None)
            if kind is not None or (report is not None and "phase" in report):
                found.append(Listed(its_kind, name, report, positions))
    return sorted(found, key=lambda one: (one.kind, one.name))


def forget(address: str, kind: str, name: str, **settings: Any) -> None:
    """Deletes a follower's reports, with the offsets of its group."""
    with GroupAdmin(address, **settings) as admin:
        admin.delete_group(group_of(kind, name))


def _at_ms(report: Mapping[str, Any]) -> int:
    at_ms = report.get("at_ms")
    return at_ms if isinstance(at_ms, int) else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
