"""`penstock sink`: a table of a database that follows a topic."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import broker_option, client_settings
from penstock.cli.support.progress import counter
from penstock.cli.support.tables import note

if TYPE_CHECKING:
    from penstock.sinks import Followed


@click.command(
    epilog="""\b
Examples:
  penstock sink users postgresql://ann@db/reports --table users --schema "id BIGINT, name STRING" --key id
  penstock sink shop.public.users users.sqlite --table users --format debezium --schema "…" --key id
  penstock groups describe penstock.sink.users.users           how far it is behind

Offsets are stored in the target's transactions: each row is there once, even if the command is killed
and run again. Rows that the target refuses become dead letters in NAME.dead-letters.
"""
)
@click.argument("topic")
@click.argument("target")
@click.option(
    "--table",
    required=True,
    metavar="TABLE",
    help="Created if it doesn't exist; of Redis, the form of its keys: users:{id}.",
)
@click.option("--schema", required=True, metavar="COLUMNS", help="Of the rows.")
@click.option(
    "--key",
    metavar="COLUMNS",
    help="The columns that identify a row; without them, rows are appended.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "debezium", "maxwell"]),
    default="json",
    show_default=True,
    help="Of the records.",
)
@click.option(
    "--name", metavar="NAME", help="The name under which offsets are stored. Default: TOPIC.TABLE."
)
@click.option("--once", is_flag=True, help="End when all is written.")
@broker_option
def sink(
    topic: str,
    target: str,
    table: str,
    schema: str,
    key: str | None,
    form: Any,
    name: str | None,
    broker: str | None,
    *,
    once: bool,
) -> None:
    """Keep a table of TARGET equal to TOPIC.

    TARGET is postgresql://…, mysql://…, redis://…, elasticsearch+http://…, opensearch+http://…, kafka://…,
    https://…, a file (.sqlite, .db, .duckdb) or a directory (.tantivy, .iceberg).
    """
    from penstock.sinks import Sink, from_address

    keys = tuple(one.strip() for one in (key or "").split(",") if one.strip())
    one = Sink(
        from_address(target, table),
        topic,
        schema,
        key=keys,
        log=find_broker(broker),
        format=form,
        name=name,
        **client_settings(),
    )
    before = signal.signal(signal.SIGTERM, lambda *_: one.stop())
    try:
        with counter("written") as tick:

            def looked(done: Followed) -> bool:
                tick(done.upserts + done.deletes)
                return once and done.lag == 0

            try:
                done = one.run(until=looked)
            except KeyboardInterrupt:
                done = one.done
    finally:
        signal.signal(signal.SIGTERM, before)
    told = table or target.rpartition("@")[2]
    note(
        f"wrote {done.upserts:,} rows to {told} and deleted {done.deletes:,}; {done.dead:,} dead letters"
    )
