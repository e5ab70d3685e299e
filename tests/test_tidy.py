"""What no linter knows: how much lies side by side, and that what is said twice agrees."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import grimp
import pytest

import penstock

ROOT = Path(__file__).parents[1]
MODULES_MAX = 16
"""Modules side by side: what a reader takes in at a glance. Where there are more, some of them
belong together, and are a room."""
LINES_MAX = 600
"""Lines of a module: a file is one subject, which takes 150 to 500 as a rule."""

PACKAGES = [
    one
    for top in ("src", "tests", "benchmarks")
    for one in sorted((ROOT / top).rglob("*"))
    if one.is_dir()
    and any(one.glob("*.py"))
    # What was fetched lies in hidden folders.
    and not any(part.startswith(".") for part in one.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: str(one.relative_to(ROOT)))
def test_rooms_are_small(package: Path) -> None:
    """No package has more modules than a reader takes in."""
    modules = sorted(one.name for one in package.glob("*.py"))
    assert len(modules) <= MODULES_MAX, modules


def test_modules_are_short() -> None:
    """No module is so long that it must be several subjects."""
    lines = {one: len(one.read_text().splitlines()) for one in (ROOT / "src").rglob("*.py")}
    assert {one: count for one, count in lines.items() if count > LINES_MAX} == {}


@pytest.mark.slow
def test_no_package_and_its_modules_import_each_other() -> None:
    """A module that imports the package it is in isn't imported by that, in any number of steps.
    (Import contracts forbid circles among siblings; a package is none of its modules'.)
    """
    graph = grimp.build_graph("penstock")
    circles = [
        (package, module)
        for module in graph.modules
        for package in graph.find_modules_directly_imported_by(module)
        if module.startswith(f"{package}.") and graph.find_shortest_chain(package, module)
    ]
    assert circles == []


def test_public_names_agree() -> None:
    """What type checkers are told of the package's names is what they are when it runs."""
    stub = ast.parse((ROOT / "src/penstock/__init__.pyi").read_text())
    homes = {
        name.asname: one.module
        for one in stub.body
        if isinstance(one, ast.ImportFrom)
        for name in one.names
        if name.asname == name.name
    }
    assert homes == penstock._HOMES
    assert set(penstock.__all__) == set(homes)
    for name, home in homes.items():
        if home == "penstock":
            assert getattr(penstock, name) is importlib.import_module(f"penstock.{name}")
        else:
            assert getattr(penstock, name) is getattr(importlib.import_module(home or ""), name)


def test_all_is_there() -> None:
    """Whoever imports everything gets every public name, and nothing else."""
    names: dict[str, object] = {}
    exec("from penstock import *", names)
    del names["__builtins__"]
    assert set(names) == set(penstock.__all__)


def test_packages_are_described_as_their_layers() -> None:
    """The table of packages in docs/architecture.md has the layers of pyproject.toml, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        one["layers"] for one in contracts["contracts"] if one["name"] == "Arrows point down"
    )
    text = (ROOT / "docs/architecture.md").read_text().partition("\n## Packages\n")[2]
    rows = re.findall(
        r"^\| (`.*?) \| .* \|$", text.partition("\n\nPackages in one row")[0], re.MULTILINE
    )
    described = [set(re.findall(r"`(\w+)`", one)) for one in rows]
    assert described == [set(re.split(r" [|:] ", one)) for one in layers]
