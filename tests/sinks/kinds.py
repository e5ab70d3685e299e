"""A target of each kind, with what it says of itself and how its rows are read by somebody else."""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest
from tests.databases import Postgres
from tests.mariadb import MariaDB
from tests.redis_server import RedisServer
from tests.sinks.elastic_server import Elastic

import penstock as ps
import penstock.sinks.testing
from penstock.client import Client, Reader
from penstock.core.schema import Field, Schema
from penstock.sinks.targets.contract import Batch, Rows
from penstock.sinks.targets.http import Web

_numbers = itertools.count()


@dataclass
class Kind:
    """A target of a kind.

    Attributes:
        address: of the target.
        table: in it.
        rows: its rows, read by another program.
        is_exact: whether offsets and rows change together, not one after the other.
        is_alone: whether nobody else can open it meanwhile (of DuckDB: another process, which these aren't).
        switches: whether it can be built anew.
        keeps: whether values stay that an update leaves out.
        steps: of a simulation, of 100 that are told: they take from milliseconds to seconds.
        wait: lets time pass, after which locks of a process that was killed are free.
        code: where it is killed.
        adapt: makes it take rows of `id` and `name` alone.
    """

    address: str
    table: str
    rows: Callable[[], dict[int, str | None]]
    is_exact: bool = True
    is_alone: bool = False
    switches: bool = True
    keeps: bool = True
    steps: int = 100
    wait: Callable[[], object] = lambda: None
    adapt: Callable[[Any], Any] = lambda target: target
    code: str = str(Path(ps.sinks.testing.__file__).parent / "targets")

    def make(self) -> Any:
        """A new one, each time for the same table, of columns `id` (the key) and `name`."""
        target: Any = ps.sinks.from_address(self.address, self.table)
        target.pace_s = 0.0
        return self.adapt(target)


Maker = Callable[[Any], Kind]
KINDS: dict[str, tuple[Maker, str]] = {}
"""By name: what makes a new, empty target, and the fixture that it is given: a server, or an empty folder."""


def kind_of(fixture: str) -> Callable[[Maker], Maker]:
    """Adds a kind to those that the tests of the contract run for: `_redis` makes one of the kind `redis`.

    Args:
        fixture: what the function is given.
    """

    def add(make: Maker) -> Maker:
        KINDS[make.__name__[1:]] = (make, fixture)
        return make

    return add


def kind(name: str, request: pytest.FixtureRequest) -> Kind:
    """A new, empty one."""
    make, fixture = KINDS[name]
    return make(request.getfixturevalue(fixture))


QUERY = "SELECT id, name FROM users"


@kind_of("server")
def _postgres(server: Postgres) -> Kind:
    name = f"kind{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return Kind(server.url(name), "users", lambda: dict(server.rows(QUERY, name)))


@kind_of("mysql_server")
def _mysql(server: MariaDB) -> Kind:
    name = f"kind{next(_numbers)}"
    server.rows(f"CREATE DATABASE {name}")
    return Kind(server.url(name), "users", lambda: dict(server.rows(QUERY, name)), steps=40)


@kind_of("tmp_path")
def _sqlite(path: Path) -> Kind:
    def rows() -> dict[int, str | None]:
        with contextlib.closing(sqlite3.connect(path / "target.sqlite")) as one:
            return dict(one.execute(QUERY).fetchall())

    return Kind(str(path / "target.sqlite"), "users", rows)


@kind_of("tmp_path")
def _duckdb(path: Path) -> Kind:
    def rows() -> dict[int, str | None]:
        with duckdb.connect(str(path / "target.duckdb")) as one:
            return dict(one.execute(QUERY).fetchall())

    return Kind(str(path / "target.duckdb"), "users", rows)


@kind_of("empty")
def _redis(server: RedisServer) -> Kind:
    def rows() -> dict[int, str | None]:
        found = [server.client.hgetall(key) for key in server.client.keys("users:*")]
        return {int(one["id"]): one.get("name") for one in found}

    def wait() -> None:
        for key in server.client.keys("*:switching"):
            assert server.client.ttl(key) > 0
            server.client.delete(key)

    return Kind(server.url, "users", rows, wait=wait)


@kind_of("empty")
def _redis_stream(server: RedisServer) -> Kind:
    def rows() -> dict[int, str | None]:
        found: dict[int, str | None] = {}
        for _, entry in server.client.xrange("changes"):
            found.pop(int(entry["key"]), None)
            if entry["op"] == "upsert":
                found[int(entry["key"])] = orjson.loads(entry["row"]).get("name")
        return found

    address = server.url.replace("redis://", "redis+stream://")
    return Kind(address, "changes", rows, switches=False, keeps=False)


@kind_of("tmp_path")
def _tantivy(path: Path) -> Kind:
    module = pytest.importorskip("tantivy", reason="tantivy is not installed")

    def rows() -> dict[int, str | None]:
        searcher = module.Index.open(str(path / "users.tantivy")).searcher()
        hits = searcher.search(module.Query.all_query(), 10_000).hits
        found = [searcher.doc(at).to_dict() for _, at in hits]
        assert len({one["id"][0] for one in found}) == len(found)
        return {one["id"][0]: one["name"][0] if "name" in one else None for one in found}

    return Kind(str(path / "users.tantivy"), "", rows, is_alone=True)


class _Embedded:
    """A vector index as the target of rows without vectors: each has the one of its name."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @staticmethod
    def _rows(rows: Rows) -> Rows:
        vector = Field("vector", pa.list_(pa.float32()), required=False)
        return replace(rows, schema=Schema((*rows.schema, vector)))

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        found: dict[int, int] = self._target.open(sink, self._rows(rows))
        return found

    def write(self, batch: Batch, offsets: dict[int, int]) -> None:
        names = batch.upserts.column("name").to_pylist()
        vectors = [None if one is None else vector_of(one) for one in names]
        column = pa.array(vectors, pa.list_(pa.float32()))
        rows = batch.upserts.append_column("vector", column)
        kept = {one: some for some in batch.kept.values() for one in ("name", "vector")}
        self._target.write(replace(batch, upserts=rows, kept=kept), offsets)

    def beside(self, sink: str, rows: Rows) -> _Embedded:
        return _Embedded(self._target.beside(sink, self._rows(rows)))


def vector_of(name: str) -> list[float]:
    """A name's: another one has another direction."""
    angle = zlib.crc32(name.encode()) / 2**32 * 6
    return [math.cos(angle), math.sin(angle), 0.5]


@kind_of("tmp_path")
def _vectors(path: Path) -> Kind:
    pytest.importorskip("usearch", reason="usearch is not installed")
    folder = path / "users.vectors"

    def rows() -> dict[int, str | None]:
        with contextlib.closing(sqlite3.connect(folder / "rows.sqlite")) as one:
            texts = one.execute("SELECT key, row FROM rows").fetchall()
        found = {int(key): orjson.loads(text) for key, text in texts}
        with ps.sinks.Vectors(folder) as index:
            assert sorted(one.row["id"] for one in index.search([1, 0, 0], 100)) == sorted(found)
            for row in found.values():
                nearest = index.search(vector_of(row["name"]), 1)[0]
                assert nearest.row["name"] == row["name"]
        return {id_: row["name"] for id_, row in found.items()}

    address = f"{folder}?column=vector&dimensions=3"
    return Kind(address, "", rows, is_alone=True, adapt=_Embedded)


@kind_of("elastic")
def _elasticsearch(elastic: Elastic) -> Kind:
    def rows() -> dict[int, str | None]:
        return {one["id"]: one.get("name") for one in elastic.rows("users").values()}

    return Kind(f"elasticsearch+{elastic.url}", "users", rows, is_exact=False)


@kind_of("opensearch")
def _opensearch(url: str) -> Kind:
    name = f"users{next(_numbers)}"

    def rows() -> dict[int, str | None]:
        with contextlib.closing(Web(url)) as web:
            web.ask("POST", f"/{name}/_refresh")
            _, text = web.ask("GET", f"/{name}/_search?size=1000")
        found = [one["_source"] for one in orjson.loads(text)["hits"]["hits"]]
        return {one["id"]: one.get("name") for one in found}

    return Kind(f"opensearch+{url}", name, rows, is_exact=False, steps=40)


@kind_of("tmp_path")
def _iceberg(path: Path) -> Kind:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
    path /= "lake.iceberg"
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{path / 'catalog.db'}",
        "warehouse": path.as_uri(),
    }

    def rows() -> dict[int, str | None]:
        with contextlib.closing(catalogs.load_catalog("penstock", **properties)) as catalog:
            found = catalog.load_table("shop.users").scan().to_arrow().to_pylist()
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: one["name"] for one in found}

    return Kind(str(path), "shop.users", rows, steps=30)


@kind_of("tmp_path")
def _delta(path: Path) -> Kind:
    module = pytest.importorskip("deltalake", reason="deltalake is not installed")

    def rows() -> dict[int, str | None]:
        found = module.DeltaTable(str(path / "users.delta")).to_pyarrow_table().to_pylist()
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: one["name"] for one in found}

    return Kind(str(path / "users.delta"), "", rows, is_alone=True, steps=40)


@kind_of("tmp_path")
def _parquet(path: Path) -> Kind:
    def rows() -> dict[int, str | None]:
        if not list(path.glob("users.parquet/**/*.parquet")):
            return {}
        files = f"read_parquet('{path}/users.parquet/**/*.parquet', hive_partitioning = true)"
        [(doubled,)] = duckdb.sql(
            f"SELECT count(*) - count(DISTINCT (_partition, _offset)) FROM {files}"
        ).fetchall()
        assert doubled == 0
        newest = f"SELECT id, max(_offset) AS _offset FROM {files} GROUP BY id"
        query = (
            f"SELECT id, name FROM {files} JOIN ({newest}) USING (id, _offset) WHERE NOT _deleted"
        )
        return dict(duckdb.sql(query).fetchall())

    address = str(path / "users.parquet?partition_by=id")
    return Kind(address, "", rows, is_alone=True, keeps=False, steps=40)


@kind_of("log")
def _kafka(log: str) -> Kind:
    topic = f"kind{next(_numbers)}"

    def rows() -> dict[int, str | None]:
        found: dict[int, str | None] = {}
        with Client(log) as client, Reader(log) as reader:
            for records in reader.read(topic, 0, 0, client.offsets(topic)[0]):
                pairs = zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
                for key, value in pairs:
                    found.pop(int(key), None)
                    if value is not None:
                        found[int(key)] = orjson.loads(value).get("name")
        return found

    return Kind(f"kafka://{log}", topic, rows, switches=False, keeps=False, steps=20)
