"""An archive of the classes that Spark's JVM loads: with it the JVM starts in half the processor time.

    PREFIX/share/penstock/java-KEY.jsa          the runtime's own classes, where it came without them
    PREFIX/share/penstock/spark-KEY.jsa         Spark's, recorded while a pipeline ran

PREFIX is that of the Python environment; KEY stands for the runtime and the PySpark that an archive was
made with. The JVM checks an archive itself, and starts without one that doesn't fit. `penstock prepare`
makes them. Source: JEP 350, Dynamic CDS Archives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import SetupError

__all__ = ["recording", "use_options"]

DUMP_S_MAX: Final = 300.0  # of archiving the runtime's own classes; some 5 s on an idle machine
SCRIPT_BYTES_MAX: Final = 4_096
CLASSES: Final = "of a context"  # which ones an archive has: one of more takes more memory
QUIET: Final = "-Xlog:cds*=off -Xlog:cds=off"


def use_options(java: Path) -> str:
    """The JVM's options to start with the archive; empty where there is none.

    Args:
        java: the runtime, a JAVA_HOME.
    """
    base, top = _paths(java)
    if not top.exists():
        return ""
    archives = f"{base}:{top}" if base.exists() else str(top)
    return f"-Xshare:auto -XX:SharedArchiveFile={archives} {QUIET}"


@contextlib.contextmanager
def recording(java: Path) -> Iterator[str]:
    """The JVM's options to record an archive; it is put in its place once the JVM has ended.

    Args:
        java: the runtime, a JAVA_HOME.

    Raises:
        SetupError: the environment can't be written to, or the JVM left no archive.
    """
    base, top = _paths(java)
    try:
        top.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=top.parent) as folder:
            if not _has_base(java) and not base.exists():
                _dump_base(java, Path(folder) / "base.jsa")
                (Path(folder) / "base.jsa").replace(base)
            made = Path(folder) / "top.jsa"
            own = f"-XX:SharedArchiveFile={base} " if base.exists() else ""
            yield f"{own}-XX:ArchiveClassesAtExit={made} {QUIET}"
            if not made.exists():
                raise SetupError(
                    f"expected the Java runtime {str(java)!r} to leave an archive of its classes; it left "
                    "none. Pipelines run without it, and start more slowly"
                )
            made.replace(top)
    except OSError as error:
        raise SetupError(
            f"expected to write to {str(top.parent)!r}; found: {error}. Use an environment of your own "
            "(python -m venv)"
        ) from error


def _paths(java: Path) -> tuple[Path, Path]:
    import pyspark

    binary = (java / "bin" / "java").resolve()
    with binary.open("rb") as file:
        head = file.read(SCRIPT_BYTES_MAX)
    # A launcher script lies next to each pipeline's state, so what it launches stands for it.
    runtime = head if head.startswith(b"#!") else f"{binary} {binary.stat().st_mtime_ns}"
    about = f"{runtime!r} {pyspark.__file__} {pyspark.__version__} {CLASSES}"
    key = hashlib.sha256(about.encode()).hexdigest()[:16]
    folder = Path(sys.prefix) / "share" / "penstock"
    return folder / f"java-{key}.jsa", folder / f"spark-{key}.jsa"


def _has_base(java: Path) -> bool:
    """Whether the runtime came with an archive of its own classes: slim ones don't."""
    return _run(java, "-Xshare:on", "-version").returncode == 0


def _dump_base(java: Path, path: Path) -> None:
    done = _run(java, "-Xshare:dump", f"-XX:SharedArchiveFile={path}", "-XX:+UseSerialGC")
    if not path.exists():
        raise SetupError(
            f"expected the Java runtime {str(java)!r} to archive its classes; it said "
            f"{done.stdout[-300:]!r}. Pipelines run without it, and start more slowly"
        )


def _run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the runtime that runs Spark
        [str(java / "bin" / "java"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DUMP_S_MAX,
        check=False,
        env=os.environ | {"JAVA_HOME": str(java)},
    )
