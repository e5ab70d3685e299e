"""The operator of a kind: a pipeline's record names it, so that it is read without its program.

An operator's module has the name of its kind, `"table join"` is in `table_join.py`, and is imported when it
is needed: a reader of one view needs one or two of them. Another distribution names its own by entry points:

    [project.entry-points."penstock.operators"]
    "my kind" = "my_package.my_module:MyOperator"

One that can't be loaded is an error where its kind is read, and nowhere else.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

import orjson

from penstock.core.names import known_names
from penstock.errors import CorruptError, SetupError
from penstock.ops.operator import KINDS, Operator
from penstock.plugins import Broken, loaded

__all__ = ["load_operators", "operator_from_spec"]

SPECS_MAX: Final = 256
"""Operators that are kept for readers that come again: more than a page shows."""
ENTRY_POINTS: Final = "penstock.operators"
PACKAGE: Final = "penstock.ops"


def operator_from_spec(spec: Mapping[str, Any]) -> Operator:
    """The operator that `Operator.to_spec` described.

    Raises:
        CorruptError: there is no such operator.
        SetupError: another distribution has it, and can't be loaded.
    """
    return _made(orjson.dumps(spec))


@functools.lru_cache(maxsize=SPECS_MAX)
def _made(text: bytes) -> Operator:
    """The operator of a spec in JSON; made once, as operators are values."""
    spec = orjson.loads(text)
    return _class(str(spec.get("kind"))).from_spec(spec)


def _class(kind: str) -> type[Operator]:
    """The operator of a kind.

    Raises:
        CorruptError: there is none.
        SetupError: another distribution has it, and can't be loaded.
    """
    if kind not in KINDS:
        _import(kind)
    if kind not in KINDS:
        load_operators()
        raise CorruptError(
            f"expected one of the operators {known_names(sorted(KINDS))}; found {kind!r}. Use the release of "
            "Penstock that wrote it, install the plugin that has it, or rebuild the state from the log with "
            "--rebuild"
        )
    return KINDS[kind]


def _import(kind: str) -> None:
    """Imports what defines the operator of a kind, if anything does."""
    name = kind.replace(" ", "_")
    for module in _modules():
        if module.rpartition(".")[2] == name:
            import_module(module)
            return
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        found = loaded(point)
        if isinstance(found, Broken):
            raise SetupError(f"expected the operator {kind!r}; found that {found}")
        if kind not in KINDS:
            raise SetupError(
                f"expected {point.value}, an entry point of {ENTRY_POINTS}, to be an operator of the kind "
                f"{kind!r}; found {found!r}"
            )


@functools.cache
def _modules() -> tuple[str, ...]:
    """The modules of `penstock.ops`, by their full names; none is imported."""

    def found(path: Any, name: str) -> Iterator[str]:
        for one in pkgutil.iter_modules(path):
            whole = f"{name}.{one.name}"
            if one.ispkg:
                yield from found([f"{part}/{one.name}" for part in path], whole)
            else:
                yield whole

    return tuple(found(import_module(PACKAGE).__path__, PACKAGE))


def load_operators() -> dict[str, type[Operator]]:
    """Imports all operators, as before a process is forked into others which may need any of them.

    Returns:
        Those of this package, by kind.
    """
    for module in _modules():
        import_module(module)
    for point in entry_points(group=ENTRY_POINTS):
        loaded(point)
    return {kind: one for kind, one in KINDS.items() if one.__module__.startswith(f"{PACKAGE}.")}
