"""The `penstock` command; its subcommands are in the packages next to this module."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.support.address import VARIABLE
from penstock.cli.support.errors import Group, run_guarded

if TYPE_CHECKING:
    import penstock as ps

_COLLECTED_EVERY: Final = 50_000
"""Objects between two of Python's searches for circles of garbage, 700 by default. To import a library makes
many objects and no garbage; the searches were a fifth of a small command's time."""

# Which module has which command: it is imported when it is asked for, so that --help is quick.
_COMMANDS: Final = {
    "run": ("penstock.cli.pipelines.run", "run", "Run a pipeline: a Python program with a ps.App."),
    "new": (
        "penstock.cli.pipelines.new",
        "new",
        "Make a project: a pipeline, a test, sample data.",
    ),
    "dev": ("penstock.cli.pipelines.dev", "dev", "Run a pipeline; restart it when it changes."),
    "demo": (
        "penstock.cli.pipelines.demo",
        "demo",
        "Watch this machine, or a web server's access log.",
    ),
    "explain": (
        "penstock.cli.pipelines.explain",
        "explain",
        "Show a pipeline's operators, exchanges and state.",
    ),
    "check": (
        "penstock.cli.pipelines.check",
        "check",
        "Check programs without running them: syntax, types, plan.",
    ),
    "test": (
        "penstock.cli.pipelines.test",
        "test",
        "Run tests of programs: given rows, expected rows.",
    ),
    "query": ("penstock.cli.pipelines.query", "query", "Query a pipeline's views with SQL."),
    "sql": (
        "penstock.cli.pipelines.sql",
        "sql",
        "Query views or topics with SQL, line by line.",
    ),
    "subscribe": (
        "penstock.cli.pipelines.subscribe",
        "subscribe",
        "Print a view's changes as they are committed.",
    ),
    "savepoint": (
        "penstock.cli.pipelines.savepoint",
        "savepoint",
        "Keep versions of a pipeline's state, and restore them.",
    ),
    "topics": ("penstock.cli.log.topics", "topics", "List, create, describe and delete topics."),
    "produce": ("penstock.cli.log.produce", "produce", "Send lines to a topic."),
    "ingest": ("penstock.cli.log.ingest", "ingest", "Write the rows of files to a topic."),
    "capture": (
        "penstock.cli.log.capture",
        "capture",
        "Write a database's changes to topics.",
    ),
    "sink": ("penstock.cli.log.sink", "sink", "Keep tables of other systems equal to topics."),
    "consume": ("penstock.cli.log.consume", "consume", "Print a topic's records."),
    "dlq": ("penstock.cli.log.dlq", "dlq", "List dead letters; repair, replay or drop them."),
    "replay": ("penstock.cli.log.replay", "replay", "Copy a range of a topic to a topic."),
    "groups": ("penstock.cli.log.groups", "groups", "Show and reset consumer groups."),
    "users": ("penstock.cli.access.users", "users", "Manage the users of a broker."),
    "quotas": ("penstock.cli.access.quotas", "quotas", "Manage quotas of users and clients."),
    "queue": ("penstock.cli.log.queue", "queue", "Put jobs into queues and process them."),
    "acl": ("penstock.cli.access.acl", "acl", "Manage access control lists."),
    "broker": ("penstock.cli.log.broker", "broker", "Run the log's server alone."),
    "registry": (
        "penstock.cli.log.registry",
        "registry",
        "Serve a schema registry with Confluent's REST API.",
    ),
    "ui": (
        "penstock.cli.pipelines.ui",
        "ui",
        "Serve the page of a pipeline or a broker: topics, groups, dead letters.",
    ),
    "status": (
        "penstock.cli.pipelines.status",
        "status",
        "Show a pipeline, or a broker's captures, imports and sinks.",
    ),
    "doctor": (
        "penstock.cli.log.doctor",
        "doctor",
        "Check a pipeline's or a broker's directory.",
    ),
    "prepare": (
        "penstock.cli.pipelines.prepare",
        "prepare",
        "Archive Spark's classes for faster starts.",
    ),
    "version": ("penstock.cli.version", "version", "Print versions."),
}


class _Lazy(Group):
    """Knows its commands' names and short helps; imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, _, short) in _COMMANDS.items()])


@click.command(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  penstock demo machine                    watch this machine, live on a page
  penstock new shop                        make a project that runs at once
  penstock run shop.py                     run a pipeline
  penstock query shop "SELECT * FROM click_rate LIMIT 5"
  penstock consume clicks --max 10 | jq .
""",
)
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs.")
@click.option(
    "--broker",
    metavar="ADDRESS",
    help="The broker, for all commands that use one. Also $PENSTOCK_BROKER.",
)
@click.version_option(
    None, "-V", "--version", package_name="penstock", message="penstock %(version)s"
)
@click.pass_context
def main(ctx: click.Context, broker: str | None, *, debug: bool) -> None:
    """Penstock keeps derived data correct and fresh: events in a log, pipelines, live views."""
    gc.set_threshold(_COLLECTED_EVERY)
    if broker is not None:
        ctx.with_resource(_named_broker(broker))
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for noisy in ("py4j", "asyncio", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextlib.contextmanager
def _named_broker(address: str) -> Iterator[None]:
    """Names a broker to the command and to the processes that it starts, while it runs."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def program(app: ps.App, argv: list[str] | None = None) -> Any:
    """The command line of a program that has a pipeline: `app.main()` calls it.

    Args:
        app: the pipeline.
        argv: the arguments; None takes the process's.
    """
    from penstock.cli.pipelines.run import program_command
    from penstock.cli.support.programs import is_loading

    if is_loading():  # `penstock run` reads a program that says main() outright, and will run it
        return None
    command = program_command(app)
    return run_guarded(lambda: command.main(argv, prog_name=sys.argv[0]))
