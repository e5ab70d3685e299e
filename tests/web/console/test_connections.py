"""Captures, sinks and queues as the console shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import wait_until
from tests.web.logs import Log, filled_log

import penstock as ps
from penstock.errors import UserError
from penstock.follow.report import report_text
from penstock.sinks import Sink
from penstock.web.console.connections import all_connections, capture_state
from penstock.web.states import sink_state

NOW_MS = 1_767_225_600_000
SINCE = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker with some records."""
    with filled_log(tmp_path_factory.mktemp("connections")) as found:
        yield found


@pytest.mark.parametrize(
    ("phase", "age_ms", "name", "level", "advice"),
    [
        ("following", 1_000, "following", "good", ""),
        ("waiting", 1_000, "waiting", "warn", "retries by itself"),
        ("failed", 1_000, "failed", "bad", "Correct the cause"),
        ("failed", 3_600_000, "failed", "bad", "Correct the cause"),
        ("stopped", 3_600_000, "stopped", "wait", "penstock sink"),
        ("following", 16_000, "silent", "bad", "Start it again"),
        ("waiting", 16_000, "silent", "bad", "Start it again"),
    ],
)
def test_a_sinks_state(phase: str, age_ms: int, name: str, level: str, advice: str) -> None:
    """What it reported last, or that it reports no more; since when, and what helps."""
    last_report = {"phase": phase, "trouble": "no route", "since_ms": NOW_MS, "at_ms": NOW_MS}
    found = sink_state(last_report, NOW_MS + age_ms)
    assert (found["name"], found["level"], found["since"]) == (name, level, SINCE)
    assert advice in found["advice"]
    assert bool(found["reason"]) == (level != "good")


def test_a_capture_that_stores_nothing_is_not_called_stopped() -> None:
    """Its database may be idle; the page says which command knows more."""
    stored = {"stored_ms": NOW_MS}
    assert capture_state("shop", stored, "", NOW_MS + 5_000)["name"] == "running"
    idle = capture_state("shop", stored, "", NOW_MS + 120_000)
    assert (idle["name"], idle["since"]) == ("no changes", SINCE)
    assert "penstock capture status shop" in idle["advice"]
    assert capture_state("shop", stored, "pause", NOW_MS)["name"] == "paused"
    assert capture_state("shop", None, "", NOW_MS)["name"] == "snapshot"


def test_a_report_fits_next_to_an_offset() -> None:
    """However long an error's text is."""
    long = "\U0001f600" * 5_000
    text = report_text({"phase": "failed", "trouble": long, "last_error": long, "dead": 1})
    assert len(text.encode()) < 4_096


def test_a_sink_is_seen_following_then_stopped_then_failed(log: Log, tmp_path: Path) -> None:
    """Its reports come from the sink itself; lag and counts with them."""
    import threading

    settings = {"log": log.address, "name": "seen"}
    target = ps.sinks.sqlite(tmp_path / "a.sqlite", table="clicks")
    sink = Sink(target, "clicks", "id BIGINT, user STRING", key="id", **settings)
    thread = threading.Thread(target=sink.run, daemon=True)
    thread.start()

    def shown(state: str, lag: int = 0) -> bool:
        [one] = [s for s in all_connections(log.address)["sinks"] if s["name"] == "seen"] or [None]
        return one is not None and (one["state"]["name"], one["lag"]) == (state, lag)

    wait_until(lambda: shown("following"), "the sink's first report")
    sink.stop()
    thread.join()
    assert shown("stopped")
    [one] = [s for s in all_connections(log.address)["sinks"] if s["name"] == "seen"]
    assert (one["topics"], one["upserts"], one["deletes"], one["dead"]) == (["clicks"], 120, 0, 0)
    assert one["target"].endswith("a.sqlite clicks")
    odd = Sink(target, "clicks", "id STRING, other DOUBLE", key="id", **settings)
    with pytest.raises(UserError):
        odd.run()
    [one] = [s for s in all_connections(log.address)["sinks"] if s["name"] == "seen"]
    assert one["state"]["name"] == "failed"
    assert one["state"]["reason"]
    assert one["lag"] == 0, "a failed start leaves the offsets as they were"


def test_a_queue_without_workers_says_so(log: Log) -> None:
    """Jobs that wait for nobody are trouble; with a worker they are not."""
    with ps.Queue("mails", log.address) as jobs:
        jobs.put("one")
        jobs.put("two")
        job = jobs.get("10 seconds")
        assert job is not None
        [one] = all_connections(log.address)["queues"]
        assert (one["name"], one["members"], one["state"]["level"]) == ("mails", 1, "good")
        job.release()
    wait_until(lambda: all_connections(log.address)["queues"][0]["members"] == 0, "no worker")
    [one] = all_connections(log.address)["queues"]
    assert (one["waiting"], one["state"]["name"]) == (2, "no workers")
    assert "penstock queue work mails" in one["state"]["advice"]
