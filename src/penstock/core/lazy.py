"""Packages whose public names are imported on first use.

A command line or a worker process uses a part of a package. Importing the rest costs most of its
start-up time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from penstock.errors import SetupError


def installed(module: str, extra: str, why: str, *, package: str | None = None) -> ModuleType:
    """A module of an extra, which is imported where it is used.

    Args:
        module: its name.
        extra: of this package, which installs it.
        why: what it is needed for, such as "to write Delta tables".
        package: what messages call it; by default, what the module's name begins with.

    Raises:
        SetupError: it isn't installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise SetupError(
            f"expected {package or module.partition('.')[0]}, {why}; found that it can't be imported "
            f"({error}). Install it: {how_to_install(extra)}"
        ) from None


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
