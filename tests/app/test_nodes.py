"""Totals and rates of the graph's nodes, and where the page finds the drawing."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.app.nodes import NodeTotals, read_graph, write_graph
from penstock.engine.physical import compile_graph
from penstock.engine.progress.nodes import NodeProgress

S = 1_000_000


def one(rows: int, size: int = 0, *, kind: str = "aggregate") -> dict[str, NodeProgress]:
    return {"a": NodeProgress("view", kind, rows, None, 1, 100.0, rows, size, None, None)}


def test_totals_count_from_the_start_and_rates_over_the_last_seconds() -> None:
    """A rate forgets what is older than its window; a total never."""
    totals = NodeTotals()
    for second in range(30):
        totals.take(one(100, 1_000 * second), second * S)
    found = totals.figures(29 * S)["a"]
    assert (found["rows_in"], found["late_rows"], found["seconds"]) == (3_000, 30, 3.0)
    assert found["rows_in_per_s"] == pytest.approx(100, rel=0.11)
    assert found["busy"] == pytest.approx(0.1, rel=0.11)
    assert found["growth_bytes_per_s"] == pytest.approx(1_000, rel=0.11)
    assert found["rows_out"] is found["rows_out_per_s"] is None
    found = totals.figures(60 * S)["a"]
    assert (found["rows_in"], found["rows_in_per_s"], found["busy"]) == (3_000, 0, 0)


def test_many_batches_a_second_are_one_point() -> None:
    """What is kept doesn't grow with the number of batches."""
    totals = NodeTotals()
    for batch in range(2_000):
        totals.take(one(1), batch * 10_000)
    assert len(totals._points) < 50
    assert totals.figures(20 * S)["a"]["rows_in_per_s"] == pytest.approx(100, rel=0.11)


def test_another_program_begins_anew() -> None:
    """Other nodes have other totals."""
    totals = NodeTotals()
    totals.take(one(5), S)
    totals.take({"b": one(7)["a"]}, 2 * S)
    assert {node: found["rows_in"] for node, found in totals.figures(2 * S).items()} == {"b": 7}
    assert NodeTotals().figures(S) == {}


def test_the_drawing_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Boxes name the nodes that they show; one that can't be read is none."""
    app = ps.App("p")
    events = app.stream("events", "n BIGINT")
    app.view("all", events.where("n > 1").select("n").group_by("n").agg(times=ps.count()))
    physical = compile_graph(app.graph(), {"events": 1}, 1)
    assert read_graph(tmp_path) is None
    write_graph(tmp_path, physical)
    found = read_graph(tmp_path)
    assert found is not None
    shown = [node for box in found["boxes"] for node in box["nodes"]]
    assert sorted(shown) == sorted(node.identity for node in app.graph().nodes)
    assert {line["from"] for line in found["lines"]} <= set(shown)
    (tmp_path / "graph.json").write_text("[")
    assert read_graph(tmp_path) is None
