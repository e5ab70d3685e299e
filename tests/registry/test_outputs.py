"""Topics that pipelines write as Avro, with schemas that they register."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from email.message import Message
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import fastavro
import pytest
from tests.registry.asking import Asking

import penstock as ps
from penstock.client.schemas import registered_schemas, schema_id
from penstock.errors import BrokerError, FlowError, SchemaError, SetupError
from penstock.testing import MemoryLog, Record, Run

URL = "http://registry:8081"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Asking:
    """A registry that pipelines reach without a socket."""
    asking = Asking()

    def opened(asked: Request, **_: Any) -> Any:
        body = asked.data
        assert asked.full_url.startswith(URL)
        path = asked.full_url.removeprefix(URL)
        asking(asked.get_method(), path, json.loads(body) if isinstance(body, bytes) else None)
        data = io.BytesIO(asking.answer.content)
        if asking.status != 200:
            raise HTTPError(URL, asking.status, "", Message(), data)
        return data

    monkeypatch.setattr("penstock.client.schemas.urlopen", opened)
    monkeypatch.setattr(MemoryLog, "schema_id", lambda _, *arguments: schema_id(*arguments))
    schema_id.cache_clear()
    registered_schemas.cache_clear()
    return asking


def in_python(columns: str = "user STRING NOT NULL, amount BIGINT") -> ps.App:
    app = ps.App("shop")
    orders = app.stream("orders", columns)
    sums = orders.group_by("user").agg(amount=ps.sum("amount"))
    orders.to("copy", format=ps.avro(registry=URL))
    sums.to("sums", format="avro", registry=f"{URL}/")
    sums.to("changed", emit="changes", format="avro", registry=URL)
    return app


def in_sql() -> ps.App:
    app = ps.App("shop")
    options = f"WITH (format = 'avro', registry = '{URL}')"
    summed = "SELECT user, sum(amount) AS amount FROM orders GROUP BY user"
    app.sql(f"""
        CREATE STREAM orders (user STRING NOT NULL, amount BIGINT);
        CREATE SINK copy INTO copy {options} AS SELECT * FROM orders;
        CREATE SINK sums INTO sums {options} AS {summed};
        CREATE SINK changed INTO changed {options} AS {summed} EMIT CHANGES;
    """)
    return app


def read(registry: Asking, data: bytes | None) -> Any:
    """A key or a value, by the schema that the registry has for its id."""
    if data is None:
        return None
    assert data[0] == 0
    found = registry("GET", f"/schemas/ids/{int.from_bytes(data[1:5], 'big')}")
    schema = fastavro.parse_schema(json.loads(found["schema"]))
    return fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)


def pairs(registry: Asking, records: list[Record]) -> list[tuple[Any, Any]]:
    return [(read(registry, one.key), read(registry, one.value)) for one in records]


def send(run: Run, user: str, amount: int | None) -> None:
    run.send("orders", user=user, amount=amount)
    run.settle()


@pytest.mark.parametrize("program", [in_python, in_sql])
def test_topics_are_avro_by_registered_schemas(
    registry: Asking, program: Callable[[], ps.App]
) -> None:
    """Rows, upserts and changes, under the subjects of their topics; keys are records of the key."""
    run = ps.testing.run(program())
    send(run, "ann", 3)
    send(run, "ann", None)
    send(run, "ann", 4)
    copied = [value for _, value in pairs(registry, run.topic("copy"))]
    assert copied == [{"user": "ann", "amount": amount} for amount in (3, None, 4)]
    key = {"user": "ann"}
    first, *_, last = pairs(registry, run.topic("sums"))
    assert first == (key, {"user": "ann", "amount": 3})
    assert last == (key, {"user": "ann", "amount": 7})
    changed = pairs(registry, run.topic("changed"))
    assert changed[0][1] == {"op": "c", "before": None, "after": {"user": "ann", "amount": 3}}
    assert changed[-1][1]["op"] == "u"
    assert changed[-1][1]["after"] == {"user": "ann", "amount": 7}
    expected = ["changed-key", "changed-value", "copy-value", "sums-key", "sums-value"]
    assert registry("GET", "/subjects") == expected


def test_rows_that_are_gone_are_tombstones(registry: Asking) -> None:
    """With the key that the rows had: the same bytes."""
    app = ps.App("shop")
    users = app.table("users", "id BIGINT, name STRING", key="id")
    users.to("copied", format="avro", registry=URL)
    run = ps.testing.run(app)
    run.send("users", id=1, name="ann")
    run.settle()
    run.send_raw("users", None, key="1")
    run.settle()
    [there, gone] = run.topic("copied")
    assert read(registry, there.key) == {"id": 1}
    assert there.key == gone.key
    assert gone.value is None


def test_a_change_that_readers_cannot_follow_is_refused_at_the_start(registry: Asking) -> None:
    """With the subject and what is wrong; what they can follow is the next version."""
    ps.testing.run(in_python())
    ps.testing.run(in_python("user STRING NOT NULL, amount BIGINT, note STRING"))
    assert registry("GET", "/subjects/copy-value/versions") == [1, 2]
    with pytest.raises(
        SetupError, match=r"expected a schema for copy-value .*MISSING_UNION_BRANCH"
    ):
        ps.testing.run(in_python("user STRING NOT NULL, amount BIGINT, note BIGINT"))
    assert registry("GET", "/subjects/copy-value/versions") == [1, 2]


def test_what_is_registered_is_only_looked_up(registry: Asking) -> None:
    """So a registry that takes no writes is enough for a program that starts again."""
    ps.testing.run(in_python())
    registry("PUT", "/mode", {"mode": "READONLY"})
    schema_id.cache_clear()
    run = ps.testing.run(in_python())
    send(run, "ann", 3)
    assert pairs(registry, run.topic("copy")) == [(None, {"user": "ann", "amount": 3})]
    with pytest.raises(SetupError, match="read-only mode"):
        ps.testing.run(in_python("user STRING NOT NULL, amount BIGINT, note STRING"))


def test_a_registry_that_is_away_is_waited_for() -> None:
    """The error says that it can be tried again."""
    with pytest.raises(BrokerError, match="expected the schema registry at") as caught:
        schema_id("http://127.0.0.1:1", "s", "{}", patience_s=0.0)
    assert caught.value.retriable


@pytest.mark.parametrize(
    ("format_", "registry", "message"),
    [
        ("avro", None, "found format='avro'"),
        ("protobuf", None, "found format='protobuf'"),
        ("json", URL, "found format='json' and registry="),
        ("csv", None, "found format='csv'"),
        (ps.avro('{"type": "record", "name": "r", "fields": []}'), None, "with registry="),
        ("avro", "registry:8081", "expected a registry's URL"),
    ],
)
def test_what_is_no_format_of_outputs_is_refused(
    format_: Any, registry: str | None, message: str
) -> None:
    """When the program is read."""
    orders = ps.App("shop").stream("orders", "user STRING")
    with pytest.raises(FlowError, match=message):
        orders.to("copy", format=format_, registry=registry)


def test_columns_without_a_name_in_avro_are_refused() -> None:
    """When the program is read, with the way to rename them."""
    orders = ps.App("shop").stream("orders", '"per day" BIGINT')
    with pytest.raises(SchemaError, match="found 'per day'"):
        orders.to("copy", format="avro", registry=URL)


def test_the_format_is_part_of_what_is_written() -> None:
    """Another format is another output; where the registry is, is not."""

    def identities(**options: Any) -> list[str]:
        app = ps.App("shop")
        app.stream("orders", "user STRING").to("copy", **options)
        return [one.identity for one in app.graph().outputs]

    one = identities(format="avro", registry=URL)
    assert one == identities(format="avro", registry="http://elsewhere")
    assert one != identities()
