"""The algebra: pure functions from nodes to nodes, over which Python's methods and SQL's compiler stand."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
import penstock.flow.algebra
from penstock.expr import compile_expression
from penstock.flow.algebra import groups, joins, queries, rows, times
from penstock.flow.graph import Node, Source, ancestors, row_key
from penstock.sql import SqlFlow

SQL = Path(penstock.flow.algebra.__file__).parents[2] / "sql"


class Shop:
    """A stream and two tables."""

    def __init__(self) -> None:
        self.app = app = SqlFlow("shop")
        time = ps.event_time("at", lateness="5 minutes")
        self.clicks = app.stream(
            "clicks", "user BIGINT NOT NULL, kb DOUBLE, at TIMESTAMP", time=time
        )
        self.users = app.table("users", "id BIGINT, name STRING", key="id")
        self.lines = app.table("lines", "id BIGINT, line INT, amount BIGINT", key=("id", "line"))


def made_of(node: Node) -> Node:
    """Some steps and operators over a stream, which no flow knows."""
    computed = compile_expression("kb * 2", node.schema)
    large = rows.filtered(node, compile_expression("kb > 3", node.schema))
    shown = rows.project(large, {"user": "user", "kb": computed})
    found = times.closed(
        groups.group(shown, ["user"], {"s": ps.sum("kb")}, ps.tumbling("1 minute"))
    )
    assert found is not None
    return groups.top(queries.kept(found), 3, [("s", True)])


def test_a_flow_gives_nodes_over_its_own() -> None:
    """What was made without a flow is made of its nodes once it has been given it."""
    shop = Shop()
    app, clicks = shop.app, shop.clicks
    known = clicks.where("kb > 3")
    made = made_of(clicks.node)
    given = app.node(made)
    assert given.identity == made.identity
    assert known.node in ancestors(given)
    assert known.node not in ancestors(made)
    assert app.node(made_of(clicks.node)) is given
    assert all(app.node(one) is one for one in ancestors(given))
    assert [one for one in ancestors(given) if isinstance(one, Source)] == [clicks.node]


def test_methods_are_the_algebra() -> None:
    """A method gives what the algebra makes of the same."""
    shop = Shop()
    users, lines, clicks = shop.users, shop.lines, shop.clicks
    pairs = [("id", "id")]
    assert users.join(lines, on="id").node.identity == (
        joins.join(users.node, lines.node, pairs, "inner").identity
    )
    near = joins.near(clicks.node, rows.project(clicks.node, {"user": "user", "b": "kb"}),
                      [("user", "user")], 0, 60_000_000)  # fmt: skip
    other = clicks.select("user", b='"kb"')
    assert (
        clicks.join(other, on="user", within=("0 seconds", "1 minute")).node.identity
        == near.identity
    )
    assert users.distinct().node.identity == groups.distinct(users.node).identity


def test_a_column_that_is_handed_on_stays_required() -> None:
    """What a column may be is what it was; what is computed may be NULL."""
    clicks = Shop().clicks.node
    made = rows.project(
        clicks, {"user": "user", "who": "user", "one": compile_expression("1", clicks.schema)}
    )
    assert made.schema.text == "user BIGINT NOT NULL, who BIGINT NOT NULL, one INT"


def test_python_and_sql_join_by_the_same_key() -> None:
    """The rows of a join are identified by the same columns, however it is written."""
    shop = Shop()
    made = shop.users.join(shop.lines, on="id")
    view = shop.app.view(
        "v", sql="SELECT users.id, name, line, amount FROM users JOIN lines USING (id)"
    )
    assert row_key(made.node) == row_key(view.node) == ("id", "line")


def test_sql_makes_no_nodes() -> None:
    """SQL reaches an operator by the algebra: no module of it makes nodes or operators' values by itself."""
    makes = ("Stateful(", "RowStep(", "Union(", "Closed(")
    texts = {one: one.read_text() for one in SQL.rglob("*.py")}
    lines = [line.strip() for text in texts.values() for line in text.splitlines()]
    found = [
        line
        for line in lines
        if any(word in line.replace(f"exp.{word}", "") for word in makes)
        and not line.startswith(("case ", "def "))
    ]
    assert found == []
