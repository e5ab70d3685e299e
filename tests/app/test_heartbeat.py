"""When a run writes down its facts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import wait_until

from penstock.app.facts import Facts, read_facts
from penstock.app.heartbeat import ENGINE, REST_US, Heartbeat, _is_redundant

WRITTEN = Facts(
    app="shop",
    pid=1,
    machine="m",
    directory="d",
    started_us=1,
    said_us=1_000_000,
    looked_us=900_000,
    answered_us=950_000,
    lag={"clicks": 0},
    nodes={"a": {"rows_per_s": 1.5}},
)
SOON_US = WRITTEN.said_us + REST_US - 1


def test_instants_of_looks_alone_can_wait() -> None:
    """But not for long: whoever reads them must see that they go on."""
    later = replace(WRITTEN, said_us=SOON_US, looked_us=SOON_US, answered_us=SOON_US)
    assert _is_redundant(later, WRITTEN)
    assert not _is_redundant(replace(later, said_us=SOON_US + 1), WRITTEN)


@pytest.mark.parametrize(
    "change",
    [
        {"lag": {"clicks": 1}},
        {"log_error": "refused"},
        {"batch_us": 2_000_000},
        {"warning": "late"},
        {"nodes": {"a": {"rows_per_s": 0.0}}},
        {"sinks": {"a": {"written": 1}}},
        {"stopping_us": 2_000_000},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_changes_is_written(change: dict[str, Any]) -> None:
    """Anything else counts."""
    assert not _is_redundant(replace(WRITTEN, said_us=SOON_US, **change), WRITTEN)


def test_the_first_answer_of_the_log_is_written() -> None:
    """Before it, nothing waits."""
    before = replace(WRITTEN, answered_us=None)
    assert not _is_redundant(replace(WRITTEN, said_us=SOON_US), before)
    assert not _is_redundant(WRITTEN, None)


def test_a_run_reports_while_nothing_happens(tmp_path: Path) -> None:
    """What happens then is in the file as well."""

    def said() -> Facts:
        found = read_facts(tmp_path)
        return replace(WRITTEN, said_us=0) if found is None else found.facts

    heart = Heartbeat("shop", tmp_path, topics=[], command=None, read=dict)
    with heart.beating():
        for _ in range(2):
            before_us = said().said_us
            wait_until(lambda: said().said_us > before_us, "another report")  # noqa: B023
        logging.getLogger(ENGINE).warning("a wave of late rows")
        wait_until(lambda: said().warning == "a wave of late rows", "the warning")
        assert said().ended_us is None
    assert said().ended_us is not None
