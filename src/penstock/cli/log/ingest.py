"""`penstock ingest`: files into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import broker_option, client_settings
from penstock.cli.support.progress import counter
from penstock.cli.support.tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.files import Ingested


@click.command(
    epilog="""\b
Examples:
  penstock ingest "incoming/*.jsonl.gz" --topic clicks --watch
  penstock ingest flights.csv --topic flights --schema "id BIGINT NOT NULL, tail STRING" --key tail

Each row is stored once, even if the command is killed and run again. A file is read once it hasn't changed
for --settle; write under a name that ends in .tmp, then rename.
"""
)
@click.argument("files", metavar="PATTERN")
@click.option("--topic", "-t", required=True, metavar="TOPIC", help="Where the rows go.")
@click.option("--watch", is_flag=True, help="Continue with new files.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "csv", "parquet"]),
    help="The files' format. Default: by their names' endings.",
)
@click.option("--schema", metavar="COLUMNS", help="The columns, such as 'user BIGINT NOT NULL'.")
@click.option("--key", metavar="COLUMN", help="The column whose text is the record's key.")
@click.option(
    "--time",
    metavar="COLUMN",
    help="The column of the event time, or with --schema an expression: warns of files that begin before "
    "what earlier files have reached.",
)
@click.option(
    "--unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="Of numbers since 1970 as the event time, with --time.",
)
@click.option(
    "--lateness",
    metavar="DURATION",
    help="How far rows may be behind the newest one, with --time. Default: 0 seconds.",
)
@click.option(
    "--settle",
    default="5 seconds",
    show_default=True,
    metavar="DURATION",
    help="How long a file must not have changed.",
)
@click.option(
    "--name", metavar="NAME", help="The name under which positions are stored. Default: TOPIC."
)
@broker_option
def ingest(
    files: str,
    topic: str,
    form: str | None,
    schema: str | None,
    key: str | None,
    time: str | None,
    unit: Any,
    lateness: str | None,
    settle: str,
    name: str | None,
    broker: str | None,
    *,
    watch: bool,
) -> None:
    """Write the rows of files to TOPIC as JSON objects: JSON lines, CSV or Parquet, gzipped or not.

    Files are read in the order of their names; numbers in names count by their values.
    """
    from penstock.files import ingest as run
    from penstock.flow import event_time

    for option, value in (("--lateness", lateness), ("--unit", unit)):
        if value is not None and time is None:
            raise UserError(f"expected --time COLUMN with {option}; found none. Add it")
    happened = (
        None if time is None else event_time(time, unit=unit, lateness=lateness or "0 seconds")
    )

    with counter("sent") as tick:

        def looked(done: Ingested) -> bool:
            tick(done.records)
            return False

        done = run(
            files,
            to=topic,
            log=find_broker(broker),
            format=form,  # type: ignore[arg-type] # Click has checked it
            schema=schema,
            key=key,
            time=happened,
            watch=watch,
            settle=settle,
            name=name,
            until=looked,
            **client_settings(),
        )
    note(
        f"sent {done.records:,} rows of {done.files:,} files to {topic}; {done.dead:,} dead letters, "
        f"{done.changed:,} files that have changed since they were read"
    )
    if done.unkeyed:
        note(f"{done.unkeyed:,} rows have no {key!r}, and were sent without a key")
    if done.behind:
        note(f"{done.behind:,} files begin before the event time that earlier ones had reached")
