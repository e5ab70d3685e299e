"""A pipeline's graph as text and as a drawing."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from tests.engine.explain.test_progress import feed, shop

import penstock as ps
from penstock.app.facts import Facts, write_facts
from penstock.app.nodes import NodeTotals
from penstock.cli import main
from penstock.cli.pipelines.run import find_app
from penstock.cli.support.programs import load
from penstock.demo.programs import example
from penstock.engine.explain import arrange, draw, explain
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
        table shared with [4] left
      -> topic known, rows
    -> topic large, rows
  [3] aggregate by customer  exchanged by customer, 2 shards
      total = sum(amount)
    [4] table join by id = customer  exchanged by id = customer, 2 shards
        how left
        left shared with [5] table
      -> view named
customers  topic, 1 partition
  [2] upserts by id  in place
    [4] table join, see above
    [5] stream table join, see above
"""


def test_the_graph_is_shown_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators, exchanges, views and topics; nothing is run, and no directory is made."""
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["explain", str(program)], catch_exceptions=False)
    assert not Path("shop.penstock").exists()
    assert found.exit_code == 0
    assert found.output == WANTED


def test_orders_and_window_functions_are_shown_as_in_sql() -> None:
    """Not as the values that they are stored as."""
    app = ps.App("p")
    app.stream("orders", "customer STRING, amount DOUBLE")
    app.view(
        "ranked",
        sql="SELECT customer, amount, row_number() OVER w AS place, lag(amount, 2) OVER w AS two, "
        "sum(amount) OVER (w ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS near "
        "FROM orders WINDOW w AS (PARTITION BY customer ORDER BY amount DESC) QUALIFY place <= 3",
    )
    text = explain(compile_graph(app.graph(), {"orders": 1}, 2))
    assert "window functions by customer" in text
    assert "order amount DESC" in text
    for definition in ("= row_number()", "= lag(amount, 2)", "= sum(amount) over rows -3 to 1"):
        assert definition in text, text
    assert not re.search(r"True|False|None|{", text)


def test_state_and_watermarks_are_shown_once_it_has_run() -> None:
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


def test_a_running_pipelines_figures_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--analyze`: rows in and out, time, and its share, of every node that a batch reports."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    words = ["explain", "--analyze", "shop.py"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code != 0
    assert "expected a pipeline that runs" in refused.output
    program = tmp_path / "shop.py"
    run = ps.testing.run(find_app(load(program), program))
    feed(run)
    totals = NodeTotals()
    while (progress := run.step()) is not None:
        totals.take(progress.nodes, 0)
    directory = tmp_path / "shop.penstock"
    directory.mkdir()
    facts = Facts("shop", 1, "here", str(directory), 0, 0, nodes=totals.figures(0))
    write_facts(directory, facts)
    found = CliRunner().invoke(main, words, catch_exceptions=False)
    lines = re.findall(
        r"^ *(.*?)  \(([\d,> -]+) rows, (\d+\.\d{3}) s, (.*)%\)$", found.output, re.MULTILINE
    )
    rows = {name.split("  ")[0]: counts for name, counts, _, _ in lines}
    assert rows["orders"] == "40 -> 40"
    assert rows["where amount >= 100"] == "40 -> 20"
    assert rows["[3] aggregate by customer"] == "40 -> 2"
    assert rows["-> topic large, rows"] == "20"
    assert len(lines) == len(progress_nodes(run))
    assert sum(float(share) for *_, share in lines) == pytest.approx(100, abs=1)


def progress_nodes(run: ps.testing.Run) -> set[str]:
    """The nodes that a batch reports."""
    feed(run)
    progress = run.step()
    assert progress is not None
    return set(progress.nodes)


def test_every_kind_of_state_has_a_size() -> None:
    """A table of a topic, a join: however their state is put together."""
    app = shop()
    run = ps.testing.run(app)
    run.send("customers", id="a", name="Ann")
    feed(run)
    run.settle()
    partitions = {"orders": 2, "customers": 1}
    version = run.store.version(run.store.newest_version())
    text = explain(compile_graph(app.graph(), partitions, 2), version)
    assert "upserts by id  in place, 1 rows, " in text
    assert draw(compile_graph(app.graph(), partitions, 2), version).count(" KB") == 5


def test_figures_have_room_on_the_page() -> None:
    """The live drawing has the same boxes, higher ones where figures belong; none overlap."""
    physical = compile_graph(shop().graph(), {"orders": 2, "customers": 1}, 2)
    plain, live = arrange(physical), arrange(physical, live=True)
    assert [box["lines"] for box in live["boxes"]] == [box["lines"] for box in plain["boxes"]]
    for before, box in zip(plain["boxes"], live["boxes"], strict=True):
        has_figures = bool(box["nodes"]) and box["lines"][0] not in {"closed rows", "union"}
        assert (box["height"] > before["height"]) == has_figures
    for one, other in itertools.combinations(live["boxes"], 2):
        assert (
            one["x"] + one["width"] < other["x"]
            or other["x"] + other["width"] < one["x"]
            or one["y"] + one["height"] < other["y"]
            or other["y"] + other["height"] < one["y"]
        )


EXAMPLES = ("anomalies", "flights", "machine", "press", "searches", "timelines", "visits", "weblog")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_drawing_has_everything_once_and_nothing_overlaps(name: str) -> None:
    """Topics, operators, views: each in a box of its own; lines begin and end at boxes."""
    graph = load(example(name)).pipeline().graph()
    physical = compile_graph(graph, {s.topic: 2 for s in graph.sources}, 2)
    root = ET.fromstring(draw(physical))
    heads = sorted(
        text.text or "" for text in root.findall(f"{SVG}text") if text.get("class") == "head"
    )
    wanted = [f"topic {source.topic}" for source in graph.sources]
    wanted += [f"view {view.name}" for view in graph.views]
    wanted += [f"topic {output.topic}" for output in graph.outputs]
    operators = [placed.operator.kind for placed in physical.placed.values()]
    assert [head for head in heads if head.startswith(("topic", "view"))] == sorted(wanted)
    rest = [head for head in heads if not head.startswith(("topic", "view"))]
    assert [any(head.startswith(kind) for kind in operators) for head in rest] == [True] * len(
        operators
    )
    boxes = [_corners(rect) for rect in root.findall(f"{SVG}rect")]
    for one, other in itertools.combinations(boxes, 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    assert all(box[2] <= width and box[3] <= height for box in boxes)
    lefts, rights = {round(box[0]) for box in boxes}, {round(box[2]) for box in boxes}
    for path in root.findall(f"{SVG}path"):
        numbers = re.findall(r"[0-9]+", path.get("d") or "")
        assert int(numbers[0]) in rights
        assert int(numbers[-2]) + 1 in lefts


def test_a_drawing_escapes_what_a_program_says(tmp_path: Path) -> None:
    """Conditions have < and &; texts of any length are cut into lines."""
    program, drawing = tmp_path / "p.py", tmp_path / "p.svg"
    program.write_text(PROGRAM.replace("amount >= 100", "amount < 100 AND customer <> '&'"))
    found = CliRunner().invoke(main, ["explain", str(program), "--svg", str(drawing)])
    assert found.exit_code == 0, found.output
    root = ET.fromstring(drawing.read_text())
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert "where amount < 100 AND customer <> '&'" in texts
    # An exchange is dashed; the table of a topic with one partition is made in place.
    dashed = [path for path in root.findall(f"{SVG}path") if path.get("class") == "exchange"]
    assert len(dashed) == 6


def _corners(rect: ET.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height
