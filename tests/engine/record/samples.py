"""Values of a pipeline's record with what a test says, and defaults for the rest."""

from __future__ import annotations

from typing import Any

from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report, SplitReport
from penstock.engine.record.version import Version

__all__ = ["plan", "report", "split_report", "version"]


def version(number: int = 1, **more: Any) -> Version:
    """A version in which nothing is, but for what a test says."""
    rest: dict[str, Any] = {
        "epoch": 1,
        "wall_us": 0,
        "name": "p",
        "offsets": {},
        "partitions": {},
        "shards": 1,
        "operators": {},
        "views": {},
    }
    return Version(number=number, **{**rest, **more})


def plan(version: int = 1, **more: Any) -> Plan:
    """A plan that reads nothing, but for what a test says."""
    rest: dict[str, Any] = {
        "epoch": 1,
        "program": "digest",
        "wall_us": 0,
        "splits": (),
        "watermark_us": {},
        "frontier_us": {},
        "writers": {},
    }
    return Plan(version=version, **{**rest, **more})


def split_report(topic: str, partition: int, **more: Any) -> SplitReport:
    """The report of a split without rows, but for what a test says."""
    rest: dict[str, Any] = {
        "newest_us": None,
        "rows": 0,
        "late": 0,
        "lost": 0,
        "doubt": None,
        "end": None,
        "producers": None,
    }
    return SplitReport(topic, partition, **{**rest, **more})


def report(**more: Any) -> Report:
    """The report of a lane that had nothing to do, but for what a test says."""
    rest: dict[str, Any] = {
        "version": 1,
        "traces": {},
        "sources": [],
        "writers": {},
        "late": {},
        "passed_late": {},
        "dead": {},
        "transaction": {},
        "seconds": {},
        "nodes": {},
    }
    return Report(**{**rest, **more})
