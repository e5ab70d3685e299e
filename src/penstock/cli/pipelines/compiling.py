"""Kernels are compiled once after an installation, by several processes, before a pipeline starts.

Otherwise each process of a pipeline would compile them, for minutes in which it seems to hang. Numba keeps
the machine code next to the modules; a stamp records the files and the compiler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import orjson

from penstock.cli.support.progress import steps
from penstock.core.kernels import files, load_all
from penstock.errors import SetupError

PACKAGE: Final = Path(__file__).resolve().parents[2]
STAMP: Final = PACKAGE / "core" / "kernels" / "__pycache__" / "compiled.json"
"""What was compiled last: of these files, by this compiler."""
PROCESSES_MAX: Final = 4
"""Each takes 250 MB, and the largest kernel a third of the time: more would not end sooner."""
_COMPILER: Final = {"python": sys.version, "numba": version("numba")}
_HOME: Final = b"penstock.core.kernels"
"""Whatever defines a kernel imports its decorator from here, so it has this in its text."""


def compile_once(say: Callable[[str], None] | None) -> None:
    """Compiles the kernels where that was not done since the installation.

    Args:
        say: receives a sentence about it; `None` if nothing is to be shown.
    """
    if _are_compiled() or not os.access(PACKAGE, os.W_OK):
        return
    if say is not None:
        say("compiling kernels, once after an installation. This takes a minute or two …")
    # In a process of its own: it imports everything, which this one doesn't need.
    code = f"from {__name__} import compile_kernels as c; c({str(STAMP)!r}, quiet={say is None})"
    subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - this program


def compile_kernels(stamp: str | Path = STAMP, *, quiet: bool = False) -> None:
    """Compiles all kernels, where they are not in the cache next to their modules.

    Args:
        stamp: where it is written what was compiled.
        quiet: shows no progress.

    Raises:
        SetupError: a kernel doesn't compile.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to undo, and no trace to show
    _import()
    # The largest first, so that all processes end at about the same time.
    paths = sorted(files(), key=lambda path: -Path(path).stat().st_size)
    processes = min(os.cpu_count() or 1, PROCESSES_MAX)
    with steps("compiling kernels", len(paths), shown=not quiet) as done:
        left = iter(paths)
        with ThreadPoolExecutor(processes) as threads:
            for each in [threads.submit(_feed, left, done) for _ in range(processes)]:
                each.result()
    names = sorted(str(Path(path).resolve().relative_to(PACKAGE)) for path in paths)
    content = orjson.dumps({**_COMPILER, "files": _described(names)})
    with contextlib.suppress(PermissionError):  # the installation is another user's
        Path(stamp).parent.mkdir(exist_ok=True)
        Path(stamp).write_bytes(content)


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
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603
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
    try:
        known = orjson.loads(STAMP.read_bytes())
        compiler = {what: known[what] for what in _COMPILER}
        return compiler == _COMPILER and known["files"] == _described(known["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _described(names: Iterable[str]) -> dict[str, list[int]]:
    """Times and sizes of files of the package, by which Numba knows whether they have changed."""
    found = {}
    for name in names:
        about = (PACKAGE / name).stat()
        found[name] = [about.st_mtime_ns, about.st_size]
    return found
