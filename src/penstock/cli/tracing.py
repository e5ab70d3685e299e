"""OpenTelemetry traces of pipelines, captures and sinks: `--otel`.

A span is made of what a batch reports once it is committed. Nothing is measured for it, and without
`--otel` nothing of OpenTelemetry is imported. The exporter, the service's name, the sampler and so on are
those of the standard environment variables (`OTEL_…`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from penstock.core.lazy import how_to_install
from penstock.errors import SetupError, UserError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from penstock.engine.driver import Progress

__all__ = ["Traces", "Value", "otel_option", "tracing"]

Value = str | int | float
EXPORTERS: Final = ("otlp", "console", "none")
NS_PER_MS: Final = 1_000_000

otel_option = click.option(
    "--otel",
    is_flag=True,
    help="Send a trace of each batch by OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT.",
)


class Traces:
    """Sends spans until `close`.

    Args:
        service: the name of the service, where the environment names none.
        exporter: takes the spans; None: the one that the environment names.
        clock_ns: nanoseconds since 1970.

    Raises:
        SetupError: OpenTelemetry isn't installed.
        UserError: the environment names an exporter that isn't known.
    """

    def __init__(
        self,
        service: str,
        exporter: SpanExporter | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import set_span_in_context

            exporter = exporter or _exporter()
        except ImportError as error:
            raise SetupError(
                f"expected OpenTelemetry for --otel; found no module {error.name}. Install it: "
                f"{how_to_install('otel')}"
            ) from None
        named = os.environ.get("OTEL_SERVICE_NAME") or (
            "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        )
        resource = Resource.create({} if named else {"service.name": service})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if exporter is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("penstock")
        self._inside = set_span_in_context
        self._clock_ns = clock_ns
        self._looked_ns = clock_ns()
        self._seen: dict[str, int] = {}

    def batch(self, progress: Progress, parts_ms: Mapping[str, float]) -> None:
        """A pipeline's batch that has just been committed, and its parts.

        Args:
            progress: what it did.
            parts_ms: where its time went. The parts' spans follow one another: what several cores did at the
                same time is as long as its share of the batch.
        """
        end = self._clock_ns()
        begin = end - int(progress.batch_ms * NS_PER_MS)
        about: dict[str, Value] = {
            "penstock.version": progress.version,
            "penstock.rows": progress.rows,
            "penstock.late_rows": progress.late_rows,
            "penstock.dead_rows": progress.dead_rows,
            "penstock.lost_rows": progress.lost_rows,
        }
        for node in progress.nodes.values():
            if node.ms > 0:
                about[f"penstock.node.{node.name}.ms"] = round(node.ms, 3)
        for topic, source in progress.sources.items():
            about[f"penstock.source.{topic}.lag"] = source.lag
        span = self._tracer.start_span("batch", start_time=begin, attributes=about)
        inside = self._inside(span)
        at = begin
        for name, ms in parts_ms.items():
            if ms > 0:
                until = min(end, at + int(ms * NS_PER_MS))
                part = self._tracer.start_span(name, context=inside, start_time=at)
                part.end(until)
                at = until
        span.end(end)

    def moved(self, name: str, done: Mapping[str, int], more: Mapping[str, Value]) -> None:
        """What a capture or a sink has done since it was last asked; nothing where that is nothing.

        Args:
            name: of the span.
            done: counts since it began, which only grow.
            more: other attributes.
        """
        now = self._clock_ns()
        grown = {what: count - self._seen.get(what, 0) for what, count in done.items()}
        if any(grown.values()):
            about: dict[str, Value] = {f"penstock.{what}": n for what, n in grown.items()}
            about |= {f"penstock.{what}": value for what, value in more.items()}
            span = self._tracer.start_span(name, start_time=self._looked_ns, attributes=about)
            span.end(now)
        self._seen, self._looked_ns = dict(done), now

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


def _exporter() -> SpanExporter | None:
    """The exporter that OTEL_TRACES_EXPORTER names."""
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name != "otlp":
        raise UserError(
            f"expected OTEL_TRACES_EXPORTER among {', '.join(EXPORTERS)}; found {name!r}"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter()
    return exporter


@contextlib.contextmanager
def tracing(service: str, *, on: bool) -> Iterator[Traces | None]:
    """Traces of a service while the block runs; None where they aren't wanted."""
    if not on:
        yield None
        return
    traces = Traces(service)
    try:
        yield traces
    finally:
        traces.close()
