"""Pipelines in a test's process: what users see of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import FencedError, FlowError
from penstock.testing import Run


def counted(*, key: str | None = None, partitions: int = 1) -> ps.App:
    """Counts per user and minute."""
    app = ps.App("p")
    stream = app.stream(
        "clicks",
        "user STRING NOT NULL, v BIGINT, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="10 seconds", idle="1 minute"),
        key=key,
        partitions=partitions,
    )
    table = stream.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())
    app.view("counts", table)
    app.view("many", table.where("n > 1").select("user", twice="n * 2"))
    table.to("closed")
    return app


def test_views_over_row_steps() -> None:
    """A view may filter and compute what its table holds."""
    run = ps.testing.run(counted())
    for at in ("12:00:01", "12:00:02"):
        run.send("clicks", user="ann", at=at)
    run.send("clicks", user="bob", at="12:00:03")
    assert run.view("many").rows() == [{"user": "ann", "twice": 4}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "valid JSON"),
        (b'{"user":1,"at":0}', "'user'"),
        (b'{"at":0}', "'user'"),
        (b'{"user":"ann"}', "'at'"),
        (b'{"user":"ann","at":0,"v":99999999999999999999}', "'v'"),
        (b'{"user":"\xff","at":0}', "UTF-8"),
        (b'{"user":"ann","at":"9999-12-31T00:00:00Z"}', "wall clock"),
        (None, "null"),
    ],
)
def test_what_does_not_fit_is_kept(value: bytes | None, reason: str) -> None:
    """A record that doesn't fit becomes a dead letter with its origin and reason; the rest goes on."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:01")
    run.send_raw("clicks", value, key=b"k")
    run.send("clicks", user="ann", at="12:00:02")
    assert [row["n"] for row in run.view("counts").rows()] == [2]
    [letter] = run.dead_letters()
    assert (letter.key, letter.value) == (b"k", value)
    assert reason in letter.headers.pop("penstock.reason")
    assert letter.headers == {
        "penstock.topic": "clicks", "penstock.partition": "0", "penstock.offset": "1",
    }  # fmt: skip


def test_a_key_that_is_not_what_the_stream_says() -> None:
    """Where an aggregate rests on the log's key, a record with another key is refused."""
    run = ps.testing.run(counted(key="user", partitions=2))
    run.send_raw("clicks", b'{"user":"ann","at":"2026-01-01T00:00:00Z"}', key=b"bob")
    run.send("clicks", user="ann", at="2026-01-01T00:00:00Z")
    assert [row["n"] for row in run.view("counts").rows()] == [1]
    [letter] = run.dead_letters()
    assert "user='ann'" in letter.headers["penstock.reason"]


def test_an_idle_partition_does_not_hold_the_watermark() -> None:
    """Windows close although a partition is silent, once it has been so for long enough."""
    run = ps.testing.run(counted(partitions=2))
    run.send("clicks", user="ann", at="12:00:01", partition=0)
    run.send("clicks", user="ann", at="12:02:00", partition=0)
    assert run.topic("closed") == []
    run.advance("61 seconds")
    assert len(run.topic("closed")) == 1
    run.send("clicks", user="bob", at="12:00:30", partition=1)
    assert [r.headers["penstock.partition"] for r in run.dead_letters()] == ["1"]
    assert len(run.topic("closed")) == 1, "what was closed stays closed"


def test_an_expression_that_fails_takes_out_its_row_only() -> None:
    """A row whose expression can't be computed becomes a dead letter; its batch goes on."""
    app = ps.App("p")
    stream = app.stream("t", "x STRING, at TIMESTAMP", time=ps.event_time("at"))
    numbers = stream.select("at", n="CAST(x AS BIGINT)")
    app.view("sums", numbers.window(ps.tumbling("1 hour")).agg(total=ps.sum("n")))
    run = ps.testing.run(app)
    for x in ("1", "2", "three", "4", "5"):
        run.send("t", x=x, at="12:00:00")
    assert [row["total"] for row in run.view("sums").rows()] == [12]
    [letter] = run.dead_letters()
    assert letter.headers["penstock.offset"] == "2"
    assert "three" in letter.headers["penstock.reason"]


def test_map_batches() -> None:
    """A function of the user's sees whole columns; one that loses Penstock's own is told so."""

    def double(rows: pa.Table) -> pa.Table:
        return rows.set_column(rows.schema.get_field_index("v"), "v", pc.multiply(rows["v"], 2))

    def forgetful(rows: pa.Table) -> pa.Table:
        return rows.select(["user", "v", "at"])

    def run(function: object) -> Run:
        app = ps.App("p")
        stream = app.stream("t", "user STRING, v BIGINT, at TIMESTAMP", time=ps.event_time("at"))
        mapped = stream.map_batches(function, "user STRING, v BIGINT, at TIMESTAMP")  # type: ignore[arg-type]
        app.view("sums", mapped.window(ps.tumbling("1 hour")).agg(total=ps.sum("v")))
        run = ps.testing.run(app)
        run.send("t", user="ann", v=4, at="12:00:00")
        return run

    assert [row["total"] for row in run(double).view("sums").rows()] == [8]
    with pytest.raises(FlowError, match=r"\$offset"):
        run(forgetful).view("sums")


def test_the_older_owner_is_fenced() -> None:
    """When a new owner has taken over, the older one stops before its next batch."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    older = run._driver
    run.restart()
    with pytest.raises(FencedError, match="Another process"):
        older.step(run._host.execute)
    assert [row["n"] for row in run.view("counts").rows()] == [1]


def test_a_changed_program_does_not_take_up_old_state() -> None:
    """State of another meaning is refused with what to do."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    run.settle()
    changed = ps.App("p")
    stream = changed.stream("clicks", "user STRING", partitions=1)
    changed.view("counts", stream.group_by("user").agg(n=ps.count()))
    run._graph = changed.graph()
    with pytest.raises(FlowError, match="--rebuild"):
        run.restart()


def test_old_versions_are_vacuumed() -> None:
    """However many batches ran, a few versions and their files are left."""
    run = ps.testing.run(counted())
    for i in range(60):
        run.send("clicks", user=f"u{i}", at="12:00:00")
        run.step()
    files = run.store.files
    assert len(files.list("versions")) <= 16
    assert len(files.list("plans")) <= 10
    assert len(files.list("runs")) <= 40
    assert len(run.view("counts").rows()) == 60
