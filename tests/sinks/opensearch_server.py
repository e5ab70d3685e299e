"""A real OpenSearch, of its jars on Maven Central: on a free port, in its own directory."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import wait_until
from tests.ports import free_port
from tests.suites.suite import cache

from penstock.sinks.targets.http import AwayError, Web

PROGRAM = Path(cache.__file__).with_name("OpenSearchNode.java")


class OpenSearch:
    """A node that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [str(free_port()) for _ in range(2)]
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(cache.java()), "-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1"),
                    *("-cp", cache.classpath("opensearch"), str(PROGRAM)),
                    *(str(self._folder), *self._ports),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "OpenSearch to answer")

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        with contextlib.closing(Web(self.url)) as web:
            try:
                return web.ask("GET", "/_cluster/health?wait_for_status=yellow")[0] == 200
            except AwayError:
                return False

    def kill(self) -> None:
        """As by SIGKILL."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def opensearch_server(folder: Path) -> Iterator[OpenSearch]:
    """A server, for a while."""
    if problem := cache.problem("opensearch"):
        pytest.skip(problem)
    one = OpenSearch(folder)
    try:
        yield one
    finally:
        one.kill()
