"""What each system has, next to the shop's database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import redis
import tantivy
from orders import QUIET
from pyiceberg.catalog import load_catalog
from servers import Servers

from penstock.serve import Views

CATALOG = ("id", "name", "description", "category", "price", "sold")
SALES = ("id", "at", "product", "category", "city", "quantity", "amount")
REVENUE = ("category", "orders", "revenue")
SOURCE = {
    CATALOG: "SELECT id, name, description, category, price, "
    "(SELECT coalesce(sum(quantity), 0) FROM orders WHERE product_id = products.id) AS sold FROM products",
    SALES: "SELECT o.id, o.at, p.name AS product, p.category, c.city, o.quantity, "
    "o.quantity * o.price AS amount FROM orders o JOIN products p ON p.id = o.product_id "
    "JOIN customers c ON c.id = o.customer_id",
    REVENUE: "SELECT p.category, count(*) AS orders, sum(o.quantity * o.price) AS revenue "
    "FROM orders o JOIN products p ON p.id = o.product_id GROUP BY p.category",
}
"""What the derived tables are, asked of the shop's database itself."""
NUMBERS = {"id", "quantity", "orders", "sold", "price", "amount", "revenue"}
Rows = dict[Any, tuple[Any, ...]]
"""The other columns, by the first one."""


class Systems:
    """The shop's database, and all that follow it."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self._servers, self._directory = servers, directory

    def source(self, columns: tuple[str, ...]) -> Rows:
        """What the shop's database says."""
        return self._sql(self._servers.shop, columns, SOURCE[columns])

    def followers(self) -> dict[str, tuple[tuple[str, ...], Callable[[], Rows]]]:
        """The derived tables: columns, and what there is now."""
        reports = self._servers.reports
        return {
            "view catalog": (CATALOG, lambda: self._view("catalog", CATALOG)),
            "second database": (CATALOG, lambda: self._sql(reports, CATALOG, "TABLE catalog")),
            "cache": (CATALOG, self._cache),
            "search index": (CATALOG, self._index),
            "warehouse": (CATALOG, lambda: self._iceberg("catalog", CATALOG)),
            "warehouse, sales": (SALES, lambda: self._iceberg("sales", SALES)),
            "view revenue": (REVENUE, lambda: self._view("revenue", REVENUE)),
            "second database, revenue": (REVENUE, lambda: self._sql(reports, REVENUE, "TABLE revenue")),
        }  # fmt: skip

    def _sql(self, url: str, columns: tuple[str, ...], query: str) -> Rows:
        with psycopg.connect(url) as one:
            found = one.execute(f"SELECT {', '.join(columns)} FROM ({query}) t").fetchall()
        return _rows(columns, (dict(zip(columns, row, strict=True)) for row in found))

    def _view(self, name: str, columns: tuple[str, ...]) -> Rows:
        found = Views(self._directory).sql(f"SELECT {', '.join(columns)} FROM {name}")
        return _rows(columns, found.to_pylist())

    def _cache(self) -> Rows:
        with contextlib.closing(
            redis.Redis.from_url(self._servers.cache, decode_responses=True)
        ) as one:
            return _rows(CATALOG, (one.hgetall(key) for key in one.scan_iter("product:*")))

    def _index(self) -> Rows:
        return _rows(CATALOG, self._documents(tantivy.Query.all_query()))

    def search(self, words: str) -> list[dict[str, Any]]:
        """The products that fit best."""
        index = tantivy.Index.open(str(self._directory / "search.tantivy"))
        query = index.parse_query(words, ["name", "description", "category"])
        return list(self._documents(query))

    def _documents(self, query: tantivy.Query) -> Iterator[dict[str, Any]]:
        searcher = tantivy.Index.open(str(self._directory / "search.tantivy")).searcher()
        for _, place in searcher.search(query, 1000).hits:
            yield {name: values[0] for name, values in searcher.doc(place).to_dict().items()}

    def _iceberg(self, table: str, columns: tuple[str, ...]) -> Rows:
        folder = (self._directory / "warehouse.iceberg").absolute()
        catalog = load_catalog(
            "penstock",
            type="sql",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=folder.as_uri(),
        )
        with contextlib.closing(catalog):
            found = catalog.load_table(f"shop.{table}").scan().to_arrow()
        return _rows(columns, found.to_pylist())

    def differences(self, patience_s: float) -> dict[str, tuple[int, int]]:
        """How many rows each derived table has, and how many of them differ from the shop's database.

        The shop takes no orders meanwhile. What was ordered before is waited for, but not for longer than
        `patience_s`.
        """
        deadline = time.monotonic() + patience_s
        with psycopg.connect(self._servers.shop, autocommit=True) as one:
            one.execute("SELECT pg_advisory_lock(%s)", (QUIET,))
            while True:
                differences = {
                    name: self._difference(*one) for name, one in self.followers().items()
                }
                if (
                    not any(differ for _, differ in differences.values())
                    or time.monotonic() > deadline
                ):
                    return differences
                time.sleep(1.0)

    def _difference(self, columns: tuple[str, ...], read: Callable[[], Rows]) -> tuple[int, int]:
        wanted, found = self.source(columns), present(read)
        return len(found), len({key for key, _ in wanted.items() ^ found.items()})


def present(read: Callable[[], Rows]) -> Rows:
    """What a system has; nothing while its table doesn't exist yet."""
    with contextlib.suppress(Exception):
        return read()
    return {}


def _rows(columns: tuple[str, ...], found: Any) -> Rows:
    """Rows by key, in values that compare: the systems' own types differ."""
    rows = ([_plain(name, row[name]) for name in columns] for row in found)
    return {key: tuple(rest) for key, *rest in rows}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return Decimal(str(value)) if name in NUMBERS else value
