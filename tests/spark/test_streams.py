"""Streams of Spark over views and topics: nothing is left out and nothing comes twice, restarts or not."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.committing import commit
from tests.spark import every_type

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Producer
from penstock.serve import Views
from penstock.spark import changes as changes_module
from penstock.spark import topics
from penstock.spark.options import Options

streaming = pytest.importorskip("pyspark.sql.streaming.datasource")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
Run = Any


def visits() -> Run:
    """A pipeline of two views, the users of each page and how many pages have how many."""
    app = ps.App("visits")
    stream = app.stream("visits", "user STRING, page BIGINT")
    per_page = stream.group_by("page").agg(n=ps.count(), last=ps.max("user"))
    app.view("per_page", per_page)
    app.view("per_n", per_page.group_by("n").agg(pages=ps.count()))
    return ps.testing.run(app)


def counted(rows: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in rows.to_pylist())


def applied(changes: Iterator[dict[str, Any]]) -> Counter[Any]:
    """What is left when all changes are applied."""
    left: Counter[Any] = Counter()
    for row in changes:
        kept = tuple((name, value) for name, value in row.items() if not name.startswith("_"))
        left[kept] += 1 if row["_change_type"] == "insert" else -1
    return Counter({row: n for row, n in left.items() if n})


def stream_of(directory: Path, view: str = "per_page") -> changes_module.ChangeStream:
    from penstock.spark.arrow import for_spark

    options = Options.of({"view": view, "path": str(directory), "changes": "true"}, "/")
    return changes_module.ChangeStream(options, for_spark(changes_module.change_schema(options)))


def read(stream: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    parts = stream.partitions(start, end)
    return [row for part in parts for one in stream.read(part) for row in one.to_pylist()]


@given(st.lists(st.sampled_from(["a", "b", None])), st.lists(st.sampled_from(["a", "b", None])))
def test_a_difference_leads_from_one_table_to_the_other(old: list[Any], new: list[Any]) -> None:
    """With multiplicity, NULLs included, and with no row that doesn't matter."""
    before, after = (pa.table({"x": pa.array(one, pa.string())}) for one in (old, new))
    found = changes_module.difference(before, after).to_pylist()
    came = Counter(row["x"] for row in found if row["_change_type"] == "insert")
    went = Counter(row["x"] for row in found if row["_change_type"] == "delete")
    assert (came, went) == (Counter(new) - Counter(old), Counter(old) - Counter(new))


@pytest.mark.parametrize("view", ["per_page", "per_n"])
def test_changes_add_up_to_the_view(tmp_path: Path, view: str) -> None:
    """Read by readers that start anew each time, while the pipeline deletes its old files."""
    run = visits()
    directory = tmp_path / "visits.penstock"
    stream = None
    seen: list[dict[str, Any]] = []
    offset: Any = None
    for turn in range(8):
        for n in range(turn * 3):
            run.send("visits", user=f"u{n}", page=n % 4)
        if turn:
            commit(run, directory)
        if not (directory / "state" / "versions").exists():
            continue
        stream = stream_of(directory, view)
        if offset is None:
            offset = stream.initialOffset()
        end = stream.latestOffset(orjson.loads(orjson.dumps(offset)), streaming.ReadAllAvailable())
        again = read(stream_of(directory, view), offset, end)
        changes = read(stream, offset, end)
        assert sorted(map(repr, changes)) == sorted(map(repr, again))
        seen += changes
        stream.commit(end)
        offset = end
        assert applied(iter(seen)) == counted(Views(directory).table(view))
        assert stream.latestOffset(offset, streaming.ReadAllAvailable()) == offset
        assert len(list((directory / "state" / "pins" / offset["stream"]).iterdir())) == 1
        shutil.rmtree(directory / "state" / "runs")  # a later version writes what it needs
    assert any(row["_change_type"] == "delete" for row in seen)


def test_changes_have_every_type(tmp_path: Path) -> None:
    """Intervals within others, too; a row that changes is taken back as it was."""
    run, directory = every_type.start(), tmp_path / "types.penstock"
    commit(run, directory)
    stream = stream_of(directory, "every")
    start = stream.initialOffset()
    first = stream.latestOffset(start, streaming.ReadAllAvailable())
    seen = read(stream, start, first)
    before = Views(directory).table("every").to_pylist()
    every_type.send(run, 4, d="7.5", parts=[{"iv": "PT0.000001S"}])
    commit(run, directory)
    changes = read(stream, first, stream.latestOffset(first, streaming.ReadAllAvailable()))
    after = Views(directory).table("every").to_pylist()

    def texts(rows: list[Any]) -> list[str]:
        kept = [{name: row[name] for name in row if not name.startswith("_")} for row in rows]
        return sorted(map(repr, kept))

    assert texts(seen) == texts(before)
    assert texts([one for one in changes if one["_change_type"] == "delete"]) == texts(
        [one for one in before if one["id"] == 4]
    )
    assert texts([one for one in changes if one["_change_type"] == "insert"]) == texts(
        [one for one in after if one["id"] == 4]
    )


@pytest.mark.slow
def test_a_stream_of_spark_goes_on_where_it_was(session: Any, tmp_path: Path) -> None:
    """From its checkpoint, as from the beginning; the sum of all changes is the view."""
    run = visits()
    directory = tmp_path / "visits.penstock"
    for turn in (1, 2):
        for n in range(turn * 7):
            run.send("visits", user=f"u{n}", page=n % 4)
        commit(run, directory)
        frame = (
            session.readStream.format("penstock")
            .options(view="per_page", changes="true")
            .load(str(directory))
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        rows = session.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()
        assert applied(iter(rows)) == counted(Views(directory).table("per_page"))
    assert any(row["_change_type"] == "delete" for row in rows)


def topic_stream(broker: BrokerProcess, topic: str, **options: str) -> topics.TopicStream:
    from penstock.spark.arrow import for_spark

    given_ = Options.of({"topic": topic, "log": broker.address, **options}, "/")
    return topics.TopicStream(given_, for_spark(topics.topic_schema(given_)))


def test_a_topic_is_read_as_it_grows(broker: BrokerProcess) -> None:
    """Each record once, not more at a time than was said, up to where the trigger began."""
    with Client(broker.address) as client, Producer(broker.address) as producer:
        client.create_topic("growing", 2, {"retention.ms": "-1"})

        def produce(count: int, partition: int) -> None:
            values = pa.array([b'{"n": 1}'] * count, pa.binary())
            producer.send("growing", partition, None, values, np.zeros(count, np.int64))

        produce(10, 0)
        produce(3, 1)
        stream = topic_stream(broker, "growing", values="n BIGINT", maxOffsetsPerTrigger="4")
        limit = stream.getDefaultReadLimit()
        offset, rows = stream.initialOffset(), []
        assert offset == {"0": 0, "1": 0}
        stream.prepareForTriggerAvailableNow()
        produce(5, 1)
        while (end := stream.latestOffset(offset, limit)) != offset:
            found = read(stream, offset, end)
            assert 0 < len(found) <= 4
            rows += found
            offset = end
        assert offset == {"0": 10, "1": 3}
        places = [(row["partition"], row["offset"]) for row in rows]
        assert sorted(places) == [(0, n) for n in range(10)] + [(1, n) for n in range(3)]
        late = topic_stream(broker, "growing", start="latest")
        assert late.initialOffset() == {"0": 10, "1": 8}
