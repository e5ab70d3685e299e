"""`penstock prepare`: what the first start would otherwise take longer for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
import orjson
import psutil

from penstock.core.kernels import files, load_all
from penstock.errors import SetupError

EXERCISE_S_MAX: Final = 300.0  # of the pipeline that is recorded; of writing the archive likewise
PACKAGE: Final = Path(__file__).resolve().parents[2]
STAMP: Final = PACKAGE / "core" / "kernels" / "__pycache__" / "compiled.json"
"""What was compiled last: of these files, by this compiler."""
_COMPILER: Final = {"python": sys.version, "numba": version("numba")}


@click.command()
def prepare() -> None:
    """Compile kernels and archive the classes that Spark loads, so that pipelines start sooner.

    Takes about a minute and a half and 170 MB in the Python environment, once. Pipelines run without it, too.
    """
    from penstock.engine.spark.archive import recording, use_options
    from penstock.engine.spark.java import java_home

    click.echo("compiling kernels …", err=True)
    compile_kernels()
    with tempfile.TemporaryDirectory() as folder:
        java = java_home(Path(folder) / "pipeline" / "spark")
        if use_options(java):
            click.echo("Spark's classes are archived already", err=True)
            return
        click.echo("recording what Spark loads …", err=True)
        with recording(java) as options:
            pid = _exercise(folder, options)
            click.echo("archiving it …", err=True)
            _wait(pid)
    click.echo("done: starts take some seconds less from now on", err=True)


def compile_kernels(stamp: str | Path = STAMP) -> None:
    """Compiles all kernels, where they are not in the cache next to their modules.

    Args:
        stamp: where it is written what was compiled.
    """
    for module in ("client", "broker.server", "testing", "log.compaction.kernels"):
        import_module(f"penstock.{module}")
    load_all()
    names = [str(Path(one).resolve().relative_to(PACKAGE)) for one in sorted(files())]
    content = orjson.dumps({**_COMPILER, "files": _described(names)})
    with contextlib.suppress(PermissionError):  # the installation is another user's
        Path(stamp).parent.mkdir(exist_ok=True)
        Path(stamp).write_bytes(content)


def compile_once(say: Callable[[str], None]) -> None:
    """Compiles the kernels where that was not done since the installation.

    Otherwise each process of a pipeline would, for minutes in which it seems to hang.

    Args:
        say: is told that it takes a while.
    """
    if _are_compiled() or not os.access(PACKAGE, os.W_OK):
        return
    say("compiling kernels, once after an installation. This takes a minute or two …")
    code = f"from {__name__} import compile_kernels; compile_kernels({str(STAMP)!r})"
    # In a process of its own: it takes 150 MB, which this one doesn't need.
    subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - this program


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


def _exercise(folder: str, options: str) -> int:
    """Runs the pipeline; gives the id of its JVM, which outlives it and has its standard output."""
    said, pid = Path(folder) / "said", Path(folder) / "pid"
    command = [sys.executable, "-m", "penstock.demo.exercise", folder, options, str(pid)]
    try:
        with said.open("wb") as output:
            done = subprocess.run(  # noqa: S603 - this program
                command, stdout=output, stderr=output, timeout=EXERCISE_S_MAX, check=False
            )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"expected a small pipeline to end within {EXERCISE_S_MAX:.0f} s; it said: "
            f"{said.read_text()[-1_000:].strip()!r}. Pipelines run without the archive, and start more "
            "slowly; penstock prepare tries again"
        ) from None
    if done.returncode:
        raise SetupError(
            f"expected a small pipeline to run; it failed: {said.read_text()[-1_000:].strip()}. Find the "
            "reason with: penstock demo machine"
        )
    return int(pid.read_text())


def _wait(pid: int) -> None:
    try:
        psutil.Process(pid).wait(EXERCISE_S_MAX)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        raise SetupError(
            f"expected Java to write its archive within {EXERCISE_S_MAX:.0f} s; found process {pid} "
            "still at it. Try again on a less busy machine"
        ) from None
