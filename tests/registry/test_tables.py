"""Tables of topics whose keys and values are Avro, by the schemas of a registry."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import pytest
from tests.registry.asking import Asking

import penstock as ps
from penstock.client.schemas import registered_schemas
from penstock.errors import FlowError
from penstock.testing import Run

URL = "http://registry:8081"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Asking:
    """A registry that pipelines reach without a socket."""
    asking = Asking()

    def asked(url: str, path: str, _patience_s: float, _field: str) -> Any:
        assert url == URL
        found = asking("GET", path)
        return found if asking.status == 200 else None

    monkeypatch.setattr("penstock.client.schemas._asked", asked)
    registered_schemas.cache_clear()
    return asking


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


KEY = record("Key", ("id", "long"))
VALUE = record("Value", ("id", "long"), ("name", ["null", "string"]), ("note", "string"))
COLUMNS = "id BIGINT, name STRING"


class Topic:
    """Sends what Confluent's serializers would: registers schemas, and writes by them."""

    def __init__(self, run: Run, registry: Asking) -> None:
        self._run, self._registry = run, registry

    def send(self, key: Any, value: Any, key_schema: Any = KEY, schema: Any = VALUE) -> None:
        encoded_key = self._encoded("users-key", key_schema, key)
        self._run.send_raw("users", self._encoded("users-value", schema, value), key=encoded_key)

    def _encoded(self, subject: str, schema: Any, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        id_ = self._registry.register(subject, schema)
        return b"\0" + id_.to_bytes(4, "big") + out.getvalue()


def opened(registry: Asking, columns: str = COLUMNS, format_: str = "avro") -> tuple[Run, Topic]:
    app = ps.App("shop")
    app.view("users", app.table("users", columns, key="id", format=format_, registry=URL))
    run = ps.testing.run(app)
    return run, Topic(run, registry)


def test_rows_and_tombstones(registry: Asking) -> None:
    """A record is its key's row; one without a value deletes it, by a key of any form."""
    run, topic = opened(registry)
    registry("PUT", "/config", {"compatibility": "NONE"})
    for id_, name in enumerate(["ann", "bob", "cy", None]):
        topic.send({"id": id_}, {"id": id_, "name": name, "note": ""})
    topic.send({"id": 0}, {"id": 0, "name": "Ann", "note": "x"})
    topic.send({"id": 1}, None)  # a record
    topic.send(2, None, key_schema={"type": "long"})  # the value alone
    topic.send("3", None)  # text
    assert run.view("users").rows() == [{"id": 0, "name": "Ann"}]
    topic.send({"no": 7}, None, key_schema=record("Key", ("no", "long")))
    assert run.view("users").rows() == [{"id": 0, "name": "Ann"}]
    [dead] = run.dead_letters()
    assert "in the record's key" in dead.headers["penstock.reason"]


def test_the_same_in_sql(registry: Asking) -> None:
    """WITH (format = 'avro', registry = …)."""
    app = ps.App("shop")
    app.sql(f"""
        CREATE TABLE users (id BIGINT, name STRING, PRIMARY KEY (id))
            WITH (format = 'avro', registry = '{URL}');
        CREATE MATERIALIZED VIEW named AS SELECT id, name FROM users WHERE name IS NOT NULL;
    """)
    run = ps.testing.run(app)
    Topic(run, registry).send({"id": 1}, {"id": 1, "name": "ann", "note": ""})
    assert run.view("named").rows() == [{"id": 1, "name": "ann"}]


def connect(type_: str, name: str) -> dict[str, Any]:
    """A type as Debezium's converter writes it."""
    return {"type": type_, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}


def envelope(*more: tuple[str, Any]) -> dict[str, Any]:
    """Debezium's: `after` names the record that `before` defines."""
    row = record("Value", ("id", "long"), ("name", ["null", "string"]), *more)
    source = record("Source", ("version", "string"), ("snapshot", ["string", "null"]))
    fields = ("before", ["null", row]), ("after", ["null", "Value"]), ("source", source)
    return {**record("Envelope", *fields, ("op", "string")), "namespace": "shop.public.users"}


SOURCE = {"version": "3.0", "snapshot": "true"}


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": SOURCE}


def test_debezium_envelopes_in_avro(registry: Asking) -> None:
    """Inserts, updates and deletions; a new version of the writer's schema in between."""
    run, topic = opened(registry, format_="debezium")
    ann, bob = {"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}
    topic.send({"id": 1}, change("r", after=ann), schema=envelope())
    topic.send({"id": 2}, change("c", after=bob), schema=envelope())
    topic.send({"id": 2}, change("u", bob, {"id": 2, "name": "Bob"}), schema=envelope())
    topic.send({"id": 1}, change("d", ann), schema=envelope())
    topic.send({"id": 1}, None)
    registry("PUT", "/config", {"compatibility": "NONE"})
    newer = envelope(("n", "int"))
    topic.send({"id": 3}, change("c", after={"id": 3, "name": None, "n": 1}), schema=newer)
    assert run.view("users").rows() == [{"id": 2, "name": "Bob"}, {"id": 3, "name": None}]
    topic.send({"id": 2}, change("d"), schema=newer)  # by its key
    assert run.view("users").rows() == [{"id": 3, "name": None}]
    topic.send({"id": 3}, change("t"), schema=newer)
    topic.send({"id": 3}, change("c"), schema=newer)
    assert run.view("users").rows() == [{"id": 3, "name": None}]
    reasons = [one.headers["penstock.reason"] for one in run.dead_letters()]
    assert [reason.partition("; found")[0] for reason in reasons] == [
        "expected 'op' to be c, r, u or d",
        "expected the row as 'after'",
    ]


def test_debezium_types_are_columns_of_theirs(registry: Asking) -> None:
    """Days, instants and texts with a zone, which Debezium writes as attributes of plain types."""
    columns = "id BIGINT, day DATE, at TIMESTAMP, zoned TIMESTAMP"
    run, topic = opened(registry, columns, "debezium")
    schema = envelope(
        ("day", connect("int", "Date")),
        ("at", connect("long", "MicroTimestamp")),
        ("zoned", connect("string", "ZonedTimestamp")),
    )
    row = {"id": 1, "name": None, "day": 20_000, "at": 1_000_001, "zoned": "2026-01-02T03:04:05.6Z"}
    topic.send({"id": 1}, change("c", after=row), schema=schema)
    topic.send({"id": 2}, change("c", after={**row, "id": 2, "zoned": "noon"}), schema=schema)
    assert run.view("users").rows() == [
        {
            "id": 1,
            "day": date(2024, 10, 4),
            "at": datetime(1970, 1, 1, 0, 0, 1, 1, UTC),
            "zoned": datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC),
        }
    ]
    [dead] = run.dead_letters()
    assert "expected an instant; found 'noon'" in dead.headers["penstock.reason"]


def test_what_a_pipeline_writes_is_read_as_a_table(registry: Asking) -> None:
    """Upserts as rows, changes as envelopes: the table is the one that was written."""
    first = ps.App("first")
    users = first.table("named", COLUMNS, key="id")
    users.to("users", emit="changes", format="avro", registry=URL)
    written = ps.testing.run(first)
    written.send("named", id=1, name="ann")
    written.settle()
    written.send("named", id=1, name="Ann")
    written.send("named", id=2, name="bob")
    written.settle()
    for (_, subject, _, text), id_ in written.log.schemas.items():
        while registry.register(subject, json.loads(text)) != id_:
            pytest.fail("another id")
    run, _ = opened(registry, format_="debezium")
    for one in written.topic("users"):
        run.send_raw("users", one.value, key=one.key)
    assert run.view("users").rows() == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "bob"}]


@pytest.mark.parametrize(
    ("format_", "registry", "message"),
    [
        ("avro", None, "expected registry='http"),
        ("maxwell", URL, "with format='maxwell'"),
        ("json", URL, "with format='json'"),
        ("avro", "registry", "expected a registry's URL"),
        ("protobuf", None, "found none"),
        ("xml", None, "or format='avro'"),
    ],
)
def test_what_is_no_format_of_tables_is_refused(
    format_: Any, registry: str | None, message: str
) -> None:
    """When the program is read."""
    with pytest.raises(FlowError, match=message):
        ps.App("shop").table("users", COLUMNS, key="id", format=format_, registry=registry)
