"""Finds the example programs: next to this package, else in the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.errors import SetupError

__all__ = ["FOLDERS", "example"]

_HERE: Final = Path(__file__).resolve().parent
FOLDERS: Final = (_HERE / "examples", _HERE.parents[2] / "examples")


def example(name: str) -> Path:
    """The file of an example program, such as `machine`.

    Raises:
        SetupError: the installation lacks it.
    """
    for folder in FOLDERS:
        path = folder / f"{name}.py"
        if path.is_file():
            return path
    raise SetupError(
        f"expected the example {name}.py in {FOLDERS[0]} or {FOLDERS[1]}; found neither. "
        "Install Penstock again"
    )
