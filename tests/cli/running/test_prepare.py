"""Kernels are compiled once, before a pipeline's processes would each do it."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from penstock.cli.pipelines import prepare


@pytest.fixture
def stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is written what was compiled, of this test alone."""
    path = tmp_path / "cache" / "compiled.json"
    monkeypatch.setattr(prepare, "STAMP", path)
    return path


def test_kernels_are_compiled_where_they_were_not(stamp: Path) -> None:
    """Again when a kernel's file or the compiler is another one, or the stamp can't be read."""
    said: list[str] = []
    prepare.compile_once(said.append)
    assert len(said) == 1
    prepare.compile_once(said.append)
    assert len(said) == 1
    assert prepare._are_compiled()
    known = orjson.loads(stamp.read_bytes())
    assert "wire/kernels.py" in known["files"]
    changed = {**known, "files": {**known["files"], "wire/kernels.py": [1, 2]}}
    gone = {**known, "files": {**known["files"], "wire/gone.py": [1, 2]}}
    other = {**known, "numba": "0.1"}
    for text in (*map(orjson.dumps, (changed, gone, other)), b"{"):
        stamp.write_bytes(text)
        assert not prepare._are_compiled(), text


def test_an_installation_of_another_user_is_left_alone(
    stamp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be kept isn't compiled in advance each time."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    said: list[str] = []
    prepare.compile_once(said.append)
    assert said == []
    assert not stamp.exists()
