"""Types from records to views and topics: DECIMAL, UUID, TIME, INTERVAL, and members of objects."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal

import pytest

import penstock as ps
from penstock.errors import FlowError

ONE, TWO = (str(uuid.UUID(int=n)) for n in (1, 2**127))
SCHEMA = "id UUID NOT NULL, amount DECIMAL(10, 2), large DECIMAL(30, 2), opens TIME, took INTERVAL"


def test_values_pass_through_a_pipeline() -> None:
    """Keys, sums, joins, expressions, a restart; nothing becomes a double."""
    app = ps.App("p")
    paid = app.stream("paid", SCHEMA)
    names = app.table("names", "id UUID NOT NULL, name STRING", key="id")
    totals = paid.group_by("id").agg(
        total=ps.sum("amount"),
        large=ps.sum("large"),
        double=ps.sum("amount * 2"),
        mean=ps.avg("amount"),
        spread=ps.stddev("amount"),
        last=ps.max("opens"),
        longest=ps.max("took"),
        over=ps.count(where="amount > 0.1"),
    )
    app.view("totals", totals)
    shown = totals.select("id", "total", taxed="total * 1.19", twice="longest * 2")
    app.view("shown", shown.where("total > 0.2"))
    named = names.join(totals.select("id", "total"), on="id")
    named.to("named")
    paid.enrich(names, on="id").where("took >= INTERVAL 2 SECOND").to("rich")
    run = ps.testing.run(app)
    run.send_raw("names", json.dumps({"id": ONE, "name": "Ann"}), key=ONE)
    for amount, large, took in ((0.1, "9" * 20, "PT1S"), ("0.20", -1, 2_500_000)):
        run.send("paid", id=ONE, amount=amount, large=large, opens="09:30:00", took=took)
        run.settle()
        run.restart()
    run.send("paid", id=TWO, amount=None, large=None, opens=None, took=None)
    run.send("paid", id=TWO, amount=0.001, large=None, opens=None, took=None)
    first, second = run.view("totals").rows()
    assert first["total"] == Decimal("0.30")
    assert first["large"] == Decimal("9" * 20) - 1
    assert first["double"] == Decimal("0.60")
    assert (first["mean"], first["over"]) == (0.15, 1)
    assert first["spread"] == pytest.approx(0.0707106781)
    assert first["longest"].total_seconds() == 2.5
    assert (second["id"], second["total"]) == (uuid.UUID(TWO).bytes, None)
    [row] = run.view("shown").rows()
    assert row["taxed"] == Decimal("0.357")
    assert row["twice"].total_seconds() == 5
    assert run.topic("named")[-1].value == f'{{"id":"{ONE}","name":"Ann","total":0.30}}'.encode()
    [rich] = [json.loads(record.value or b"") for record in run.topic("rich")]
    assert (rich["id"], rich["took"], rich["opens"]) == (ONE, "PT2.5S", "09:30:00")
    run.send_raw("names", None, key=ONE)
    assert run.topic("named")[-1].value is None
    [letter] = run.dead_letters()
    assert "at most 8 digits before the point and 2 after it" in letter.headers["penstock.reason"]


def test_what_a_topic_has_can_be_read_again() -> None:
    """An output's records fit a stream of the same schema."""
    writer = ps.App("w")
    writer.stream("in", SCHEMA).to("out")
    first = ps.testing.run(writer)
    values = {"id": ONE, "amount": "1.50", "large": 2, "opens": "00:00:00.5", "took": "-P1DT1S"}
    first.send("in", **values)
    reader = ps.App("r")
    reader.stream("out", SCHEMA).to("again")
    second = ps.testing.run(reader)
    [record] = first.topic("out")
    second.send_raw("out", record.value)
    assert [one.value for one in second.topic("again")] == [record.value]


def test_a_decimal_that_has_no_room_is_a_dead_letter() -> None:
    """DuckDB refuses what it would have to cut off; other rows go on."""
    app = ps.App("p")
    rows = app.stream("rows", "x DECIMAL(38, 0)")
    rows.select(y="x * 10").to("out")
    run = ps.testing.run(app)
    run.send("rows", x="9" * 38)
    run.send("rows", x=4)
    assert [record.value for record in run.topic("out")] == [b'{"y":40}']
    assert len(run.dead_letters()) == 1


def test_members_are_reached_wherever_they_are() -> None:
    """Members of members, elements of arrays, values of maps; and aggregates beside an object."""
    app = ps.App("p")
    events = app.stream(
        "events",
        "user STRUCT<id BIGINT, address STRUCT<city STRING, lines ARRAY<STRING>>>, "
        "items ARRAY<STRUCT<sku STRING, price DECIMAL(8, 2)>>, tags MAP<STRING, STRING>, n INT",
    )
    events.select(
        city="user.address.city",
        line="user.address.lines[2]",
        sku="items[1].sku",
        price="items[-1].price",
        tag="tags['a']",
        count="len(items)",
    ).to("out")
    app.view(
        "cities", events.select("n", city="user.address.city").group_by("city").agg(n=ps.sum("n"))
    )
    app.view("prices", events.group_by("n").agg(most=ps.max("items[1].price")))
    run = ps.testing.run(app)
    items = [{"sku": "x", "price": 1.5}, {"sku": "y", "price": "2.25"}]
    address = {"city": "Bonn", "lines": ["a", "b"]}
    run.send("events", user={"id": 1, "address": address}, items=items, tags={"a": "1"}, n=2)
    run.send("events", user=None, items=[], tags=None, n=3)
    assert [json.loads(record.value or b"") for record in run.topic("out")] == [
        {"city": "Bonn", "line": "b", "sku": "x", "price": 2.25, "tag": "1", "count": 2},
        {"city": None, "line": None, "sku": None, "price": None, "tag": None, "count": 0},
    ]
    assert run.view("cities").rows() == [{"city": "Bonn", "n": 2}, {"city": None, "n": 3}]
    assert [row["most"] for row in run.view("prices").rows()] == [Decimal("1.50"), None]


def test_a_column_that_has_no_number_is_no_sum() -> None:
    """A UUID can be counted and compared, and no more."""
    rows = ps.App("p").stream("rows", SCHEMA)
    rows.group_by("id").agg(n=ps.count_distinct("id"), most=ps.max("id"))
    with pytest.raises(FlowError, match="numbers for sum"):
        rows.group_by("id").agg(n=ps.sum("id"))
