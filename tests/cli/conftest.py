"""What the command line's tests share: a broker, and a way to call `penstock` in this process."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from penstock.cli import main


@dataclass
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Penstock = Callable[..., Result]
FOREIGN = re.compile(r"^%\d\|.*rdkafka#.*\n", re.MULTILINE)
"""What a librdkafka of another test in this process says in the background, of brokers that are gone."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address."""
    with BrokerProcess(tmp_path_factory.mktemp("log")) as process:
        yield process.address


@pytest.fixture
def penstock(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Penstock:
    """Calls `penstock` with arguments and bytes on standard input, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_BROKER", raising=False)

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        file = tmp_path / "stdin"
        file.write_bytes(stdin)
        code = 0
        with file.open("rb") as pipe:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
            monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
            try:
                main([str(a) for a in arguments], prog_name="penstock")
            except SystemExit as done:
                code = int(done.code or 0)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), FOREIGN.sub("", err.decode()))

    return call
