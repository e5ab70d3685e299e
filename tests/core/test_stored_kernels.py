"""Machine code of kernels is found by what was compiled, and nothing that happens to it stops a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.kernels import Kernel, njit, stored, types
from penstock.core.kernels.content import text_of

PROGRAM = '''
"""{comment}"""
import sys
from penstock.core.kernels import njit, types

LIMIT = {limit}

@njit(inline="always")
def doubled(value):
    """{comment}"""
    return value * {factor}

@njit(types.int64(types.int64), cache=True)
def kernel(value):
    """{comment}"""
    return doubled(value) + LIMIT

found = kernel(int(sys.argv[1]))
made = kernel
print(found, made.stats.cache_hits and "loaded" or "compiled")
'''


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where the programs of a test keep kernels."""
    return tmp_path / "cache"


def run(
    cache: Path,
    *,
    comment: str = "",
    limit: int = 1,
    factor: int = 2,
    folder: str = "one",
    module: str = "program",
) -> list[str]:
    """Calls the program's kernel with 5; gives the result, and whether it was loaded or compiled."""
    place = cache.parent / folder
    place.mkdir(exist_ok=True)
    (place / f"{module}.py").write_text(PROGRAM.format(comment=comment, limit=limit, factor=factor))
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import {module}", "5"],
        cwd=place,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_a_kernel_is_compiled_again_when_what_it_means_changes(cache: Path) -> None:
    """Not for another folder or comment; but for a constant, and for a function that it calls."""
    assert run(cache) == ["11", "compiled"]
    assert run(cache, folder="two", comment="says more") == ["11", "loaded"]
    assert run(cache, limit=7) == ["17", "compiled"]
    assert run(cache, factor=3) == ["16", "compiled"]
    assert run(cache) == ["11", "loaded"]


@pytest.mark.slow
def test_a_kernel_whose_module_has_another_name_is_compiled_again(cache: Path) -> None:
    """What Numba keeps of it names the module, which a later release may have renamed."""
    assert run(cache) == ["11", "compiled"]
    (cache.parent / "one" / "program.py").unlink()
    assert run(cache, module="renamed") == ["11", "compiled"]
    assert run(cache, module="renamed") == ["11", "loaded"]


@pytest.mark.slow
def test_torn_files_and_places_that_refuse_cost_time_alone(cache: Path) -> None:
    """A file that isn't whole is compiled again and replaced; without a place, each process compiles."""
    run(cache)
    [file] = cache.iterdir()
    for content in (b"", file.read_bytes()[:-1]):
        file.write_bytes(content)
        assert run(cache) == ["11", "compiled"]
        assert run(cache) == ["11", "loaded"]
    nowhere = cache / file.name / "below a file"
    assert run(nowhere.parent) == ["11", "compiled"]


@pytest.mark.slow
def test_processes_that_compile_the_same_kernel_leave_one_file(cache: Path) -> None:
    """Each has the right result, and the next one loads it."""
    run(cache, folder="here")
    [file] = cache.iterdir()
    file.unlink()
    code = [sys.executable, "-B", "-c", "import program", "5"]
    env = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    begun = [
        subprocess.Popen(
            code, cwd=cache.parent / "here", env=env, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0].split()[0] for process in begun] == ["11"] * 3
    assert list(cache.iterdir()) == [file]
    assert run(cache, folder="here") == ["11", "loaded"]


def test_keys_depend_on_values_and_not_on_what_was_loaded() -> None:
    """Of globals that are types and kernels, too, whose place Numba's own objects take."""

    def key(kernel: Kernel) -> str:
        kernel._content = ""
        return kernel.content()

    made, kept = {}, {}
    for name, kind in (("a", types.int64), ("b", types.int32)):
        space = {"njit": njit, "KIND": kind, "TABLE": np.arange(3), "S": types.int64(types.int64)}
        exec("@njit(S)\ndef kernel(v):\n    return KIND(v) + TABLE[0]", space)
        kept[name] = space["kernel"]
        made[name] = key(kept[name])
    assert made["a"] != made["b"]
    assert kept["a"](2) == 2
    assert key(kept["a"]) == made["a"]


def test_a_module_that_is_imported_late_has_the_keys_of_one_that_was_early() -> None:
    """It imports Numba's own objects, which have taken the place of kernels and types in their modules."""
    home: dict[str, Any] = {"njit": njit, "KIND": types.int64, "S": types.int64(types.int64)}
    exec("@njit(S)\ndef inner(v):\n    return KIND(v) + 1", home)
    source = "@njit(S)\ndef outer(v):\n    return inner(KIND(v)) * 2"

    def imported() -> Kernel:
        space = {name: home[name] for name in ("njit", "S", "KIND", "inner")}
        exec(source, space)
        made: Kernel = space["outer"]
        return made

    early = imported().content()
    assert imported()(3) == 8, "it is loaded, and with it what it calls"
    late = imported()
    assert not isinstance(late.py_func.__globals__["inner"], Kernel)
    assert late.content() == early


def test_a_value_without_a_text_is_refused() -> None:
    """A dictionary's order or an object's address would make keys that no other process has."""
    with pytest.raises(
        TypeError, match="expected a kernel to use numbers, arrays, types and kernels; found"
    ):
        text_of({"a": 1})


def test_a_machine_below_the_baseline_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code with instructions that it lacks would end its processes."""
    known = stored._V3
    monkeypatch.setattr(stored.platform, "machine", lambda: "x86_64")
    for flags, expected in ((known.flags, known), (known.flags - {"avx2"}, None)):
        shown = f"model name : x\nflags\t\t: {' '.join(flags)}\n"
        monkeypatch.setattr(Path, "read_text", lambda _, shown=shown: shown)
        assert stored.baseline.__wrapped__() == expected
