"""Rows that can't be computed never stop a pipeline: a dead letter, or NULL, and the rest goes on."""

from __future__ import annotations

import pytest

import penstock as ps

LONG = 2**62


def reasons(run: ps.testing.Run) -> list[str]:
    return [letter.headers["penstock.reason"] for letter in run.dead_letters()]


def test_a_sum_beyond_a_bigint_is_null_until_it_fits() -> None:
    """Other groups, other aggregates, and the rows that follow aren't touched."""
    app = ps.App("p")
    rows = app.table("rows", "id BIGINT NOT NULL, g STRING, n BIGINT", key="id")
    app.view("sums", rows.group_by("g").agg(t=ps.sum("n"), mean=ps.avg("n")))
    run = ps.testing.run(app)
    for i, (g, n) in enumerate((("a", LONG), ("a", LONG), ("b", -1))):
        run.send("rows", id=i, g=g, n=n)
    assert run.view("sums").rows() == [
        {"g": "a", "t": None, "mean": float(LONG)},
        {"g": "b", "t": -1, "mean": -1.0},
    ]
    run.send("rows", id=0, g="a", n=-5)
    assert run.view("sums").rows()[0] == {"g": "a", "t": LONG - 5, "mean": (LONG - 5) / 2}
    assert reasons(run) == []


def test_an_event_time_whose_window_has_no_name_is_a_dead_letter() -> None:
    """The first and the last years belong to windows that may begin or end outside of all calendars."""
    app = ps.App("p")
    rows = app.stream("rows", "at TIMESTAMP", time=ps.event_time("at"))
    weeks = rows.window(ps.tumbling("7 days")).agg(n=ps.count())
    app.view("weeks", weeks)
    windows = (
        ps.tumbling("100 years"),
        ps.tumbling("36525 days"),
        ps.hopping("36525 days", every="7305 days", zone="Asia/Tokyo"),
        ps.hopping("36525 days", every="12175 days", offset="12174 days"),
    )
    for number, window in enumerate(windows):
        long = rows.window(window).agg(n=ps.count())
        long.to(f"long{number}", emit="changes")
        app.view(f"long{number}", long)
    run = ps.testing.run(app, now="9999-12-31T00:00:00Z")
    for year in ("0001-01-01", "0101-12-31", "0102-01-01", "9898-12-31", "9899-01-01"):
        run.send("rows", at=f"{year}T00:00:00Z")
    assert [row["n"] for row in run.view("weeks").rows()] == [1, 1]
    for number in range(len(windows)):
        found = [row for row in run.view(f"long{number}").rows() if row["window_end"].year > 9898]
        assert {row["n"] for row in found} == {1}
    assert [reason.partition(",")[0] for reason in reasons(run)] == [
        "expected an event time of the years 102 to 9898"
    ] * 3


def test_an_instant_without_a_name_is_a_dead_letter() -> None:
    """Where it is computed: it reaches neither topics nor state, and takes no other row along."""
    app = ps.App("p")
    rows = app.stream("rows", "n BIGINT")
    made = rows.select("n", at="make_timestamp(n)", day="CAST(make_timestamp(n) AS DATE)")
    made.to("made")
    app.view("counted", made.group_by("at").agg(n=ps.count()))
    run = ps.testing.run(app)
    for n in (1, LONG, None, -LONG):
        run.send("rows", n=n)
    assert [record.value for record in run.topic("made")] == [
        b'{"n":1,"at":"1970-01-01T00:00:00.000001Z","day":"1970-01-01"}',
        b'{"n":null,"at":null,"day":null}',
    ]
    assert len(run.view("counted").rows()) == 2
    letters = run.dead_letters()
    assert [letter.value for letter in letters] == [b'{"n":%d}' % LONG, b'{"n":%d}' % -LONG]
    assert all("years 1 to 9999" in reason for reason in reasons(run))


def test_a_view_can_be_read_where_its_last_step_fails_for_a_row() -> None:
    """What fails is NULL, in that row and column alone; a condition that fails isn't fulfilled."""
    app = ps.App("p")
    rows = app.stream("rows", "g STRING")
    counts = rows.group_by("g").agg(n=ps.count())
    app.view("numbers", counts.select("g", "n", number="CAST(g AS BIGINT)"))
    app.view("positive", counts.where("CAST(g AS BIGINT) > 0"))
    run = ps.testing.run(app)
    for g in ("1", "x", "-2"):
        run.send("rows", g=g)
    assert run.view("numbers").rows() == [
        {"g": "-2", "n": 1, "number": -2},
        {"g": "1", "n": 1, "number": 1},
        {"g": "x", "n": 1, "number": None},
    ]
    assert run.view("positive").rows() == [{"g": "1", "n": 1}]


def test_columns_that_nobody_reads_are_still_checked() -> None:
    """What makes a record a dead letter is the schema, whatever the program then looks at."""
    rows = [b'{"k":1,"note":"x","n":1}', b'{"k":1,"note":7}', b'{"k":1,"note":"x","n":null}']
    for reads in ((), ("k",), ("k", "note", "n")):
        app = ps.App("p")
        stream = app.stream("rows", "k BIGINT NOT NULL, note STRING, n BIGINT NOT NULL")
        app.view("counts", stream.group_by(*reads).agg(count=ps.count()))
        run = ps.testing.run(app)
        for row in rows:
            run.send_raw("rows", row)
        assert [row["count"] for row in run.view("counts").rows()] == [1]
        assert len(reasons(run)) == 2


def test_a_large_dead_letter_is_cut() -> None:
    """Of a record that no topic would take with its headers the beginning is kept, and how long it was."""
    app = ps.App("p")
    app.stream("rows", "n BIGINT").to("out")
    run = ps.testing.run(app)
    for size in (1_000, 9 << 20):
        run.send_raw("rows", b"[" + b"x" * size, key=b"k")
    run.send("rows", n=1)
    whole, cut = run.dead_letters()
    assert (whole.value, "penstock.cut" in whole.headers) == (b"[" + b"x" * 1_000, False)
    assert cut.value == b"[" + b"x" * (65_536 - 1)
    assert (cut.key, cut.headers["penstock.cut"]) == (b"k", str((9 << 20) + 2))
    assert cut.headers["penstock.offset"] == "1"
    assert len(run.topic("out")) == 1


def test_a_reason_does_not_repeat_a_large_value() -> None:
    """However long what DuckDB couldn't convert is."""
    app = ps.App("p")
    app.stream("rows", "s STRING").select(n="CAST(s AS BIGINT)").to("out")
    run = ps.testing.run(app)
    run.send("rows", s="x" * 100_000)
    [reason] = reasons(run)
    assert len(reason) < 3_000
    assert "Could not convert" in reason


def test_a_row_that_counts_in_a_window_is_no_dead_letter() -> None:
    """Late for some of its windows, it is counted as late; a replay would count it twice in the others."""
    app = ps.App("p")
    rows = app.stream("rows", "at TIMESTAMP", time=ps.event_time("at", lateness="0 s"))
    app.view("w", rows.window(ps.hopping("1 minute", every="20 seconds")).agg(n=ps.count()))
    run = ps.testing.run(app)
    for at in ("12:00:30", "12:01:00", "12:00:41", "12:00:01"):
        run.send("rows", at=at)
    progress = run.step()
    assert progress is not None
    assert progress.late_rows == 2
    assert [letter.value for letter in run.dead_letters()] == [b'{"at":"2000-01-01T12:00:01Z"}']
    counts = {row["window_start"].strftime("%H:%M:%S"): row["n"] for row in run.view("w").rows()}
    assert counts == {
        "11:59:40": 1, "12:00:00": 1, "12:00:20": 3, "12:00:40": 2, "12:01:00": 1,
    }  # fmt: skip


EDGES = {
    "32 MB of text": (b'{"id":1,"s":"' + b"y" * (32 << 20) + b'"}', True),
    "32 MB of escapes": (b'{"id":1,"s":"' + b"\\n" * (16 << 20) + b'"}', True),
    "100,000 members": (
        b'{"id":1' + b"".join(b',"k%d":0' % i for i in range(100_000)) + b"}",
        True,
    ),
    "100,000 nested elements": (
        b'{"id":1,"a":[' + b'{"x":1,"y":["a"]},' * 99_999 + b'{"x":2}]}',
        True,
    ),
    "names that differ by case": (b'{"id":1,"ID":2,"S":"b","s":"a"}', True),
    "an empty name": (b'{"":1,"id":1}', True),
    "a number of 100,000 digits": (b'{"id":' + b"9" * 100_000 + b"}", False),
    "1,000 levels in a column": (b'{"id":1,"a":' + b"[" * 1_000 + b"]" * 1_000 + b"}", False),
    "1,000 levels in no column": (b'{"id":1,"z":' + b"[" * 1_000 + b"]" * 1_000 + b"}", False),
    "100,000 levels": (b'{"id":1,"z":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", False),
    "levels that don't end": (b"[" * 100_000, False),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("edge", EDGES)
def test_a_record_at_an_edge_is_a_row_or_a_dead_letter(edge: str) -> None:
    """Of sizes, nesting and names; the record behind it counts as ever."""
    record, is_row = EDGES[edge]
    app = ps.App("p")
    app.stream("t", "id BIGINT, s STRING, a ARRAY<STRUCT<x BIGINT, y ARRAY<STRING>>>").to("out")
    app.view("texts", sql="SELECT s, count(*) AS n FROM t GROUP BY s")
    app.view("elements", sql="SELECT e.x, count(*) AS n FROM t, UNNEST(a) AS u(e) GROUP BY 1")
    run = ps.testing.run(app, shaken=False)
    run.send_raw("t", record)
    run.send("t", id=7, s="x", a=[])
    assert len(run.topic("out")) == 1 + is_row
    assert {"s": "x", "n": 1} in run.view("texts").rows()
    assert len(run.view("elements").rows()) == (2 if "elements" in edge else 0)
    assert len(run.dead_letters()) == (not is_row)
