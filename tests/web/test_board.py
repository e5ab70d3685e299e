"""The status board: totals, rates, history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.web.board import HISTORY_MAX, StatusBoard

SECOND_US = 1_000_000


@dataclass
class Progress:
    version: int
    rows: int = 10
    batch_ms: float = 5.0
    late_rows: int = 1
    dead_rows: int = 2
    sources: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"fetch": 0.002})


def batch(version: int, rows: int, watermark_us: int | None = None) -> Progress:
    source = {"rows": rows, "lag": 3, "watermark_us": watermark_us}
    return Progress(version, rows, sources={"cpu": source})


def test_totals_add_up_and_rates_are_over_the_last_seconds() -> None:
    """Totals are since the start; a rate forgets what is older than its window."""
    now = [0]
    board = StatusBoard("t", lambda: now[0])
    for second in range(20):
        now[0] = second * SECOND_US
        board.add(batch(second + 1, 100, watermark_us=(second - 2) * SECOND_US))
    status = board.status()
    assert status["rows"] == 2000
    assert status["late_rows"] == 20
    assert status["dead_rows"] == 40
    assert status["sources"]["cpu"]["rows_per_s"] == 100
    assert status["watermark_delay_ms"] == 2000
    assert status["split_ms"] == {"fetch": 2.0}
    now[0] = 60 * SECOND_US
    assert board.status()["rows_per_s"] == 0


def test_history_is_bounded() -> None:
    """Sparklines have at most so many points, however long the pipeline runs."""
    board = StatusBoard("t", lambda: 0)
    for version in range(HISTORY_MAX + 50):
        board.add(batch(version, 1))
    assert len(board.status(history=True)["history"]) == HISTORY_MAX
    assert "history" not in board.status()


def test_the_phase_says_what_goes_on() -> None:
    """Starting, running, stopped."""
    board = StatusBoard("t", lambda: 0)
    assert board.status()["phase"] == "starting"
    board.phase("starting Spark")
    assert board.status()["version"] is None
    board.add(batch(1, 1))
    assert board.status()["phase"] == "running"
    board.stopped()
    assert board.status()["running"] is False
