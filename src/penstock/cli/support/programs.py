"""Loads users' programs, and says where in them it failed."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.names import hint, known_names
from penstock.errors import FlowError, PenstockError, UserError

if TYPE_CHECKING:
    import penstock as ps

__all__ = ["guarded", "is_loading", "load"]

T = TypeVar("T")

SETTINGS: Final = (
    "name",
    "log",
    "listen",
    "spark",
    "address",
    "state",
    "directory",
    "cores",
    "shards",
    "versions_kept",
)
"""Of `App`: what a program in SQL may SET."""
_loading: ContextVar[bool] = ContextVar("loading", default=False)
_PENSTOCK: Final = Path(__file__).resolve().parents[2]


def load(path: Path) -> ModuleType:
    """Runs a program file as a module, so that its `if __name__ == "__main__"` part does not run.

    A program in SQL is a module with its app.

    Raises:
        UserError: there is no such file, it is neither Python nor SQL, or it fails: with its own lines that
            led there.
    """
    if not path.is_file() or path.suffix not in (".py", ".sql"):
        found = f"no file {str(path)!r}" if not path.exists() else repr(str(path))
        there = [one.name for one in path.parent.glob("*") if one.suffix in (".py", ".sql")]
        found += hint(path.name, there)
        raise UserError(
            f"expected a program in Python or SQL, such as shop.py or shop.sql; found {found}"
        )
    name = f"penstock_program_{path.stem}"
    if path.suffix == ".sql":
        module = ModuleType(name)
        vars(module)["app"] = _sql_app(path)
        return module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    loading = _loading.set(True)
    try:
        guarded(path, lambda: loader.exec_module(module))
    finally:
        _loading.reset(loading)
        sys.path.pop(0)
    return module


def _sql_app(path: Path) -> ps.App:
    import penstock as ps
    from penstock.sql.statements import statements

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"expected {path} in UTF-8; found {error.reason}") from None
    try:
        found = statements(text)
    except FlowError as error:
        raise FlowError(f"{path}: {error}") from None
    settings = {"name": path.stem}
    for one in found:
        if one.kind == "SET":
            if one.name not in SETTINGS:
                raise FlowError(
                    f"{path}, line {one.line}: expected SET of {known_names(SETTINGS)}; found {one.name!r}"
                )
            settings[one.name] = one.options["value"]
    counted = ("cores", "shards", "versions_kept")
    numbers = {n: int(v) for n, v in settings.items() if n in counted and v.isdecimal()}
    app = ps.App(**{**settings, **numbers})  # type: ignore[arg-type] # App says what it expects
    try:
        app.take(found)
    except PenstockError as error:
        raise error.reworded(f"{path}: {error}") from error
    return app


def is_loading() -> bool:
    """Whether a program is being read by the process that will run its pipeline."""
    return _loading.get()


def guarded(path: Path, call: Callable[[], T]) -> T:
    """Runs a part of a user's program.

    Raises:
        UserError: it failed; the message has the user's own lines that led there, and no others.
    """
    try:
        return call()
    except SyntaxError as error:
        raise UserError(
            f"expected Python; found in {error.filename}, line {error.lineno}: {error.msg}\n"
            f"  {(error.text or '').strip()}"
        ) from error
    except SystemExit as error:
        raise UserError(
            f"expected {path} to describe a pipeline and to run to its end; it called "
            f"sys.exit({error.code!r}){_place(error)}. Put that under: if __name__ == '__main__'"
        ) from error
    except PenstockError as error:
        raise error.reworded(f"{error}{_place(error)}") from error
    except Exception as error:
        frames = _own(error) or traceback.extract_tb(error.__traceback__)
        lines = "".join(traceback.format_list(frames) + traceback.format_exception_only(error))
        raise UserError(f"expected {path} to run; it failed:\n{lines.rstrip()}") from error


def _own(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error that are in files, and neither Penstock's nor a library's."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")  # imports; methods that dataclasses generate
        and not Path(frame.filename).resolve().is_relative_to(_PENSTOCK)
        and "site-packages" not in frame.filename
    ]


def _place(error: BaseException) -> str:
    own = _own(error)
    return f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
