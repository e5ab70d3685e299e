"""Kernels are compiled once, by several processes, before a pipeline starts.

Otherwise each process of a pipeline would compile them, for minutes in which it seems to hang. Wheels for a
platform bring them compiled, and what is compiled here is kept in the user's cache
(`penstock.core.kernels.stored`). A stamp records for which files and compiler nothing is left to compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import orjson

from penstock.cli.support.progress import steps
from penstock.core.kernels import files, load_all, stored_keys
from penstock.core.kernels.stored import INSTALLED, SHIPPED, baseline, compiler, find, user_folder
from penstock.errors import SetupError

PACKAGE: Final = Path(__file__).resolve().parents[2]
PROCESSES_MAX: Final = 4
"""Each takes some hundred MB, and the largest kernel a third of the time: more would not end sooner."""
UNUSED_S_MAX: Final = 60 * 86_400.0
"""How long the cache keeps kernels of other versions: somebody may return to one."""
_HOME: Final = b"penstock.core.kernels"
"""Whatever defines a kernel imports its decorator from here, so it has this in its text."""
_SHIPPED_STAMP: Final = "compiled.json"


def compile_once(say: Callable[[str], None] | None) -> None:
    """Compiles the kernels, unless they came compiled or were compiled before.

    Args:
        say: receives a sentence about it; `None` if nothing is to be shown.
    """
    if _are_compiled() or not _can_keep():
        return
    if say is not None:
        say("compiling kernels, once after an installation. This takes a minute or two …")
    # In a process of its own: it imports everything, which this one doesn't need.
    code = f"from {__name__} import compile_kernels as c; c(quiet={say is None})"
    subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - this program


def compile_kernels(*, quiet: bool = False) -> None:
    """Compiles all kernels that are not on the disk.

    Args:
        quiet: shows no progress.

    Raises:
        SetupError: a kernel doesn't compile.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to undo, and no trace to show
    _import()
    missing = [path for path in files() if not all(map(find, stored_keys(path)))]
    if missing:
        # The largest first, so that all processes end at about the same time.
        missing.sort(key=lambda path: -Path(path).stat().st_size)
        processes = min(os.cpu_count() or 1, PROCESSES_MAX, len(missing))
        with steps("compiling kernels", len(missing), shown=not quiet) as done:
            left = iter(missing)
            with ThreadPoolExecutor(processes) as threads:
                for each in [threads.submit(_feed, left, done) for _ in range(processes)]:
                    each.result()
    _forget_unused()
    if stamp := _stamp():
        with contextlib.suppress(OSError):  # full, or another user's
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_bytes(_description(_names()))


def ship(folder: Path) -> None:
    """Compiles what is missing, and copies all kernels to a folder, for a wheel to bring them.

    Args:
        folder: a new one; it stands for `penstock.core.kernels.stored.SHIPPED`.

    Raises:
        SetupError: this machine can't compile for its platform's baseline, or has no place for a cache.
    """
    if baseline() is None:
        raise SetupError(
            "expected a machine that has all instructions of its platform's baseline; found none of them or "
            "another platform. Build the wheel without kernels here: pip wheel --no-deps ."
        )
    compile_kernels()
    if not copy_kernels(folder):
        raise SetupError(
            f"expected kernels in {user_folder()}; found them missing. Make the folder writable, or set "
            "NUMBA_CACHE_DIR to another one"
        )


def copy_kernels(folder: Path = INSTALLED) -> bool:
    """Copies all kernels to a folder that other users or other machines read; gives whether it has all.

    Args:
        folder: by default that of the environment.

    Raises:
        OSError: it can't be written to.
    """
    _import()
    folder.mkdir(parents=True, exist_ok=True)
    for key in (key for path in files() for key in stored_keys(path)):
        found = find(key)
        if found is None:
            return False
        if not (folder / found.name).exists():
            temporary = folder / f"{found.name}.{os.getpid()}"
            shutil.copyfile(found, temporary)
            temporary.replace(folder / found.name)
    (folder / _SHIPPED_STAMP).write_bytes(_description(_names()))
    return True


def compile_given() -> None:
    """What a process of `compile_kernels` does: compiles the file of each line, and answers with a line.

    It ends as soon as no more lines can come, in the middle of a kernel where its parent was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _import()
    given: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            given.put(line.rstrip("\n"))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        load_all(given.get())
        print(flush=True)


def _feed(paths: Iterator[str], done: Callable[[], None]) -> None:
    """Gives files to a process, one after another, until none is left."""
    command = [sys.executable, "-c", f"from {__name__} import compile_given; compile_given()"]
    pipe, known = subprocess.PIPE, baseline()
    processor = (
        {}
        if known is None
        else {"NUMBA_CPU_NAME": known.name, "NUMBA_CPU_FEATURES": known.features}
    )
    with subprocess.Popen(  # noqa: S603
        command, stdin=pipe, stdout=pipe, text=True, env=os.environ | processor
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for path in paths:
            print(path, file=process.stdin, flush=True)
            if not process.stdout.readline():
                raise SetupError(
                    f"expected the kernels of {path} to compile; the process that compiles them ended"
                    " (see above). Free memory, if that is what it lacked, and try again"
                )
            done()


def _import() -> None:
    """Imports all modules with kernels, so that `files` and `load_all` know them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if _HOME in path.read_bytes():
            place = path.relative_to(PACKAGE.parent).with_suffix("")
            import_module(".".join(place.parts).removesuffix(".__init__"))


def _are_compiled() -> bool:
    for stamp in (SHIPPED / _SHIPPED_STAMP, INSTALLED / _SHIPPED_STAMP, _stamp()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if stamp and (known := stamp.read_bytes()) == _description(
                orjson.loads(known)["files"]
            ):
                return True
    return False


def _can_keep() -> bool:
    """Whether there is a place for what is compiled; else it would be compiled in advance each time."""
    folder = user_folder()
    with contextlib.suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return os.access(folder, os.W_OK)
    return False


def _stamp() -> Path | None:
    """Where it is written that nothing is left to compile for this installation."""
    folder = user_folder()
    about = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]
    return None if folder is None else folder / f"complete-{about}.json"


def _names() -> list[str]:
    """The files that kernels are made of, in the package."""
    found = {str(Path(path).resolve().relative_to(PACKAGE)) for path in files()}
    return sorted(found | {"core/kernels/instructions.py"})


def _description(names: Iterable[str]) -> bytes:
    """The content of a stamp: the compiler, the processor, and what the files with kernels contain now."""
    processor = baseline()
    about: dict[str, Any] = {
        "compiler": compiler(),
        "processor": None if processor is None else processor.name,
        "files": {
            name: hashlib.sha256((PACKAGE / name).read_bytes()).hexdigest() for name in names
        },
    }
    return orjson.dumps(about)


def _forget_unused() -> None:
    """Removes kernels that no version has used for long, and notes that this one's are used."""
    used = {find(key) for path in files() for key in stored_keys(path)}
    folder, now = user_folder(), time.time()
    for file in folder.glob("*.kernel*") if folder is not None else ():
        with contextlib.suppress(OSError):  # another process removed it
            if file in used:
                os.utime(file)
            elif now - file.stat().st_mtime > UNUSED_S_MAX:
                file.unlink()
