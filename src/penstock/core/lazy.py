"""Packages whose public names are imported on first use.

A command line or a worker process uses a part of a package. Importing the rest costs most of its
start-up time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

_THREADS: Final = "OPENBLAS_NUM_THREADS"


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


def forget_pandas() -> None:
    """Keeps Arrow from importing pandas at its first `pa.array`, which takes a third of a second.

    Arrow looks for pandas once, to recognize its objects. A command passes none. What converts to
    pandas later imports it then. A library must not call this: it doesn't know its caller's objects.
    """
    if "pandas" in sys.modules:
        return
    load_numpy()
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
