"""How commands fail: one clear message, a traceback with `--debug`; a closed pipe is no error."""

from __future__ import annotations

import atexit
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from penstock.core.names import hint
from penstock.errors import PenstockError

FAILED: Final = 1
INTERRUPTED: Final = 130
PROGRAMS_SHOWN: Final = 5


class Suggesting(click.Group):
    """A group that says which command was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of that name.

        Raises:
            click.UsageError: there is none.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = hint(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.rstrip('.')}{meant}.", error.ctx) from None


class Group(Suggesting):
    """A group of commands whose errors are for people."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs a command and ends the process with its exit code."""
        return run_guarded(lambda: super(Group, self).main(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that was asked for.

        Raises:
            click.UsageError: an argument is missing; with an example of what can be there.
        """
        try:
            return _unpiped(lambda: super(Group, self).invoke(ctx))
        except click.MissingParameter as error:
            if error.ctx is None:
                raise
            text = error.format_message().rstrip(".")
            raise click.UsageError(f"{text}{_example(error.ctx)}", error.ctx) from None


class Command(click.Command):
    """A single command whose errors are for people."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command and ends the process with its exit code."""
        return run_guarded(lambda: super(Command, self).main(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        return _unpiped(lambda: super(Command, self).invoke(ctx))


def _example(ctx: click.Context) -> str:
    """How a command is used, by the examples of its help; where it takes a program, which ones are here."""
    paths = {ctx.command_path, ctx.command_path.removesuffix(" run")}  # what groups do by default
    here: click.Context | None = ctx
    examples: list[str] = []
    while here is not None:
        lines = [line.strip() for line in (here.command.epilog or "").splitlines()]
        examples += [line for line in lines if any(f"{path} " in f"{line} " for path in paths)]
        here = here.parent
    if not examples:
        return "."
    example = re.split(r" {3,}", examples[0])[0]
    return f"{_programs() if '.py' in example or '.sql' in example else '.'} For example: {example}"


def _programs() -> str:
    """Which programs are in this folder."""
    programs = sorted(one.name for one in Path().glob("*") if one.suffix in (".py", ".sql"))
    if not programs:
        return ". There is no program in this folder; penstock new NAME makes one."
    more = ", …" if len(programs) > PROGRAMS_SHOWN else ""
    return f"; in this folder: {', '.join(programs[:PROGRAMS_SHOWN])}{more}."


def _unpiped(call: Callable[[], Any]) -> Any:
    """Calls; whoever reads our output may stop when it has enough. Click would call that a failure."""
    try:
        result = call()
        sys.stdout.flush()
    except BrokenPipeError:
        _quiet_stdout()
        sys.exit(0)
    except KeyboardInterrupt:  # click would say "Aborted!" and that the command failed
        sys.exit(INTERRUPTED)
    return result


def run_guarded(call: Callable[[], Any]) -> Any:
    """Calls, and turns exceptions into messages and exit codes."""
    debug = "--debug" in sys.argv
    try:
        return call()
    except SystemExit as done:
        _leave(done)
        raise
    except PenstockError as error:
        if debug:
            traceback.print_exc()
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(str(error), err=True)
        sys.exit(FAILED)
    except OSError as error:
        if debug:
            traceback.print_exc()
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        where = f" ({error.filename})" if error.filename else ""
        click.echo(f"{error.strerror or error}{where}", err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _leave(done: SystemExit) -> None:
    """Lets a process that had Spark end before the interpreter takes itself apart.

    Spark's Python side leaves threads behind, of which native libraries complain then. All that a program
    or a library does at its end is done before: `finally`, and functions registered with `atexit`.
    """
    if "py4j" in sys.modules and "pytest" not in sys.modules:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else FAILED
        atexit.register(_end, code)


def _end(code: int) -> None:
    """Ends the process, after the functions that are registered still; the newest is called first."""
    atexit.unregister(_end)
    atexit._run_exitfuncs()  # noqa: SLF001 - the one way to call them now
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _quiet_stdout() -> None:
    """Nobody reads us any more; the interpreter's last flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
