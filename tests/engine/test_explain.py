"""A pipeline's graph as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock as ps
from penstock.cli import main
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph

PROGRAM = """
import penstock as ps

app = ps.App("shop")
orders = app.stream(
    "orders", "customer STRING NOT NULL, amount DOUBLE, at TIMESTAMP",
    time=ps.event_time("at"), partitions=2,
)
large = orders.where("amount >= 100")
large.to("large")
per_minute = (
    large.window(ps.tumbling("1 minute"), keep="1 hour").group_by("customer").agg(n=ps.count())
)
app.view("per_minute", per_minute)
totals = orders.group_by("customer").agg(total=ps.sum("amount"))
customers = app.table("customers", "id STRING NOT NULL, name STRING", key="id")
app.view("named", customers.join(totals, on={"id": "customer"}, how="left"))
large.enrich(customers, on={"customer": "id"}, how="left").to("known")
"""

WANTED = """\
orders  topic, 2 partitions
  where amount >= 100
    [1] aggregate by customer  exchanged by customer, 2 shards
        tumbling 1 minute: n = count(*), kept 1 hour
      -> view per_minute
    [5] stream table join by customer = id  exchanged by customer = id, 2 shards
        how left
      -> topic known, rows
    -> topic large, rows
  [3] aggregate by customer  exchanged by customer, 2 shards
      total = sum(amount)
    [4] table join by id = customer  exchanged by id = customer, 2 shards
        how left
      -> view named
customers  topic, 1 partition
  [2] upserts by id  in place
    [4] table join, see above
    [5] stream table join, see above
"""


def test_the_graph_is_told_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators, exchanges, views and topics; nothing is run, and no directory is made."""
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["explain", str(program)], catch_exceptions=False)
    assert not Path("shop.penstock").exists()
    assert found.exit_code == 0
    assert found.output == WANTED


def test_state_and_watermarks_are_told_once_it_has_run() -> None:
    """Sizes come from the committed version."""
    app = ps.App("p")
    orders = app.stream("orders", "n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    app.view("all", orders.group_by("n").agg(times=ps.count()))
    run = ps.testing.run(app)
    for n in range(5):
        run.send("orders", n=n, at=f"12:00:0{n}")
        run.settle()
    physical = compile_graph(app.graph(), {"orders": 1}, 2)
    text = explain(physical, run.store.version(run.store.newest_version()))
    assert "watermark 2000-01-01T12:00:03Z, 5 rows read" in text
    assert "in place, 5 rows, " in text
