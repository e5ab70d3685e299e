"""Pipelines that read Avro by the schemas of a registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from email.message import Message
from http.client import IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request

import fastavro
import pytest
from tests.registry.asking import Asking

import penstock as ps
from penstock.client.schemas import registered_schemas
from penstock.errors import BrokerError, FlowError

URL = "http://registry:8081"


def order(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "o", "fields": [{"name": n, "type": t} for n, t in fields]}


def framed(id_: int, value: dict[str, Any], *schemas: Any) -> bytes:
    """A value as a serializer writes it; the last schema is its own, which may name those before."""
    named: dict[str, Any] = {}
    for one in schemas:
        parsed = fastavro.parse_schema(one, named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return b"\0" + id_.to_bytes(4, "big") + out.getvalue()


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


SQL = f"""
CREATE STREAM orders (user STRING, amount BIGINT) WITH (format = 'avro', registry = '{URL}');
CREATE MATERIALIZED VIEW sums AS SELECT user, sum(amount) AS amount FROM orders GROUP BY user;
"""


def in_python() -> ps.App:
    app = ps.App("shop")
    orders = app.stream("orders", "user STRING, amount BIGINT", format=ps.avro(registry=URL))
    app.view("sums", orders.group_by("user").agg(amount=ps.sum("amount")))
    return app


def in_sql() -> ps.App:
    app = ps.App("shop")
    app.sql(SQL)
    return app


@pytest.mark.parametrize("program", [in_python, in_sql])
def test_several_writers_schemas_are_read_in_one_topic(
    registry: Asking, program: Callable[[], ps.App]
) -> None:
    """By what the registry has when their records come; others are dead letters with the reason."""
    one = order(("user", "string"), ("amount", "int"))
    other = order(("amount", ["null", "long"]), ("note", "string"), ("user", "string"))
    wrong = order(("user", "string"), ("amount", "string"))
    registry("PUT", "/config", {"compatibility": "NONE"})
    first = registry.register("orders-value", one)
    run = ps.testing.run(program())
    run.send_raw("orders", framed(first, {"user": "ann", "amount": 1}, one))
    assert run.view("sums").rows() == [{"user": "ann", "amount": 1}]
    second = registry.register("orders-value", other)
    third = registry.register("orders-value", wrong)
    run.send_raw("orders", framed(second, {"user": "ann", "amount": 1 << 40, "note": "x"}, other))
    run.send_raw("orders", framed(third, {"user": "ann", "amount": "7"}, wrong))
    run.send_raw("orders", framed(99, {"user": "ann", "amount": 7}, one))
    run.send_raw("orders", b"text")
    assert run.view("sums").rows() == [{"user": "ann", "amount": (1 << 40) + 1}]
    reasons = [one["reason"] if isinstance(one, dict) else str(one) for one in run.dead_letters()]
    assert len(reasons) == 3
    assert "schema 3: expected column 'amount' as its Avro field is" in reasons[0]
    assert "expected the id of a schema in the registry; found 99" in reasons[1]
    assert "expected" in reasons[2]


def test_types_of_references_are_read(registry: Asking) -> None:
    """A named type is written out where it is first named, and known after that."""
    money = {"type": "record", "name": "money", "fields": [{"name": "cents", "type": "long"}]}
    outer = order(("user", "string"), ("net", "money"), ("tax", "money"))
    registry.register("money", money)
    named = [{"name": "money", "subject": "money", "version": 1}]
    id_ = registry.register("orders-value", outer, references=named)
    app = ps.App("shop")
    columns = "user STRING, tax STRUCT<cents BIGINT>"
    orders = app.stream("orders", columns, format=ps.avro(registry=URL))
    app.view("taxes", orders.group_by("user").agg(tax=ps.sum("tax.cents")))
    run = ps.testing.run(app)
    value = {"user": "ann", "net": {"cents": 3}, "tax": {"cents": 5}}
    run.send_raw("orders", framed(id_, value, money, outer))
    assert run.view("taxes").rows() == [{"user": "ann", "tax": 5}]


def test_a_registry_that_is_away_is_an_error_that_is_tried_again() -> None:
    """So a batch waits; nothing becomes a dead letter."""
    ask = registered_schemas("http://127.0.0.1:1", patience_s=0.0)
    with pytest.raises(BrokerError, match="expected the schema registry at") as caught:
        ask(1)
    assert caught.value.retriable


def answering(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | bytes
) -> Callable[[int], str | None]:
    """What asks a server that answers so."""

    def opened(*_: Any, **__: Any) -> Any:
        if isinstance(answer, bytes):
            return io.BytesIO(answer)
        raise answer

    monkeypatch.setattr("penstock.client.schemas.urlopen", opened)
    registered_schemas.cache_clear()
    return registered_schemas(URL, patience_s=0.0)


@pytest.mark.parametrize(
    "answer",
    [
        HTTPError(URL, 404, "Not Found", Message(), io.BytesIO(b"<html>no such page</html>")),
        HTTPError(URL, 404, "Not Found", Message(), io.BytesIO(b'{"error_code": 404}')),
        IncompleteRead(b""),
        b"<html>",
        b'{"status": "UP"}',
    ],
)
def test_what_no_registry_says_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | bytes
) -> None:
    """A proxy that has lost its registry, or one that ends while it answers, makes no dead letters."""
    with pytest.raises(BrokerError) as caught:
        answering(monkeypatch, answer)(1)
    assert caught.value.retriable


def test_a_password_is_for_the_registry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server that it refers to gets the request without it."""
    sent: list[Request] = []

    def opened(asked: Request, **_: Any) -> Any:
        sent.append(asked)
        return io.BytesIO(b'{"schema": "[]"}')

    monkeypatch.setattr("penstock.client.schemas.urlopen", opened)
    monkeypatch.setenv("PENSTOCK_REGISTRY_PASSWORD", "of twelve characters")
    registered_schemas.cache_clear()
    assert registered_schemas(URL, patience_s=0.0)(1) == "[]"
    [asked] = sent
    other = HTTPRedirectHandler().redirect_request(
        asked, io.BytesIO(), 302, "Found", Message(), "http://elsewhere/"
    )
    assert asked.has_header("Authorization")
    assert other is not None
    assert not other.has_header("Authorization")


def test_an_id_that_a_registry_does_not_know_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Confluent's API says it."""
    body = io.BytesIO(b'{"error_code": 40403, "message": "Schema 1 not found"}')
    assert answering(monkeypatch, HTTPError(URL, 404, "Not Found", Message(), body))(1) is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("registry:8081", "expected a registry's URL"),
        ("ftp://registry", "expected a registry's URL"),
        ("http://ann:secret@registry", "expected a registry's URL without a password"),
    ],
)
def test_what_is_no_registry_is_refused(url: str, message: str) -> None:
    """When the program is read."""
    with pytest.raises(FlowError, match=message) as caught:
        ps.avro(registry=url)
    assert "secret" not in str(caught.value)


def test_a_plan_is_the_same_with_and_without_a_registry() -> None:
    """State is found again where a registry is added, or moves."""
    schema = json.dumps(order(("user", "string")))
    assert repr(ps.avro({7: schema})) == repr(ps.avro({7: schema}, registry=URL))
