"""Topics as Iceberg tables: what is in the table is what was produced, once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.schema import Schema
from penstock.log.disk.memory import MemoryFiles
from penstock.log.markers import Aborted
from penstock.wire import batches
from penstock.wire.columns import encode

pytest.importorskip("pyiceberg", reason="needs penstock[iceberg]")

import duckdb
from pyiceberg.catalog import load_catalog

from penstock.broker import BrokerProcess
from penstock.broker.storage.topics import Topics
from penstock.broker.tier import iceberg, tables, tiering
from penstock.broker.tier.iceberg import Iceberg
from penstock.broker.tier.tables import Chunk, HistoryError, HistoryTable
from penstock.wire.protocol import ApiKey

NOW = 1_700_000_000_000
SCHEMA = Schema.parse("user BIGINT NOT NULL, key STRING, at TIMESTAMP")

# pyiceberg's SQL catalog leaves its connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "warehouse").mkdir()
    made = load_catalog(
        "penstock",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=(tmp_path / "warehouse").as_uri(),
    )
    yield made
    made.close()


def rows_of(catalog: Any, name: str) -> list[dict[str, Any]]:
    table = catalog.load_table(name)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def value(n: int) -> bytes:
    if n % 7 == 3:
        return b'{"user": "not a number"}'
    return json.dumps({"user": n, "key": f"k{n}", "at": NOW + n}).encode()


def chunk(start: int, count: int, partition: int = 0, **options: Any) -> Chunk:
    values: list[bytes | None] = [value(n) if n % 11 else None for n in range(start, start + count)]
    data = b"".join(
        encode(
            pa.array([b"%d" % n for n in range(start, start + count)]),
            pa.array(values, pa.binary()),
            np.arange(NOW + start, NOW + start + count),
            base_offset=start,
            **options,
        )
    )
    return Chunk(partition, start, start + count, data)


def test_rows_are_the_records(catalog: Any) -> None:
    """Keys, offsets, times, decoded values and tombstones; what doesn't fit is a dead letter."""
    table = HistoryTable(catalog, "shop.events", SCHEMA, "id-1")
    assert table.append([chunk(0, 40), chunk(0, 5, partition=2)]) == (38, 7)
    assert table.covered == {0: 40, 2: 5}
    rows = rows_of(catalog, "shop.events")
    first = [row for row in rows if row["partition"] == 0]
    good = [n for n in range(40) if n % 7 != 3 or n % 11 == 0]
    assert [row["offset"] for row in first] == good
    assert [row["user"] for row in first] == [n if n % 11 else None for n in good]
    assert [row["value_key"] for row in first] == [f"k{n}" if n % 11 else None for n in good]
    assert [row["key"] for row in first] == [b"%d" % n for n in good]
    assert [int(row["timestamp"].timestamp() * 1000) for row in first] == [NOW + n for n in good]
    dead = rows_of(catalog, "shop.events_dead_letters")
    assert [row["offset"] for row in dead if row["partition"] == 0] == [
        n for n in range(40) if n % 7 == 3 and n % 11
    ]
    assert all(row["value"] == b'{"user": "not a number"}' for row in dead)
    assert all("user" in row["reason"] for row in dead)


def test_headers_are_kept(catalog: Any) -> None:
    """Headers are a list of names and values, in order; a record without any has an empty one."""
    headers = [[], [("a", b"1"), ("b", None), ("a", b"2")], []]
    data = encode(
        None, pa.array([b"x", b"y", None], pa.binary()), np.zeros(3, np.int64), headers=headers
    )
    HistoryTable(catalog, "shop.plain", None, "id").append([Chunk(0, 0, 3, data[0])])
    rows = rows_of(catalog, "shop.plain")
    assert [[(one["name"], one["value"]) for one in row["headers"]] for row in rows] == headers
    assert [row["value"] for row in rows] == [b"x", b"y", None]


def test_aborted_records_are_left_out(catalog: Any) -> None:
    """Of a producer's batches those in an aborted transaction are missing, others are not."""

    def one(offset: int, producer: int, *, is_transactional: bool = True) -> bytes:
        made = batches.build(
            [(None, b"%d" % offset)], base_offset=offset, producer_id=producer, producer_epoch=0,
            base_sequence=0, attributes=0x10 if is_transactional else 0,
        )  # fmt: skip
        return bytes(made)

    data = b"".join([one(0, 5), one(1, 6), one(2, 5, is_transactional=False), one(3, 5), one(4, 5)])
    table = HistoryTable(catalog, "shop.money", None, "id")
    table.append([Chunk(0, 0, 5, data, [Aborted(5, 0, 3)])])
    assert [row["offset"] for row in rows_of(catalog, "shop.money")] == [1, 2, 4]
    assert table.covered == {0: 5}


def test_two_writers_append_once(catalog: Any) -> None:
    """The slower one's commit fails; it then finds what is covered, and goes on from there."""
    fast = HistoryTable(catalog, "shop.events", SCHEMA, "id")
    slow = HistoryTable(catalog, "shop.events", SCHEMA, "id")
    fast.append([chunk(0, 20)])
    with pytest.raises(HistoryError):
        slow.append([chunk(0, 30)])
    slow.refresh()
    assert slow.covered == {0: 20}
    with pytest.raises(HistoryError, match="from offset 20"):
        slow.append([chunk(0, 30)])
    slow.append([chunk(20, 10)])
    with pytest.raises(HistoryError):
        fast.append([chunk(20, 10)])
    for name in ("shop.events", "shop.events_dead_letters"):
        offsets = [row["offset"] for row in rows_of(catalog, name)]
        assert offsets == sorted(set(offsets))
        found = catalog.load_table(name).properties
        assert "commit.retry.num-retries" not in found, "others may try again"


def test_another_topics_table_is_refused(catalog: Any) -> None:
    """A topic that was made anew under its old name doesn't mix its offsets with the old ones'."""
    HistoryTable(catalog, "shop.events", None, "one")
    with pytest.raises(HistoryError, match="another table"):
        HistoryTable(catalog, "shop.events", None, "two")


def test_others_snapshots_and_a_wider_schema(catalog: Any) -> None:
    """Somebody's snapshot on top of ours hides nothing; a new column is added to the table."""
    table = HistoryTable(catalog, "shop.events", Schema.parse("user BIGINT"), "id")
    table.append([chunk(0, 3)])
    catalog.load_table("shop.events").delete("offset = 1")
    again = HistoryTable(catalog, "shop.events", SCHEMA, "id")
    assert again.covered == {0: 3}
    again.append([chunk(4, 4)])
    rows = rows_of(catalog, "shop.events")
    assert [row["offset"] for row in rows] == [0, 2, 4, 5, 6, 7]
    assert [row["value_key"] for row in rows] == [None, None, "k4", "k5", "k6", "k7"]


class LostAnswers:
    """A catalog whose commits fail before or after they were made."""

    def __init__(self, catalog: Any, chance: random.Random, monkeypatch: Any) -> None:
        def commit_table(*arguments: Any) -> Any:
            fate = chance.random()
            if fate < 0.25:
                raise OSError("expected a catalog; found none")
            done = original(*arguments)
            if fate > 0.75:
                raise OSError("expected an answer; found none")
            return done

        original = catalog.commit_table
        monkeypatch.setattr(catalog, "commit_table", commit_table)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails_each_record_is_there_once(
    catalog: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed commits, lost answers and restarts: the table has each record, switched on late."""
    chance = random.Random(seed)
    monkeypatch.setattr(tiering, "BACKOFF_S_MIN", 0.0)
    monkeypatch.setattr(iceberg, "COMMIT_BYTES", 3000)
    monkeypatch.setattr(iceberg, "READ_BYTES", 1000)

    async def scenario() -> None:
        topics = Topics(MemoryFiles(), lambda: NOW)
        topic = topics.create("t", 2, {"segment.bytes": "4000", "retention.ms": "-1"})
        ends = [0, 0]

        def produce(count: int) -> None:
            for _ in range(count):
                part = chance.randrange(2)
                more = chance.randint(1, 4)
                made = bytearray(chunk(ends[part], more).data)
                assert topic.partitions[part].log.append(made, NOW).base_offset == ends[part]
                topic.partitions[part].log.sync()
                ends[part] += more

        produce(40)
        topics.configure(
            topic,
            topic.settings | {"penstock.iceberg.table": "a.b", "penstock.schema": SCHEMA.text},
        )
        LostAnswers(catalog, chance, monkeypatch)
        away = iter([True, False, True, False])

        def load() -> Any:
            if next(away, False):
                raise OSError("expected a catalog; found none")
            return catalog

        follower = Iceberg(load, None, 0.0)
        for _ in range(8):
            produce(chance.randint(0, 10))
            await follower.work(topics)
            if chance.random() < 0.3:
                await follower.close()
                follower = Iceberg(load, None, 0.0)
        monkeypatch.undo()
        for _ in range(3):
            await follower.work(topics)
        await follower.close()
        rows = rows_of(catalog, "a.b") + rows_of(catalog, "a.b_dead_letters")
        found = sorted((row["partition"], row["offset"]) for row in rows)
        assert found == [(part, n) for part in (0, 1) for n in range(ends[part])]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_brokers_topic_is_a_table(tmp_path: Path, connect: Callable[[str], Any]) -> None:
    """Switched on late, through a SIGKILL: pyiceberg and DuckDB read what was produced."""
    (tmp_path / "warehouse").mkdir()
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", (tmp_path / "warehouse").as_uri()
    arguments = ["--iceberg-catalog", uri, "--iceberg-warehouse", warehouse]
    arguments += ["--iceberg-interval-ms", "100", "--tier", (tmp_path / "tier").as_uri()]
    arguments += ["--tier-interval-ms", "50"]
    settings = {
        "segment.bytes": "4000",
        "remote.storage.enable": "true",
        "local.retention.bytes": "0",
        "retention.ms": "-1",
        "penstock.schema": SCHEMA.text,
    }
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        with connect(broker.address) as raw:
            configs = [{"name": name, "value": text} for name, text in settings.items()]
            wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": configs}
            assert (
                raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)["topics"][0][
                    "error_code"
                ]
                == 0
            )
            for start in range(0, 200, 10):
                raw.produce("t", chunk(start, 10).data, acks=-1)
            change = {
                "name": "penstock.iceberg.table", "config_operation": 0, "value": "shop.events"
            }  # fmt: skip
            resource = {"resource_type": 2, "resource_name": "t", "configs": [change]}
            answer = raw.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
            )
            assert answer["responses"][0]["error_code"] == 0
        broker.kill()
        broker.start()
        with connect(broker.address) as raw:
            raw.produce("t", chunk(200, 10).data, acks=-1)
            table = _wait_for(uri, warehouse, 210)
    rows = table.scan().to_arrow().sort_by("offset")
    good = [n for n in range(210) if n % 7 != 3 or n % 11 == 0]
    assert rows.column("offset").to_pylist() == good
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    query = 'SELECT count(*), sum("user"), count(DISTINCT "offset") FROM read_parquet($1)'
    users = [n for n in good if n % 11]
    with duckdb.connect() as connection:
        found = connection.execute(query, [files]).fetchone()
    assert found == (len(good), sum(users), len(good))


@pytest.mark.slow
def test_a_damaged_stretch_does_not_hold_up_the_table(
    tmp_path: Path, connect: Callable[[str], Any]
) -> None:
    """What can't be read is missing, and what follows is there."""
    (tmp_path / "warehouse").mkdir()
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", (tmp_path / "warehouse").as_uri()
    arguments = ["--iceberg-catalog", uri, "--iceberg-warehouse", warehouse]
    arguments += ["--iceberg-interval-ms", "100"]
    settings = {"retention.ms": "-1", "penstock.iceberg.table": "shop.events"}
    with BrokerProcess(tmp_path / "data") as broker, connect(broker.address) as raw:
        configs = [{"name": name, "value": text} for name, text in settings.items()]
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": configs}
        assert (
            raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)["topics"][0][
                "error_code"
            ]
            == 0
        )
        for _ in range(6):
            raw.produce("t", batches.build([(None, bytes(20_000))] * 2), acks=-1)
    file = tmp_path / "data/topics/t/0/00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 6 * 2 + 100] ^= 1
    file.write_bytes(data)
    with BrokerProcess(tmp_path / "data", arguments=arguments):
        table = _wait_for(uri, warehouse, 12)
    found = table.scan().to_arrow().column("offset").to_pylist()
    assert sorted(found) == [0, 1, 2, 3, *range(6, 12)]


def _wait_for(uri: str, warehouse: str, offset: int) -> Any:
    import time

    deadline = time.monotonic() + 240
    while True:
        found = load_catalog("penstock", uri=uri, warehouse=warehouse)
        if found.table_exists("shop.events"):
            table = found.load_table("shop.events")
            if json.loads(table.properties.get(tables.COVERED, "{}")).get("0", 0) >= offset:
                return table
        assert time.monotonic() < deadline
        time.sleep(0.2)
