"""Pipelines in a test's process: what users see of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import BrokerError, FencedError, FlowError
from penstock.testing import Run
from penstock.wire.columns import Records


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


def per_user(stream: ps.Stream) -> ps.Table:
    """What a program's helper builds anew at each call."""
    recent = stream.where("v > 0").select("user", "v", "at")
    return recent.window(ps.tumbling("1 minute")).group_by("user").agg(total=ps.sum("v"))


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_is_built_twice_is_one(partitions: int) -> None:
    """Two views, two outputs and two readers over equal aggregates all get their rows."""
    app = ps.App("p")
    stream = app.stream(
        "t", "user STRING, v BIGINT, at TIMESTAMP", time=ps.event_time("at"), partitions=partitions
    )
    app.view("first", per_user(stream))
    app.view("second", per_user(stream))
    per_user(stream).to("closed")
    per_user(stream).where("total > 1").to("large")
    for name in ("hours", "hours_again"):
        hours = per_user(stream).window(ps.tumbling("1 hour")).agg(most=ps.max("total"))
        app.view(name, hours)
    run = ps.testing.run(app)
    for user, v in (("ann", 1), ("bob", 2), ("ann", 3), ("cid", 1)):
        run.send("t", user=user, v=v, at="12:00:01")
    for partition in range(partitions):
        run.send("t", user="ann", v=1, at="14:00:00", partition=partition)
    totals = [(row["user"], row["total"]) for row in run.view("second").rows()]
    assert totals == [("ann", 4), ("bob", 2), ("cid", 1), ("ann", partitions)]
    assert run.view("first").rows() == run.view("second").rows()
    assert [row["most"] for row in run.view("hours").rows()] == [4, partitions]
    assert run.view("hours").rows() == run.view("hours_again").rows()
    assert sorted(record.key or b"" for record in run.topic("closed")) == [
        b"ann", b"bob", b"cid",
    ]  # fmt: skip
    assert sorted(record.key or b"" for record in run.topic("large")) == [b"ann", b"bob"]


def test_functions_of_one_name_are_not_one() -> None:
    """A helper's function is the same at each call, unless it took along something else."""

    def scaled(stream: ps.Stream, factor: int, name: str | None = None) -> ps.Table:
        def scale(rows: pa.Table) -> pa.Table:
            column = pc.multiply(rows["v"], factor)
            return rows.set_column(rows.schema.get_field_index("v"), "v", column)

        return stream.map_batches(scale, "v BIGINT", name=name).group_by().agg(total=ps.sum("v"))

    app = ps.App("p")
    stream = app.stream("t", "v BIGINT")
    app.view("twice", scaled(stream, 2))
    app.view("twice_again", scaled(stream, 2))
    with pytest.raises(FlowError, match=r"two called .*scale'.* name="):
        scaled(stream, 3)
    app.view("thrice", scaled(stream, 3, "thrice"))
    run = ps.testing.run(app)
    run.send("t", v=5)
    found = [run.view(name).rows() for name in ("twice", "twice_again", "thrice")]
    assert found == [[{"total": 10}], [{"total": 10}], [{"total": 15}]]


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
    """State of another meaning is refused by whoever doesn't upgrade it first."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    run.settle()
    changed = ps.App("p")
    stream = changed.stream("clicks", "user STRING", partitions=1)
    changed.view("counts", stream.group_by("user").agg(n=ps.count()))
    run._graph = changed.graph()
    with pytest.raises(FlowError, match="one that has changed"):
        run.restart()


def test_another_pipelines_state_is_left_alone() -> None:
    """A pipeline in another one's directory takes nothing over: the other one goes on."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    run.settle()
    mine, other = run._graph, ps.App("q")
    other.view("counts", other.stream("clicks", "user STRING").group_by("user").agg(n=ps.count()))
    run._graph = other.graph()
    with pytest.raises(FlowError, match="'q', or none; found that of 'p'"):
        run.restart()
    run._graph = mine
    run.send("clicks", user="ann", at="12:00:00")
    assert [row["n"] for row in run.view("counts").rows()] == [2]


def test_rows_without_a_key_are_written_too() -> None:
    """A NULL group has a record, whose key says so, and partitions have those of the others."""
    app = ps.App("p")
    stream = app.stream("t", "page STRING, at TIMESTAMP", time=ps.event_time("at"), key="page")
    stream.window(ps.tumbling("1 minute")).group_by("page").agg(n=ps.count()).to(
        "out", partitions=3
    )
    stream.to("copy", partitions=2)
    run = ps.testing.run(app)
    for page in ("/a", None, "/b", None):
        run.send("t", page=page, at="12:00:00")
    run.send("t", page="/c", at="12:30:00")
    assert sorted(str(r.key) for r in run.topic("out")) == [
        "b'/a'",
        "b'/b'",
        "b'{\"page\":null}'",
    ]
    assert len(run.topic("copy")) == 5


def test_records_are_never_dated_ahead_of_the_clock() -> None:
    """An event that is a little ahead is written with the plan's time: brokers refuse the future."""
    app = ps.App("p")
    app.stream("t", "at TIMESTAMP", time=ps.event_time("at")).to("out")
    run = ps.testing.run(app, now="2026-01-01T00:00:00Z")
    run.send("t", at="2026-01-01T02:00:00Z")
    [record] = run.topic("out")
    assert record.timestamp_ms == 1_767_225_600_000


@pytest.mark.parametrize("broken", [False, True])
def test_a_topic_that_is_not_what_it_was(broken: bool) -> None:
    """A topic that grew, or was made anew, stops the pipeline with what to do; nothing goes unread."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    run.settle()
    run.log._topics["clicks"] = [[]] if broken else [*run.log._topics["clicks"], []]
    with pytest.raises(FlowError, match="deleted and created again" if broken else "found 2"):
        run.step()


def test_a_topic_that_was_made_anew_and_is_longer() -> None:
    """Another topic of the name is told by its id, however long it is; a rebuild reads it as a whole."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    run.settle()
    run.log._topics["clicks"] = [[]]
    run.log._ids["clicks"] = "another"
    for second in range(3):
        run.send("clicks", user="bob", at=f"12:00:0{second}")
    run.restart()
    with pytest.raises(FlowError, match="deleted and created again"):
        run.step()
    run.change(counted(), rebuild=True)
    assert [(row["user"], row["n"]) for row in run.view("counts").rows()] == [("bob", 3)]


def begin(run: Run) -> None:
    """Writes the plan of the next batch down, and no more."""
    plan = run._driver._new_plan(0)
    assert plan is not None
    run.store.write_plan(plan)


def test_a_batch_that_was_begun_belongs_to_its_program() -> None:
    """A changed program does not finish a batch that may have written output already."""

    def app(factor: int) -> ps.App:
        flow = ps.App("p")
        flow.stream("t", "v BIGINT").select(w=f"v * {factor}").to("out")
        return flow

    run = ps.testing.run(app(1))
    run.send("t", v=1)
    begin(run)
    run._graph = app(2).graph()
    run.restart()
    with pytest.raises(FlowError, match="previous program"):
        run.step()
    run._graph = app(1).graph()
    run.restart()
    assert [record.value for record in run.topic("out")] == [b'{"w":1}']


def test_a_batch_that_was_begun_says_how_far_it_is_behind() -> None:
    """Its plan is of an earlier process; what has come since is lag."""
    run = ps.testing.run(counted())
    run.send("clicks", user="ann", at="12:00:00")
    begin(run)
    run.send("clicks", user="ann", at="12:00:01")
    run.restart()
    progress = run.step()
    assert progress is not None
    assert (progress.rows, progress.sources["clicks"].lag) == (1, 1)


def test_records_that_retention_took_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Where the log no longer has what was to be read, the rest is read and the gap is counted, and told."""
    run = ps.testing.run(counted())
    for second in range(5):
        run.send("clicks", user="ann", at=f"12:00:0{second}")
    read, first = run.log.read, 2

    def read_from(topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        if start < first:
            raise BrokerError("out of range", code=1)
        yield from read(topic, partition, start, end)

    run.log.read = read_from  # type: ignore[assignment, method-assign]
    run.log.start_offsets = lambda topics: {t: {0: first} for t in topics}  # type: ignore[method-assign]
    driver = run._driver
    driver.version = replace(driver.version, offsets={"clicks": {0: 0}})
    progress = run.step()
    assert progress is not None
    assert progress.lost_rows == 2
    assert [row["n"] for row in run.view("counts").rows()] == [3]
    [warning] = [one for one in caplog.messages if one.startswith("expected the records")]
    assert warning.startswith(
        "expected the records of clicks/0 from offset 0 on; found that retention"
    )
    assert "had removed 2 of them" in warning
    assert "penstock topics alter clicks --set retention.ms=" in warning


def test_retention_while_a_batch_reads() -> None:
    """Where records go between two chunks, the batch ends, and its repetition reads what is left."""
    run = ps.testing.run(counted(), shaken=False)
    for second in range(5):
        run.send("clicks", user="ann", at=f"12:00:0{second}")
    read, first = run.log.read, 0

    def read_from(topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        nonlocal first
        if start < first:
            raise BrokerError("out of range", code=1)
        if first == 0:
            yield from read(topic, partition, start, 2)
            first = 3
            raise BrokerError("out of range", code=1)
        yield from read(topic, partition, start, end)

    run.log.read = read_from  # type: ignore[assignment, method-assign]
    run.log.start_offsets = lambda topics: {t: {0: first} for t in topics}  # type: ignore[method-assign]
    with pytest.raises(
        BrokerError, match="retention has just removed records of clicks/0"
    ) as caught:
        run.step()
    assert caught.value.retriable
    progress = run.step()
    assert progress is not None
    assert progress.lost_rows == 3
    assert [row["n"] for row in run.view("counts").rows()] == [2]


def test_an_error_of_the_users_function_names_its_place() -> None:
    """What a function of the user's raises is told with its file and line."""

    def wrong(rows: pa.Table) -> pa.Table:
        return rows["no such column"]

    app = ps.App("p")
    stream = app.stream("t", "v BIGINT").map_batches(wrong, "v BIGINT")
    stream.to("out")
    run = ps.testing.run(app)
    run.send("t", v=1)
    with pytest.raises(FlowError, match=r"no such column.*test_testing\.py, line \d+"):
        run.step()


def test_old_versions_are_vacuumed() -> None:
    """However many batches ran, a few versions and their files are left."""
    run = ps.testing.run(counted())
    for i in range(150):
        run.send("clicks", user=f"u{i}", at="12:00:00")
        run.step()
    files = run.store.files
    assert len(files.list("versions")) <= 80
    assert len(files.list("plans")) <= 20
    assert len(files.list("runs")) <= 120
    assert len(run.view("counts").rows()) == 150


def test_a_view_row_that_fails_is_counted_as_a_dead_letter() -> None:
    """A step after an aggregate that can't compute a row buries it, and says so in the counts."""
    app = ps.App("p")
    stream = app.stream("t", "x STRING, at TIMESTAMP", time=ps.event_time("at"))
    per_x = stream.window(ps.tumbling("1 hour")).group_by("x").agg(n=ps.count())
    numbers = per_x.select("window_end", n="CAST(x AS BIGINT)")
    app.view("sums", numbers.window(ps.tumbling("1 day")).agg(total=ps.sum("n")))
    run = ps.testing.run(app)
    run.send("t", x="1", at="12:00:00")
    run.send("t", x="two", at="12:00:00")
    progress = run.step()
    assert progress is not None
    assert (progress.rows, progress.dead_rows) == (2, 1)
    assert [row["total"] for row in run.view("sums").rows()] == [1]
    assert len(run.dead_letters()) == 1
