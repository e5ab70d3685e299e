"""The order in which inner joins of several tables are taken: by keys and conditions."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import duckdb
import orjson

import penstock as ps
from penstock.flow.graph import Stateful
from penstock.ops.joins.table_join import TableJoin
from penstock.sql import SqlFlow

TABLES = {
    "line": "id BIGINT, sale BIGINT, seller BIGINT",
    "sale": "id BIGINT, buyer BIGINT, day BIGINT",
    "buyer": "id BIGINT, town BIGINT",
    "seller": "id BIGINT, town BIGINT",
}
CONDITIONS = """line.sale = sale.id AND sale.buyer = buyer.id AND line.seller = seller.id
                AND buyer.town = seller.town AND seller.id <> 4"""


def flow() -> SqlFlow:
    """The tables."""
    app = SqlFlow("p")
    for name, columns in TABLES.items():
        app.table(name, columns, key="id")
    return app


def order(tables: str, conditions: str = CONDITIONS) -> list[str]:
    """The columns of the right sides, from the first join to the last."""
    app = flow()
    app.view("v", sql=f"SELECT line.id FROM {tables} WHERE {conditions}")
    joins = [
        node.operator
        for node in app.graph().nodes
        if isinstance(node, Stateful) and isinstance(node.operator, TableJoin)
    ]
    return [join.on[0][1] for join in joins]


def test_rows_are_looked_up_before_they_are_multiplied() -> None:
    """Buyers and sellers of one town are many times many: the sides are found by their keys."""
    assert order("buyer, seller, sale, line") == ["buyer", "sale", "seller.id"]
    assert order("line, seller, buyer, sale") == ["seller.id", "sale.id", "buyer.id"]


def test_what_is_filtered_comes_first() -> None:
    """Of tables that are found by their key, one that leaves rows out."""
    plain = "line.sale = sale.id AND line.seller = seller.id"
    assert order("line, sale, seller", plain) == ["sale.id", "seller.id"]
    assert order("line, sale, seller", f"{plain} AND seller.town = 1") == ["seller.id", "sale.id"]


def test_every_order_equals_duckdb() -> None:
    """The same query with its tables listed in all orders, after each batch of random changes."""
    app, chance = flow(), random.Random(7)
    orders = [", ".join(one) for one in itertools.permutations(TABLES)]
    columns = "line.id AS line, sale.day, buyer.town, seller.id AS seller"
    for number, tables in enumerate(orders):
        app.view(f"v{number}", sql=f"SELECT {columns} FROM {tables} WHERE {CONDITIONS}")
    run = ps.testing.run(app, seed=7)
    rows: dict[str, dict[int, dict[str, int]]] = {name: {} for name in TABLES}
    found = 0
    for _ in range(4):
        for _ in range(40):
            table, key = chance.choice(list(TABLES)), chance.randrange(5)
            names = [part.split()[0] for part in TABLES[table].split(", ")]
            value = None
            rows[table].pop(key, None)
            if chance.random() < 0.9:
                rows[table][key] = {n: chance.randrange(3) for n in names} | {"id": key}
                value = orjson.dumps(rows[table][key])
            run.send_raw(table, value, key=orjson.dumps({"id": key}))
        run.settle()
        con = duckdb.connect(":memory:")
        for name, schema in TABLES.items():
            con.execute(f"CREATE TABLE {name}({schema})")
            for row in rows[name].values():
                marks = ", ".join("?" for _ in row)
                con.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
        wanted = Counter(
            con.sql(f"SELECT {columns} FROM {orders[0]} WHERE {CONDITIONS}").fetchall()
        )
        found += len(wanted)
        for number, tables in enumerate(orders):
            rows_ = run.view(f"v{number}").rows()
            assert Counter(tuple(row.values()) for row in rows_) == wanted, tables
    assert found
