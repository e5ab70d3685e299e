"""`penstock query`: SQL over a pipeline's views."""

from __future__ import annotations

from typing import Literal

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import TOKENS, of_topics
from penstock.cli.support.tables import FORMATS, note, warn, write_rows, write_table


@click.command(
    epilog="""\b
Examples:
  penstock query machine                                       which views there are, as SHOW TABLES
  penstock query machine "DESCRIBE load_per_minute"            a view's columns and their types
  penstock query machine "SELECT * FROM load_per_minute ORDER BY window_start DESC LIMIT 5"
  penstock query weblog.penstock "SELECT path, sum(requests) AS n FROM per_path GROUP BY path
      ORDER BY n DESC LIMIT 10" --format csv > top.csv

The SQL is DuckDB's. All views are of one committed version, whether the pipeline runs or not; AS OF
VERSION 17, after a view's name or at the end, reads an older one.
"""
)
@click.argument("app")
@click.argument("sql", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="json writes a line for each row.",
)
@click.option(
    "--after",
    metavar="TOKEN",
    help=f"Wait until the views have read these records: {TOKENS}.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How many seconds --after waits at most.",
)
def query(
    app: str,
    sql: str | None,
    form: Literal["table", "json", "csv"],
    after: str | None,
    wait: float,
) -> None:
    """Query the views of APP (a pipeline's name or directory) with SQL; without SQL, list them."""
    from penstock.cli.loading import forget_pandas

    forget_pandas()
    from penstock.serve import Views
    from penstock.serve.answers import Once

    views = Views(app, Once(warn))
    if after is not None:
        token, left = of_topics(
            after, wait, lambda: find_broker(app), lambda: views.status()["offsets"]
        )
        if token:
            views.wait_for(token, left)
    if sql is None:
        names = views.names()
        if not names:
            note("There are no committed views yet.")
            return
        snapshot = views.snapshot()
        columns = [", ".join(snapshot.schema(name).names) for name in names]
        write_rows(("view", "columns"), list(zip(names, columns, strict=True)), form)
        return
    write_table(views.sql(sql), form)
