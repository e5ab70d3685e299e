"""Kernels are compiled once, before a pipeline's processes would each do it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import psutil
import pytest
from tests.patience import wait_until

from penstock.cli.pipelines import compiling
from penstock.core.kernels import stored
from penstock.core.kernels.stored import user_folder


@pytest.fixture
def no_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has the kernels of this user's, and no stamp."""
    known, folder = user_folder(), tmp_path / "cache"
    assert known is not None
    folder.mkdir()
    for file in known.glob("*.kernel"):
        (folder / file.name).symlink_to(file)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    for module in (stored, compiling):
        monkeypatch.setattr(module, "INSTALLED", tmp_path / "none")
    return folder


def test_kernels_are_compiled_where_they_were_not(no_stamps: Path) -> None:
    """Again when a kernel's file, the compiler or the processor is another, or the stamp can't be read."""
    said: list[str] = []
    compiling.compile_once(said.append)
    assert len(said) == 1
    compiling.compile_once(said.append)
    assert len(said) == 1
    assert compiling._are_compiled()
    [stamp] = no_stamps.glob("*.json")
    known = orjson.loads(stamp.read_bytes())
    assert {"wire/kernels.py", "core/kernels/instructions.py"} <= known["files"].keys()
    changed = {**known, "files": {**known["files"], "wire/kernels.py": "00"}}
    gone = {**known, "files": {**known["files"], "wire/gone.py": "00"}}
    other = {**known, "compiler": "cpython-311 0.1 0.1"}
    elsewhere = {**known, "processor": "z80"}
    for text in (*map(orjson.dumps, (changed, gone, other, elsewhere)), b"{", b"[]"):
        stamp.write_bytes(text)
        assert not compiling._are_compiled(), text


def test_kernels_that_a_wheel_brings_are_not_compiled(
    no_stamps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a wheel has each kernel for the baseline, and says so."""
    shipped = tmp_path / "shipped"
    code = "from penstock.cli.pipelines.compiling import ship; ship(__import__('pathlib').Path('shipped'))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(stored, "SHIPPED", shipped)
    monkeypatch.setattr(compiling, "SHIPPED", shipped)
    said: list[str] = []
    compiling.compile_once(said.append)
    assert said == []
    compiling._import()
    keys = [key for path in compiling.files() for key in compiling.stored_keys(path)]
    assert len(keys) > 90
    assert all(map(stored.find, keys))


def test_what_is_prepared_serves_other_users_of_the_environment(
    no_stamps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's user has neither the cache of who installed it, nor the right to write there."""
    installed = tmp_path / "share"
    monkeypatch.setattr(stored, "INSTALLED", installed)
    monkeypatch.setattr(compiling, "INSTALLED", installed)
    code = "from penstock.cli.pipelines.compiling import *; copy_kernels(Path('share'))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
    assert compiling._are_compiled()
    compiling._import()
    assert all(
        stored.find(key) for path in compiling.files() for key in compiling.stored_keys(path)
    )


def test_without_a_place_for_a_cache_nothing_is_compiled_in_advance(
    no_stamps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be kept isn't compiled in advance each time."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    said: list[str] = []
    compiling.compile_once(said.append)
    assert said == []
    assert not list(no_stamps.glob("*.json"))


def test_kernels_of_versions_long_gone_are_forgotten(no_stamps: Path) -> None:
    """The cache of a developer doesn't grow forever; what was used lately stays."""
    old, new = no_stamps / "old-generic.kernel", no_stamps / "new-generic.kernel"
    for file in (old, new):
        file.write_bytes(b"")
    os.utime(old, (0, 0))
    compiling._forget_unused()
    assert (old.exists(), new.exists()) == (False, True)


EVERYTHING = """
import pkgutil, sys
from importlib import import_module
import penstock
from penstock.cli.pipelines import compiling
from penstock.core.kernels import files

compiling._import()
known = files()
for one in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if not one.name.endswith("__main__"):
        import_module(one.name)
print(sorted(files() - known))
"""


@pytest.mark.slow
def test_kernels_of_all_modules_are_compiled() -> None:
    """A kernel that isn't found would be compiled by each process that calls it, while a user waits."""
    command = [sys.executable, "-c", EVERYTHING]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_compilation_leaves_nothing_running(
    tmp_path: Path, end: signal.Signals
) -> None:
    """Neither Ctrl-C nor a kill leaves processes behind, and neither is answered with a traceback."""
    code = "from penstock.cli.pipelines.compiling import compile_kernels as c; c()"
    # Neither it nor a process that it starts sees what the environment has compiled.
    (tmp_path / "sitecustomize.py").write_text(
        "from pathlib import Path\nfrom penstock.core.kernels import stored\n"
        "stored.INSTALLED = Path('none')\n"
    )
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | own,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(tmp_path.rglob("*.kernel")), "a compiled kernel", patience_s=120.0)
        workers = psutil.Process(process.pid).children()
        assert workers
        process.send_signal(end)
        _, said = process.communicate(timeout=60)
        wait_until(lambda: not any(map(running, workers)), "no worker", patience_s=120.0)
    finally:
        process.kill()
    assert process.returncode == -end
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.json"))


def running(process: psutil.Process) -> bool:
    """Whether it is there and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
