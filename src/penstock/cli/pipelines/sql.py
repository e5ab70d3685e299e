"""`penstock sql`: SQL over a pipeline's views, or over topics, line by line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.support.options import broker_option, client_settings
from penstock.errors import PenstockError, UserError

if TYPE_CHECKING:
    from penstock.cli.support.shell import Shell, Tables
    from penstock.serve import Views

HISTORY: Final = "penstock_sql_history"
HISTORY_LINES_MAX: Final = 5_000  # what is worth looking for


@click.command(
    epilog="""\b
Examples:
  penstock sql shop                         the views of a pipeline, whether it runs or not
  penstock sql shop.sql                     the same, by its program
  penstock sql                              the pipeline in this directory, or else the topics of its broker
  penstock sql 127.0.0.1:9092               topics: partition, offset, at, key, value
  penstock sql shop -c "SELECT count(*) FROM per_minute"
  penstock sql shop < report.sql

Statements are DuckDB's, and end with a semicolon. \\d lists views, \\? lists commands; the tabulator key
completes names.
"""
)
@click.argument("target", required=False)
@click.option("--command", "-c", multiple=True, help="Run this statement and end.")
@broker_option
def sql(target: str | None, command: tuple[str, ...], broker: str | None) -> None:
    """Query the views of TARGET (a pipeline's name, directory or program) or a broker's topics."""
    from penstock.cli.support.shell import Shell

    tables = _tables(target, broker)
    shell = Shell(tables, sys.stdout)
    if command:
        for one in command:
            shell.take(one) if one.lstrip().startswith("\\") else shell.run(one)
    elif not sys.stdin.isatty():
        for line in sys.stdin:
            shell.take(line.rstrip("\n"))
            if shell.is_over:
                return
        shell.finish()  # the last one may lack its semicolon
    else:
        click.echo(f"{tables.state()}. \\? lists commands, \\q ends.")
        with _editing(shell):
            _converse(shell)


def _converse(shell: Shell) -> None:
    """Takes lines until they end. Ctrl-C only drops a statement, whenever it comes."""
    interrupted = False
    while not shell.is_over:
        try:
            if interrupted:
                click.echo()
                shell.drop()
                interrupted = False
            _take_line(shell)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            interrupted = True


def _take_line(shell: Shell) -> None:
    try:
        shell.take(input("     > " if shell.is_within else "sql> "))
    except PenstockError as error:
        click.echo(f"error: {error}", err=True)


def _tables(target: str | None, broker: str | None) -> Tables:
    """What is queried.

    Raises:
        PenstockError: there is nothing.
    """
    from penstock.cli.support.address import find_broker
    from penstock.cli.support.shell import TopicTables, ViewTables

    if target is None and broker is None:
        here = sorted(Path().glob("*.penstock"))
        if len(here) > 1:
            names = ", ".join(one.name.removesuffix(".penstock") for one in here)
            raise UserError(
                f"expected the name of a pipeline: {names}; found none. Name one of them"
            )
        target = str(here[0]) if here else None
    is_address = target is not None and ":" in target and "://" not in target
    if target is None or is_address or target.startswith(("kafka://", "kafka+")):
        return TopicTables(find_broker(broker or target), **client_settings())
    return ViewTables(_views(target))


def _views(target: str) -> Views:
    from penstock.cli.support.tables import warn
    from penstock.serve import Views
    from penstock.serve.answers import Once

    path, report = Path(target), Once(warn)
    if path.suffix in (".sql", ".py") and path.is_file():
        from penstock.cli.pipelines.run import find_app
        from penstock.cli.support.programs import load

        app = find_app(load(path), path)
        return Views(app.settings.state or app.directory, report)
    return Views(target, report)


@contextlib.contextmanager
def _editing(shell: Shell) -> Iterator[None]:
    """Lets lines be edited, found again and completed, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    history = home / HISTORY
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer_delims(" \t\n,()=<>;'")

    def complete(word: str, number: int) -> str | None:
        found = shell.completions(word)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)
