"""A topic's history: Arrow, Spark and DuckDB see what was produced, once, wherever the table ends."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.patience import wait_until

from penstock.wire.columns import encode

pytest.importorskip("pyiceberg", reason="needs penstock[iceberg]")

import duckdb
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.broker.tier.tables import Chunk, HistoryTable
from penstock.client import Client, Producer
from penstock.client.tables.history import TopicTable
from penstock.client.topic_admin import TopicAdmin
from penstock.core.schema import TIMESTAMP, Schema
from penstock.engine.spark.session import start_session
from penstock.errors import SetupError, UserError
from penstock.history import spark as spark_module

SCHEMA = Schema.parse("user BIGINT, key STRING, at TIMESTAMP, tags ARRAY<STRING>")
DOCUMENT = Path(__file__).parents[2] / "docs" / "tiering.md"
NOW_MS = time.time_ns() // 1_000_000
"""Records are of today: retention would remove older ones in the middle of a test."""
_names = (f"told_{n}" for n in itertools.count())

# pyiceberg's SQL catalog leaves its connections to the garbage collector, Spark's client its sockets.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
Row = dict[str, Any]


class World:
    """A broker, a catalog, and topics whose table ends somewhere within the log."""

    def __init__(self, directory: Path, address: str) -> None:
        self.address, self.uri = address, f"sqlite:///{directory}/catalog.db"
        warehouse = directory / "warehouse"
        warehouse.mkdir()
        self.catalog = load_catalog("penstock", uri=self.uri, warehouse=warehouse.as_uri())

    def topic(self, partitions: int = 1, schema: Schema | None = SCHEMA) -> Topic:
        """A new topic and its table."""
        name = next(_names)
        settings = {"retention.ms": "-1", "penstock.iceberg.table": f"shop.{name}"}
        if schema is not None:
            settings["penstock.schema"] = schema.text
        with Client(self.address) as client:
            client.create_topic(name, partitions, settings)
            table = HistoryTable(self.catalog, f"shop.{name}", schema, str(client.topic_id(name)))
        return Topic(self, name, table, [[] for _ in range(partitions)])


class Topic:
    """A topic, its table, and its rows: one for each record, None where it is a dead letter."""

    def __init__(
        self, world: World, name: str, table: HistoryTable, rows: list[list[Row | None]]
    ) -> None:
        self.world, self.name, self.table, self.rows = world, name, table, rows
        self.records: list[list[tuple[Any, ...]]] = [[] for _ in rows]
        self.history = ps.History(name, world.uri, world.address)

    def produce(self, chance: random.Random, partition: int, count: int) -> None:
        """Appends records of all kinds to the log."""
        made = []
        for offset in range(len(self.rows[partition]), len(self.rows[partition]) + count):
            record, row = _record(chance, partition, offset)
            made.append(record)
            self.rows[partition].append(row)
        self.records[partition] += made
        with Producer(self.world.address) as producer:
            keys, values, times, headers = _columns(made)
            producer.send(self.name, partition, keys, values, times, headers=headers)

    def cover(self, partition: int, upto: int) -> None:
        """Appends records to the table, so that it covers those before an offset."""
        start = self.table.covered.get(partition, 0)
        if start < upto:
            keys, values, times, headers = _columns(self.records[partition][start:upto])
            data = encode(keys, values, times, headers=headers, base_offset=start)
            self.table.append([Chunk(partition, start, upto, b"".join(data))])

    def expected(
        self, start: int = 0, end: int = 1 << 60, partitions: Sequence[int] | None = None
    ) -> list[Row]:
        """The rows with start <= offset < end."""
        chosen = range(len(self.rows)) if partitions is None else sorted(partitions)
        return [row for one in chosen for row in self.rows[one][start:end] if row is not None]


def _record(chance: random.Random, partition: int, offset: int) -> tuple[Any, Row | None]:
    """A record and the row that it should be."""
    key = chance.choice([None, b"", b"k"])
    headers = chance.choice([[], [("a", b"1"), ("b", None)]])
    at_ms = NOW_MS + offset * 10
    user = chance.choice([None, offset, -(2**63)])
    fields = {"user": user, "key": chance.choice([None, "é"]), "at": at_ms, "tags": ["x", None]}
    value: bytes | None = json.dumps(fields).encode()
    if chance.random() < 0.1:
        value, fields = None, dict.fromkeys(fields)
    elif chance.random() < 0.1:
        value = chance.choice([b"no json", b'{"user": "no number"}', b""])
        return (key, value, at_ms, headers), None
    row = {
        "partition": partition,
        "offset": offset,
        "timestamp": _moment(at_ms),
        "key": key,
        "headers": [{"name": name, "value": text} for name, text in headers],
        "user": fields["user"],
        "value_key": fields["key"],
        "at": None if fields["at"] is None else _moment(at_ms),
        "tags": fields["tags"],
    }
    return (key, value, at_ms, headers), row


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _columns(records: list[Any]) -> tuple[Any, ...]:
    keys, values, times, headers = zip(*records, strict=True)
    binary = pa.binary()
    return pa.array(keys, binary), pa.array(values, binary), np.array(times), list(headers)


def _sorted(rows: pa.Table) -> list[Row]:
    found = [
        one.cast(TIMESTAMP) if pa.types.is_timestamp(one.type) else one for one in rows.columns
    ]
    listed = pa.table(found, names=rows.column_names).to_pylist()
    return sorted(listed, key=lambda row: (row["partition"], row["offset"]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("history") / "data") as one:
        yield one


@pytest.fixture
def world(tmp_path: Path, broker: BrokerProcess) -> Iterator[World]:
    made = World(tmp_path, broker.address)
    yield made
    made.catalog.close()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    before = dict(os.environ)
    made = start_session("history", None, tmp_path_factory.mktemp("spark"), cores=2)
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


def _anything(chance: random.Random, topic: Topic) -> None:
    """Produces to all partitions and covers any part of it, in several commits."""
    for partition in range(len(topic.rows)):
        topic.produce(chance, partition, chance.randint(1, 80))
        upto = 0
        while chance.random() < 0.7:
            upto = chance.randint(upto, len(topic.rows[partition]))
            topic.cover(partition, upto)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_arrow_gives_each_row_once(world: World, seed: int) -> None:
    """Wherever the table ends, and however a stretch is cut, in order; DuckDB sees the same."""
    chance = random.Random(seed)
    topic = world.topic(3)
    _anything(chance, topic)
    assert topic.history.arrow().read_all().to_pylist() == topic.expected()
    for _ in range(5):
        start, end = sorted((chance.randint(0, 80), chance.randint(0, 80)))
        chosen = chance.sample(range(3), chance.randint(1, 3))
        rows = topic.history.arrow(start=start, end=end, partitions=chosen).read_all()
        assert rows.to_pylist() == topic.expected(start, end, chosen)
    reader = topic.history.arrow(["user", "offset"])  # noqa: F841 - DuckDB finds it by its name
    users = [row["user"] for row in topic.expected() if row["user"] is not None]
    with duckdb.connect() as connection:
        counted = connection.execute('SELECT count(*), sum("user") FROM reader').fetchone()
    assert counted == (len(topic.expected()), sum(users) if users else None)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_spark_gives_what_arrow_gives(
    world: World, session: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All columns, some, any stretch, any time zone; what is written after the call isn't there."""
    monkeypatch.setattr(spark_module, "PIECE_OFFSETS", 17)
    session.conf.set("spark.sql.session.timeZone", ("UTC", "Asia/Tokyo", "America/Lima")[seed])
    chance = random.Random(seed)
    topic = world.topic(3)
    _anything(chance, topic)
    whole = topic.history.spark(session)
    wanted = topic.expected()
    for partition in range(3):
        topic.produce(chance, partition, 5)
        topic.cover(partition, len(topic.rows[partition]) - chance.randint(0, 5))
    assert _sorted(whole.toArrow()) == wanted
    for _ in range(2):
        start, end = sorted((chance.randint(0, 80), chance.randint(0, 80)))
        chosen = chance.sample(range(3), 2)
        options = {"start": start, "end": end, "partitions": chosen}
        rows = topic.history.spark(session, **options)
        assert _sorted(rows.toArrow()) == topic.expected(start, end, chosen)
        assert rows.count() == len(topic.expected(start, end, chosen))
    narrow = topic.history.spark(session, ["user"]).where("user >= 0")
    assert narrow.columns == ["user"]
    users = [
        row["user"] for row in topic.expected() if row["user"] is not None and row["user"] >= 0
    ]
    assert sorted(row.user for row in narrow.collect()) == sorted(users)


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_that_others_change_is_read_right(world: World, session: Any) -> None:
    """Rows deleted, a column renamed, another dropped and made anew: never other values."""
    chance = random.Random(5)
    topic = world.topic(2)
    for partition in (0, 1):
        topic.produce(chance, partition, 60)
        topic.cover(partition, 20)
        topic.cover(partition, 40)
    table = world.catalog.load_table(f"shop.{topic.name}")
    table.delete("offset = 7 or offset = 30")
    gone = [row for row in topic.expected() if row["offset"] not in {7, 30}]
    assert topic.history.arrow().read_all().to_pylist() == gone
    assert _sorted(topic.history.spark(session).toArrow()) == gone
    with table.update_schema() as update:
        update.rename_column("user", "who")
    with table.update_schema() as update:
        update.add_column("user", LongType())
    changed = [{**row, "user": None} if row["offset"] < 40 else row for row in gone]
    assert topic.history.arrow().read_all().to_pylist() == changed
    assert _sorted(topic.history.spark(session).toArrow()) == changed


def test_columns_that_the_table_lacks_are_null(world: World) -> None:
    """A topic's schema may be ahead of its table, until the broker appends to it again."""
    topic = world.topic(schema=Schema.parse("user BIGINT"))
    topic.produce(random.Random(1), 0, 40)
    topic.cover(0, 25)
    with TopicAdmin(world.address) as admin:
        admin.change_configs(topic.name, {"penstock.schema": SCHEMA.text})
    new = ["value_key", "at", "tags"]
    wanted = [{**row, **dict.fromkeys(new)} if row["offset"] < 25 else row
              for row in topic.expected()]  # fmt: skip
    assert topic.history.arrow().read_all().to_pylist() == wanted
    alone = topic.history.arrow(["tags"]).read_all()
    assert alone.to_pylist() == [{"tags": row["tags"]} for row in wanted]


def test_times_and_ends_are_bounds(world: World) -> None:
    """A time is the first record of that time or later; the ends of one read begin the next."""
    chance = random.Random(9)
    topic = world.topic(2)
    topic.produce(chance, 0, 50)
    topic.produce(chance, 1, 30)
    topic.cover(0, 40)
    with TopicAdmin(world.address) as admin:
        admin.trim(topic.name, {0: 35})  # a time is then looked up in the table
    start = _moment(NOW_MS + 201)
    rows = topic.history.arrow(start=start, end=_moment(NOW_MS + 400).isoformat()).read_all()
    assert rows.to_pylist() == topic.expected(21, 40)
    seen = topic.history.ends()
    assert seen == {0: 50, 1: 30}
    topic.produce(chance, 1, 10)
    before, after = (
        topic.history.arrow(**one).read_all() for one in ({"end": seen}, {"start": seen})
    )
    assert after.to_pylist() == topic.expected(30, partitions=[1])
    assert len(before) + len(after) == len(topic.expected())
    assert topic.history.arrow(start=seen, end={0: 10, 1: 10}).read_all().to_pylist() == []


def test_what_nobody_has_any_more_is_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the table's end and the log's start records may be gone: a warning names them."""
    topic = world.topic()
    topic.produce(random.Random(2), 0, 50)
    topic.cover(0, 10)
    with TopicAdmin(world.address) as admin:
        admin.trim(topic.name, {0: 30})
    rows = topic.history.arrow().read_all()
    assert rows.to_pylist() == topic.expected(0, 10) + topic.expected(30)
    assert "offsets 10 to 29 are neither in the table nor in the log" in caplog.text


def test_mistakes_are_reported(world: World) -> None:
    """No table, columns or partitions that aren't there, bounds that are none."""
    with Client(world.address) as client:
        client.create_topic("bare", 1)
    with pytest.raises(UserError, match=r"penstock\.iceberg\.table"):
        ps.History("bare", world.uri, world.address).arrow()
    history = world.topic(2).history
    with pytest.raises(UserError, match=r"headers, user.*\['nobody'\]"):
        history.arrow(["user", "nobody"])
    with pytest.raises(UserError, match="found none"):
        history.arrow([])
    with pytest.raises(UserError, match=r"\[0, 1\]; found \[2\]"):
        history.arrow(partitions=[0, 2])
    with pytest.raises(UserError, match="ISO 8601"):
        history.arrow(start="yesterday")


def test_what_was_aborted_is_nowhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the table ends, within a transaction too, the rows are committed ones."""
    kafka = pytest.importorskip("confluent_kafka")
    topic = world.topic(schema=None)
    settings = {"bootstrap.servers": world.address, "transactional.id": topic.name}
    producer = kafka.Producer(settings)
    producer.init_transactions()
    for first in range(0, 60, 10):
        producer.begin_transaction()
        for n in range(first, first + 10):
            producer.produce(topic.name, value=b"%d" % n)
        producer.flush()
        producer.abort_transaction() if first % 20 else producer.commit_transaction()
    committed = [b"%d" % n for n in range(60) if n // 10 % 2 == 0]
    offsets = [n + n // 10 for n in map(int, committed)]  # each transaction ends with a marker
    values = pa.array(committed, pa.binary())
    data = b"".join(
        encode(None, values.slice(n, 1), np.array([NOW_MS]), base_offset=offsets[n])[0]
        for n in range(len(committed))
    )
    topic.table.append([Chunk(0, 0, 66, data)])
    for covered in (66, 40, 22, 15, 11, 4, 0):
        monkeypatch.setattr(TopicTable, "_read_covered", lambda _, upto=covered: {0: upto})
        assert topic.history.arrow(["value"]).read_all()["value"].to_pylist() == committed


@pytest.mark.spark
@pytest.mark.slow
def test_each_moment_is_whole_while_the_broker_appends(tmp_path: Path, session: Any) -> None:
    """Producer and broker go on while it is read: every offset up to some end, once, each time more."""
    (tmp_path / "warehouse").mkdir()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    arguments = ["--iceberg-catalog", uri, "--iceberg-interval-ms", "50"]
    arguments += ["--iceberg-warehouse", (tmp_path / "warehouse").as_uri()]
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        with Client(broker.address) as client:
            client.create_topic("busy", 2, {"penstock.iceberg.table": "shop.busy"})
        end = threading.Event()

        def produce() -> None:
            with Producer(broker.address) as producer:
                while not end.is_set():
                    values = pa.array([b"x"] * 7, pa.binary())
                    for partition in (0, 1):
                        producer.send("busy", partition, None, values, np.full(7, NOW_MS))

        writer = threading.Thread(target=produce)
        writer.start()
        try:
            history = ps.History("busy", uri, broker.address)
            wait_until(lambda: _is_there(history))
            before, is_from_both = [0, 0], False
            for turn in range(8):
                (_, stretches) = history._begin(None, None, None)
                is_from_both |= any(one.table and one.log for one in stretches)
                ends = [one.log.stop for one in stretches]
                columns = ["partition", "offset"]
                upto = {one.partition: one.log.stop for one in stretches}
                rows = (
                    history.spark(session, columns, end=upto).toArrow()
                    if turn % 4 == 3
                    else history.arrow(columns, end=upto).read_all()
                )
                for partition in (0, 1):
                    mine = rows.filter(pc.equal(rows["partition"], partition))["offset"]
                    assert sorted(mine.to_pylist()) == list(range(ends[partition]))
                    assert ends[partition] >= before[partition]
                before = ends
            assert is_from_both
        finally:
            end.set()
            writer.join()


def _is_there(history: ps.History) -> bool:
    try:
        history.arrow()
    except UserError:
        return False
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_a_file_system_that_spark_lacks_is_reported(
    world: World, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Spark can't read the files, the message says what it needs."""
    topic = world.topic()
    topic.produce(random.Random(1), 0, 9)
    topic.cover(0, 9)
    assert spark_module.path_for_spark("s3://a/b.parquet") == "s3a://a/b.parquet"
    assert spark_module.path_for_spark("/a/b.parquet") == "file:///a/b.parquet"
    assert spark_module.path_for_spark("file:///a/b.parquet") == "file:///a/b.parquet"
    monkeypatch.setattr(spark_module, "path_for_spark", lambda _: "s3a://bucket/b.parquet")
    with pytest.raises(SetupError, match=r"s3a:.*hadoop-aws.*fs\.s3a"):
        topic.history.spark(session)


@pytest.mark.spark
@pytest.mark.slow
def test_the_documents_example_runs(
    world: World, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/tiering.md shows works as it stands there, but for names and addresses."""
    topic = world.topic()
    topic.produce(random.Random(4), 0, 40)
    topic.cover(0, 30)
    (text,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    for theirs, ours in (
        ('"events"', repr(topic.name)),
        ("sqlite:////srv/catalog.db", world.uri),
        ("127.0.0.1:9092", world.address),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    space: dict[str, Any] = {"session": session}
    exec(compile(text, str(DOCUMENT), "exec"), space)
    assert "count" in capsys.readouterr().out
    assert space["first"].read_all().to_pylist() == topic.expected()
    assert space["later"].read_all().to_pylist() == []
