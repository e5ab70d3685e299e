"""Machine code of kernels on the disk, found by what was compiled.

    KEY-PROCESSOR.kernel        a checksum, then what Numba makes of a kernel

KEY stands for the kernel (`penstock.core.kernels.content`), Python's release and the compiler's; PROCESSOR
for the instructions that the code uses. A wheel brings the files for its platform's baseline processor, in a
folder next to this module. What it lacks is compiled by the process that needs it, and kept in the user's
cache: $NUMBA_CACHE_DIR, or penstock/kernels in $XDG_CACHE_HOME (~/.cache). Clones and environments with
equal kernels share it. `penstock prepare` copies it to the environment, where other users find it. A file is
written under another name first and never changed, so processes may compile a kernel at the same time. A file
that is torn, or can't be written, costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import sys
import uuid
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

__all__ = [
    "INSTALLED",
    "SHIPPED",
    "Baseline",
    "Store",
    "baseline",
    "compiler",
    "find",
    "user_folder",
]

SHIPPED: Final = Path(__file__).parent / "compiled"
"""What a wheel brought; never written to by a process that runs from it."""
INSTALLED: Final = Path(sys.prefix) / "share" / "penstock" / "kernels"
"""What `penstock prepare` left in the environment, for all users of it."""
_CHECKSUM_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Baseline:
    """A processor that nearly all machines of a platform contain.

    Attributes:
        name: LLVM's.
        features: LLVM's, of which each has a sign.
        flags: that Linux shows of a machine which has all of them; empty if each machine of the platform has.
    """

    name: str
    features: str
    flags: frozenset[str] = frozenset()


_V3: Final = Baseline(
    "x86-64-v3",
    "+avx,+avx2,+bmi,+bmi2,+cmov,+cx8,+cx16,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sahf,+sse,+sse2,"
    "+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    frozenset(
        {
            "avx2",
            "bmi1",
            "bmi2",
            "f16c",
            "fma",
            "abm",
            "movbe",
            "popcnt",
            "lahf_lm",
            "cx16",
            "xsave",
        }
    ),
)
_BASELINES: Final = {
    "x86_64": _V3,  # Intel from 2013, AMD from 2015
    "aarch64": Baseline("generic", "+neon"),
    "arm64": Baseline("generic", "+neon"),
}


@cache
def baseline() -> Baseline | None:
    """That of this platform, if this machine contains it."""
    known = _BASELINES.get(platform.machine())
    if known is None or not known.flags:
        return known
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return known if known.flags <= set(line.split()) else None
    return None


@cache
def compiler() -> str:
    """Python's release and the compiler's: what one of them has compiled, another can't load."""
    return f"{sys.implementation.cache_tag} {version('numba')} {version('llvmlite')}"


def user_folder() -> Path | None:
    """Where this user's processes keep what they compile; None where there is no such place."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given)
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "penstock" / "kernels"
    with contextlib.suppress(RuntimeError):  # a user without a home
        home = Path.home()
        shown = "Library/Caches" if sys.platform == "darwin" else ".cache"
        return home / shown / "penstock" / "kernels"
    return None


def find(key: str) -> Path | None:
    """The file of a kernel, for the baseline if this machine contains it; None if it must be compiled."""
    known = baseline()
    processor = known.name if known is not None else _any_processor()
    files = (folder / f"{key}-{processor}.kernel" for folder in _folders())
    return next((file for file in files if file.exists()), None)


class Store:
    """In place of Numba's cache of a function.

    Args:
        key: the kernel's.
    """

    cache_path: Final = str(SHIPPED)

    def __init__(self, key: str) -> None:
        self._key = key

    def load_overload(self, _signature: Any, target: Any) -> Any:
        """What was compiled; None if nothing was, or not for this machine."""
        target.refresh()
        known = baseline()
        processors = [_processor(target.codegen())] if known is None else [known.name]
        if known is not None and (own := _processor(target.codegen())) != known.name:
            processors.append(own)
        for processor in processors:
            for folder in _folders():
                data = _read(folder / f"{self._key}-{processor}.kernel")
                if data is not None:
                    result: Any = import_module("numba.core.compiler").CompileResult
                    return result._rebuild(target, *pickle.loads(data))  # noqa: S301, SLF001 - ours
        return None

    def save_overload(self, _signature: Any, compiled: Any) -> None:
        """Keeps it for other processes, where there is a place."""
        folder = user_folder()
        if folder is None:
            return
        dumps = import_module("numba.core.serialize").dumps
        data: bytes = dumps(compiled._reduce())  # noqa: SLF001 - as Numba's cache does
        name = f"{self._key}-{_processor(compiled.library.codegen)}.kernel"
        with contextlib.suppress(OSError):  # full, or another user's
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f"{name}.{uuid.uuid4().hex}"
            try:
                temporary.write_bytes(hashlib.sha256(data).digest() + data)
                temporary.replace(folder / name)
            finally:
                temporary.unlink(missing_ok=True)


def _folders() -> list[Path]:
    own = user_folder()
    return [SHIPPED, INSTALLED] if own is None else [SHIPPED, INSTALLED, own]


def _processor(codegen: Any) -> str:
    """The processor that this process compiles for: the baseline's name, or one that stands for its own."""
    _, name, features = codegen.magic_tuple()
    known = baseline()
    if known is not None and (name, features) == (known.name, known.features):
        return known.name
    return f"{name}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _any_processor() -> str:
    """As `_processor`, of a machine below the baseline."""
    return _processor(import_module("numba.core.registry").cpu_target.target_context.codegen())


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data = content[_CHECKSUM_BYTES:]
    return data if hashlib.sha256(data).digest() == content[:_CHECKSUM_BYTES] else None
