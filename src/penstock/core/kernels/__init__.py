"""Numba's decorators for kernels that are loaded when they are first called.

Numba itself, and the machine code of a hundred kernels, take a second of processor time and 150 MB. A driver,
a command line or a test needs few of the kernels or none. So modules take `njit` and `types` from here, with
Numba's own notation; nothing of Numba is imported until a kernel is called, and then only that kernel and
those that it calls are loaded from the cache, or compiled.

A process that forks workers calls `load_all` first, so that they share what is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from types import CodeType
from typing import Any, Final

__all__ = ["BLOCK", "Kernel", "files", "instruction", "load_all", "njit", "types"]

BLOCK: Final = 32
"""Bytes that are looked at or copied at once: what fits in a vector of most machines, or in two."""

_LOCK: Final = threading.RLock()
_KERNELS: Final[list[Kernel]] = []


class Kernel:
    """A function that Numba compiles, once it is called.

    Args:
        make: gives what Numba makes of it.
        function: in Python, if it is one.
    """

    def __init__(self, make: Callable[[], Any], function: Any = None) -> None:
        self.py_func = function
        self.__doc__ = getattr(function, "__doc__", None)
        self._make = make
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Calls it, with Numba's types."""
        return self.load()(*arguments)

    @property
    def path(self) -> str | None:
        """The file that defines it, if it is a function in Python."""
        return None if self.py_func is None else self.py_func.__code__.co_filename

    def load(self) -> Any:
        """Numba's own object, which takes this one's place in the module that it is of."""
        if self._made is None:
            with _LOCK:
                if self._made is None:
                    self._made = self._make()
        return self._made


class _Type:
    """A type of Numba's that isn't looked up yet: `int64`, `int64[::1]`, `void(int64, int64[::1])`."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getitem__(self, layout: Any) -> _Type:
        return _Type(lambda: self.load()[layout])

    def __call__(self, *arguments: Any, **options: Any) -> _Type:
        return _Type(lambda: self.load()(*map(_loaded, arguments), **options))

    def load(self) -> Any:
        """Numba's own object."""
        return self._find()


class _Types:
    """In place of `numba.types`."""

    def __getattr__(self, name: str) -> _Type:
        return _Type(lambda: getattr(import_module("numba").types, name))


types: Final[Any] = _Types()


def njit(*signature: Any, **options: Any) -> Any:
    """As `numba.njit` with options: a decorator of functions."""

    def decorate(function: Any) -> Kernel:
        def make() -> Any:
            for name in _names(function.__code__):
                known = function.__globals__.get(name)
                if isinstance(known, Kernel | _Type):  # Numba must see its own objects
                    function.__globals__[name] = known.load()
            made = import_module("numba").njit(*map(_loaded, signature), **options)(function)
            if function.__globals__.get(function.__name__) is kernel:
                function.__globals__[function.__name__] = made
            return made

        kernel = Kernel(make, function)
        _KERNELS.append(kernel)
        return kernel

    return decorate


def instruction(name: str) -> Any:
    """An intrinsic of `penstock.core.kernels.instructions`."""
    return Kernel(lambda: getattr(import_module("penstock.core.kernels.instructions"), name))


def load_all(path: str | None = None) -> None:
    """Loads the kernels of all modules that this process has imported, or compiles them.

    Args:
        path: of a file of `files()`; only its kernels, with those that they call.
    """
    for kernel in _KERNELS:
        if path is None or kernel.path == path:
            kernel.load()


def files() -> set[str]:
    """The paths of the files that define the kernels that `load_all` loads."""
    return {one.path for one in _KERNELS if one.path is not None}


def _loaded(value: Any) -> Any:
    return value.load() if isinstance(value, _Type) else value


def _names(code: CodeType) -> Iterator[str]:
    """The globals that a function may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
