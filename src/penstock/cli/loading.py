"""Libraries that a command loads without what it doesn't need of them.

This changes what the process imports and how, so it is for commands alone: a library doesn't know its caller.
"""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any, Final

__all__ = ["forget_pandas", "load_arrow", "load_numpy"]

_THREADS: Final = "OPENBLAS_NUM_THREADS"


class _NoPandas:
    """Says that there is no pandas: a finder of modules, without their base class, which loads much."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def load_numpy() -> None:
    """Imports NumPy without threads for linear algebra, whose start takes as long as the rest of NumPy's.

    A command that calls this does no such algebra. The processes that it starts have their threads.
    """
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import numpy  # noqa: F401, ICN001 - to have it loaded
    finally:
        del os.environ[_THREADS]


class _Deferred(ModuleType):
    """A module that is executed when one of its names is first asked for."""

    def __getattr__(self, name: str) -> Any:  # it hasn't this name (yet)
        with _EXECUTING:
            if (spec := self.__dict__.pop("_deferred", None)) is not None:
                spec.loader.exec_module(self)
        if name in self.__dict__:
            return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


_EXECUTING: Final = threading.RLock()
"""Held while a deferred module is executed: other threads wait for all of its names."""


def _defer(name: str) -> None:
    """Puts a module in its place, so that `import` finds it, and leaves its execution to its first use."""
    from importlib.util import find_spec, module_from_spec  # commands without Arrow don't need it

    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    module.__dict__["_deferred"] = spec
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, module)  # as an import does after it has executed a module


def load_arrow() -> None:
    """Imports NumPy as `load_numpy` does, and Arrow without the 300 functions of `pyarrow.compute`.

    Arrow writes the signature and the documentation of each of them, which takes longer than all else in it.
    A command on a few rows seldom calls one. They are there as soon as one is looked up.
    """
    load_numpy()
    _defer("pyarrow.compute")


def forget_pandas() -> None:
    """Keeps Arrow from importing pandas at its first `pa.array`, which takes a third of a second.

    Arrow looks for pandas once, to recognize its objects. A command passes none. What converts to
    pandas later imports it then. A library must not call this: it doesn't know its caller's objects.
    """
    if "pandas" in sys.modules:
        return
    load_arrow()
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
