"""Kernels are loaded when they are called, with all that they call."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from penstock.cli.pipelines import compiling
from penstock.core.kernels import Kernel, load_all, njit, types

_INT = types.int64
_READ = types.Array(types.int64, 1, "C", readonly=True)


@njit(inline="always")
def doubled(value):  # type: ignore[no-untyped-def]
    """Has no signature, and is called by a kernel alone."""
    return _INT(value) * 2


@njit(_INT(_READ), nogil=True)
def total(values):  # type: ignore[no-untyped-def]
    """Calls another one."""
    found = 0
    for value in values:
        found += doubled(value)
    return found


@njit(types.void(types.int64[::1]))
def fill(values):  # type: ignore[no-untyped-def]
    """Writes, so it takes no read-only array."""
    for at in range(len(values)):
        values[at] = at


def test_a_kernel_is_numbas_own_object_from_its_first_call_on() -> None:
    """In the module that it is of; whoever has imported the name before can call it still."""
    before = total
    assert isinstance(before, Kernel)
    values = np.arange(4)
    values.flags.writeable = False
    assert before(values) == 12
    assert not isinstance(total, Kernel)
    assert not isinstance(doubled, Kernel)
    assert before(values) == total(values) == 12


def test_types_are_as_strict_as_numbas() -> None:
    """A signature is exact: nothing is compiled for other types."""
    values = np.empty(3, np.int64)
    fill(values)
    assert values.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="No matching definition"):
        fill(np.empty(3))


def test_all_kernels_compile() -> None:
    """Those of every module that has some."""
    compiling._import()
    load_all()


def test_an_app_is_built_without_numba() -> None:
    """Planning and committing need no kernel; the processes that do the work load them."""
    code = "import sys, penstock.app; assert not {'numba', 'pandas'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
