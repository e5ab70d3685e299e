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

from penstock.core.names import hint, known_names
from penstock.errors import PenstockError

FAILED: Final = 1
INTERRUPTED: Final = 130
PROGRAMS_SHOWN: Final = 5
PROGRAM: Final = r"[\w*]+\.(py|sql)\b"
_COMPLAINING: Final = {"py4j", "_duckdb"}
"""Modules that complain of what threads in the background hold when the interpreter takes itself apart."""
TEST: Final = r"test_|conftest\.|.*_test\."


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
            raise click.UsageError(f"{text}{_example(error.ctx, error.param)}", error.ctx) from None


class Command(click.Command):
    """A single command whose errors are for people."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command and ends the process with its exit code."""
        return run_guarded(lambda: super(Command, self).main(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        return _unpiped(lambda: super(Command, self).invoke(ctx))


class ExistingPath(click.Path):
    """A file or folder that exists; of one that doesn't, the error lists what is next to it.

    Args:
        suffixes: of the files that are meant.
        dir_okay: whether a folder may be named.
    """

    def __init__(self, *suffixes: str, dir_okay: bool = False) -> None:
        super().__init__(exists=True, dir_okay=dir_okay, path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            click.BadParameter: there is none of that name.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            path = Path(value)
            there = sorted(p.name for p in path.parent.glob("*") if p.suffix in self._suffixes)
            if path.exists() or not there:
                raise
            text = f"{error.message.rstrip('.')}{hint(path.name, there)}"
            known = f"In its folder: {known_names(there)}."
            raise click.BadParameter(f"{text}. {known}", ctx, param) from None


def _example(ctx: click.Context, missing: click.Parameter | None) -> str:
    """How a command is used, by the examples of its help; which programs or pipelines are here for it."""
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
    if re.search(PROGRAM, example):
        programs = _programs()
        if not programs:
            nothing = "There is no program in this folder; penstock new NAME makes one"
            return f". {nothing}. For example: {example}"
        more = ", …" if len(programs) > PROGRAMS_SHOWN else ""
        shown = ", ".join(programs[:PROGRAMS_SHOWN])
        return (
            f"; in this folder: {shown}{more}. For example: {re.sub(PROGRAM, programs[0], example)}"
        )
    pipelines = sorted(one.name.removesuffix(".penstock") for one in Path().glob("*.penstock"))
    if pipelines and isinstance(missing, click.Argument) and missing.name == "app":
        return f"; in this folder: {known_names(pipelines)}. For example: {ctx.command_path} {pipelines[0]}"
    return f". For example: {example}"


def _programs() -> list[str]:
    """Which programs are in this folder; tests are none."""
    files = (one for one in Path().glob("*") if one.suffix in (".py", ".sql"))
    return sorted(one.name for one in files if not re.match(TEST, one.name))


def _unpiped(call: Callable[[], Any]) -> Any:
    """Calls; a reader of our output may stop when it has enough. Click would call that a failure."""
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
    try:
        return _said(call)
    except SystemExit as done:
        _leave(done.code if isinstance(done.code, int) else 0 if done.code is None else FAILED)
        raise
    except Exception:
        _leave_if_unhandled()
        raise


def _said(call: Callable[[], Any]) -> Any:
    """Calls; says the errors that are for people, and exits with their code."""
    debug = "--debug" in sys.argv
    try:
        return call()
    except (PenstockError, OSError) as error:
        if debug:
            traceback.print_exc()
        text = str(error)
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            where = f" ({error.filename})" if error.filename else ""
            text = f"{error.strerror or error}{where}"
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(text, err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _leave(code: int) -> None:
    """Lets a process that had Spark or DuckDB end before the interpreter takes itself apart.

    Threads in the background still run then, such as those of Spark's Python side, and what their calls hold
    is never let go: DuckDB's module lists it, dozens of lines after the error. All that a program or a
    library does at its end is done before: `finally`, and functions registered with `atexit`.
    """
    if _COMPLAINING & sys.modules.keys() and "pytest" not in sys.modules:
        atexit.register(_end, code)


def _leave_if_unhandled() -> None:
    """The same for an error that nobody expects: a program that catches it has a code of its own."""
    before = sys.excepthook

    def last(*error: Any) -> None:
        before(*error)
        _leave(FAILED)

    sys.excepthook = last


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
