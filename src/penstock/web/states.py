"""How a part of a pipeline is, for the page: a name, since when, why, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.time import instant_text
from penstock.follow.report import phase_of

if TYPE_CHECKING:
    from penstock.web.status import PartState

__all__ = ["sink_state", "state_of", "whole"]


def sink_state(report: Mapping[str, Any] | None, now_ms: int) -> PartState:
    """How a sink is.

    Args:
        report: its last report; None: it never made one.
        now_ms: the time, since 1970.

    Returns:
        `name`, `level` (good, wait, bad), `since` (an instant or None), `reason`, `advice`.
    """
    if report is None:
        reason = "Its group has offsets and no report: an older release, or another program, writes them."
        return state_of("unknown", "wait", None, reason, "Restart the sink with this release.")
    phase, trouble = phase_of(report, now_ms), str(report.get("trouble", ""))
    since_ms, at_ms = whole(report.get("since_ms")), whole(report.get("at_ms"))
    if phase == "silent":
        reason = f"A sink reports at least every 5 seconds. The last report: {report.get('phase')}."
        advice = (
            "The process was killed, hangs, or can't reach the log. Start it again: "
            "penstock sink TOPIC TARGET. It continues where it stopped."
        )
        return state_of("silent", "bad", at_ms, reason, advice)
    match phase:
        case "following":
            return state_of("following", "good", since_ms, "", "")
        case "starting":
            return state_of("starting", "wait", since_ms, "", "")
        case "waiting":
            advice = "The sink retries by itself. Check that its target and the log can be reached."
            return state_of("waiting", "warn", since_ms, trouble, advice)
        case "failed":
            advice = "Correct the cause, then start the sink again. It continues where it stopped."
            return state_of("failed", "bad", since_ms, trouble, advice)
        case "paused":
            advice = "Continue it: penstock sink resume NAME."
            return state_of("paused", "wait", since_ms, "It was paused.", advice)
        case "stopped":
            advice = "Start it again: penstock sink TOPIC TARGET."
            return state_of("stopped", "wait", since_ms, "It was stopped.", advice)
    return state_of(phase or "unknown", "wait", since_ms, trouble, "")


def state_of(name: str, level: str, since_ms: int | None, reason: str, advice: str) -> PartState:
    """A state; `since_ms` in milliseconds since 1970, None: it isn't known."""
    since = None if since_ms is None else instant_text(since_ms * 1_000)
    return {"name": name, "level": level, "since": since, "reason": reason, "advice": advice}


def whole(value: object) -> int | None:
    """A whole number of a report; None: it is something else."""
    return value if isinstance(value, int) else None
