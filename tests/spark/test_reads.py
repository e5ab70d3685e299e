"""Batches of Spark over views and topics: what Penstock itself says is there, however it is filtered."""

from __future__ import annotations

import itertools
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.serve.committing import clicks, commit
from tests.spark import every_type

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer
from penstock.duck import connection
from penstock.serve import Views
from penstock.spark import filters, pins

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
_names = (f"read-{n}" for n in itertools.count())


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """A frame's rows in an order of their own, instants in UTC."""
    found = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=str)))


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: repr(sorted(row.items(), key=str)))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a pipeline with views that have NULLs, and steps over their state."""
    app = ps.App("shop", cores=2)
    stream = app.stream(
        "clicks",
        "user STRING, ms DOUBLE, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="10 seconds"),
    )
    per_user = (
        stream.window(ps.tumbling("1 minute"))
        .group_by("user")
        .agg(n=ps.count(), ms=ps.sum("ms"), most=ps.max("ms"))
    )
    app.view("per_user", per_user)
    app.view("busy", per_user.where("n > 3").select("user", "window_start", twice="2 * n"))
    run = ps.testing.run(app)
    for i in range(400):
        user = None if i % 11 == 0 else f"u{i % 5}"
        ms = None if i % 7 == 0 else float(i % 13)
        run.send("clicks", user=user, ms=ms, at=f"12:{i // 60:02}:{i % 60:02}")
    return commit(run, tmp_path_factory.mktemp("reads") / "shop.penstock")


def view(session: Any, shop: Path, name: str = "per_user", **options: Any) -> Any:
    return session.read.format("penstock").options(view=name, **options).load(str(shop))


@pytest.mark.parametrize("name", ["per_user", "busy"])
def test_a_view_is_what_views_say(session: Any, shop: Path, name: str) -> None:
    """The same columns and the same rows."""
    frame = view(session, shop, name)
    table = Views(shop).table(name)
    assert frame.columns == table.column_names
    assert rows_of(frame) == sorted_rows(table)
    assert len(table) > 10


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("user = 'u1'", True),
        pytest.param("user <> 'u1'", True, marks=pytest.mark.slow),
        ("user IN ('u1', 'u2', NULL)", False),
        pytest.param("user NOT IN ('u1', 'u2')", True, marks=pytest.mark.slow),
        ("user IS NULL", True),
        pytest.param("user <=> NULL", True, marks=pytest.mark.slow),
        pytest.param("NOT (user <=> 'u1')", False, marks=pytest.mark.slow),
        ("user LIKE 'u%'", True),
        pytest.param("user LIKE '%3'", True, marks=pytest.mark.slow),
        ("user LIKE '%1%' AND n >= 9", True),
        ("n BETWEEN 5 AND 9", True),
        pytest.param("n > 3000000000000", True, marks=pytest.mark.slow),
        pytest.param("ms > 20.5", False, marks=pytest.mark.slow),
        ("window_start >= TIMESTAMP'2000-01-01 12:03:00Z'", True),
        pytest.param(
            "window_start = TIMESTAMP'2000-01-01 12:03:00Z' OR n = 4", False, marks=pytest.mark.slow
        ),
        ("length(user) = 2", False),
    ],
)
def test_filters_mean_what_they_mean_to_spark(
    session: Any, shop: Path, condition: str, taken: bool
) -> None:
    """Pushed down or not, the rows are those that Spark chooses of all; the plan shows who does it."""
    frame = view(session, shop)
    table = session.createDataFrame(Views(shop).table("per_user").to_pandas(), frame.schema)
    found = frame.where(condition)
    assert rows_of(found) == rows_of(table.where(condition))
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert (" Filter " not in plan) == taken, plan


@pytest.mark.slow
def test_every_type_is_read_and_filtered(session: Any, tmp_path: Path) -> None:
    """Rows are those of the view; filters on them choose as Spark does of all."""
    shop = commit(every_type.start(), tmp_path / "types.penstock")
    frame = view(session, shop, "every")
    assert repr(rows_of(frame)) == repr(sorted_rows(Views(shop).table("every")))  # of NaN, too
    every = frame.cache()
    assert every.count() == 11
    conditions = [
        "d = 1.0006",
        "d > -1.5 AND d IN (1.0006, 4.0009)",
        "day >= DATE'2003-03-04' AND day < '2008-01-01'",
        "tm > TIME'03:00:00' AND tm <> TIME'05:05:01.5'",
        "at > TIMESTAMP'2026-10-25 01:15:00Z'",
        "bin = X'00010203'",
        "u >= X'00112233445566778899aabbccddee04'",
        "u > X'0011'",
        "iv > INTERVAL '40' DAY",
        "NOT b",
        "x > 0.5 AND s >= 'a'",
        "st.a > 2 AND size(items) = 2",
    ]
    found = [
        sorted(row.id for row in view(session, shop, "every").where(one).collect())
        for one in conditions
    ]
    assert found == [sorted(row.id for row in every.where(one).collect()) for one in conditions]
    assert all(0 < len(ids) < 11 for ids in found)
    every.unpersist()


def test_windows_before_those_asked_for_are_not_read() -> None:
    """A filter on `window_start` says where to begin."""
    datasource = pytest.importorskip("pyspark.sql.datasource")
    at = datetime(2000, 1, 1, 12, 3, tzinfo=UTC)
    later = datetime(2000, 1, 1, 12, 4, tzinfo=UTC)
    asked = [
        datasource.GreaterThan(("window_start",), at),
        datasource.EqualTo(("window_start",), later),
        datasource.LessThan(("window_start",), at),
        datasource.EqualTo(("user",), "u1"),
    ]
    assert filters.window_from_us(asked) == int(later.timestamp()) * 1_000_000
    assert filters.window_from_us(asked[2:]) is None


def test_columns_are_chosen_by_the_schema(session: Any, shop: Path) -> None:
    """Those alone are read, in that order; others are refused."""
    read = session.read.format("penstock").option("view", "per_user")
    frame = read.schema("n BIGINT, user STRING").load(str(shop))
    table = Views(shop).table("per_user").select(["n", "user"])
    assert rows_of(frame) == sorted_rows(table)
    with pytest.raises(Exception, match=r"expected columns of .* found 'nobody'"):
        read.schema("nobody STRING").load(str(shop)).collect()
    with pytest.raises(Exception, match="expected column 'n' as bigint; found int"):
        read.schema("n INT").load(str(shop)).collect()


@pytest.mark.slow
def test_a_frame_stays_as_it_was_planned(session: Any, tmp_path: Path) -> None:
    """It may be used after the pipeline has replaced the version and its files."""
    directory = commit(clicks(50), tmp_path / "shop.penstock")
    frame = view(session, directory)
    expected = rows_of(frame)
    assert sum(row["n"] for row in expected) == 50
    shutil.rmtree(directory / "state" / "runs")
    assert rows_of(frame) == expected


def test_pins_of_batches_go_after_a_while(tmp_path: Path) -> None:
    """Those that were asked for lately stay."""
    directory = commit(clicks(50), tmp_path / "shop.penstock")
    state = str(directory / "state")
    part = Views(directory).snapshot().part("per_user")
    pin = pins.make(state, part, pins.batch_name(part))
    assert sum(one.num_rows for one in pin.part.read(pin.open())) == 3
    at = Path(pin.files).stat().st_mtime
    pins.drop_old(state, at + pins.BATCH_SECONDS_MAX - 1)
    assert Path(pin.files).exists()
    pins.drop_old(state, at + pins.BATCH_SECONDS_MAX + 1)
    assert not Path(pin.files).exists()


def test_a_version_can_be_named(session: Any, shop: Path) -> None:
    """One that is kept; what is asked for otherwise is told."""
    number = Views(shop).version
    assert view(session, shop, version=number).count() == len(Views(shop).table("per_user"))
    with pytest.raises(Exception, match=f"is kept; found {number + 7}. Kept are .* to {number}"):
        view(session, shop, version=number + 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "nobody"}, "expected one of the views per_user, busy; found 'nobody'"),
        ({"veiw": "per_user"}, "expected options among .*; found veiw"),
        ({}, "expected one of the options view and topic; found neither"),
        ({"view": "per_user", "version": "new"}, "expected the option 'version' as a number"),
    ],
)
def test_options_are_checked(
    session: Any, shop: Path, options: dict[str, str], message: str
) -> None:
    """Each mistake has its message."""
    with pytest.raises(Exception, match=message):
        session.read.format("penstock").options(**options).load(str(shop))


def fill(broker: BrokerProcess, records: int) -> str:
    """A topic of two partitions with values that count, one of which is no JSON."""
    topic = next(_names)
    with Client(broker.address) as client, Producer(broker.address) as producer:
        client.create_topic(topic, 2, {"retention.ms": "-1"})
        for partition in (0, 1):
            values: list[bytes] = [orjson.dumps({"n": n}) for n in range(partition, records, 2)]
            values[3] = b"?"
            times = np.arange(len(values)) + 1_767_225_600_000
            producer.send(topic, partition, None, pa.array(values, pa.binary()), times)
    return topic


def test_a_topic_is_read_between_offsets_and_times(session: Any, broker: BrokerProcess) -> None:
    """As raw values, or as the columns of a schema; what doesn't fit it is left out."""
    topic = fill(broker, 40)
    read = session.read.format("penstock").options(topic=topic, log=broker.address)
    raw = read.load()
    assert raw.columns == ["partition", "offset", "timestamp", "key", "headers", "value"]
    assert raw.count() == 40
    parsed = read.option("values", "n BIGINT").load()
    read_rows = sorted((r["partition"], r["offset"], r["n"]) for r in rows_of(parsed))
    every = [(p, i, 2 * i + p) for p in (0, 1) for i in range(20) if i != 3]
    assert read_rows == every
    some = parsed.select("n")
    assert rows_of(some.where("n < 10")) == [{"n": n} for n in (0, 1, 2, 3, 4, 5, 8, 9)]
    cut = read.options(values="n BIGINT", start=5, end="2026-01-01T00:00:00.010Z").load()
    assert sorted(row["n"] for row in rows_of(cut)) == list(range(10, 20))


@pytest.mark.slow
def test_sparks_functions_read_theta_sketches(session: Any) -> None:
    """Sketches have the same bytes, so that Spark's own can be put together with them."""
    con = connection()
    [(some,)] = con.sql("SELECT theta_sketch_agg(x) FROM range(30000) AS t(x)").fetchall()
    [(few,)] = con.sql("SELECT theta_sketch_agg(x) FROM range(29990, 30010) AS t(x)").fetchall()
    [(one,)] = con.sql("SELECT theta_sketch_agg(x) FROM range(1) AS t(x)").fetchall()
    [(none,)] = con.sql("SELECT theta_sketch_agg(x) FROM range(0) AS t(x)").fetchall()
    session.createDataFrame(
        [(name, bytearray(s)) for name, s in zip("abcd", (some, few, one, none), strict=True)],
        "name STRING, s BINARY",
    ).createOrReplaceTempView("sketches")
    rows = session.sql("SELECT name, theta_sketch_estimate(s) AS n FROM sketches").collect()
    [(wanted,)] = con.execute("SELECT theta_sketch_estimate(?::BLOB)", [some]).fetchall()
    assert {row.name: row.n for row in rows} == {"a": wanted, "b": 20, "c": 1, "d": 0}
    query = (  # of exact sketches, lest the difference be an estimate
        "SELECT theta_sketch_estimate(theta_difference(s, (SELECT theta_sketch_agg(id) "
        "FROM range(29000, 30000)))) AS n FROM sketches WHERE name = 'b'"
    )
    assert session.sql(query).collect()[0].n == 10


@pytest.mark.parametrize(
    ("type_", "java", "values"),
    [
        ("BIGINT", "Long", [*range(2**40, 2**40 + 1_500), *range(-500, -1), 2**62, -(2**63)]),
        ("VARCHAR", "String", ["", *(f"{'ä' * (i % 9)}{i}" for i in range(2_000))]),
    ],
)
def test_spark_reads_bloom_filters(session: Any, type_: str, java: str, values: list[Any]) -> None:
    """A filter has the bytes of Spark's own of version 1, and Spark's answers of values that it may have."""
    con = connection()
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE listed AS SELECT unnest(?::{type_}[]) AS x", [values]
    )
    [(made,)] = con.sql("SELECT bloom_filter_agg(x, 2000, 0.02) FROM listed").fetchall()
    ours = _sparks(session, made)
    theirs = _sparks(session, made[:12] + bytes(len(made) - 12))  # as large, without values
    for value in values:
        if java == "Long":
            theirs.putLong(value)
        else:
            theirs.putString(value)
    written = session._jvm.java.io.ByteArrayOutputStream()
    theirs.writeTo(written)
    assert bytes(written.toByteArray()) == made
    others = [one + 2**50 if java == "Long" else one + "?" for one in values[:300]]
    matches = [ours.mightContain(one) for one in others]
    asked = f"SELECT might_contain(?::BLOB, x) FROM (SELECT unnest(?::{type_}[]) AS x)"
    assert [found for (found,) in con.execute(asked, [made, others]).fetchall()] == matches
    assert 0 < sum(matches) < 30


def _sparks(session: Any, made: bytes) -> Any:
    """A filter as Spark's Java reads it, as Spark has no Python for them."""
    jvm: Any = session._jvm
    stream = jvm.java.io.ByteArrayInputStream(bytearray(made))
    return jvm.org.apache.spark.util.sketch.BloomFilter.readFrom(stream)
