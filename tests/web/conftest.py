"""What the page's tests share: views without a pipeline, and a status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from tests.web.pipelines import Pipeline

from penstock.engine.store import Store
from penstock.errors import QueryError
from penstock.serve import Answer, Failure
from penstock.serve.arrivals import Arrivals
from penstock.state import MemoryStateFiles
from penstock.web import create_app
from penstock.web.api import ROWS_MAX

MINUTE_US = 60_000_000
INSTANT = pa.timestamp("us", "UTC")


def windows(rows: list[tuple[Any, ...]], *names: str) -> pa.Table:
    """A view's rows: the window's minute, then the columns named."""
    starts = pa.array([row[0] * MINUTE_US for row in rows], pa.int64()).cast(INSTANT)
    ends = pa.array([(row[0] + 1) * MINUTE_US for row in rows], pa.int64()).cast(INSTANT)
    columns = {name: pa.array([row[i + 1] for row in rows]) for i, name in enumerate(names)}
    return pa.table({"window_start": starts, "window_end": ends, **columns})


@dataclass
class FakeViews:
    """Views that are just tables."""

    tables: dict[str, pa.Table]
    key_names: dict[str, list[str]] = field(default_factory=dict)
    version: int = 1
    reads: int = 0
    failures: dict[str, tuple[Failure, ...]] = field(default_factory=dict)

    def names(self) -> list[str]:
        return list(self.tables)

    def keys(self, name: str) -> list[str] | None:
        return self.key_names.get(name)

    def every_us(self, name: str) -> int | None:
        return MINUTE_US

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        self.reads += 1
        table = self.tables[name]
        if window_from_us is not None:
            at = table["window_start"].cast(pa.int64()).to_numpy()
            table = table.filter(pa.array(at >= window_from_us))
        return table

    def failed(self, name: str) -> tuple[Failure, ...]:
        return self.failures.get(name, ())

    def arrivals(self, call: Callable[[], None]) -> Arrivals:
        return Arrivals(Store(MemoryStateFiles()), call)

    def ask(self, query: str, gone: Callable[[], bool]) -> Answer:
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'")
            for name, table in self.tables.items():
                con.register(name, table)
            try:
                table = con.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise QueryError(str(error)) from None
        return Answer(table.slice(0, ROWS_MAX), table.num_rows, failures=self.failures)


@pytest.fixture
def views() -> FakeViews:
    """A view by core and one without keys."""
    load = windows(
        [(m, core, 10.0 * m + core) for m in range(3) for core in range(2)], "core", "load"
    )
    total = windows([(m, m * 100) for m in range(3)], "n")
    return FakeViews({"load": load, "total": total}, {"load": ["core"], "total": []})


def status(*, history: bool = False) -> dict[str, Any]:
    """The status of a pipeline that is well and at rest; it never changes."""
    pipeline = Pipeline(version=7, rows=100)
    return pipeline.board.status(history=history)


class Client:
    """Asks an app without a server."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app)

    def get(self, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            base = "http://127.0.0.1:8750"
            async with httpx.AsyncClient(transport=self._transport, base_url=base) as client:
                return await client.get(path, **options)

        return asyncio.run(ask())


@pytest.fixture
def shared() -> SimpleNamespace:
    """Makers that several tests use."""
    return SimpleNamespace(windows=windows, status=status)


@pytest.fixture
def ask() -> Callable[[FakeViews | None], Client]:
    """Makes a client of the app over these views."""
    return lambda views: Client(create_app(views, status))


@pytest.fixture
def client(views: FakeViews) -> Client:
    """A client of the app over the usual views."""
    return Client(create_app(views, status))
