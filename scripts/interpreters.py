"""Runs the tests that depend on the interpreter (marked `interpreter`) under other Pythons than .venv's.

Sockets, TLS, event loops, pickles, processes and signals differ from release to release: what passes
under one Python may fail under the next. This tries the system's own Python, and the newest that is
there and that all packages are built for, each with an environment of its own, `.venv-RELEASE`:

- What isn't built for one Python only is .venv's: `site.addsitedir` adds it behind the environment's own.
- What is built for one Python is .venv's too where the minor version, and so the binary interface, is
  the same. Where it isn't, pip installs it as requirements.lock has it.

A Python that isn't there, or that pip has no packages for, is reported and passed over. Arguments go to
pytest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ROOT / "requirements.lock", ROOT / "requirements-test.lock"
TESTS: Final = ROOT / "tests"
MARK: Final = "pytest.mark.interpreter"
PYTEST: Final = (
    "-m",
    "interpreter",
    "-p",
    "no:cacheprovider",
    "-n",
    "2",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
)
IMPORTS: Final = "import penstock.cli, penstock.client, penstock.testing"
SYSTEM: Final = Path("/usr/bin/python3")
OLDEST: Final = (3, 11)
OURS: Final = sys.version_info[:3]
NOT_NEEDED: Final = frozenset({"grimp", "librt", "mypy"})
"""What is built for one Python and loaded by no test."""
ASK_TIMEOUT_S: Final = 60
CALL_TIMEOUT_S: Final = 600  # pip gets some 170 MB
ASK: Final = """
import platform, sys, sysconfig
is_usual = platform.python_implementation() == "CPython" and sys.version_info.releaselevel == "final"
if is_usual and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(*sys.version_info[:3])
"""


@dataclass(frozen=True, order=True)
class Python:
    """An interpreter: its release, its program."""

    release: tuple[int, ...]
    program: Path

    def __str__(self) -> str:
        return ".".join(map(str, self.release))

    @property
    def has_our_binaries(self) -> bool:
        """Whether it loads what is built for the interpreter that runs this."""
        return self.release[:2] == OURS[:2]


class MissingError(Exception):
    """An environment can't be made here; why."""


def main() -> int:
    """Runs the tests under each; 1 if they fail under one of them."""
    failed = [str(python) for python, folder in environments() if not passes(python, folder)]
    if failed:
        print(f"failed under Python {', '.join(failed)}")
    return 1 if failed else 0


def environments() -> Iterator[tuple[Python, Path]]:
    """The system's Python, and the newest of another minor version, with what they can import from."""
    here = found()
    system = [one for one in here if one.release == getattr(ask(SYSTEM), "release", None)]
    minors = {OURS[:2], *(one.release[:2] for one in system)}
    newest = [one for one in reversed(here) if one.release[:2] not in minors]
    for what, candidates in {"system": system, "newest other": newest}.items():
        for python in candidates:
            try:
                folder = environment(python)
            except MissingError as reason:
                tell(f"Python {python}: skipped, {reason}")
                continue
            yield python, folder
            break
        else:
            tell(
                f"skipped: no {what} Python other than {'.'.join(map(str, OURS))} that can be used"
            )


def found() -> list[Python]:
    """The interpreters on the path and in pyenv's folders, but for the release that runs this."""
    folders = [*map(Path, os.get_exec_path()), SYSTEM.parent]
    folders += Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin")
    files = {file for folder in folders for file in folder.glob("python3*")}
    asked = (ask(file) for file in sorted(files) if re.fullmatch(r"python3(\.\d+)?", file.name))
    by_release = {one.release: one for one in asked if one is not None}
    return sorted(
        one for one in by_release.values() if one.release >= OLDEST and one.release != OURS
    )


def ask(program: Path) -> Python | None:
    """What an interpreter is; None if it isn't usable."""
    try:
        asked = subprocess.run(  # noqa: S603
            [program, "-c", ASK], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.fullmatch(r"(\d+) (\d+) (\d+)\n", asked.stdout)
    return Python(tuple(map(int, release.groups())), program) if release else None


def environment(python: Python) -> Path:
    """The interpreter's environment, made where it isn't there or not up to date.

    Raises:
        MissingError: it can't be made.
    """
    folder = ROOT / f".venv-{python}"
    stamp = folder / "set-up"
    wanted = hashlib.sha256(f"{ROOT} {sys.executable} {text_of_locks()}".encode())
    if stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return folder
    tell(f"making {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    call(python.program, "-m", "venv", "--without-pip", folder)
    if not python.has_our_binaries:
        needs = folder / "requirements.lock"
        needs.write_text(locked(binaries() - NOT_NEEDED))
        options = (
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "--no-deps",
            "--require-hashes",
        )
        pip = sys.executable, "-m", "pip", "--python", folder / "bin" / "python"
        call(*pip, "install", *options, "--only-binary=:all:", "-r", needs)
    minor = f"python{python.release[0]}.{python.release[1]}"
    ours = sysconfig.get_path("purelib")
    shared = folder / "lib" / minor / "site-packages" / "shared.pth"
    shared.write_text(f"import site; site.addsitedir({ours!r})\n")
    stamp.write_text(wanted.hexdigest())
    return folder


def call(*command: str | Path) -> None:
    """Runs a step of a set-up.

    Raises:
        MissingError: it fails.
    """
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(str(error)) from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise MissingError(f"as {' '.join(map(str, command[:4]))} … says: {' '.join(last)}")


def binaries() -> set[str]:
    """The packages of .venv that are built for one version of Python."""
    names = set()
    for package in importlib.metadata.distributions():
        tags = re.findall(r"^Tag: (\S+)", package.read_text("WHEEL") or "", re.MULTILINE)
        if tags and all(re.match(r"cp\d+-cp\d+-", tag) for tag in tags):
            names.add(re.sub(r"[-_.]+", "-", package.name).lower())
    return names


def text_of_locks() -> str:
    """What both locks say."""
    return "".join(lock.read_text() for lock in LOCKS)


def locked(names: set[str]) -> str:
    """What the locks say of these packages."""
    entries = re.split(r"^(?=[a-z0-9])", text_of_locks(), flags=re.MULTILINE)
    return "".join(one for one in entries if one.partition("==")[0] in names)


def passes(python: Python, folder: Path) -> bool:
    """Whether the tests pass under an interpreter."""
    program = str(folder / "bin" / "python")
    files = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if MARK in file.read_text()]
    steps = {
        "compiling kernels, where they are new": ["-c", IMPORTS],
        "tests": ["-m", "pytest", *PYTEST, *(sys.argv[1:] or files)],
    }
    for what, arguments in steps.items():
        tell(f"Python {python}: {what}")
        env = os.environ | {"PENSTOCK_TESTS": "quick"}
        if subprocess.run([program, *arguments], cwd=ROOT, env=env, check=False).returncode:  # noqa: S603
            return False
    return True


def tell(text: str) -> None:
    """Prints before what the tests print."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
