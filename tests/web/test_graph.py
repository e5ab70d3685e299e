"""The graph on the page, its figures for Prometheus, and `penstock status`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.explain.test_progress import feed, shop
from tests.web.browsing import WIDTHS, chromium, visit
from tests.web.conftest import Client
from tests.web.pipelines import NOW, SINKS, WELL, Pipeline, S

import penstock as ps
from penstock.app.facts import write_facts
from penstock.app.nodes import NodeTotals, read_graph, write_graph
from penstock.cli import main
from penstock.engine.driver import Progress
from penstock.engine.physical import compile_graph
from penstock.web import Server, create_app
from penstock.web.metrics import metrics_text


@pytest.fixture
def pipeline(tmp_path: Path) -> SimpleNamespace:
    """A pipeline that has run three batches, a second apart, and what it has written down."""
    run, nodes = ps.testing.run(shop()), NodeTotals()
    last: Progress | None = None
    for second in (2, 1, 0):
        feed(run)
        last = run.step()
        assert last is not None
        nodes.take(last.nodes, NOW - second * S)
    app = shop()
    directory = tmp_path / "shop.penstock"
    directory.mkdir()
    write_graph(directory, compile_graph(app.graph(), {"orders": 2, "customers": 1}, 2))
    facts = replace(WELL, topics=["orders", "customers"], nodes=nodes.figures(NOW))
    return SimpleNamespace(
        shown=Pipeline(version=3, rows=120, facts=facts), directory=directory, last=last
    )


def test_prometheus_gets_every_node_with_its_names(pipeline: Any) -> None:
    """Counters count from the start of the process; what isn't known has no sample."""
    app = create_app(None, pipeline.shown.board.status)
    answer = Client(app).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, sample.labels.get("kind"), sample.labels.get("name")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["penstock_node_rows_in_total", "source", "orders"] == 120
    assert found["penstock_node_rows_out_total", "step", "where amount >= 100"] == 60
    assert ("penstock_node_rows_out_total", "aggregate", "outliers") not in found
    assert found["penstock_node_seconds_total", "aggregate", "outliers"] > 0
    by_name = {one.name: one for one in pipeline.last.nodes.values()}
    size = found["penstock_node_state_bytes", "aggregate", "outliers"]
    assert size == by_name["outliers"].state_bytes > 0
    assert found["penstock_pipeline_version", None, None] == 3
    assert found["penstock_pipeline_spark_restarts_total", None, None] == 0
    assert 'penstock_pipeline_state{app="shop",state="live"} 1.0' in answer.text


def test_prometheus_gets_the_programs_sinks() -> None:
    """The same metrics as those of a sink that runs alone."""
    text = metrics_text(
        Pipeline(version=1, facts=replace(WELL, sinks=SINKS)).board.status()
    ).decode()
    for line in (
        'penstock_sink_lag_records{sink="orders"} 1200.0',
        'penstock_sink_behind_seconds{sink="orders"} 40.0',
        'penstock_sink_breaker_state{sink="orders",state="open"} 1.0',
        'penstock_sink_breaker_state{sink="users",state="closed"} 1.0',
        'penstock_sink_dead_letters_total{sink="users"} 2.0',
        'penstock_sink_state{sink="orders",state="waiting"} 1.0',
    ):
        assert line in text


@pytest.mark.parametrize("phase", ["failed", "stopped"])
def test_a_sink_that_has_ended_has_no_lag_of_now(phase) -> None:
    """Its topic goes on: what it measured last says nothing."""
    sinks = {name: {**one, "phase": phase} for name, one in SINKS.items()}
    board = Pipeline(version=1, facts=replace(WELL, sinks=sinks)).board
    one = board.status()["sinks"]["orders"]
    assert (one["lag"], one["progress"], one["behind_ms"]) == (None, None, None)
    assert one["dead"] == SINKS["orders"]["dead"]
    text = metrics_text(board.status()).decode()
    assert 'penstock_sink_lag_records{sink="orders"}' not in text
    assert f'penstock_sink_state{{sink="orders",state="{phase}"}} 1.0' in text


def test_the_slowest_operator_is_named_unless_nothing_is_slow(pipeline: Any) -> None:
    """Topics are not operators; of a process that has ended nothing moves."""
    shown = pipeline.shown
    nodes = {node: {**one, "busy": 0.0001} for node, one in shown.facts.nodes.items()}
    source = next(node for node, one in nodes.items() if one["kind"] == "source")
    slow = next(node for node, one in nodes.items() if one["kind"] == "table join")
    nodes[source]["busy"] = 0.9
    shown.facts = replace(shown.facts, nodes=nodes)
    assert shown.board.status()["slowest"] is None
    nodes[slow]["busy"] = 0.5
    assert shown.board.status()["slowest"] == slow
    shown.facts = replace(shown.facts, ended_us=NOW)
    status = shown.board.status()
    assert status["slowest"] is None
    assert status["nodes"][slow]["rows_in_per_s"] == 0
    assert status["nodes"][slow]["state_rows"] == nodes[slow]["state_rows"] > 0


def test_status_is_shown_at_the_terminal(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what the process wrote down, whoever asks; as JSON for scripts."""
    write_facts(pipeline.directory, replace(pipeline.shown.facts, ended_us=NOW))
    monkeypatch.chdir(pipeline.directory.parent)
    found = CliRunner().invoke(main, ["status", "shop"], catch_exceptions=False)
    assert found.exit_code == 0
    assert found.output.startswith("stopped for ")
    [line] = [one for one in found.output.splitlines() if one.startswith("named ")]
    assert "table join" in line
    found = CliRunner().invoke(main, ["status", "shop", "--json"], catch_exceptions=False)
    names = {one["name"] for one in orjson.loads(found.output)["nodes"].values()}
    assert {"orders", "named", "large"} <= names
    found = CliRunner().invoke(main, ["status", "nothing"])
    assert found.exit_code != 0
    assert "expected" in found.output + str(found.exception)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_is_live(browser: Any, pipeline: Any, width: int, scheme: str) -> None:
    """Every box has its figures, the slowest is framed; on any screen, and nothing is asked of others."""
    server = Server(None, pipeline.shown.board.status, graph=lambda: read_graph(pipeline.directory))
    asked: set[str] = set()
    try:
        with visit(browser, "about:blank", width=width, color_scheme=scheme) as page:
            page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
            page.goto(server.url)
            page.wait_for_selector("#graph .slowest")
            places = read_graph(pipeline.directory)
            assert places is not None
            assert page.locator("#graph .part").count() == len(places["boxes"])
            figures = page.locator("#graph .figure").all_text_contents()
            assert "lag 500" in figures or "lag 0" in figures
            assert sum("of a core" in figure for figure in figures) >= 8
            rates = page.locator("#graph .rate").all_text_contents()
            assert "40/s" in rates
            kept = [one for one in figures if " rows, " in one]
            assert kept
            assert all(re.fullmatch(r"[\d.,]+ rows, [\d.]+ (B|KB)", one) for one in kept), kept
            assert page.locator("#operators tr.slowest").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            colours = page.evaluate(
                "['.operator rect', 'text'].map((one) =>"
                " getComputedStyle(document.querySelector('#graph ' + one)).fill)"
            )
            light, dark = (sum(map(int, _numbers(one))) for one in colours)
            assert (light > dark + 300) == (scheme == "light")
            pipeline.shown.facts = replace(pipeline.shown.facts, ended_us=NOW)
            page.wait_for_selector("#graph .slowest", state="detached")
    finally:
        server.close()
    assert asked == {urlsplit(server.url).netloc}


def _numbers(colour: str) -> list[str]:
    return colour.removeprefix("rgb(").removesuffix(")").split(",")
