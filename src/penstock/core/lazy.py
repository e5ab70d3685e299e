"""Packages whose public names are imported on first use.

A command line or a worker process uses a part of a package. Importing the rest costs most of its
start-up time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_THREADS: Final = "OPENBLAS_NUM_THREADS"


def how_to_install(extra: str) -> str:
    """The command that installs what an extra of this package needs.

    The package's name alone finds what is installed; where nothing is, as in a checkout on Python's path,
    an index might have another package of that name.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        known = metadata("penstock").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        known = []
    if extra in known:
        return f"pip install 'penstock[{extra}]'"
    return f"pip install '.[{extra}]', in the checkout"


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        homes: for each of its modules, the public names that it defines.

    >>> lazy_names("penstock.core", {"names": ("hint",)})("hint").__name__
    'hint'
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module}"), name)

    return find


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
