"""What a batch reports of each node: rows in and out, late rows, time, state."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.engine.progress.nodes import NodeProgress
from penstock.ops import operator_from_spec
from penstock.testing import Run


def shop() -> ps.App:
    """Two steps, a window that closes, a table of a topic, a join, three outputs."""
    app = ps.App("shop")
    orders = app.stream(
        "orders",
        "customer STRING NOT NULL, amount DOUBLE, at TIMESTAMP",
        time=ps.event_time("at", lateness="0 s"),
        partitions=2,
    )
    large = orders.where("amount >= 100")
    large.to("large")
    per_minute = large.window(ps.tumbling("1 minute")).group_by("customer").agg(n=ps.count())
    app.view("per_minute", per_minute)
    per_minute.to("closed")
    customers = app.table("customers", "id STRING NOT NULL, name STRING", key="id")
    totals = orders.group_by("customer").agg(total=ps.sum("amount"))
    app.view("named", customers.join(totals, on={"id": "customer"}, how="left"))
    both = large.union(orders.where("amount < 10"))
    app.view("outliers", both.group_by("customer").agg(n=ps.count()))
    return app


def step(run: Run) -> dict[str, NodeProgress]:
    """A batch's nodes, by kind and name."""
    progress = run.step()
    assert progress is not None
    return {f"{one.kind} {one.name}": one for one in progress.nodes.values()}


def feed(run: Run) -> None:
    for i in range(40):
        run.send("orders", partition=i % 2, customer="ab"[i % 2], amount=i * 5, at=f"12:{i:02}:00")


@pytest.mark.parametrize("cores", [1, 2])
def test_rows_are_counted_where_they_pass(cores: int) -> None:
    """Of every node, over lanes and shards; what nobody reads is unknown, not 0."""
    run = ps.testing.run(shop(), cores=cores)
    run.send("customers", id="a", name="Ann")
    feed(run)
    nodes = step(run)
    large, small = 20, 2  # amounts from 100 on, and below 10
    orders = nodes["source orders"]
    assert (orders.rows_in, orders.rows_out) == (40, 40)
    where = nodes["step where amount >= 100"]
    assert (where.rows_in, where.rows_out) == (40, large)
    assert nodes["output large"].rows_in == large
    assert nodes["union union of 2"].rows_out == large + small
    outliers = nodes["aggregate outliers"]
    assert (outliers.rows_in, outliers.rows_out) == (large + small, None)
    totals = nodes["aggregate aggregate for named"]
    assert (totals.rows_in, totals.rows_out) == (40, 2)
    join = nodes["table join named"]
    assert join.rows_in == 3  # a customer, and two totals
    assert all(one.ms > 0 for one in (orders, where, outliers, totals, join))
    assert {one.late_rows for one in nodes.values()} == {0}


def test_late_rows_and_closed_windows_belong_to_their_operator() -> None:
    """A row that is late for one operator isn't late for another that keeps no time."""
    run = ps.testing.run(shop())
    feed(run)
    step(run)
    for partition in (0, 1):
        run.send("orders", partition=partition, customer="a", amount=500, at="12:00:30")
    nodes = step(run)
    windows = nodes["aggregate per_minute, closed"]
    assert (windows.rows_in, windows.late_rows) == (2, 2)
    assert nodes["aggregate outliers"].late_rows == 0
    closed = nodes["closed per_minute, closed"].rows_out
    assert closed == nodes["output closed"].rows_in == len(run.topic("closed")) > 0
    assert windows.frontier_us == nodes["source orders"].frontier_us
    assert nodes["aggregate outliers"].frontier_us is None


def test_state_is_as_large_and_as_old_as_it_is() -> None:
    """The sizes are those that the opened state has; the age is the oldest window's."""
    run = ps.testing.run(shop())
    run.send("customers", id="a", name="Ann")
    for _ in range(3):
        feed(run)
        progress = run.step()
    assert progress is not None
    version = run.store.version(run.store.newest_version())
    for node, entry in version.operators.items():
        operator = operator_from_spec(entry.spec)
        states = [operator.open(run.store.files, one) for one in entry.traces.values()]
        found = progress.nodes[node]
        assert found.state_rows == sum(state.rows for state in states)
        assert found.state_bytes == sum(state.bytes for state in states) > 0
    by_name = {one.name: one for one in progress.nodes.values() if one.kind != "closed"}
    oldest_us = by_name["per_minute, closed"].oldest_us
    first = run.view("per_minute").table["window_start"].to_pylist()[0]
    assert oldest_us == int(first.timestamp() * 1_000_000)
    assert by_name["outliers"].oldest_us is None
    assert by_name["large"].state_rows is None


def test_a_batch_that_reads_nothing_reports_what_it_closes() -> None:
    """The watermark alone has moved: rows come out where none went in."""
    app = ps.App("p")
    events = app.stream("events", "at TIMESTAMP", time=ps.event_time("at", lateness="0 s"))
    events.window(ps.tumbling("1 minute")).agg(n=ps.count()).to("counts")
    run = ps.testing.run(app)
    run.send("events", at="12:00:00")
    run.send("events", at="12:01:00")
    assert step(run)["aggregate counts"].rows_in == 2
    counts = step(run)["aggregate counts"]
    assert (counts.rows_in, counts.rows_out, counts.state_rows) == (0, 1, 2)
