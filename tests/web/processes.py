"""Real processes that serve a page, for tests that stop and kill them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

from penstock.web.health import State

SPARK_PATIENCE_S: Final = 400.0
"""How long a state may take that Spark has to start for."""


class Program:
    """A process that serves a page, and what the page's server says."""

    def __init__(self, folder: Path, *arguments: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{port}.stderr"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], stderr=log, cwd=folder, start_new_session=True
            )

    def status(self) -> dict[str, Any]:
        """What the page's server says; nothing where it isn't there."""
        with contextlib.suppress(httpx.TransportError):
            found: dict[str, Any] = httpx.get(f"{self.url}/api/status", timeout=PATIENCE_S).json()
            return found
        return {"state": {"name": "nobody answers"}}

    def wait_for(
        self, state: State, more: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Waits until it says so."""
        statuses: list[dict[str, Any]] = []

        def asked() -> bool:
            statuses[:] = [self.status()]
            return statuses[0]["state"]["name"] == state.value and more(statuses[0])

        what = lambda: f"{state}, found {statuses}; {self.log.read_text()[-2_000:]}"  # noqa: E731
        wait_until(asked, what, patience_s=SPARK_PATIENCE_S)
        return statuses[0]

    def engine(self) -> list[psutil.Process]:
        """The JVM, and all that it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        """Ends it with all that it has started, stopped or not."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [psutil.Process(self.process.pid), *self.engine()]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(PATIENCE_S)


def ui(folder: Path, name: str = "shop") -> Program:
    """The page of a pipeline that runs elsewhere, or not."""
    port = free_port()
    arguments = ("-m", "penstock.cli", "ui", name, "--port", str(port))
    return Program(folder, *arguments, port=port)
