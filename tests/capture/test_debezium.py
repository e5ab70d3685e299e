"""What is captured is what the real Debezium captured of the same statements, field by field.

`debezium/NAME.sql` are statements; `NAME.jsonl` is what Debezium 3.6.3 made of them on PostgreSQL 15. What
depends on the run is left out: versions, times, positions, numbers of transactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.capture import outbox, schemas, snapshot
from penstock.capture.databases.postgres.snapshots import chunks
from penstock.client import Client, Reader
from penstock.formats.changelog import EMPTIED
from penstock.wire.columns import header

WITHOUT_EXTENSIONS = [
    *((f"create extension if not exists {one};\n", "") for one in ("hstore", "citext", "ltree")),
    (", c_citext citext", ""),
    (", 'CiText'", ""),
    ("c_hstore hstore, c_ltree ltree, ", ""),
    ("c_xml xml", "c_xml text"),
    (""",'a=>1,b=>NULL,"c d"=>"e"','Top.Science'""", ""),
]
"""The server of the wheel has no extensions."""
NO_EXTENSION = {"c_citext", "c_hstore", "c_ltree"}
EXPLAINED = {
    "01_basic": {
        # Debezium keys by the primary key, which a deletion doesn't tell here, so it says {"id": 0}. Ours are
        # keyed by the replica identity.
        "inventory.idx_ident",
        # Debezium reads partitioned rows twice, and has their changes under the partition. Ours are their
        # table's, once.
        "inventory.part",
        "inventory.part_2024",
        "inventory.part_2025",
    }
}
"""Topics that differ, and why."""
COLUMNS_EXPLAINED = {
    "c_int2d",  # Debezium: [null, null]; ours are arrays in arrays
    "c_gen",  # Debezium has generated columns in snapshots alone; ours never
    "c_date",  # 'infinity': Debezium has one number in snapshots and another one in changes
    "c_name",  # Debezium has it in snapshots alone
}
"""Columns that differ, and why."""
FOLDER = Path(__file__).parent / "debezium"


def expected(name: str) -> dict[str, list[Any]]:
    """Debezium's records, by topic."""
    found: dict[str, list[Any]] = {}
    for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines():
        one = orjson.loads(line)
        headers = {n: v for n, v in one["headers"] if not n.startswith("__debezium.context")}
        topic = one["topic"].removeprefix("golden.")
        found.setdefault(topic, []).append((one["key"], normal(one["value"]), headers))
    return found


def captured(source: Any) -> dict[str, list[Any]]:
    """Ours, by topic; without the deletions of keys behind a truncation, which Debezium doesn't have."""
    found: dict[str, list[Any]] = {}
    with Client(source.log) as client, Reader(source.log) as reader:
        for topic in client.topics():
            if not topic.startswith(f"{source.name}.") or ".capture" in topic:
                continue
            mine = found.setdefault(topic.removeprefix(f"{source.name}."), [])
            is_emptied = False
            for records in reader.read(topic, 0, 0, client.offsets(topic)[0]):
                rows = zip(
                    records.keys().to_pylist(),
                    records.values().to_pylist(),
                    [header(records, i) for i in range(len(records))],
                    strict=True,
                )
                for key, value, headers in rows:
                    fields = {n: orjson.loads(v) for n, v in headers}
                    is_emptied = fields.pop(EMPTIED, is_emptied and value is None)
                    if is_emptied and value is None:
                        continue
                    read = None if value is None else orjson.loads(value)
                    mine.append((key and orjson.loads(key), normal(read), fields))
    return {topic: records for topic, records in found.items() if records}


def normal(value: Any) -> Any:
    """A value without what depends on the run; the order of members counts."""
    if value is None or "source" not in value:
        return value
    source = dict(value["source"])
    if value.get("transaction"):
        value = {**value, "transaction": {**value["transaction"], "id": "…"}}
    for name in ("version", "name", "db", "ts_ms", "ts_us", "ts_ns", "sequence", "lsn", "txId"):
        if source.get(name) is not None:
            source[name] = "…"
    value = {n: "…" if n.startswith("ts_") else v for n, v in value.items()}
    return [*{**value, "source": [*source.items()]}.items()]


def transactions(records: list[Any]) -> list[Any]:
    """Records of a transactions' topic without what depends on the run; not those of the marker's table."""
    found = []
    for key, value, _ in records:
        assert key["id"] == value["id"]
        collections = value["data_collections"] or []
        counts = sorted((one["data_collection"], one["event_count"]) for one in collections)
        found.append((value["status"], value["event_count"], counts))
    return [
        pair
        for pair in zip(found[::2], found[1::2], strict=True)
        if pair[1][2] != [("public.zz_marker", 1)]
    ]


def run(source: Any, name: str, **settings: Any) -> dict[str, list[Any]]:
    """Captures what the statements do."""
    text = (FOLDER / f"{name}.sql").read_text()
    for one, other in WITHOUT_EXTENSIONS:
        text = text.replace(one, other)
    setup, steps = text.split("-- steps (connector streaming)\n")
    source.execute(setup.split("\n", 1)[1])
    with source.running("*.*", large_values="placeholder", **settings) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.steps(steps)
        end = source.end()
        source.follows(capture, lambda: capture.done.position >= end)
    return captured(source)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["01_basic", "02b_toast"])
def test_records_are_debezium_s(source, name) -> None:
    """Of each statement come the same records, in the same order, but for the topics explained above."""
    mine, theirs = run(source, name), expected(name)
    for topic in EXPLAINED.get(name, {}):
        assert mine.pop(topic, None) != theirs.pop(topic), (
            f"{topic} is the same: explain it no more"
        )
    assert mine == theirs


def test_values_of_all_types_are_debezium_s(source) -> None:
    """Of each type come the same values, but for the columns explained above."""
    mine, theirs = run(source, "02_types_default"), expected("02_types_default")
    assert [key for key, _, _ in mine["public.types"]] == [k for k, _, _ in theirs["public.types"]]
    different = set()
    for (key, one, _), (_, other, _) in zip(
        mine["public.types"], theirs["public.types"], strict=True
    ):
        for (name, ours), (_, debezium) in zip(one or (), other or (), strict=True):
            if name == "source":
                continue
            if name not in ("before", "after") or ours is None or debezium is None:
                assert (name, ours) == (name, debezium), key
                continue
            names = [n for n in debezium if n in ours]
            assert [*ours] == names
            different |= {n for n in debezium if n not in ours or ours[n] != debezium[n]}
    assert different == {*COLUMNS_EXPLAINED, *NO_EXTENSION}


@pytest.mark.slow
def test_a_replica_identity_by_index_keys_its_records(source) -> None:
    """A row's records have one key all the time, also where that isn't the primary key."""
    found = run(source, "01_basic")["inventory.idx_ident"]
    assert [key for key, _, _ in found] == [{"code": c} for c in 4 * ["c1"] + 3 * ["c2"]]


def test_changes_of_schemas_are_debezium_s(source) -> None:
    """Columns that are added, dropped, renamed and retyped: the rows are the same, at once with each change.

    Debezium loses keys where one change of the schema soon follows another. Ours are those of the rows.
    A table that is renamed is read again, under its new name.
    """
    mine = run(source, "03_schema_change", schema_changes=True, notifications=True)
    theirs = expected("03_schema_change")["public.evolve"]
    assert mine["public.evolve"] == [
        ({"id": dict(value)["after"]["id"]}, value, headers) for _, value, headers in theirs
    ]
    rows = source.rows("SELECT id, d, g FROM evolved")
    assert {(one["id"], one["g"]) for one in after(mine["public.evolved"])} == {
        (id_, g) for id_, _, g in rows
    }
    assert schemas(source.name, source.log)["public.evolve"].number >= 5
    assert schemas(source.name, source.log)["public.evolved"].shape.key == ("id", "d")
    changes = [value for _, value in source.records(source.name)]
    assert {one["tableChanges"][0]["type"] for one in changes} == {"CREATE", "ALTER"}
    columns = {
        (column["name"], column["typeName"], column["length"], column["scale"])
        for one in changes
        for column in one["tableChanges"][0]["table"]["columns"]
    }
    assert {("a", "CHARACTER VARYING", 10, None), ("d", "NUMERIC", 6, 2)} <= columns
    assert {("b", "INTEGER", None, None), ("b2", "BIGINT", None, None)} <= columns
    notifications = [value for _, value in source.records(f"{source.name}.notifications")]
    whats = [one["type"] for one in notifications]
    assert whats[:4] == ["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert {one["aggregate_type"] for one in notifications} == {"Initial Snapshot"}
    assert notifications[2]["additional_data"] == {
        "scanned_collection": "public.evolve",
        "status": "SUCCEEDED",
        "total_rows_scanned": "1",
        "connector_name": source.name,
        "data_collections": "public.evolve",
    }


def after(records: list[Any]) -> list[Any]:
    """The newest rows of a topic, by key."""
    found = {orjson.dumps(key): dict(value)["after"] for key, value, _ in records if value}
    return [*found.values()]


def test_transactions_are_debezium_s(source) -> None:
    """Each change says its place; the transactions' topic says what each had."""
    mine = run(source, "04_tx_metadata", transactions=True)
    theirs = expected("04_tx_metadata")
    del theirs["public.zz_marker"]
    assert {value["id"] for _, value, _ in mine["transaction"] if value["status"] == "BEGIN"} == {
        value["id"] for _, value, _ in mine["transaction"] if value["status"] == "END"
    }
    assert transactions(mine.pop("transaction")) == transactions(theirs.pop("transaction"))
    assert mine == theirs


@pytest.mark.slow
def test_snapshots_while_changes_flow_are_debezium_s(source, monkeypatch) -> None:
    """The same rows in the same envelopes and order, and notifications but those of single chunks.

    Debezium takes requests from a table of signals, whose rows it captures. Of a table without a primary
    key it reads a few rows; ours refuses it.
    """
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    name = "05_incremental_basic"
    setup, steps = (FOLDER / f"{name}.sql").read_text().split("-- steps (connector streaming)\n")
    source.execute(setup.split("\n", 1)[1])
    asked = [
        {"tables": ["items"]},
        {"tables": ["items2", "empty_t"]},
        {"tables": ["items"], "where": "grp=1"},
    ]
    with source.running("items", "items2", "empty_t", notifications=True) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.steps("\n".join(one for one in steps.splitlines() if "dbz_signal" not in one))
        for i, request in enumerate(asked):
            snapshot(source.name, log=source.log, **request)
            source.follows(capture, lambda: len(notes(captured(source))) == 3 * (i + 1) + (i > 0))  # noqa: B023
    mine, theirs = captured(source), expected(name)
    assert notes(mine) == notes(theirs)[:10]
    for topic in ("public.items", "public.items2"):
        rows, others = (
            [one for one in found[topic] if one[1] and "incremental" in str(one[1])]
            for found in (mine, theirs)
        )
        assert len(others) == (13 if topic == "public.items" else 7)
        assert rows == others


def notes(records: dict[str, list[Any]]) -> list[Any]:
    """Notifications of snapshots while changes flow, without those of chunks."""
    return [
        (one["type"], {**one["additional_data"], "connector_name": "…"})
        for _, one, _ in records.get("notifications", ())
        if one["aggregate_type"] == "Incremental Snapshot" and one["type"] != "IN_PROGRESS"
    ]


def test_events_of_an_outbox_are_debezium_s(source) -> None:
    """They go to the topics that they name; what is updated or deleted is no event."""
    run(source, "06_outbox_default", outbox="outboxevent")
    found: dict[str, list[Any]] = {}
    with Client(source.log) as client, Reader(source.log) as reader:
        for topic in client.topics():
            if topic.startswith("outbox.event."):
                for records in reader.read(topic, 0, 0, client.offsets(topic)[0]):
                    for i, (key, value) in enumerate(
                        zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
                    ):
                        pair = (key.decode(), value and value.decode())
                        headers = {n: v.decode() for n, v in header(records, i)}
                        found.setdefault(topic, []).append((*pair, headers))
    assert found == expected("06_outbox_default")
    assert source.records(f"{source.name}.public.outboxevent") == []


def events(source: Any, topic: str) -> list[Any]:
    """Keys as text, and values, of a topic."""
    with Client(source.log) as client, Reader(source.log) as reader:
        return [
            (key.decode(), value)
            for records in reader.read(topic, 0, 0, client.offsets(topic)[0])
            for key, value in zip(
                records.keys().to_pylist(), records.values().to_pylist(), strict=True
            )
        ]


@pytest.mark.slow
def test_an_outbox_is_created_and_read_from_its_first_row(source) -> None:
    """Events that were written before the capture began are captured."""
    outbox(source.url, "events")
    outbox(source.url, "events")
    insert = "INSERT INTO events(aggregatetype, aggregateid, type, payload)"
    source.execute(f"{insert} VALUES ('{source.name} x', 'a', 'Made', '{{\"n\": 1}}')")
    source.run("events", outbox="events", heartbeat_s=0.1)
    assert events(source, f"outbox.event.{source.name}_x") == [("a", b'{"n": 1}')]
    beats = source.records(f"__debezium-heartbeat.{source.name}")
    assert beats
    assert all(key == {"serverName": source.name} and [*value] == ["ts_ms"] for key, value in beats)
