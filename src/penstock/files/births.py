"""When a file was created: file systems give the inode of a deleted file to the next one at once."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["born_ns"]

_HERE: Final = -100
"""AT_FDCWD of linux/fcntl.h: paths are relative to the working directory."""
_BIRTH: Final = 0x800
"""STATX_BTIME of linux/stat.h."""
_BYTES: Final = 256
"""Of `struct statx`."""
_MASK_AT: Final = 0
_BIRTH_AT: Final = 80


def born_ns(path: Path) -> int:
    """Nanoseconds from 1970 to the creation of a file; 0 where the system doesn't say.

    `os.stat` has it on macOS. On Linux the system call is `statx`, which Python 3.14 doesn't have.
    """
    born_s = getattr(path.stat(), "st_birthtime", None)
    if born_s is not None:
        return int(born_s * 1e9)
    statx = _statx()
    out = ctypes.create_string_buffer(_BYTES)
    if statx is None or statx(_HERE, os.fsencode(path), 0, _BIRTH, out):
        return 0
    (mask,) = struct.unpack_from("=I", out, _MASK_AT)
    seconds, nanoseconds = struct.unpack_from("=qI", out, _BIRTH_AT)
    return int(seconds * 1_000_000_000 + nanoseconds) if mask & _BIRTH else 0


@functools.cache
def _statx() -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), "statx", None)
