"""docs/recordings.md shows what the commands print: each is run again, and its lines are compared."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
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
)
PROGRESS: Final = re.compile(r"\w+ [\d,]+ records?, |waiting for the broker ")
"""What a command prints besides where it takes long."""


def plain(text: str) -> list[str]:
    """The lines of an output, with a mark where they may differ."""
    text = "\n".join(line for line in text.splitlines() if not PROGRESS.match(line))
    for pattern in VARY:
        text = re.sub(pattern, "~", text)
    return [line.rstrip() for line in text.splitlines()]


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


def test_the_recordings_are_what_the_commands_print(
    penstock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each on what those before it left."""
    commit(clicks(20), tmp_path / "shop.penstock")
    page = PAGE.read_text()
    with BrokerProcess(tmp_path / "broker") as broker:
        monkeypatch.setenv("PENSTOCK_BROKER", broker.address)
        write_letters(Log(broker.address), "orders")

        def recorded(block: re.Match[str]) -> str:
            shown = []
            for line in re.findall(r"^\$ (.*)$", block[1], re.MULTILINE):
                said = call(penstock, line).replace(broker.address, ADDRESS)
                shown.append(f"$ {line}\n{said.replace(str(tmp_path), '.').rstrip()}".rstrip())
            return "```console\n" + "\n".join(shown) + "\n```"

        new = BLOCK.sub(recorded, page)
    if os.environ.get("PENSTOCK_RECORD"):
        PAGE.write_text(new)
    assert plain(new) == plain(page)
