"""docs/recordings.md shows what the commands print: each is run again, and its lines are compared."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from tests.patience import wait_until
from tests.serve.committing import clicks, commit
from tests.web.logs import Log, write_letters

from penstock.broker.process import BrokerProcess

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "recordings.md"
BLOCK: Final = re.compile(r"```console\n(.*?)```", re.DOTALL)
ADDRESS: Final = "127.0.0.1:9092"
VARY: Final = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)?",  # instants
    r"\d+ (year|month|week|day|hour|minute|second|ms|s)s?\b( \d+ (month|day|hour|minute|second)s?\b)*",
    r"\d[\d,.]*( [kMG]?B\b| bytes)",
    r"[0-9a-f]{8,}",
    r"─+| {2,}",  # columns are as wide as what is in them
    r"\b\d{4,}\b",
    r"127\.0\.0\.1:\d+",
)
PROGRESS: Final = re.compile(
    r"(\w+ [\d,]+ records?, |waiting for the broker |compiling kernels).*\n"
    r"|(starting|stopping|stalled|waiting for events|behind|live)( for .*)?( +version .*)?\n(.+\n)?",
)
"""What a command prints besides where it takes long: a line, or a pipeline's state with its reason."""
STOP: Final = "^C"
"""After this line a command that runs until then is interrupted: when it has printed those before."""
LONG: Final = "## A pipeline that runs"
"""The section that starts pipelines."""
PATIENCE_S: Final = 300.0


def plain(text: str) -> list[str]:
    """The lines of an output, with a mark where they may differ."""
    for pattern in VARY:
        text = re.sub(pattern, "~", text)
    return [line.rstrip() for line in text.splitlines()]


def interrupted(line: str, lines: int, folder: Path) -> str:
    """What a command prints, that is interrupted after so many lines."""
    said = folder / "said"
    with said.open("wb") as out:
        command = [sys.executable, "-m", "penstock.cli", *shlex.split(line)[1:]]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)

    def printed() -> list[str]:
        return PROGRESS.sub("", said.read_text()).splitlines()

    try:
        wait_until(
            lambda: len(printed()) >= lines or process.poll() is not None,
            lambda: said.read_text(),
            patience_s=PATIENCE_S,
        )
        before = printed()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return "\n".join([*before[:lines], STOP, *printed()[lines:]])


def call(penstock: Any, line: str) -> str:
    """What a line prints: results, then messages."""
    stdin = b""
    if (piped := re.fullmatch(r"echo ('.*?') \| (.*)", line)) is not None:
        [text] = shlex.split(piped[1])
        stdin, line = text.encode() + b"\n", piped[2]
    program, *words = shlex.split(line)
    assert program == "penstock"
    done = penstock(*words, stdin=stdin)
    return str(done.out + done.err)


def recorded(penstock: Any, folder: Path, block: str, address: str) -> str:
    """A block of the page, as its commands print it now."""
    shown = []
    for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        line = first.removeprefix("$ ")
        if STOP in rest:
            said = interrupted(line, rest.index(STOP), folder)
        else:
            said = PROGRESS.sub("", call(penstock, line))
        said = said.replace(address, ADDRESS).replace(str(folder), ".")
        shown.append(f"{first}\n{said.rstrip()}".rstrip())
    return "```console\n" + "\n".join(shown) + "\n```"


def compare(penstock: Any, folder: Path, address: str, *, is_long: bool) -> None:
    """Runs the commands of the page, of pipelines that run or all others; writes or compares it."""
    page = PAGE.read_text()
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    new = "".join(
        BLOCK.sub(lambda block: recorded(penstock, folder, block[1], address), part)
        if part.startswith(LONG) == is_long
        else part
        for part in parts
    )
    if os.environ.get("PENSTOCK_RECORD"):
        PAGE.write_text(new)
    assert plain(new) == plain(page)


def test_the_recordings_are_what_the_commands_print(
    penstock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each on what those before it left."""
    commit(clicks(20), tmp_path / "shop.penstock")
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        shop.execute("INSERT INTO users VALUES (1, 'Ann'), (2, 'Bob')")
    with BrokerProcess(tmp_path / "broker") as broker:
        monkeypatch.setenv("PENSTOCK_BROKER", broker.address)
        write_letters(Log(broker.address), "orders")
        compare(penstock, tmp_path, broker.address, is_long=False)


@pytest.mark.spark
@pytest.mark.slow
def test_the_recordings_of_pipelines_are_what_they_print(penstock: Any, tmp_path: Path) -> None:
    """From the first start to Ctrl-C."""
    compare(penstock, tmp_path, ADDRESS, is_long=True)
