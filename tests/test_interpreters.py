"""Other Pythons are found, and get environments that share what they can (scripts/interpreters.py)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def interpreters() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("_", ROOT / "scripts" / "interpreters.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["_"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del sys.modules["_"]
    return module


@pytest.mark.slow
def test_only_pythons_are_pythons(interpreters: ModuleType) -> None:
    """The release of one is known; what is none, or isn't there, can't be used."""
    assert interpreters.ask(Path(sys.executable)).release == sys.version_info[:3]
    assert interpreters.ask(Path("/bin/echo")) is None
    assert interpreters.ask(Path("/no/python3")) is None
    assert sys.version_info[:3] not in {one.release for one in interpreters.found()}


def test_what_is_built_for_one_python_is_locked(interpreters: ModuleType) -> None:
    """Of the lock only these packages are left, with their hashes."""
    built = interpreters.binaries()
    assert {"numba", "pyarrow"} <= built
    assert not {"pytest", "polars", "penstock"} & built, "any Python loads them"
    kept = interpreters.locked({"pyarrow", "numpy"})
    assert {line.partition("==")[0] for line in kept.splitlines() if "==" in line} == {
        "pyarrow",
        "numpy",
    }
    assert "--hash=sha256:" in kept


def test_an_environment_shares_what_it_can(
    interpreters: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a Python of the same minor version everything is there, and nothing was installed."""
    monkeypatch.setattr(interpreters, "ROOT", tmp_path)
    python = interpreters.Python(sys.version_info[:3], Path(sys.executable))
    folder = interpreters.environment(python)
    code = "import sys, numba, penstock; print(sys.prefix, penstock.__file__)"
    ran = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True)
    prefix, penstock = ran.stdout.split()
    assert Path(prefix) == folder
    assert Path(penstock).is_relative_to(ROOT)
    made = (folder / "set-up").stat().st_mtime_ns
    assert interpreters.environment(python) == folder
    assert (folder / "set-up").stat().st_mtime_ns == made, "once is enough"


def test_one_that_nothing_can_be_installed_for_is_reported(
    interpreters: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the step that fails."""
    monkeypatch.setattr(interpreters, "ROOT", tmp_path)
    with pytest.raises(interpreters.MissingError, match="venv"):
        interpreters.environment(interpreters.Python((3, 99, 0), Path("/bin/false")))
