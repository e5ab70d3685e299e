"""Installs the plugin without an installer: its folder is on the path, and so is its metadata."""

from __future__ import annotations

import os
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.databases import log

from penstock import duck

__all__ = ["log"]  # a fixture
HERE = Path(__file__).parent


def install(folder: Path, project: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """Writes what an installer writes of a distribution with entry points."""
    info = folder / f"{project.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution `penstock-notes` is installed, for this process and those that it starts."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    install(site, project["name"], project["version"], project["entry-points"])
    paths = [str(site), str(HERE / "src")]
    for path in paths:
        monkeypatch.syspath_prepend(path)
    before = [one for one in [os.environ.get("PYTHONPATH")] if one]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, *before]))
    # What a connection learns of it ends with it.
    monkeypatch.setattr(duck, "_thread", threading.local())


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution whose entry points are wrong."""

    def make(group: str, points: dict[str, str], project: str = "penstock-broken") -> None:
        site = tmp_path / project
        install(site, project, "0.3", {group: points})
        (site / "broken_plugin.py").write_text("import no_such_driver\n")
        monkeypatch.syspath_prepend(site)

    yield make
    sys.modules.pop("broken_plugin", None)
