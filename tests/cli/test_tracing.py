"""OpenTelemetry: spans of batches, captures and sinks, as the SDK's exporter in memory gets them."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.support.host import Hosting, _Run
from penstock.cli.tracing import Traces
from penstock.core.lazy import how_to_install
from penstock.engine.driver import Progress, SourceProgress
from penstock.engine.progress.nodes import NodeProgress
from penstock.errors import UserError

MS = 1_000_000
NODE = NodeProgress("per_minute", "aggregate", 10, 2, 1, 3.5)
BATCH = Progress(
    version=7,
    batch_ms=100.0,
    rows=10,
    late_rows=1,
    dead_rows=0,
    lost_rows=0,
    sources={"clicks": SourceProgress(10, 4, None, None, None)},
    seconds={"plan": 0.01, "fetch": 0.04, "operator": 0.06, "commit": 0.02},
    nodes={"a": NODE},
)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keeps what is exported."""
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter",
        reason="expected the extra otel: pip install -e '.[otel]'",
    )
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    return memory.InMemorySpanExporter()


def test_a_batch_is_a_span_with_its_parts(exporter: Any) -> None:
    """The parts follow one another within the batch, which ends when it is reported."""
    app: Any = SimpleNamespace(
        name="shop", directory="shop.penstock", settings=SimpleNamespace(state=None, cores=2)
    )
    run = _Run(app, Hosting())
    run.progressed(BATCH)  # without traces: nothing
    run.traces = Traces("shop", exporter, lambda: 1_000 * MS)
    run.progressed(BATCH)
    run.traces.close()
    *parts, batch = exporter.get_finished_spans()
    assert (batch.name, batch.start_time, batch.end_time) == ("batch", 900 * MS, 1_000 * MS)
    assert batch.resource.attributes["service.name"] == "shop"
    assert batch.attributes == {
        "penstock.version": 7,
        "penstock.rows": 10,
        "penstock.late_rows": 1,
        "penstock.dead_rows": 0,
        "penstock.lost_rows": 0,
        "penstock.node.per_minute.ms": 3.5,
        "penstock.source.clicks.lag": 4,
    }
    assert {part.parent.span_id for part in parts} == {batch.context.span_id}
    times = {part.name: (part.end_time - part.start_time) // MS for part in parts}
    rest = "waiting, and handing over"
    assert times == {"plan": 10, "fetch": 20, "operator": 30, rest: 20, "commit": 20}
    assert parts[0].start_time == batch.start_time
    assert all(a.end_time == b.start_time for a, b in itertools.pairwise(parts))


def test_what_a_sink_has_written_is_a_span(exporter: Any) -> None:
    """Only where it has written something since it was last asked."""
    now = iter(range(0, 100 * MS, 10 * MS))
    traces = Traces("orders.archive", exporter, lambda: next(now))
    for upserts, deletes in ((5, 0), (5, 0), (5, 2)):
        traces.moved("sink batch", {"upserts": upserts, "deletes": deletes}, {"lag": 3})
    traces.close()
    first, second = exporter.get_finished_spans()
    assert (first.start_time, first.end_time) == (0, 10 * MS)
    assert first.attributes == {"penstock.upserts": 5, "penstock.deletes": 0, "penstock.lag": 3}
    assert (second.start_time, second.end_time) == (20 * MS, 30 * MS)
    assert second.attributes == {"penstock.upserts": 0, "penstock.deletes": 2, "penstock.lag": 3}


def test_the_environment_names_service_and_exporter(
    exporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for all programs that use OpenTelemetry; an exporter that isn't known is refused."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "till")
    traces = Traces("shop", exporter)
    traces.moved("sink batch", {"upserts": 1}, {})
    traces.close()
    [span] = exporter.get_finished_spans()
    assert span.resource.attributes["service.name"] == "till"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(UserError, match="among otlp, console, none; found 'zipkin'"):
        Traces("shop")


def test_what_is_missing_is_named(
    penstock: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is started."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    (tmp_path / "shop.py").write_text("import penstock as ps\napp = ps.App('shop')\n")
    done = penstock("run", "shop.py", "--no-ui", "--otel")
    assert done.code == 1
    assert how_to_install("otel") in done.err
    assert not (tmp_path / "shop.penstock").exists()
