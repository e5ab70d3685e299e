"""Targets by their addresses."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from penstock.client import Security
from penstock.errors import UserError
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
from penstock.sinks._targets.vectors import vectors

__all__ = ["from_address"]

PASSWORD: Final = "PENSTOCK_SINK_PASSWORD"  # noqa: S105 - its name
"""The variable with the password of an address of Redis, over HTTP, or of Kafka, that has none."""
AUTHORIZATION: Final = "PENSTOCK_SINK_AUTHORIZATION"
"""The variable with the header `Authorization` of requests, such as `Bearer …`."""


def from_address(address: str, table: str) -> Target:
    """A target by its address: see docs/sinks.md.

    What others may not see needs not be in it: passwords of databases are found as their own programs find
    them, that of Redis, of servers over HTTP and of a Kafka cluster in PENSTOCK_SINK_PASSWORD, and the header
    `Authorization` of servers over HTTP in PENSTOCK_SINK_AUTHORIZATION.

    Args:
        address: `postgresql://…`, `mysql://…`, `redis://…?value=hash&expire_s=60`,
            `elasticsearch+http://…`, `opensearch+https://…`, `http://…`, `kafka://…`,
            `kafka+tls://user@…?ca=FILE`, or a file or directory that ends in `.sqlite`, `.sqlite3`, `.db`,
            `.duckdb`, `.iceberg`, `.delta`, `.tantivy`, `.parquet` (`?partition_by=city,day(at)`) or
            `.vectors` (`?column=embedding&dimensions=384&metric=cos`).
        table: in it; empty where it has none.

    Raises:
        UserError: it is none of these.
    """
    if address.startswith(("postgresql://", "postgres://")):
        return postgres(address, table=table)
    if address.startswith(("mysql://", "mariadb://")):
        return mysql(address, table=table)
    if address.startswith(("redis://", "rediss://")):
        return _redis(address, table)
    if address.startswith(("elasticsearch+http", "opensearch+http")):
        return elasticsearch(_opened(address.partition("+")[2]), table=table, headers=_headers())
    if address.startswith(("http://", "https://")):
        return http(_opened(address), headers=_headers())
    if address.startswith(("kafka://", "kafka+tls://", "kafka+sasl://")):
        security = Security(password=os.environ.get(PASSWORD))
        return kafka(address, table=table, security=security)
    if address.endswith(".iceberg"):
        return iceberg(address, table=table)
    if address.endswith(".delta"):
        return delta(address)
    path, _, query = address.partition("?")
    if path.endswith(".parquet"):
        return _parquet(path, query)
    if path.endswith(".vectors"):
        return _vectors(path, query)
    if address.endswith(".tantivy"):
        return tantivy(address)
    if address.endswith((".sqlite", ".sqlite3", ".db")):
        return sqlite(address, table=table)
    if address.endswith(".duckdb"):
        return duckdb(address, table=table)
    raise UserError(
        "expected a target such as postgresql://user@host/database, mysql://user@host/database, "
        "redis://host, elasticsearch+http://host:9200, opensearch+https://host:9200, kafka://host:9092, "
        "https://host/path, FILE.sqlite, FILE.duckdb, DIRECTORY.tantivy, DIRECTORY.iceberg, "
        "DIRECTORY.delta, DIRECTORY.parquet or DIRECTORY.vectors; found "
        f"{address.rpartition('@')[2]!r}"
    )


def _opened(url: str, *, needs_user: bool = True) -> str:
    """An address with the password of the environment, where it has none; of a user, where it needs one."""
    password, parts = os.environ.get(PASSWORD), urlsplit(url)
    if not password or parts.password is not None or (needs_user and not parts.username):
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def _headers() -> dict[str, str] | None:
    authorization = os.environ.get(AUTHORIZATION)
    return {"Authorization": authorization} if authorization else None


def _parquet(path: str, query: str) -> Target:
    options = dict(parse_qsl(query))
    by = options.pop("partition_by", "")
    if options or (query and not by):
        raise UserError(f"expected partition_by=COLUMNS behind {path}?; found {query!r}")
    return parquet(path, partition_by=by)


def _vectors(path: str, query: str) -> Target:
    options = dict(parse_qsl(query))
    column, dimensions = options.pop("column", ""), options.pop("dimensions", "")
    metric: Any = options.pop("metric", "cos")
    if options or not column or not dimensions.isdigit():
        raise UserError(
            f"expected column=NAME&dimensions=NUMBER, and metric=… if need be, behind {path}?; found "
            f"{query!r}"
        )
    return vectors(path, column=column, dimensions=int(dimensions), metric=metric)


def _redis(address: str, table: str) -> Target:
    options = dict(parse_qsl(urlsplit(address).query))
    value, expire_s = options.pop("value", "hash"), options.pop("expire_s", None)
    if options or not (expire_s or "1").isdigit():
        raise UserError(
            "expected value=… and expire_s=SECONDS behind the address of Redis; found "
            f"{options or expire_s!r}"
        )
    url = _opened(urlsplit(address)._replace(query="").geturl(), needs_user=False)
    return redis(url, table=table, value=value, expire_s=int(expire_s) if expire_s else None)
