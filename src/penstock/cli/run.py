"""`penstock run FILE.py`, and the command line of a program of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._errors import Command
from penstock.demo.programs import load
from penstock.errors import UserError

if TYPE_CHECKING:
    import penstock as ps


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that runs a pipeline."""
    for option in (
        click.option("--rebuild", is_flag=True, help="Compute all state again from the log."),
        click.option(
            "--port",
            type=click.IntRange(1, 65535),
            help="The page's port. Default: 8750, or the next free one.",
        ),
        click.option(
            "--ui/--no-ui", default=True, show_default=True, help="Serve the live page on loopback."
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0, min_open=True),
            help="End after so long, and print the views.",
        ),
    ):
        function = option(function)
    return function


@click.command(
    epilog="""\b
Examples:
  penstock run shop.py
  penstock run shop.py --seconds 60 --no-ui
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@run_options
def run(file: Path, seconds: float | None, port: int | None, *, ui: bool, rebuild: bool) -> None:
    """Run the pipeline in FILE.py: its `app`, or what its `pipeline()` gives.

    It runs in the foreground until Ctrl-C; started again, it goes on where it stopped. Without a
    log of its own the program gets an embedded one.
    """
    _host(find_app(load(file), file), seconds, port, ui=ui, rebuild=rebuild)


def program_command(app: ps.App) -> click.Command:
    """The command line of a program that calls `app.main()`."""

    @click.command(cls=Command, help=f"Run the pipeline {app.name!r} until Ctrl-C.")
    @click.option("--debug", is_flag=True, help="Show tracebacks.")
    @run_options
    def command(
        seconds: float | None, port: int | None, *, ui: bool, rebuild: bool, debug: bool
    ) -> None:
        del debug  # read where errors are shown
        _host(app, seconds, port, ui=ui, rebuild=rebuild)

    return command


def _host(app: ps.App, seconds: float | None, port: int | None, *, ui: bool, rebuild: bool) -> None:
    from penstock.cli._host import Plan, host

    plan = Plan(seconds=seconds, ui=ui, port=port, rebuild=rebuild, print_views=seconds is not None)
    host(app, plan)


def find_app(module: ModuleType, file: Path) -> ps.App:
    """The pipeline of a program.

    Raises:
        UserError: there is none, or more than one.
    """
    import penstock as ps

    found = {id(v): v for v in vars(module).values() if isinstance(v, ps.App)}
    named = getattr(module, "app", None)
    if isinstance(named, ps.App):
        return named
    if not found and callable(getattr(module, "pipeline", None)):
        made = module.pipeline()
        if isinstance(made, ps.App):
            return made
    if len(found) != 1:
        names = ", ".join(sorted(a.name for a in found.values())) or "none"
        raise UserError(
            f"expected one ps.App in {file}, named app, or a function pipeline() that gives it; "
            f"found {names}"
        )
    return next(iter(found.values()))
