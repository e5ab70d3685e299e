"""Faults that an engine like this one has had, and the test that fails where one comes back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

import penstock as ps
from penstock.engine.letters.letters import REASON_CHARS_MAX
from penstock.errors import FlowError, PenstockError
from penstock.expr import duck

HERE = Path(__file__).parent
FAULTS = """
the same aggregate, built twice, loses its output
    test_testing::test_what_is_built_twice_is_one
a sum that overflows stops the pipeline, depending on how rows were cut
    test_bad_input::test_a_sum_beyond_a_bigint_is_null_until_it_fits
an event time whose window has no name does
    test_bad_input::test_an_event_time_whose_window_has_no_name_is_a_dead_letter
columns named as windows' bounds, or alike but for case, do
    test_faults::test_names_that_collide_are_refused_or_work
infinities and NaN never leave a sum of a table
    test_faults::test_numbers_that_are_none_leave_a_sum
expressions of the clock or of chance are taken
    test_faults::test_expressions_of_the_clock_and_of_chance_are_refused
a view whose last step fails for a row can't be read
    test_bad_input::test_a_view_can_be_read_where_its_last_step_fails_for_a_row
`keep` drops rows that views downstream still count
    windows/test_retention::test_what_follows_a_table_agrees_with_it
letters of views' rows name a digest, and come four times
    test_faults::test_a_row_of_a_view_that_fails_has_one_letter
one clock ahead makes all others late
    windows/test_time::test_a_clock_that_is_ahead_makes_nobody_late
a record's timestamp wraps
    test_faults::test_a_timestamp_beyond_all_years_is_a_dead_letter
DECIMAL becomes DOUBLE, HUGEINT is refused
    test_faults::test_types_of_expressions_are_kept
a flood of late rows makes an object for each
    test_letters::test_a_flood_makes_no_object_for_each_letter
a batch has as many bytes as its rows happen to have
    outputs/test_large_records::test_a_batch_ends_with_the_record_that_reaches_the_limit
state by URI is written in place, and two drivers write it
    ../state/test_files::test_of_two_drivers_the_older_one_stops
retention between two attempts loses rows of topics
    outputs/test_transactions::test_retention_between_the_question_and_the_read
a rebuild races with a driver that commits
    test_upgrades::test_a_rebuild_fences_whoever_is_about_to_commit
a rebuild writes topics twice
    test_upgrades::test_a_rebuild_writes_nothing_twice
a session of the user's is stopped
    spark/test_session::test_the_programs_own_session_is_used_and_left_as_it_is
a row that counts in some of its windows is a dead letter
    test_bad_input::test_a_row_that_counts_in_a_window_is_no_dead_letter
a stream that nobody uses is read
    test_dataflow::test_a_stream_that_nothing_is_made_of_is_not_read
the record of a pipeline never shrinks
    test_store::test_the_record_is_as_large_after_many_batches_and_starts_as_after_some
a rebuild counts what idleness had made late
    upgrades/test_idleness::test_what_idleness_made_late_is_late_again
a large dead letter stops the pipeline
    test_bad_input::test_a_large_dead_letter_is_cut
each row that an expression refuses costs a query
    test_faults::test_rows_that_are_refused_are_found_together
an instant without a name stops the pipeline
    test_bad_input::test_an_instant_without_a_name_is_a_dead_letter
plans and versions have no checksum
    test_store::test_any_flipped_or_missing_byte_is_noticed
absurd lateness overflows at the first row
    test_faults::test_durations_beyond_all_instants_are_refused
    test_bad_input::test_an_event_time_whose_window_has_no_name_is_a_dead_letter
Spark's temporary folders never shrink
    spark/test_scratch::test_folders_of_processes_that_are_gone_are_removed
a hopping view that another one follows places each pane in each window
    ../ops/test_panes::test_a_batch_places_what_it_brings
a minimum of rows that are taken back reads its whole group
    ../ops/test_values::test_a_batch_reads_what_it_needs
a topic that was made anew goes unnoticed
    test_testing::test_a_topic_that_was_made_anew_and_is_longer
a full disk ends the pipeline
    spark/test_host::test_a_full_disk_is_waited_for
a JVM that is gone ends it
    spark/test_host::test_a_jvm_that_is_gone_is_started_again
NaN and the infinities are null in topics
    test_faults::test_numbers_that_are_none_are_written
a pipeline that restarts often never closes a window
    windows/test_time::test_restarts_do_not_begin_idleness_anew
nested JSON can't be reached
    ../formats/test_json_nested::test_nested_rows_are_what_a_naive_reader_makes_of_them
a view of what is there already waits for a record
    test_faults::test_a_view_of_what_is_there_is_there_at_once
"""
"""Each fault, and below it the test that would find it."""


def test_every_fault_has_its_test() -> None:
    """The list names tests that are there."""
    for place in re.findall(r"^    (.*)$", FAULTS, re.MULTILINE):
        module, _, test = place.partition("::")
        assert f"def {test}(" in (HERE / f"{module}.py").read_text(), place


def test_names_that_collide_are_refused_or_work() -> None:
    """A key named as a window's bound is refused where it is written; names that differ in case are two."""
    app = ps.App("p")
    rows = app.stream(
        "t", "window_end STRING, a BIGINT, A BIGINT, at TIMESTAMP", time=ps.event_time("at")
    )
    cut = rows.window(ps.tumbling("1 minute"))
    with pytest.raises(FlowError, match="names that differ"):
        cut.group_by("window_end").agg(n=ps.count())
    app.view("n", cut.group_by("A").agg(n=ps.count("window_end"), total=ps.sum("a")))
    run = ps.testing.run(app)
    run.send("t", window_end="x", a=1, A=2, at="12:00:00")
    [row] = run.view("n").rows()
    assert (row["A"], row["n"], row["total"]) == (2, 1, 1)


def test_numbers_that_are_none_leave_a_sum() -> None:
    """A sum of a table is that of the rows that are there, whatever was there before."""
    app = ps.App("p")
    table = app.table("t", "id BIGINT, x STRING", key="id").select("id", v="CAST(x AS DOUBLE)")
    app.view(
        "sums", table.group_by().agg(total=ps.sum("v"), mean=ps.avg("v"), dev=ps.variance("v"))
    )
    run = ps.testing.run(app)
    for id_, x in enumerate(("inf", "-inf", "nan", "1e308", "1e308", "2", "4")):
        run.send("t", id=id_, x=x)
    [row] = run.view("sums").rows()
    assert math.isnan(row["total"])
    for id_ in range(5):
        run.send_raw("t", None, key=str(id_))
    [row] = run.view("sums").rows()
    assert row == {"total": 6.0, "mean": 3.0, "dev": 2.0}


LONG: Final = "1000000000 days"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda rows: rows.window(ps.tumbling(LONG)), "10,000 years"),
        (lambda rows: rows.window(ps.tumbling("1 minute"), keep=LONG), "10,000 years"),
        (lambda rows: rows.window(ps.session(LONG)), "10,000 years"),
        (lambda rows: rows.deduplicate("v", within=LONG), "10,000 years"),
        (lambda rows: rows.join(rows.select("v"), on="v", within=LONG), "10,000 years"),
        (lambda rows: ps.event_time("at", lateness=LONG), "10,000 years"),
        (lambda rows: ps.event_time("at", idle=LONG), "10,000 years"),
        (lambda rows: rows.window(ps.tumbling("36526 days")), "at most 100 years"),
        (lambda rows: rows.window(ps.tumbling("101 years")), "at most 100 years"),
        (
            lambda rows: rows.window(ps.hopping("36526 days", every="1 day", zone="UTC")),
            "100 years",
        ),
    ],
)
def test_durations_beyond_all_instants_are_refused(
    declare: Callable[[Any], Any], message: str
) -> None:
    """Where they are declared: added to an instant, they would overflow when the first row comes."""
    rows = ps.App("p").stream("t", "v BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    with pytest.raises(FlowError, match=message):
        declare(rows)


def test_the_longest_durations_work() -> None:
    """Ten thousand years of lateness, of retention and of memory, with rows of the first and last year."""
    app = ps.App("p")
    time = ps.event_time("at", lateness="3650000 days")
    rows = app.stream("t", "v BIGINT, at TIMESTAMP", time=time)
    cut = rows.window(ps.tumbling("1 minute"), late="correct", keep="3650000 days")
    app.view("n", cut.agg(n=ps.count()))
    once = rows.deduplicate("v", within="3650000 days")
    app.view("once", once.group_by().agg(n=ps.count()))
    run = ps.testing.run(app, now="9898-12-31T23:00:00Z")
    for at in ("9898-12-31", "0102-01-01", "2026-01-01"):
        run.send("t", v=1, at=f"{at}T00:00:00Z")
        run.settle()
    assert [row["n"] for row in run.view("n").rows()] == [1, 1, 1]
    assert [row["n"] for row in run.view("once").rows()] == [1]
    assert run.dead_letters() == []


@pytest.mark.parametrize("text", ["random()", "now()", "uuid()", "current_date", "today()"])
def test_expressions_of_the_clock_and_of_chance_are_refused(text: str) -> None:
    """A batch that is repeated would write other rows under the same numbers."""
    with pytest.raises(PenstockError, match="gives the same whenever it is computed"):
        ps.App("p").stream("t", "x STRING").select(y=text)


def test_a_row_of_a_view_that_fails_has_one_letter() -> None:
    """It is told once for as long as it fails, whatever else is in it; its origin has a name."""
    app = ps.App("p")
    sums = app.stream("t", "x STRING, v BIGINT").group_by("x").agg(v=ps.sum("v"))
    numbers = sums.select("v", n="CAST(x AS BIGINT)")
    app.view("total", numbers.group_by().agg(n=ps.sum("n")))
    numbers.group_by("n").agg(v=ps.sum("v")).to("out", emit="upserts")
    run = ps.testing.run(app)
    for v in (1, 2, 4):
        run.send("t", x="two", v=v)
        run.step()
    letters = run.dead_letters()
    assert [orjson.loads(one.value or b"") for one in letters] == [{"x": "two", "v": 1}]
    assert {one.headers["penstock.topic"] for one in letters} == {"aggregate for total and out"}
    assert all(len(one.headers["penstock.reason"]) <= REASON_CHARS_MAX for one in letters)


def test_a_timestamp_beyond_all_years_is_a_dead_letter() -> None:
    """Milliseconds that don't fit as microseconds are seen before they are multiplied."""
    app = ps.App("p")
    app.view("n", app.stream("t", "v BIGINT").window(ps.tumbling("1 hour")).agg(n=ps.count()))
    run = ps.testing.run(app)
    for timestamp_ms in (2**62, 2**63 - 1, 2**63 // 1_000 + 1):
        run.send_raw("t", b'{"v": 1}', timestamp_ms=timestamp_ms)
    assert run.view("n").rows() == []
    assert len(run.dead_letters()) == 3


def test_types_of_expressions_are_kept() -> None:
    """A DECIMAL stays one, and sums of whole numbers that DuckDB calls HUGEINT are BIGINT."""
    app = ps.App("p")
    rows = app.stream("t", "d DECIMAL(10, 2), l ARRAY<BIGINT>").select(d="d * 2", h="list_sum(l)")
    app.view("n", rows.group_by("d", "h").agg(n=ps.count()))
    run = ps.testing.run(app)
    run.send("t", d="1.10", l=[1, 2])
    assert run.view("n").rows() == [{"d": Decimal("2.20"), "h": 3, "n": 1}]


def test_rows_that_are_refused_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows an expression refuses, it is computed a few times."""
    asked = 0
    query_tables = duck.query_tables

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return query_tables(*args)

    monkeypatch.setattr(duck, "query_tables", counted)
    app = ps.App("p")
    rows = app.stream("t", "x STRING").select(n="CAST(x || '' AS BIGINT)")
    app.view("total", rows.group_by().agg(n=ps.sum("n")))
    run = ps.testing.run(app, shaken=False)
    for number in range(300):
        run.send("t", x=f"{number}" if number % 2 else f"no {number}")
    assert run.view("total").rows() == [{"n": 150 * 150}]
    assert len(run.dead_letters()) == 150
    assert 0 < asked < 60


def test_numbers_that_are_none_are_written() -> None:
    """NaN and the infinities are texts in JSON, which has no numbers for them."""
    app = ps.App("p")
    app.stream("t", "x STRING").select(v="CAST(x AS DOUBLE)").to("out")
    run = ps.testing.run(app)
    for x in ("nan", "inf", "-inf", "1"):
        run.send("t", x=x)
    found = [orjson.loads(one.value or b"")["v"] for one in run.topic("out")]
    assert found == ["NaN", "Infinity", "-Infinity", 1.0]


def test_a_view_of_what_is_there_is_there_at_once() -> None:
    """A further view of an operator that is kept needs no record; a restart writes nothing."""

    def program(*names: str) -> ps.App:
        app = ps.App("p")
        counts = app.stream("t", "v BIGINT").group_by("v").agg(n=ps.count())
        for name in names:
            app.view(name, counts.select("v", twice="2 * n") if name == "twice" else counts)
        return app

    run = ps.testing.run(program("one"))
    run.send("t", v=1)
    run.step()
    run.change(program("one", "two", "twice"))
    assert run.view("two").rows() == [{"v": 1, "n": 1}]
    assert run.view("twice").rows() == [{"v": 1, "twice": 2}]
    version = run.store.newest_version()
    run.restart()
    run.settle()
    assert run.store.newest_version() == version
