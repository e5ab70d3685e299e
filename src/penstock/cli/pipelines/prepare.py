"""`penstock prepare`: what the first start would otherwise take longer for."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import psutil

from penstock.cli.pipelines.compiling import compile_kernels, copy_kernels
from penstock.errors import SetupError

EXERCISE_S_MAX: Final = 300.0  # of the pipeline that is recorded; of writing the archive likewise


@click.command()
def prepare() -> None:
    """Compile kernels and archive the classes that Spark loads, so that pipelines start sooner.

    Takes about a minute and a half and 170 MB in the Python environment, once. Pipelines run without it, too.
    """
    from penstock.engine.spark.archive import recording, use_options
    from penstock.engine.spark.java import java_home

    compile_kernels()
    with contextlib.suppress(OSError):  # another user's environment: this user's cache has them
        copy_kernels()
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
            "still running. Try again on a less busy machine"
        ) from None
