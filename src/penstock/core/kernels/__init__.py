"""Numba's decorators for kernels that are loaded when they are first called.

Numba itself, and the machine code of a hundred kernels, take a second of processor time and 150 MB. A driver,
a command line or a test needs few of the kernels or none. So modules take `njit` and `types` from here, with
Numba's own notation; nothing of Numba is imported until a kernel is called, and then only that kernel and
those that it calls are loaded from the disk (`penstock.core.kernels.stored`), or compiled.

A process that forks workers calls `load_all` first, so that they share what is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.core.kernels.content import digest, names, text_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BLOCK",
    "Array",
    "Kernel",
    "Number",
    "files",
    "instruction",
    "load_all",
    "njit",
    "stored_keys",
    "types",
]

Array: TypeAlias = "npt.NDArray[Any]"
"""An argument of a kernel; of what, its signature says."""
Number: TypeAlias = Any
"""A number or a truth value within a kernel: Numba decides which it is, by the signature."""

BLOCK: Final = 32
"""Bytes that are looked at or copied at once: what fits in a vector of most machines, or in two."""

_LOCK: Final = threading.RLock()
_KERNELS: Final[list[Kernel]] = []
_REPLACED: Final[dict[tuple[int, str], Kernel | _Type]] = {}
"""What stood for a global, by the identity of its module's, before Numba's own object took its place."""
_STOOD: Final[dict[int, Kernel | _Type]] = {}
"""What stood for Numba's own object, by its identity: modules that are imported later have that alone."""


class Kernel:
    """A function that Numba compiles, once it is called.

    Args:
        make: gives what Numba makes of it.
        function: in Python, if it is one.
        about: what else it depends on: its options.
        is_stored: its machine code is kept on the disk.
    """

    def __init__(
        self, make: Callable[[], Any], function: Any = None, *, about: str, is_stored: bool = False
    ) -> None:
        self.py_func = function
        self.is_stored = is_stored
        self.__doc__ = getattr(function, "__doc__", None)
        self._about = about
        self._content = ""
        self._make = make
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Calls it, with Numba's types."""
        return self.load()(*arguments)

    @property
    def path(self) -> str | None:
        """The file that defines it, if it is a function in Python."""
        return None if self.py_func is None else self.py_func.__code__.co_filename

    def content(self) -> str:
        """A key of all that it is made of; equal kernels have the same."""
        if not self._content:
            self._content = digest([self._about, *_parts(self)])
        return self._content

    def load(self) -> Any:
        """Numba's own object, which takes this one's place in the module that it is of."""
        if self._made is None:
            with _LOCK:
                if self._made is None:
                    self._made = self._make()
        return self._made


class _Type:
    """A type of Numba's that isn't looked up yet: `int64`, `int64[::1]`, `void(int64, int64[::1])`.

    Args:
        find: looks it up.
        text: its notation.
    """

    def __init__(self, find: Callable[[], Any], text: str) -> None:
        self._find = find
        self.text = text

    def __getitem__(self, layout: Any) -> _Type:
        return _Type(lambda: self.load()[layout], f"{self.text}[{layout!r}]")

    def __call__(self, *arguments: Any, **options: Any) -> _Type:
        text = f"{self.text}({', '.join(map(_text, arguments))}, {options!r})"
        return _Type(lambda: self.load()(*map(_loaded, arguments), **options), text)

    def load(self) -> Any:
        """Numba's own object."""
        return self._find()


class _Types:
    """In place of `numba.types`."""

    def __getattr__(self, name: str) -> _Type:
        return _Type(lambda: getattr(import_module("numba").types, name), name)


types: Final[Any] = _Types()


def njit(*signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """As `numba.njit` with options: a decorator of functions.

    With a signature and `cache=True`, machine code is kept on the disk.
    """
    is_stored = options.pop("cache", False) and bool(signature)

    def decorate(function: Any) -> Kernel:
        def make() -> Any:
            key = kernel.content() if is_stored else None  # of what stands in the module now
            for name in names(function.__code__):
                known = function.__globals__.get(name)
                if isinstance(known, Kernel | _Type):  # Numba must see its own objects
                    _REPLACED.setdefault((id(function.__globals__), name), known)
                    function.__globals__[name] = found = known.load()
                    _STOOD.setdefault(id(found), known)
            made = _compiled(function, [_loaded(one) for one in signature], options, key)
            if function.__globals__.get(function.__name__) is kernel:
                _REPLACED[id(function.__globals__), function.__name__] = kernel
                function.__globals__[function.__name__] = made
                _STOOD[id(made)] = kernel
            return made

        about = f"{', '.join(map(_text, signature))} {sorted(options.items())!r}"
        kernel = Kernel(make, function, about=about, is_stored=is_stored)
        _KERNELS.append(kernel)
        return kernel

    return decorate


def _compiled(function: Any, signature: list[Any], options: dict[str, Any], key: str | None) -> Any:
    """What Numba makes of a function: from the disk, if it is kept there under this key."""
    numba = import_module("numba")
    if key is None or numba.config.DISABLE_JIT:
        return numba.njit(*signature, **options)(function)
    from numba.core.typeinfer import register_dispatcher

    from penstock.core.kernels.stored import Store, compiler

    made = numba.njit(**options)(function)
    made._cache = Store(digest([compiler(), key]))  # noqa: SLF001 - Numba offers Numba's caches alone
    with register_dispatcher(made):
        made.compile(*signature)
    made.disable_compile()
    return made


def instruction(name: str) -> Any:
    """An intrinsic of `penstock.core.kernels.instructions`."""
    return Kernel(
        lambda: getattr(import_module("penstock.core.kernels.instructions"), name),
        about=f"{name} {_instructions()}",
    )


@cache
def _instructions() -> str:
    return text_of(Path(__file__).with_name("instructions.py"))


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


def stored_keys(path: str) -> list[str]:
    """The keys of the kernels in a file of `files()` whose machine code is kept on the disk."""
    from penstock.core.kernels.stored import compiler

    kept = [one for one in _KERNELS if one.path == path and one.is_stored]
    return [digest([compiler(), one.content()]) for one in kept]


def _parts(kernel: Kernel) -> list[str]:
    """The texts of a function, and of the globals that it uses."""
    function = kernel.py_func
    if function is None:
        return []
    found = [text_of(function)]
    for name in sorted(set(names(function.__code__)) & function.__globals__.keys()):
        value = function.__globals__[name]
        value = _REPLACED.get((id(function.__globals__), name), value)
        if value is not kernel:  # it may call itself
            found += [name, _text(value)]
    return found


def _text(value: Any) -> str:
    value = _STOOD.get(id(value), value)
    match value:
        case Kernel():
            return value.content()
        case _Type():
            return value.text
        case tuple():  # of types, as `types.Tuple` takes them
            return f"({','.join(map(_text, value))})"
    return text_of(value)


def _loaded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_loaded, value))
    return value.load() if isinstance(value, _Type) else value
