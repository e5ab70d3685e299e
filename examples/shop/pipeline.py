"""The shop's pipeline: PostgreSQL is captured, and everything else follows it.

    customers, products, orders    tables of PostgreSQL
      -> catalog                   each product, and how often it was sold: a view, a search index, a cache,
                                   a warehouse, and a table of a second database
      -> sales                     each order with its product and customer: a table of the warehouse
      -> revenue                   of each category: a view, and a table of the second database

Nothing writes to two systems. The program writes to PostgreSQL alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import penstock as ps


def pipeline(shop: str, reports: str, cache: str, directory: str | Path) -> ps.App:
    """The shop's pipeline.

    Args:
        shop: the address of the database that is captured.
        reports: of the database that follows.
        cache: of the Redis server.
        directory: where the log, the state, the index (`search.tantivy`) and the warehouse
            (`warehouse.iceberg`) are.
    """
    folder = Path(directory)
    app = ps.App("shop", directory=folder)
    customers = app.table("customers", source=ps.capture.postgres(shop, table="public.customers"))
    products = app.table("products", source=ps.capture.postgres(shop, table="public.products"))
    orders = app.table("orders", source=ps.capture.postgres(shop, table="public.orders"))

    sold = orders.group_by("product_id").agg(sold=ps.sum("quantity"))
    catalog = products.join(sold, on={"id": "product_id"}, how="left").select(
        "id", "name", "description", "category", "price", sold="coalesce(sold, 0)"
    )
    app.view("catalog", catalog)
    for name, target in {
        "catalog": ps.sinks.postgres(reports, table="catalog"),
        "cache": ps.sinks.redis(cache, table="product:{id}"),
        "search": ps.sinks.tantivy(folder / "search.tantivy"),
        "warehouse": ps.sinks.iceberg(folder / "warehouse.iceberg", table="shop.catalog"),
    }.items():
        app.sink(catalog, target, topic="catalog", name=name)

    what = products.select(product_id="id", product="name", category="category")
    who = customers.select(customer_id="id", customer="name", city="city")
    sales = (
        orders.join(what, on="product_id")
        .join(who, on="customer_id")
        .select("id", "at", "product", "category", "city", "quantity", amount="quantity * price")
    )
    warehouse = ps.sinks.iceberg(folder / "warehouse.iceberg", table="shop.sales")
    app.sink(sales, warehouse, topic="sales")

    revenue = sales.group_by("category").agg(orders=ps.count(), revenue=ps.sum("amount"))
    app.view("revenue", revenue)
    app.sink(revenue, ps.sinks.postgres(reports, table="revenue"), topic="revenue")
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:5]).main(sys.argv[5:])
