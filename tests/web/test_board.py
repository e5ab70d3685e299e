"""The status board: totals of the committed version, rates, where a batch's time went, history."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.committing import commit
from tests.serve.test_failures import texts
from tests.web.pipelines import NOW, SINKS, WELL, Pipeline, Progress, S

from penstock.cli.support.host import LateViews
from penstock.web.board import ELSEWHERE, HISTORY_MAX, StatusBoard, split_ms
from penstock.web.metrics import metrics_text


def test_counts_are_the_committed_version_s() -> None:
    """They hold over restarts; late rows are not counted among the unusable ones as well."""
    pipeline = Pipeline(version=7, rows=1_000, late=40, dead=45, watermark_us=NOW - 2 * S)
    status = pipeline.board.status()
    assert (status["rows"], status["late_rows"], status["unusable_rows"]) == (1_000, 40, 6)
    assert status["dead_letter_topic"] == "shop.dead-letters"
    assert status["watermark_delay_ms"] == 2_000
    source = status["sources"]["clicks"]
    assert (source["rows"], source["late_rows"], source["unusable_rows"]) == (1_000, 40, 5)
    assert source["held_by"] == "partition 1"
    assert source["held_since_us"] == NOW - 90 * S


def test_figures_are_not_older_than_the_state() -> None:
    """The version is read now and then, and at once when its rows have changed the state."""
    pipeline = Pipeline(version=1, rows=10, facts=replace(WELL, read_us=NOW - 60 * S))
    status = pipeline.board.status()
    assert (status["state"]["name"], status["rows"]) == ("waiting for events", 10)
    pipeline.version, pipeline.rows, pipeline.facts = 2, 15, WELL
    status = pipeline.board.status()
    assert (status["state"]["name"], status["rows"]) == ("live", 15)


def test_a_rate_is_over_the_last_seconds() -> None:
    """It forgets what is older, and what was read before anybody looked."""
    pipeline = Pipeline(version=1, rows=1_000_000)
    assert pipeline.board.status()["rows_per_s"] == 0
    for _ in range(20):
        status = pipeline.read(100)
    assert status["rows_per_s"] == pytest.approx(100, rel=0.15)
    for _ in range(20):
        status = pipeline.read(0)
    assert status["rows_per_s"] == 0


def test_a_lag_that_was_not_measured_now_is_none() -> None:
    """Zero is a measurement; of a log that doesn't answer, and of a stopped pipeline, nothing is known."""
    pipeline = Pipeline()
    assert pipeline.board.status()["lag"] == 500
    pipeline.facts = replace(WELL, answered_us=NOW - 60 * S)
    assert pipeline.board.status()["lag"] is None
    assert pipeline.board.status()["state"]["name"] == "log unreachable"
    pipeline.facts = replace(WELL, ended_us=NOW)
    status = pipeline.board.status()
    assert (status["lag"], status["rows_per_s"], status["state"]["level"]) == (None, None, "off")


@pytest.mark.parametrize("is_killed", [True, False])
def test_of_a_process_that_does_not_report_nothing_moves(is_killed: bool) -> None:
    """Killed or suspended: what it said last of rates, of the lag and of its sinks isn't so any more."""
    nodes = {"a": {"kind": "step", "name": "a", "busy": 0.7, "rows_in_per_s": 90.0, "rows_in": 5}}
    pipeline = Pipeline(facts=replace(WELL, nodes=nodes, sinks=SINKS))
    before = pipeline.board.status()
    assert (before["nodes"]["a"]["rows_in_per_s"], before["slowest"]) == (90.0, "a")
    assert (before["lag"], before["sinks"]["users"]["lag"]) == (500, 0)
    if is_killed:
        pipeline.alive = False
    else:
        pipeline.now_us += 12 * S
    status = pipeline.board.status()
    assert status["state"]["name"] == ("killed" if is_killed else "stalled")
    assert (status["nodes"]["a"]["rows_in_per_s"], status["nodes"]["a"]["rows_in"]) == (0.0, 5)
    assert (status["rows_per_s"], status["slowest"], status["lag"]) == (None, None, None)
    assert status["sinks"]["users"]["lag"] is None


def test_before_the_first_batch_there_is_a_state_and_nothing_else() -> None:
    """No version, no figures; topics are known from the program."""
    pipeline = Pipeline(facts=None)
    status = pipeline.board.status()
    assert status["state"]["name"] == "unknown"
    assert status["version"] is None
    own = StatusBoard("shop", lambda: NOW, lambda: None, pipeline.committed, starting=True)
    assert own.status()["state"]["name"] == "starting"
    pipeline.facts = WELL
    assert list(pipeline.board.status()["sources"]) == ["clicks"]


def test_history_is_bounded() -> None:
    """Sparklines have a point a second, and at most so many, however long the pipeline runs."""
    pipeline = Pipeline()
    for _ in range(10):
        pipeline.read(1, seconds=0.2)
    assert len(pipeline.board.status(history=True)["history"]) in {2, 3}
    for _ in range(HISTORY_MAX + 50):
        pipeline.read(1)
    assert len(pipeline.board.status(history=True)["history"]) == HISTORY_MAX
    assert "history" not in pipeline.board.status()


def test_the_parts_of_a_batch_s_time_leave_nothing_out() -> None:
    """Two tasks worked for 40 ms each of a batch of 200: the largest part is neither theirs nor ours."""
    pipeline = Pipeline()
    seconds = {"plan": 0.01, "fetch": 0.02, "json": 0.06, "commit": 0.02}
    pipeline.board.add(Progress(200.0, seconds))
    split = pipeline.board.status()["split_ms"]
    assert split == pytest.approx(
        {"plan": 10, "fetch": 10, "json": 30, ELSEWHERE: 130, "commit": 20}
    )


parts = st.dictionaries(
    st.sampled_from(["plan", "commit", "fetch", "json", "state"]), st.floats(0, 1), min_size=1
)


@given(parts, st.integers(1, 8), st.floats(0, 10))
def test_parts_add_up_to_the_batch(seconds: dict[str, float], cores: int, more_s: float) -> None:
    """Whatever the tasks took, on any number of cores."""
    own = sum(s for part, s in seconds.items() if part in {"plan", "commit"})
    work = sum(s for part, s in seconds.items() if part not in {"plan", "commit"})
    batch_ms = 1_000 * (own + work / cores + more_s)
    assert sum(split_ms(batch_ms, seconds, cores).values()) == pytest.approx(batch_ms)


def test_metrics_count_what_failed_in_each_view_when_it_was_last_read(tmp_path: Path) -> None:
    """A view that is read and in which nothing fails any more has 0; one that isn't read has no sample."""
    run = texts(bad=2)
    directory = commit(run, tmp_path / "shop.penstock")
    views = LateViews(directory)
    board = StatusBoard("shop", lambda: NOW, lambda: None, views.committed, failures=views.failures)
    assert board.status()["failures"] == {}
    views.table("v")
    metrics = metrics_text(board.status()).decode()
    assert 'penstock_view_failed_values{app="shop",view="v"} 2.0' in metrics
    assert 'penstock_view_failed_groups{app="shop",view="v"} 0.0' in metrics
    for i in (2, 3):
        run.send("t", id=i, s="1")
    shutil.rmtree(directory)
    commit(run, directory)
    views.table("v")
    metrics = metrics_text(board.status()).decode()
    assert 'penstock_view_failed_values{app="shop",view="v"} 0.0' in metrics
