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


@pytest.fixture
def stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is written what was compiled, of this test alone."""
    path = tmp_path / "cache" / "compiled.json"
    monkeypatch.setattr(compiling, "STAMP", path)
    return path


def test_kernels_are_compiled_where_they_were_not(stamp: Path) -> None:
    """Again when a kernel's file or the compiler is another one, or the stamp can't be read."""
    said: list[str] = []
    compiling.compile_once(said.append)
    assert len(said) == 1
    compiling.compile_once(said.append)
    assert len(said) == 1
    assert compiling._are_compiled()
    known = orjson.loads(stamp.read_bytes())
    assert "wire/kernels.py" in known["files"]
    changed = {**known, "files": {**known["files"], "wire/kernels.py": [1, 2]}}
    gone = {**known, "files": {**known["files"], "wire/gone.py": [1, 2]}}
    other = {**known, "numba": "0.1"}
    for text in (*map(orjson.dumps, (changed, gone, other)), b"{"):
        stamp.write_bytes(text)
        assert not compiling._are_compiled(), text


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


def test_an_installation_of_another_user_is_left_alone(
    stamp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be kept isn't compiled in advance each time."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    said: list[str] = []
    compiling.compile_once(said.append)
    assert said == []
    assert not stamp.exists()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_compilation_leaves_nothing_running(
    tmp_path: Path, end: signal.Signals
) -> None:
    """Neither Ctrl-C nor a kill leaves processes behind, and neither is answered with a traceback."""
    code = "from penstock.cli.pipelines.compiling import compile_kernels as c; c('stamp')"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(tmp_path.rglob("*.nbc")), "a compiled kernel", patience_s=120.0)
        workers = psutil.Process(process.pid).children()
        assert workers
        process.send_signal(end)
        _, said = process.communicate(timeout=60)
        wait_until(lambda: not any(map(running, workers)), "no worker", patience_s=120.0)
    finally:
        process.kill()
    assert process.returncode == -end
    assert "Traceback" not in said
    assert not (tmp_path / "stamp").exists()


def running(process: psutil.Process) -> bool:
    """Whether it is there and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
