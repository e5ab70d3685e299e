"""Tables of other systems that follow topics: each row of a topic's newest state, exactly once.

    ps.sinks.Sink(ps.sinks.postgres("postgresql://localhost/reports", table="users"),

docs/sinks.md says how each is exactly-once.
"""

from penstock.sinks._control import go_back, pause, rebuild, resume, status, wait_for
from penstock.sinks._metrics import serve_metrics, sink_metrics
from penstock.sinks._report import SILENT_MS, sink_phase
from penstock.sinks._sink import Followed, Sink
from penstock.sinks._targets.address import from_address
from penstock.sinks._targets.contract import Target
from penstock.sinks._targets.elastic import elasticsearch
from penstock.sinks._targets.files import duckdb, sqlite
from penstock.sinks._targets.http import http_ as http
from penstock.sinks._targets.kafka import kafka
from penstock.sinks._targets.lake.delta import delta
from penstock.sinks._targets.lake.iceberg import iceberg
from penstock.sinks._targets.lake.parquet import parquet
from penstock.sinks._targets.mysql import mysql
from penstock.sinks._targets.postgres import postgres
from penstock.sinks._targets.redis import redis
from penstock.sinks._targets.tantivy import tantivy
from penstock.sinks._targets.vectors import Match, Vectors, vectors

__all__ = [
    "SILENT_MS",
    "Followed",
    "Match",
    "Sink",
    "Target",
    "Vectors",
    "delta",
    "duckdb",
    "elasticsearch",
    "from_address",
    "go_back",
    "http",
    "iceberg",
    "kafka",
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
