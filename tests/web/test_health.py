"""The one function that says how a pipeline is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.web.pipelines import NOW, WELL, S

from penstock.app import Facts
from penstock.web.health import BEHIND_US, LOG_SLOW_US, QUIET_US, STALLED_US, State, judge

AGO_100, AGO_5 = NOW - 100 * S, NOW - 5 * S
ABREAST: dict[str, Any] = {"lag": {}, "behind_us": None}  # of the log
YOUNG: dict[str, Any] = {"spark_us": None, "looked_us": None}
UNREACHABLE, STARTING = State.LOG_UNREACHABLE, State.STARTING


@pytest.mark.parametrize(
    ("changes", "state", "since_us", "part"),
    [
        ({}, State.LIVE, NOW - 500 * S, ""),
        ({"read_us": AGO_100, **ABREAST}, State.WAITING, AGO_100, "clicks"),
        ({"read_us": None, **ABREAST}, State.WAITING, NOW - 590 * S, "No event"),
        # The broker is gone: whatever was measured before says nothing any more.
        ({"answered_us": AGO_100, "log_error": "Connection refused"}, UNREACHABLE, AGO_100, "refused"),
        ({"answered_us": None, "asked_us": AGO_100}, UNREACHABLE, AGO_100, "never answered"),
        ({"answered_us": None, "asked_us": AGO_100, **YOUNG},
         UNREACHABLE, AGO_100, "127.0.0.1:9092"),
        # The engine hangs, with records that wait or without.
        ({"looked_us": AGO_100, "lag": {"clicks": 25_000}, "behind_us": AGO_100},
         State.STALLED, AGO_100, "25,000 records wait"),
        ({"looked_us": AGO_100, **ABREAST}, State.STALLED, AGO_100, "No batch"),
        ({"looked_us": AGO_100, "warning": "disk full"}, State.STALLED, AGO_100, "disk full"),
        # A batch that takes as long as those before took is no stall; that the views are behind is so.
        ({"looked_us": AGO_100, "slowest_ms": 60_000.0, "behind_us": AGO_100},
         State.BEHIND, AGO_100, "23:58:20 UTC"),
        ({"behind_us": NOW - 30 * S}, State.BEHIND, NOW - 30 * S, "500 records wait"),
        # While the log was away nothing could be looked at.
        ({"looked_us": AGO_100, "answering_us": AGO_5, **ABREAST}, State.LIVE, NOW - 500 * S, ""),
        ({**YOUNG, "started_us": AGO_5}, STARTING, AGO_5, "Spark is being"),
        ({"looked_us": None, "lag": {"clicks": 9}}, STARTING, NOW - 600 * S, "9 records wait"),
        # Nothing hangs where Spark, or the tasks for the next batch, are still being started.
        ({"looked_us": AGO_100, "gathering_us": NOW - S, "lag": {"clicks": 9}},
         STARTING, AGO_100, "starts its tasks. 9 records wait"),
        ({"looked_us": AGO_100, "gathering_us": NOW - 30 * S}, State.STALLED, AGO_100, "No batch"),
        ({"looked_us": AGO_100, "spark_us": None}, STARTING, AGO_100, "Spark is being started"),
        ({"looked_us": NOW - 130 * S, "spark_us": None}, State.STALLED, NOW - 130 * S, "No batch"),
        ({"looked_us": NOW - 130 * S, "backfill": "40%", "backfill_us": NOW - 140 * S,
          "gathering_us": NOW - S}, STARTING, NOW - 130 * S, "spark.log"),
        ({"looked_us": None, "backfill": "40% of totals", "backfill_us": AGO_5},
         State.BACKFILLING, AGO_5, "40% of totals"),
        ({"looked_us": NOW - 130 * S, "backfill": "40% of totals", "backfill_us": NOW - 140 * S},
         State.STALLED, NOW - 130 * S, "40% of totals"),
        ({"looked_us": None}, STARTING, NOW - 600 * S, "spark.log"),
        ({"log": None, "asked_us": None, "answered_us": None, "looked_us": None, "spark_us": None},
         STARTING, NOW - 600 * S, "log is being opened"),
        ({"stopping_us": AGO_100}, State.STOPPING, AGO_100, "kill -9 7"),
        ({"ended_us": AGO_100, "stopping_us": AGO_100 - S}, State.STOPPED, AGO_100, "penstock run shop.py"),
        ({"ended_us": AGO_100, "error": "expected x; found y"}, State.FAILED, AGO_100, "found y"),
        ({"said_us": AGO_100}, State.STALLED, AGO_100, "kill -CONT 7"),
    ],
)  # fmt: skip
def test_each_state(changes: dict[str, Any], state: State, since_us: int, part: str) -> None:
    """A state comes with since when it is so, why, and what to do."""
    health = judge(replace(WELL, **changes), NOW)
    assert (health.state, health.since_us) == (state, since_us)
    assert part in f"{health.reason} {health.advice}"
    assert health.reason
    assert health.advice or state in {State.LIVE, State.STARTING, State.STOPPING, State.WAITING}


def test_each_state_is_documented() -> None:
    """In the table of the page's guide, with its meaning."""
    lines = (Path(__file__).parents[2] / "docs" / "page.md").read_text().splitlines()
    found = [line.split("|")[1].strip() for line in lines if line.count("|") == 4]
    assert [one for one in found if one not in {"state", "---"}] == [one.value for one in State]


def test_a_process_that_is_gone_was_killed_or_said_why() -> None:
    """Without a process nothing is live, whatever it said last."""
    health = judge(WELL, NOW + S, alive=False)
    assert (health.state, health.since_us) == (State.KILLED, NOW)
    ended = replace(WELL, ended_us=NOW)
    assert judge(ended, NOW + S, alive=False).state is State.STOPPED
    unknown = judge(None, NOW)
    assert (unknown.state, unknown.since_us) == (State.UNKNOWN, None)
    assert "penstock run" in unknown.advice


def test_a_log_that_has_failed_is_unreachable_sooner_than_one_that_is_slow() -> None:
    """Whoever asks may be slow itself, while everything starts; a refusal is an answer."""
    slow = replace(WELL, answered_us=NOW - 8 * S)
    assert judge(slow, NOW).state is State.LIVE
    assert judge(replace(slow, log_error="refused"), NOW).state is State.LOG_UNREACHABLE


instants = st.none() | st.integers(NOW - 200 * S, NOW)


@given(
    st.builds(
        replace,
        st.just(WELL),
        **dict.fromkeys(
            ("spark_us", "looked_us", "read_us", "asked_us", "answered_us", "answering_us", "behind_us",
             "abreast_us", "stopping_us", "ended_us"), instants
        ),
        said_us=st.integers(NOW - 20 * S, NOW),
        lag=st.none() | st.just({}) | st.just({"clicks": 5}),
        slowest_ms=st.sampled_from([0.0, 100.0, 10_000.0]),
        error=st.none() | st.just("no"),
        log=st.none() | st.just("127.0.0.1:9092"),
    ),
    st.booleans(),
)  # fmt: skip
def test_nothing_is_called_well_that_is_not_known_to_be(facts: Facts, alive: bool) -> None:
    """Green means: a process is there, the log has just answered, the engine moves, the views keep up."""
    health = judge(facts, NOW, alive=alive)
    assert health.since_us is None or health.since_us <= NOW
    if health.state.level == "good":
        assert alive
        assert facts.ended_us is None
        assert facts.asked_us is None or NOW - (facts.answered_us or facts.asked_us) <= LOG_SLOW_US
        assert facts.looked_us is not None
        patience_us = max(STALLED_US, round(4_000 * facts.slowest_ms))  # at most
        assert NOW - max(facts.looked_us, facts.answering_us or 0) <= patience_us
        assert facts.behind_us is None or NOW - facts.behind_us <= BEHIND_US
    if health.state is State.LIVE:
        assert facts.read_us is not None
        assert NOW - facts.read_us <= QUIET_US
