"""A shop's database, revenue per city kept up to date, and a second database that follows.

    export SHOP_URL=postgresql://ann@localhost/shop REPORTS_URL=postgresql://ann@localhost/reports
    psql "$SHOP_URL" -c "CREATE TABLE users (id int PRIMARY KEY, city text NOT NULL)"
    psql "$SHOP_URL" -c "CREATE TABLE orders (id bigserial PRIMARY KEY, user_id int, amount numeric(10, 2))"
    penstock run examples/shop.py
    psql "$REPORTS_URL" -c "SELECT * FROM revenue"

The rows that the tables have, and then each committed change, go to the topics `users` and `orders`. A user
who moves takes their orders along: the sums of both cities change. Nobody writes to two systems.
"""

from __future__ import annotations

import os

import penstock as ps


def pipeline(
    shop: str | None = None,
    reports: str | None = None,
    directory: str = "shop.penstock",
    log: str | None = None,
) -> ps.App:
    """Revenue per city.

    Args:
        shop: the database that is captured.
        reports: the database that follows.
        directory: where the log and the state live.
        log: another log than the embedded one, `kafka://host:port`.
    """
    shop = shop or os.environ.get("SHOP_URL", "postgresql://localhost/shop")
    reports = reports or os.environ.get("REPORTS_URL", "postgresql://localhost/reports")
    app = ps.App("shop", directory=directory, log=log)
    users = app.table("users", source=ps.capture.postgres(shop, table="public.users"))
    orders = app.table("orders", source=ps.capture.postgres(shop, table="public.orders"))
    cities = users.select(who="id", city="city")
    paid = orders.select(order="id", user_id="user_id", amount="amount")
    revenue = (
        paid.join(cities, on={"user_id": "who"})
        .group_by("city")
        .agg(revenue=ps.sum("amount"), orders=ps.count())
    )
    app.view("revenue", revenue)
    app.sink(revenue, ps.sinks.postgres(reports, table="revenue"))
    return app


if __name__ == "__main__":
    pipeline().main()
