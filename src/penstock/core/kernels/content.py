"""A key for what a kernel means: equal keys have equal machine code, wherever they were compiled.

It stands for the function's bytecode and constants, the values of the globals that it uses, the kernels that
it calls, its signature and its options; and for its module's name, from which Numba imports the function when
it loads the code. Comments, names of files and times are no part of it. For this, nothing of Numba is
imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["digest", "names", "text_of"]

KEY_CHARS: Final = 32


def digest(parts: Iterable[str]) -> str:
    """The key of some texts, in their order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_CHARS]


def names(code: CodeType) -> Iterator[str]:
    """The globals that a function may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names(constant)


def text_of(value: Any) -> str:
    """A global's or a constant's value as text; the same in all processes.

    Raises:
        TypeError: it is of a kind that kernels don't use.
    """
    match value:
        case FunctionType():
            assert value.__closure__ is None, "a kernel's values are globals, which have names"
            shown = text_of(value.__defaults__ or ())
            return f"def {value.__module__}.{value.__qualname__}{shown}{_code(value.__code__, value.__doc__)}"
        case CodeType():
            return _code(value, None)
        case tuple():
            return f"({','.join(map(text_of, value))})"
        case frozenset():
            return f"{{{','.join(sorted(map(text_of, value)))}}}"
        case type():
            return f"{value.__module__}.{value.__qualname__}"
        case ModuleType():
            return value.__name__
        case Path():
            return hashlib.sha256(value.read_bytes()).hexdigest()
        case bool() | int() | float() | str() | bytes() | slice() | None:
            return repr(value)
        case _ if value is Ellipsis:
            return repr(value)
        case _ if (
            type(value).__module__ == "numpy"
        ):  # an array, or one number; not imported for this
            return f"{value.dtype.str}{value.shape}{value.tobytes().hex()}"
    raise TypeError(
        f"expected a kernel to use numbers, arrays, types and kernels; found {type(value).__name__}. Add it "
        f"to {__name__}, if Numba takes it as a constant"
    )


def _code(code: CodeType, doc: str | None) -> str:
    constants = [one for one in code.co_consts if doc is None or one != doc]
    shape = (code.co_argcount, code.co_names, code.co_varnames, code.co_freevars)
    handlers = getattr(code, "co_exceptiontable", b"")  # its own attribute from 3.11 on
    return f"{code.co_code.hex()}{handlers.hex()}{shape!r}{''.join(map(text_of, constants))}"
