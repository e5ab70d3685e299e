"""Objects within rows: STRUCT, MAP and BINARY, as a naive reader takes them and back again."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.formats.json import Decoded, JsonDecoder, encode_rows

NAMES = ("a", "b c", "é")
LEAVES = {
    "BIGINT": st.one_of(st.integers(-(2**64), 2**64), st.just("no number")),
    "STRING": st.one_of(st.text(max_size=4), st.integers()),
    "BOOLEAN": st.one_of(st.booleans(), st.just(0)),
    "BINARY": st.one_of(
        st.binary(max_size=5).map(lambda b: base64.b64encode(b).decode()), st.text()
    ),
}
TYPES = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        inner.map(lambda one: ("ARRAY", one)),
        inner.map(lambda one: ("MAP", one)),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: ("STRUCT", *some)),
    ),
    max_leaves=4,
)


def spelled(type_: Any) -> str:
    match type_:
        case ("ARRAY", inner):
            return f"ARRAY<{spelled(inner)}>"
        case ("MAP", inner):
            return f"MAP<STRING, {spelled(inner)}>"
        case ("STRUCT", *members):
            pairs = zip(NAMES, members, strict=False)
            return "STRUCT<" + ", ".join(f'"{name}" {spelled(one)}' for name, one in pairs) + ">"
        case _:
            return str(type_)


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values that fit as a rule, and some that don't."""
    match type_:
        case ("ARRAY", inner):
            found = st.lists(values_of(inner), max_size=3)
        case ("MAP", inner):
            found = st.dictionaries(st.text(max_size=3), values_of(inner), max_size=3)
        case ("STRUCT", *members):
            pairs = dict(zip(NAMES, map(values_of, members), strict=False))
            found = st.fixed_dictionaries({}, optional={**pairs, "unknown": st.just([1])})
        case _:
            return st.one_of(st.none(), LEAVES[type_])
    return st.one_of(st.none(), found, st.just(7)) if type_ != "BIGINT" else found


class UnfitError(Exception):
    """A value that isn't of its type."""


def naive(value: Any, type_: Any) -> Any:
    """A value as Arrow has it in a type."""
    if value is None:
        return None
    match type_:
        case ("ARRAY", inner) if isinstance(value, list):
            return [naive(one, inner) for one in value]
        case ("MAP", inner) if isinstance(value, dict):
            return [(name, naive(one, inner)) for name, one in value.items()]
        case ("STRUCT", *members) if isinstance(value, dict):
            pairs = zip(NAMES, members, strict=False)
            return {name: naive(value.get(name), one) for name, one in pairs}
        case "BIGINT" if type(value) is int and -(2**63) <= value < 2**63:
            return value
        case "BOOLEAN" if type(value) is bool:
            return value
        case "STRING" if isinstance(value, str):
            return value
        case "BINARY" if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except ValueError:
                raise UnfitError from None
    raise UnfitError


def decode(schema: Schema, rows: list[bytes]) -> Decoded:
    lengths = np.array([len(row) for row in rows], np.int32)
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1].astype(np.int64)
    return JsonDecoder(schema).decode(
        np.frombuffer(b"".join(rows) + b" ", np.uint8), starts, lengths
    )


@given(st.data())
def test_nested_rows_are_what_a_naive_reader_makes_of_them(data: st.DataObject) -> None:
    """Of any type; and what is written of them reads back equal."""
    type_ = data.draw(TYPES)
    schema = Schema.parse(f"n BIGINT, x {spelled(type_)}")
    assert Schema.parse(schema.text) == schema
    values = data.draw(st.lists(values_of(type_), min_size=1, max_size=6))
    rows = [json.dumps({"n": n, "x": value}).encode() for n, value in enumerate(values)]
    expected, bad = [], []
    for n, value in enumerate(values):
        try:
            expected.append({"n": n, "x": naive(value, type_)})
        except UnfitError:
            bad.append(n)
    found = decode(schema, rows)
    assert found.bad_rows.tolist() == bad
    assert found.columns.to_pylist() == expected
    table = pa.Table.from_batches([found.columns])
    written = encode_rows(table).to_pylist()
    again = decode(schema, [text.encode() for text in written])
    assert again.columns.equals(found.columns)
    cut = encode_rows(table.slice(1))  # positions are those of a slice, too
    assert cut.to_pylist() == written[1:]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x STRUCT<>", "'>'"),
        ("x STRUCT<a INT, a INT>", "'a INT>'"),
        ("x MAP<INT, INT>", "'INT, INT>'"),
        ("x MAP<STRING>", "'STRING>'"),
        ("x STRUCT<a INT", "'the end'"),
        ("x " + "ARRAY<" * 9 + "INT" + ">" * 9, "'ARRAY<INT>"),
    ],
)
def test_what_is_no_type_is_reported(text: str, found: str) -> None:
    """With the place where it goes wrong."""
    with pytest.raises(SchemaError, match="expected ") as caught:
        Schema.parse(text)
    assert f"found {found}" in str(caught.value).replace('"', "'")


def test_members_are_columns_of_expressions() -> None:
    """Through a pipeline: conditions, computed columns, whole objects into topics."""
    app = ps.App("shop")
    orders = app.stream(
        "orders",
        "id BIGINT, to_ STRUCT<city STRING, geo STRUCT<lat DOUBLE>>, tags MAP<STRING, INT>, "
        "raw BINARY, items ARRAY<STRUCT<sku STRING, n INT>>",
    )
    orders.where("to_.city IS NOT NULL").to("copy")
    orders.select(
        "id", city="upper(to_.city)", lat="to_.geo.lat", gift="tags['gift']", whole="to_"
    ).to("chosen")
    cities = orders.select("id", city="TO_.city").group_by("city").agg(n=ps.count())
    app.view("cities", cities)
    items = orders.unnest("items", name="item").select(sku="item.sku", n="item.n")
    app.view("sold", items.group_by("sku").agg(n=ps.sum("n")))
    run = ps.testing.run(app)
    row = b'{"id":1,"to_":{"city":"Ulm","geo":{"lat":48.5},"zip":1},"tags":{"gift":1,"x":null},'
    run.send_raw("orders", row + b'"raw":"YWI=","items":[{"sku":"a","n":2},{"sku":"a","n":3}]}')
    run.send_raw("orders", b'{"id":2,"to_":{"city":5}}')
    run.send_raw("orders", b'{"id":3,"raw":"?"}')
    [copy], [chosen] = run.topic("copy"), run.topic("chosen")
    assert copy.value == (
        b'{"id":1,"to_":{"city":"Ulm","geo":{"lat":48.5}},"tags":{"gift":1,"x":null},'
        b'"raw":"YWI=","items":[{"sku":"a","n":2},{"sku":"a","n":3}]}'
    )
    assert chosen.value == (
        b'{"id":1,"city":"ULM","lat":48.5,"gift":1,"whole":{"city":"Ulm","geo":{"lat":48.5}}}'
    )
    assert run.view("cities").rows() == [{"city": "Ulm", "n": 1}]
    assert run.view("sold").rows() == [{"sku": "a", "n": 5}]
    first, second = (letter.headers["penstock.reason"] for letter in run.dead_letters())
    assert "'to_': expected STRUCT<" in first
    assert "base64" in second


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("STRUCT<city STRING, n INT>", [{"city": "Ulm", "n": 1}, {"city": "Ulm", "n": None}]),
        ("MAP<STRING, INT>", [{"gift": 1}, {}]),
        ("ARRAY<STRUCT<sku STRING>>", [[{"sku": "a"}, None], []]),
        ("STRUCT<tags MAP<STRING, INT>, at ARRAY<DOUBLE>>", [{"tags": {"a": 1}, "at": [0.5]}]),
    ],
)
def test_objects_are_kept(type_: str, values: list[Any]) -> None:
    """In tables, joined, grouped by, among first rows; and taken back when their row goes."""
    app = ps.App("shop")
    rows = app.table("rows", f"id INT, one {type_}", key="id")
    app.view("kept", rows)
    app.view("first", rows.top(9, by="id"))
    app.view("per", rows.group_by("one").agg(n=ps.count()))
    other = rows.select(id="id", two="one")
    app.view("pairs", rows.join(other, on="id"))
    run = ps.testing.run(app)
    for i, value in enumerate([*values, None, values[0]]):
        run.send("rows", id=i, one=value)
    run.settle()
    last = len(values) + 1
    kept = [row["one"] for row in run.view("kept").rows()]
    assert kept == [*(row["one"] for row in run.view("first").rows())]
    assert kept[0] == kept[last]
    assert kept[last - 1] is None
    assert sorted(row["n"] for row in run.view("per").rows()) == [1] * len(values) + [2]
    assert all(row["one"] == row["two"] for row in run.view("pairs").rows())
    run.restart()
    run.send_raw("rows", None, key=b"0")
    run.settle()
    assert len(run.view("kept").rows()) == len(run.view("pairs").rows()) == last
    assert {row["n"] for row in run.view("per").rows()} == {1}
