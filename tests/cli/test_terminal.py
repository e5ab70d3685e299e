"""What the terminal says of running work, and how Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import weakref
from dataclasses import replace

import pytest
from tests.web.pipelines import NOW, WELL, Pipeline, S

from penstock.cli.support import options, progress
from penstock.cli.support.journal import summary
from penstock.cli.support.progress import ended_by_signals
from penstock.cli.support.tables import text_table
from penstock.cli.support.terminal import SAME_EVERY_S, Lines


def test_one_line_says_that_all_is_well() -> None:
    """And how far it is."""
    pipeline = Pipeline(version=7, rows=1_000, late=3, dead=3)
    text = summary(pipeline.board.status())
    assert text.startswith("live   version 7")
    assert "lag 500 " in text
    assert text.endswith("3 late   1 unusable")


def test_what_retention_removed_unread_is_in_the_line() -> None:
    """Where there was such a thing: the views will never have it."""
    assert summary(Pipeline(version=7, lost=2_000).board.status()).endswith("   2,000 lost")


def test_what_is_not_well_says_since_when_why_and_what_to_do() -> None:
    """The same as on the page; a lag that nobody knows is no zero."""
    pipeline = Pipeline(version=7)
    pipeline.facts = replace(WELL, answered_us=NOW - 100 * S, log_error="Connection refused")
    text = summary(pipeline.board.status())
    assert text.startswith("log unreachable for 1 minute 40 seconds   version 7")
    assert "lag -" in text
    assert "(Connection refused)" in text
    assert "Check that a broker runs at 127.0.0.1:9092" in text


def test_before_the_first_version_there_are_no_figures() -> None:
    """A start that takes long says where to look."""
    pipeline = Pipeline(facts=replace(WELL, spark_us=None, looked_us=None, lag={}))
    text = summary(pipeline.board.status())
    assert "version" not in text
    assert "spark.log" in text


def test_a_state_that_stays_is_printed_once_a_minute() -> None:
    """Where there is no terminal; figures of a live pipeline come each time, a new state at once."""
    pipeline, lines = Pipeline(version=7, rows=1_000), Lines()
    assert lines.next(pipeline.board.status(), 0.0) is not None
    assert lines.next(pipeline.board.status(), 5.0) is not None
    pipeline.facts = replace(WELL, answered_us=NOW - 100 * S, log_error="Connection refused")
    assert "log unreachable" in (lines.next(pipeline.board.status(), 10.0) or "")
    assert lines.next(pipeline.board.status(), 15.0) is None
    assert lines.next(pipeline.board.status(), 10.0 + SAME_EVERY_S) is not None


def test_doubles_are_shown_as_people_write_them() -> None:
    """Without the digits that only tell a machine which double it is."""
    shown = text_table(["x"], [[5.4 + 0.12], [0.1 + 0.2], [2.0], [1e300], [-0.0], [float("nan")]])
    assert shown.split()[2:] == ["5.52", "0.3", "2.0", "1e+300", "-0.0", "nan"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_work_and_a_second_one_interrupts_it(number: signal.Signals) -> None:
    """Also where Python calls back, as it does in imports: exceptions are lost there."""

    class Module:
        pass

    ended: list[bool] = []
    before = signal.getsignal(number)
    with ended_by_signals(lambda: ended.append(True)):
        module = Module()
        gone = weakref.ref(module, lambda _: signal.raise_signal(number))
        del module
        assert gone() is None
        assert ended == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert ended == [True]


def test_a_log_that_can_not_be_written_does_not_end_the_work(monkeypatch) -> None:
    """A capture that runs for months survives the reader of its output, and a full disk."""
    monkeypatch.setattr(progress, "QUIET_S", 1e-9)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    reader, writer = os.pipe()
    os.close(reader)
    for fd in (writer, os.open("/dev/full", os.O_WRONLY)):
        log = os.fdopen(fd, "w")
        monkeypatch.setattr(sys, "stderr", log)
        with progress.counter("captured") as tick:
            tick(1)
            tick(2)
        options.waiting("write", 2.0)
        with contextlib.suppress(OSError):
            log.close()  # what couldn't be written is tried once more
