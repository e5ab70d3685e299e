"""Tables of other systems that follow topics: each row of a topic's newest state, exactly once.

    ps.sinks.Sink(ps.sinks.postgres("postgresql://localhost/reports", table="users"),
                  "users", "id BIGINT NOT NULL, name STRING", key="id").run()

docs/sinks.md says how each is exactly-once.
"""

from penstock.sinks._control import go_back, pause, rebuild, resume, status
from penstock.sinks._elastic import elasticsearch
from penstock.sinks._files import duckdb, sqlite
from penstock.sinks._http import http_ as http
from penstock.sinks._iceberg import iceberg
from penstock.sinks._kafka import kafka
from penstock.sinks._mysql import mysql
from penstock.sinks._postgres import postgres
from penstock.sinks._redis import redis
from penstock.sinks._sink import Followed, Sink
from penstock.sinks._tantivy import tantivy
from penstock.sinks._target import Target
from penstock.sinks._targets import from_address

__all__ = [
    "Followed",
    "Sink",
    "Target",
    "duckdb",
    "elasticsearch",
    "from_address",
    "go_back",
    "http",
    "iceberg",
    "kafka",
    "mysql",
    "pause",
    "postgres",
    "rebuild",
    "redis",
    "resume",
    "sqlite",
    "status",
    "tantivy",
    "users",
]
