"""`penstock capture`: a database's changes into topics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.errors import Group
from penstock.cli.support.options import broker_option, client_settings, form_option
from penstock.cli.support.progress import Patience, counter, ended_by_signals
from penstock.cli.support.tables import note, write_rows
from penstock.cli.tracing import otel_option, tracing
from penstock.core.databases import described

if TYPE_CHECKING:
    from penstock.capture import Capture, Captured


class _RunsByDefault(Group):
    """`penstock capture URL …` is `penstock capture run URL …`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_address = bool(args) and ("://" in args[0] or "=" in args[0] or "--to" in args)
        if is_address and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_RunsByDefault,
    epilog="""\b
Examples:
  penstock capture postgresql://ann@localhost/shop --tables 'public.*' --to shop
  penstock capture mysql://ann@localhost/shop --tables '*' --to shop
  penstock capture sqlite:///shop.db --tables '*' --to shop
  penstock capture status                    how far each is behind, in bytes and seconds
  penstock capture pause shop                the database keeps its log meanwhile
  penstock capture resume shop
  penstock capture snapshot shop -t users    reads a table again, while its changes flow
  penstock capture drop shop                 forgets it, and what the database keeps

A password is taken from PGPASSWORD, PGPASSFILE or ~/.pgpass; MYSQL_PWD or ~/.my.cnf. Each change is
stored once, even if the command is killed and run again.
""",
)
def capture() -> None:
    """Write a database's changes to topics, as Debezium's envelopes: PostgreSQL, MySQL, SQLite."""


@capture.command("run")
@click.argument("url")
@click.option(
    "--tables", "-t", required=True, multiple=True, metavar="TABLE", help="Such as 'public.*'."
)
@click.option(
    "--to",
    required=True,
    metavar="PREFIX",
    help="Topics are PREFIX.SCHEMA.TABLE; SQLite has no schema.",
)
@click.option(
    "--name", metavar="NAME", help="The name under which the position is stored. Default: PREFIX."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["debezium", "flat", "avro", "json-schema", "protobuf"]),
    default="debezium",
    show_default=True,
    help="Envelopes or rows, as JSON; avro, json-schema, protobuf: envelopes by schemas of a registry.",
)
@click.option(
    "--registry",
    metavar="URL",
    help="The schema registry, with --format avro, json-schema or protobuf. Its password is read from "
    "PENSTOCK_REGISTRY_PASSWORD.",
)
@click.option(
    "--values",
    type=click.Choice(["precise", "readable"]),
    default="precise",
    show_default=True,
    help="Decimals, dates and times: in Debezium's form, or as text.",
)
@click.option("--slot", metavar="SLOT", help="Default: penstock_NAME.")
@click.option("--publication", metavar="PUBLICATION", help="Default: penstock_NAME.")
@click.option("--partitions", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--compact", is_flag=True, help="Topics keep the newest record of each key.")
@click.option("--transactions", is_flag=True, help="Write transactions to PREFIX.transaction.")
@click.option(
    "--heartbeat",
    "heartbeat_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Write heartbeats to __debezium-heartbeat.PREFIX.",
)
@click.option("--outbox", metavar="TABLE", help="Its rows are events for outbox.event.* topics.")
@click.option(
    "--max-lag",
    type=click.IntRange(1),
    metavar="BYTES",
    help="How much of its log the database keeps for the capture; beyond that, the slot is dropped.",
)
@click.option(
    "--snapshot-connections",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Connections that read a large table at a time. Default: 3.",
)
@click.option(
    "--large-values",
    type=click.Choice(["read", "placeholder"]),
    help="Of PostgreSQL, that an update didn't change: read from the table (default), or Debezium's "
    "placeholder.",
)
@click.option(
    "--cascades",
    type=click.Choice(["read", "ignore"]),
    help="Of MySQL and MariaDB, when foreign keys' actions have changed a table: read it again (default), or "
    "leave it.",
)
@click.option("--schema-changes", is_flag=True, help="Write them to the topic PREFIX.")
@click.option(
    "--on-schema-change",
    type=click.Choice(["pass", "stop"]),
    default="pass",
    show_default=True,
    help="What to do if readers may fail: a NOT NULL column is dropped, a type or the key changes.",
)
@click.option(
    "--notifications", is_flag=True, help="Write snapshots' progress to PREFIX.notifications."
)
@click.option(
    "--on-unreadable",
    type=click.Choice(["null", "letter"]),
    default="null",
    show_default=True,
    help="A row with a value that can't be read or written: write it with NULL there, or make it a dead "
    "letter in NAME.capture.dead-letters. Both are counted.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus there (http), also beyond loopback.",
)
@click.option("--print-setup", is_flag=True, help="Print the SQL of the least privileges, and end.")
@click.option(
    "--once",
    is_flag=True,
    help="End when no more changes are available, or with an error if the database is away for 30 seconds.",
)
@otel_option
@broker_option
def run(
    url: str,
    tables: tuple[str, ...],
    form: Any,
    broker: str | None,
    *,
    once: bool,
    otel: bool,
    metrics: str | None,
    print_setup: bool,
    **settings: Any,
) -> None:
    """Capture TABLEs of the database at URL: their rows, then their changes.

    Ctrl-C and SIGTERM end it after the transaction in flight; a second one ends it at once.
    """
    from penstock.capture import Capture, setup

    if print_setup:
        click.echo(setup(url, tables, settings["name"] or settings["to"]), nl=False)
        return
    address = find_broker(broker)
    one = Capture(
        url,
        list(tables),
        log=address,
        format=form,
        **settings,
        **client_settings(),
    )
    patience = Patience()
    with (
        ended_by_signals(one.stop),
        _served(one, metrics),
        tracing(one.name, on=otel) as traces,
        counter("captured") as tick,
    ):
        if not once:
            note(f"capturing {described(url)} into the log at {described(address)}; Ctrl-C stops")

        def looked(done: Captured) -> bool:
            tick(done.records)
            if traces is not None:
                counts = {
                    "records": done.records,
                    "transactions": done.transactions,
                    "snapshot_rows": done.snapshot_rows,
                    "unread": done.unread,
                    "dead": done.letters,
                }
                traces.moved("capture batch", counts, {"phase": done.phase})
            is_over = once and patience.is_over(done.phase, done.trouble, done.records)
            return is_over or (once and done.is_caught_up)

        try:
            done = one.run(until=looked)
        except KeyboardInterrupt:
            done = one.done
    note(
        f"captured {done.snapshot_rows:,} rows of snapshots and {done.transactions:,} transactions"
    )
    patience.check("capture all changes")
    if done.unchanged:
        note(f"{done.unchanged:,} large values weren't touched by updates, and are placeholders")
    if done.unread:
        note(
            f"{done.unread:,} values couldn't be read or written, and {done.letters:,} rows are dead "
            "letters: penstock capture status"
        )


def _served(one: Capture, metrics: str | None) -> contextlib.AbstractContextManager[Any]:
    from penstock.capture import serve_metrics
    from penstock.cli.support.host import host_and_port

    return serve_metrics(*host_and_port(metrics), one) if metrics else contextlib.nullcontext()


_url = click.option("--url", metavar="URL", help="Of the database. Default: the one captured.")


@capture.command("status")
@click.argument("name", required=False)
@_url
@form_option
@broker_option
def status(name: str | None, url: str | None, form: str, broker: str | None) -> None:
    """Show how far the capture NAME, or all captures, are behind."""
    from penstock.capture import letters_topic, names
    from penstock.capture import status as ask
    from penstock.client import Client

    log = find_broker(broker)
    some = [name] if name else None
    if some is None:
        with Client(log, **client_settings()) as client:
            some = names(client)
    found = [ask(one, log, url=url, **client_settings()) for one in some]
    names_ = (
        "name",
        "state",
        "position",
        "lag_bytes",
        "lag_s",
        "slot",
        "snapshot",
        "unread",
        "letters",
        "tables",
        "database",
    )
    rows = [
        (
            *(one.name, one.state, one.position, one.lag_bytes),
            None if one.lag_s is None else round(one.lag_s, 1),
            *(one.slot, one.snapshot, sum(one.unread.values()), one.letters),
            *(", ".join(one.tables), one.server),
        )
        for one in found
    ]
    write_rows(names_, rows, form)
    for one in found:
        if one.trouble:
            note(f"{one.name}: the database can't be asked: {one.trouble}")
        for column, count in one.unread.items():
            note(f"{one.name}: {count:,} of {column} couldn't be read or written")
        if one.letters:
            note(f"{one.name}: see the dead letters: penstock dlq show {letters_topic(one.name)}")
        if one.slot in {"unreserved", "lost"}:
            note(f"{one.name}: the database lets go of the log that this capture needs")


@capture.command("schemas")
@click.argument("name")
@form_option
@broker_option
def schemas(name: str, form: str, broker: str | None) -> None:
    """Show the columns of the tables of the capture NAME, and which version of its schema each table has."""
    from penstock.capture import schemas as ask

    found = ask(name, find_broker(broker), **client_settings())
    rows = [
        (table, version.number, one.name, one.type, bool(one.is_required), one.name in shape.key)
        for table, version in sorted(found.items())
        for shape in [version.shape]
        for one in shape.columns
    ]
    write_rows(("table", "version", "column", "type", "not_null", "key"), rows, form)


def _command(what: Any, help_text: str, done: str) -> click.Command:
    @capture.command(what, help=help_text)
    @click.argument("name")
    @broker_option
    def command(name: str, broker: str | None) -> None:
        from penstock.capture import control

        control(name, what, find_broker(broker), **client_settings())
        note(done.format(name=name))

    return command


pause = _command(
    "pause",
    "Pause the capture NAME; the database keeps its log meanwhile.",
    "{name} pauses within a second. Continue it: penstock capture resume {name}",
)
resume = _command("resume", "Resume the capture NAME.", "{name} continues within a second")


@capture.command("snapshot")
@click.argument("name")
@click.option("--tables", "-t", multiple=True, metavar="TABLE", help="Default: all of NAME.")
@click.option("--where", metavar="SQL", help="Read only rows that meet this condition.")
@click.option(
    "--delete-missing",
    is_flag=True,
    help="Delete keys of the topics that the tables don't have, once they are read.",
)
@click.option("--pause", "what", flag_value="pause", help="Pause the snapshot that is running.")
@click.option("--resume", "what", flag_value="resume", help="Resume it.")
@click.option("--stop", "what", flag_value="stop", help="Stop it, and forget those that wait.")
@broker_option
def snapshot(
    name: str,
    tables: tuple[str, ...],
    where: str | None,
    delete_missing: bool,  # noqa: FBT001 - click's
    what: Any,
    broker: str | None,
) -> None:
    """Read TABLEs of the capture NAME again, in chunks, while their changes flow.

    Nothing is locked, and nothing is written to the database. The capture takes the request within a
    second, and continues after a restart. `penstock capture status` shows how far it is.
    """
    from penstock.capture import snapshot as ask

    log = find_broker(broker)
    ask(
        *(name, tables),
        log=log,
        what=what or "start",
        where=where,
        delete_missing=delete_missing,
        **client_settings(),
    )
    note(f"{name} takes the request within a second, if it runs. See it: penstock capture status")


@capture.command("drop")
@click.argument("name")
@_url
@broker_option
def drop(name: str, url: str | None, broker: str | None) -> None:
    """Forget the stopped capture NAME: its position, and what the database keeps. Topics stay."""
    from penstock.capture import drop as forget

    forget(name, find_broker(broker), url=url, **client_settings())
    note(f"{name} was dropped. Its topics stay, with what was captured")
