"""`penstock sink`: tables, caches and indices of other systems that follow topics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.errors import Group
from penstock.cli.support.options import broker_option, client_settings, form_option, of_topics
from penstock.cli.support.progress import Patience, counter, ended_by_signals
from penstock.cli.support.tables import note, write_rows
from penstock.cli.tracing import otel_option, tracing
from penstock.core.names import hint
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock.sinks import Followed, Sink


class _RunsByDefault(Group):
    """`penstock sink TOPIC TARGET …` is `penstock sink run TOPIC TARGET …`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_slip = bool(hint(args[0], self.commands)) and "--schema" not in args
        if len(args) > 1 and args[0] not in self.commands and not is_slip:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_RunsByDefault,
    epilog="""\b
Examples:
  penstock sink users postgresql://db/reports --table users --schema "id BIGINT, name STRING" --key id
  penstock sink shop.public.users users.sqlite --table users --format debezium --schema "…" --key id
  penstock sink status                       how far each is behind
  penstock sink pause users.users            within a second, wherever it runs
  penstock sink resume users.users
  penstock sink wait users.users users-0:41  until the target has this record
  penstock sink rebuild users users.sqlite --table users …     rebuilds the table next to the live one

Offsets are stored in the target's transactions: each row is there once, even if the command is killed
and run again. Rows that the target refuses become dead letters in NAME.dead-letters.
""",
)
def sink() -> None:
    """Keep tables, caches and indices of other systems equal to topics."""


def _options(command: Any) -> Any:
    """Those that say which sink it is."""
    for one in reversed(
        (
            click.argument("topic"),
            click.argument("target"),
            click.option(
                "--table",
                default="",
                metavar="TABLE",
                help="Created if it doesn't exist. `penstock sink targets` shows what it is in each target, "
                "and which have none.",
            ),
            click.option("--schema", required=True, metavar="COLUMNS", help="Of the rows."),
            click.option(
                "--key",
                metavar="COLUMNS",
                help="The columns that identify a row; without them, rows are appended.",
            ),
            click.option(
                "--format",
                "form",
                type=click.Choice(
                    [
                        "json",
                        "debezium",
                        "debezium-precise",
                        "maxwell",
                        "avro",
                        "json-schema",
                        "protobuf",
                    ]
                ),
                default="json",
                show_default=True,
                help="Of the records: rows as json, or change envelopes; with --registry: avro, json-schema "
                "and protobuf are rows, debezium is envelopes of any of these.",
            ),
            click.option(
                "--registry",
                metavar="URL",
                help="The schema registry of the records' schemas. Its password is read from "
                "PENSTOCK_REGISTRY_PASSWORD.",
            ),
            click.option(
                "--name",
                metavar="NAME",
                help="The name under which offsets are stored. Default: TOPIC.TABLE.",
            ),
            click.option(
                "--batch-records",
                type=click.IntRange(1),
                metavar="COUNT",
                help="Records of a transaction of the target, at most. Default: 50,000, and 4 MiB.",
            ),
            click.option(
                "--placeholder",
                metavar="TEXT",
                help="What stands for a large value that an update didn't change, if Debezium's "
                "unavailable.value.placeholder is set. The target keeps its value.",
            ),
            broker_option,
        )
    ):
        command = one(command)
    return command


def _made(
    topic: str,
    target: str,
    table: str,
    schema: str,
    key: str | None,
    form: Any,
    registry: str | None,
    name: str | None,
    batch_records: int | None,
    placeholder: str | None,
    broker: str | None,
    pace_s: float | None = None,
) -> Sink:
    from penstock.core.delta import PLACEHOLDER
    from penstock.sinks import Sink, from_address

    return Sink(
        from_address(target, table),
        topic,
        schema,
        key=tuple(one.strip() for one in (key or "").split(",") if one.strip()),
        log=find_broker(broker),
        format=form,
        registry=registry,
        name=name,
        pace_s=pace_s,
        batch_records=batch_records,
        placeholder=placeholder or PLACEHOLDER,
        **client_settings(),
    )


class _Run(click.Command):
    """A command whose help shows the addresses of the targets that there are, when it is asked for."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != "help" or not found or "EXAMPLES" not in found:
            return found
        from penstock.sinks import TARGETS

        examples = ", ".join(one for kind in TARGETS.own() for one in kind.examples)
        return found.replace("EXAMPLES", examples)


@sink.command("run", cls=_Run, short_help="Keep a table of TARGET equal to TOPIC.")
@_options
@click.option(
    "--once",
    is_flag=True,
    help="End when all is written, or with an error if the target is away for 30 seconds.",
)
@click.option(
    "--pace",
    "pace_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="The least time between two writes; what comes meanwhile is written together. Default: the "
    "target's, 5 where each write makes files, else 0.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus there (http), also beyond loopback.",
)
@otel_option
def run(*, once: bool, metrics: str | None, otel: bool, **options: Any) -> None:
    """Keep a table of TARGET equal to TOPIC.

    Ctrl-C and SIGTERM end it after the transaction in flight; a second one ends it at once.

    TARGET is an address, or a file or directory by what its name ends in: EXAMPLES. `penstock sink targets`
    lists them with their options, and those of plugins.
    """
    one = _made(**options)
    patience = Patience()
    with (
        ended_by_signals(one.stop),
        _served(one, metrics),
        tracing(one.name, on=otel) as traces,
        counter("written") as tick,
    ):
        if not once:
            note(f"keeping {one.target.name} equal to the topic {options['topic']}; Ctrl-C stops")

        def looked(done: Followed) -> bool:
            tick(done.upserts + done.deletes)
            if traces is not None:
                counts = {"upserts": done.upserts, "deletes": done.deletes, "dead": done.dead}
                traces.moved("sink batch", counts, {"lag": done.lag or 0})
            if not once:
                return False
            count = done.upserts + done.deletes + done.dead
            is_over = patience.is_over(done.phase, done.trouble, count)
            return is_over or done.lag == 0 or done.phase == "paused"

        try:
            done = one.run(until=looked)
        except KeyboardInterrupt:
            done = one.done
    where = options["table"] or one.target.name
    note(
        f"wrote {done.upserts:,} rows to {where} and deleted {done.deletes:,}; {done.dead:,} dead letters"
    )
    patience.check("write all there is")
    if once and done.lag:
        raise SetupError(
            f"expected to write all there is; found that the sink is paused or was stopped, and {done.lag:,} "
            f"records wait. Resume a paused sink: penstock sink resume {one.name}"
        )


def _served(one: Sink, metrics: str | None) -> contextlib.AbstractContextManager[Any]:
    from penstock.cli.support.host import host_and_port
    from penstock.sinks import serve_metrics

    return serve_metrics(*host_and_port(metrics), [one]) if metrics else contextlib.nullcontext()


@sink.command()
@_options
@click.option("--back", is_flag=True, help="Restore the table from before the last rebuild.")
def rebuild(*, back: bool, **options: Any) -> None:
    """Rebuild a sink's table next to the live one, and switch to it when it has caught up."""
    from penstock import sinks

    one = _made(**options)
    if back:
        sinks.go_back(one)
        note(
            f"{_what(options, one)} is the one from before the last rebuild again; the other one is kept"
        )
        return
    done = sinks.rebuild(one)
    note(
        f"{_what(options, one)} was rebuilt with {done.upserts:,} rows. What was there before is "
        "kept. Restore it with --back"
    )


def _what(options: dict[str, Any], one: Sink) -> str:
    return str(options["table"] or one.target.name)


@sink.command()
@form_option
def targets(form: str) -> None:
    """List the kinds of targets: addresses, options, what a table is, and what has to be installed."""
    from penstock.core.lazy import how_to_install
    from penstock.sinks import TARGETS

    found, broken = TARGETS.listed()
    rows = [
        [
            kind.name,
            ", ".join(kind.examples),
            kind.table,
            ", ".join(f"{option}: {option.help}" for option in kind.options),
            how_to_install(kind.extra) if kind.extra else "",
            one.distribution,
        ]
        for one in found
        for kind in [one.kind]
    ]
    write_rows(["name", "address", "table", "options", "needs", "distribution"], rows, form)
    for each in broken:
        note(str(each))


@sink.command()
@form_option
@broker_option
def status(broker: str | None, form: str) -> None:
    """Show how far each sink is, and why one waits."""
    from penstock import sinks

    found = sinks.status(find_broker(broker), **client_settings())
    if not found and form == "table":
        note("There are no sinks yet: penstock sink TOPIC TARGET")
    names = ["name", "topic", "target", "phase", "breaker", "lag", "behind_s", "progress"]
    names += ["upserts", "deletes", "dead", "retries", "last_error"]
    write_rows(names, [[one[name] for name in names] for one in found], form)


@sink.command()
@click.argument("name")
@broker_option
def pause(name: str, broker: str | None) -> None:
    """Pause the sink NAME, wherever it runs. Its offsets stay."""
    from penstock import sinks

    sinks.pause(find_broker(broker), name, **client_settings())
    note(f"{name} pauses within a second. Continue it: penstock sink resume {name}")


@sink.command()
@click.argument("name")
@broker_option
def resume(name: str, broker: str | None) -> None:
    """Continue the paused sink NAME."""
    from penstock import sinks

    sinks.resume(find_broker(broker), name, **client_settings())
    note(f"{name} continues within a second")


@sink.command()
@click.argument("name")
@broker_option
def drop(name: str, broker: str | None) -> None:
    """Forget the sink NAME, which has ended. Its table and dead letters stay."""
    from penstock import sinks

    sinks.drop(find_broker(broker), name, **client_settings())
    note(f"{name} is no longer listed. Its table and dead letters stay")


@sink.command("wait")
@click.argument("name")
@click.argument("token")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="At most.",
)
@broker_option
def wait_(name: str, token: str, seconds: float, broker: str | None) -> None:
    """Wait until the target of the sink NAME has the records at TOKEN.

    TOKEN is TOPIC-PARTITION:OFFSET, or CAPTURE@POSITION with a database's position, such as its LSN.
    """
    from penstock import sinks

    address, settings = find_broker(broker), client_settings()

    def topics() -> list[str] | None:
        found = [one["topic"] for one in sinks.status(address, **settings) if one["name"] == name]
        return found or None  # `wait_for` says that there is no such sink

    positions, left = of_topics(token, seconds, lambda: address, topics)
    if positions:
        sinks.wait_for(address, name, positions, left, **settings)
