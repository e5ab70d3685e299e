"""What `App.main` calls. The command line stands above this package, so it is given from there.

`penstock` gives it with `App`: a program has its `App` from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.errors import SetupError

__all__ = ["CommandLine", "give", "given"]

CommandLine: TypeAlias = Callable[[Any, list[str] | None], object]
"""Runs a program's `App` as arguments say; None: as those of the process."""
_given: list[CommandLine] = []


def give(command_line: CommandLine) -> None:
    """Says what `App.main` calls from now on."""
    _given[:] = [command_line]


def given() -> CommandLine:
    """What `App.main` calls.

    Raises:
        SetupError: nothing was given.
    """
    if not _given:
        raise SetupError(
            "expected an App of the package, which has a command line; found one of penstock.app. "
            "Use penstock.App"
        )
    return _given[0]
