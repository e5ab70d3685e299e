"""The two lock files: what a pipeline runs on, and what only the checks need."""

from __future__ import annotations

import email.message
import importlib.util
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penstock.core.lazy import how_to_install, installed
from penstock.errors import SetupError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked(lock: str) -> set[str]:
    """The packages of a lock file."""
    return set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE))


def needed(wanted: list[str]) -> set[str]:
    """These requirements and all that they need, as installed here."""
    found: set[str] = set()
    todo = [Requirement(one) for one in wanted]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        extras = ["", *one.extras]
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if name in found and not one.extras:
            continue
        found.add(name)
        for text in _requires(name):
            more = Requirement(text)
            if more.marker is None or any(more.marker.evaluate({"extra": e}) for e in extras):
                more.marker = None
                todo.append(more)
    return found


def _requires(name: str) -> list[str]:
    """What an installed package needs; of one that isn't installed nothing is known."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def test_the_lock_is_what_a_pipeline_needs() -> None:
    """`./run` installs the dependencies and no package besides."""
    assert needed(PROJECT["project"]["dependencies"]) == locked("requirements.lock")


def test_the_checks_need_both_locks() -> None:
    """No package is in both, and all that the checks need is in one."""
    run, test = locked("requirements.lock"), locked("requirements-test.lock")
    assert run & test == set()
    assert needed(PROJECT["dependency-groups"]["dev"]) - run <= test


def test_a_module_of_an_extra_that_is_missing_is_said_with_its_command() -> None:
    """What is expected, why, and how to install it."""
    with pytest.raises(SetupError, match=r"expected missing, to try; found .*\[redis\]"):
        installed("missing.part", "redis", "to try")
    with pytest.raises(SetupError, match=r"expected MisSing, to try; found .*missing"):
        installed("missing", "redis", "to try", package="MisSing")


def test_extras_are_installed_by_a_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the package's name where it is installed, also from a checkout; else in the checkout."""
    spec = importlib.util.spec_from_file_location("link", ROOT / "scripts" / "link.py")
    assert spec is not None
    assert spec.loader is not None
    link = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(link)
    linked = email.message_from_string(link.metadata(PROJECT["project"]))
    assert linked.get_all("Provides-Extra") == list(PROJECT["project"]["optional-dependencies"])
    needs = [Requirement(one) for one in linked.get_all("Requires-Dist") or []]
    found = [one.name for one in needs if one.marker and one.marker.evaluate({"extra": "redis"})]
    assert found == ["redis"]
    monkeypatch.setattr(metadata, "metadata", lambda _: linked)
    assert how_to_install("redis") == "pip install 'penstock[redis]'"

    def missing(name: str) -> email.message.Message:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    assert how_to_install("redis") == "pip install '.[redis]', in the checkout"
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
    ]:
        assert not re.search(r"pip install '?penstock", page.read_text()), page
