"""Finds and loads the example programs: beside this package, else in the checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from penstock.errors import SetupError, UserError

_HERE: Final = Path(__file__).resolve().parent
FOLDERS: Final = (_HERE / "examples", _HERE.parents[2] / "examples")


def example(name: str) -> ModuleType:
    """The module of an example program, such as `machine`.

    Raises:
        SetupError: the installation lacks it.
    """
    for folder in FOLDERS:
        path = folder / f"{name}.py"
        if path.is_file():
            return load(path)
    raise SetupError(
        f"expected the example {name}.py in {FOLDERS[0]} or {FOLDERS[1]}; found neither. "
        "Install Penstock again"
    )


def load(path: Path) -> ModuleType:
    """Runs a program file as a module, so that its `if __name__ == "__main__"` part does not run.

    Raises:
        UserError: there is no such file, or it is not Python.
    """
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"expected a Python program, such as shop.py; found {str(path)!r}")
    name = f"penstock_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(
            f"expected Python; found in {error.filename}, line {error.lineno}: {error.msg}"
        ) from error
    finally:
        sys.path.pop(0)
    return module
