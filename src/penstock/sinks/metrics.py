"""A sink's figures in Prometheus' text form, made when a scrape asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from penstock.follow.breaker import CIRCUITS
from penstock.follow.metrics import Family, follower_families, serve
from penstock.follow.report import PHASES
from penstock.sinks.names import KIND

if TYPE_CHECKING:
    from penstock.sinks.sink import Sink

__all__ = ["FAMILIES", "serve_metrics", "sink_metrics"]

FAMILIES: Final = (
    Family("lag_records", "Records that are in the log and not in the target.", "lag"),
    Family("behind_seconds", "Since the target last had all of them.", "behind_ms", unit=1_000),
    Family("progress_ratio", "The part of the topic's records that is in the target.", "progress"),
    Family("upserts", "Rows written.", "upserts", "counter"),
    Family("deletes", "Keys deleted.", "deletes", "counter"),
    Family(
        *("dead_letters", "Records that don't fit, or that the target refused.", "dead"), "counter"
    ),
    Family("retries", "Tries after an error that passes.", "retries", "counter"),
    Family(
        *("state", "1 for the phase that it is in.", "phase"),
        tuple(one for one in PHASES if one not in ("snapshot", "streaming")),
    ),
    Family("breaker_state", "1 for the state of its circuit breaker.", "breaker", CIRCUITS),
)
"""What a sink serves, with the label `sink`."""


def sink_metrics(sinks: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """The metrics of sinks.

    Args:
        sinks: by name, what `Sink.figures` gives.
    """
    return follower_families(KIND, FAMILIES, sinks)


def serve_metrics(host: str, port: int, sinks: Iterable[Sink]) -> AbstractContextManager[int]:
    """Serves `/metrics` meanwhile; the port.

    Raises:
        SetupError: the address can't be listened on.
    """
    served = list(sinks)
    return serve(host, port, lambda: sink_metrics({one.name: one.figures() for one in served}))
