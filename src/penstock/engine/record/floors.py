"""Where a topic's watermark, and not the rows before, decided what is late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.engine.record.marks import FoundProducers, Producers
from penstock.engine.record.plan import Floors, Plan
from penstock.engine.record.report import Report

if TYPE_CHECKING:  # a version is read without the graph, and what that imports
    from penstock.flow.graph import Source

__all__ = ["noted_floors"]

FLOORS_MAX: Final = 256
"""Floors of a partition: a version is written with each batch, and has a few KiB of them."""


def noted_floors(
    before: Mapping[str, Mapping[int, Floors]],
    sources: Iterable[Source],
    plan: Plan,
    reports: Iterable[Report],
) -> Mapping[str, Mapping[int, Floors]]:
    """By topic and partition, where a topic's watermark, and not the rows before, decides what is late.

    A row is late by the rows before it, which the log has, or by its topic's watermark, which passes a
    partition or a producer that is idle. The wall clock decided that. A rebuild, or a view that is new,
    reads the same rows at another time, and takes it from here: pairs of the offset from which a watermark
    counts and the watermark; the newest `FLOORS_MAX` of a partition are kept.

    Args:
        before: the same before the batch.
        sources: the plan's.
        plan: of the batch.
        reports: of its lanes.
    """
    late_us = {source.topic: source.time.lateness_us for source in sources}
    floors = {topic: dict(of) for topic, of in before.items() if topic in late_us}
    of_split = {(s.topic, s.partition): s.producers for r in reports for s in r.sources}
    for split in plan.splits:
        floor_us = plan.watermark_us.get(split.topic)
        if split.start == split.end or floor_us is None:
            continue
        known = split.producers or Producers()
        marks = [us for us in (split.newest_us, *known.marks_us) if us is not None]
        is_behind = not marks or min(marks) - late_us[split.topic] < floor_us
        # A producer that was idle is forgotten; the one that comes back is as a new one.
        found = of_split[split.topic, split.partition] or FoundProducers({}, None)
        if is_behind or not found.known.keys() <= set(known.names):
            noted = floors.setdefault(split.topic, {}).get(split.partition, ())
            if not noted or noted[-1][1] < floor_us:
                floors[split.topic][split.partition] = [*noted, [split.start, floor_us]][
                    -FLOORS_MAX:
                ]
    return floors
