"""Tables of other systems that follow topics: each row of a topic's newest state, exactly once.

    ps.sinks.Sink(ps.sinks.postgres("postgresql://localhost/reports", table="users"),

docs/sinks.md says how each is exactly-once.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.sinks._control import drop, pause, resume, status, wait_for
    from penstock.sinks._metrics import serve_metrics, sink_metrics
    from penstock.sinks._names import SILENT_MS, letters_topic, sink_phase
    from penstock.sinks._rebuilding import go_back, rebuild
    from penstock.sinks._sink import Followed, Sink
    from penstock.sinks._targets.address import from_address
    from penstock.sinks._targets.contract import Target
    from penstock.sinks._targets.elastic import elasticsearch
    from penstock.sinks._targets.files import duckdb, sqlite
    from penstock.sinks._targets.http import http
    from penstock.sinks._targets.kafka import kafka
    from penstock.sinks._targets.lake.delta import delta
    from penstock.sinks._targets.lake.iceberg import iceberg
    from penstock.sinks._targets.lake.parquet import parquet
    from penstock.sinks._targets.mysql import mysql
    from penstock.sinks._targets.postgres import postgres
    from penstock.sinks._targets.redis import redis
    from penstock.sinks._targets.tantivy import tantivy
    from penstock.sinks._targets.vectors import Match, Vectors, vectors
else:  # administration needs none of the targets
    __getattr__ = lazy_names(
        __name__,
        {
            "_control": (
                "drop",
                "pause",
                "resume",
                "status",
                "wait_for",
            ),
            "_metrics": (
                "serve_metrics",
                "sink_metrics",
            ),
            "_names": (
                "SILENT_MS",
                "letters_topic",
                "sink_phase",
            ),
            "_sink": (
                "Followed",
                "Sink",
            ),
            "_targets.address": ("from_address",),
            "_targets.contract": ("Target",),
            "_targets.elastic": ("elasticsearch",),
            "_targets.files": (
                "duckdb",
                "sqlite",
            ),
            "_targets.http": ("http",),
            "_targets.kafka": ("kafka",),
            "_targets.lake.delta": ("delta",),
            "_targets.lake.iceberg": ("iceberg",),
            "_targets.lake.parquet": ("parquet",),
            "_targets.mysql": ("mysql",),
            "_targets.postgres": ("postgres",),
            "_targets.redis": ("redis",),
            "_targets.tantivy": ("tantivy",),
            "_targets.vectors": (
                "Match",
                "Vectors",
                "vectors",
            ),
            "_rebuilding": (
                "go_back",
                "rebuild",
            ),
        },
    )

__all__ = [
    "SILENT_MS",
    "Followed",
    "Match",
    "Sink",
    "Target",
    "Vectors",
    "delta",
    "drop",
    "duckdb",
    "elasticsearch",
    "from_address",
    "go_back",
    "http",
    "iceberg",
    "kafka",
    "letters_topic",
    "mysql",
    "parquet",
    "pause",
    "postgres",
    "rebuild",
    "redis",
    "resume",
    "serve_metrics",
    "sink_metrics",
    "sink_phase",
    "sqlite",
    "status",
    "tantivy",
    "vectors",
    "wait_for",
]
