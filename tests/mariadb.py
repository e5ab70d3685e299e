"""A real MariaDB server, of the system's package `mariadb-server`: on a free port, in its own directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import POLL_S, wait_until
from tests.ports import free_port

pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed")
PROGRAM = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
TRIES_MAX = 200
"""How often a server is started that ends at once."""
_AS = ["--user=root"] if os.geteuid() == 0 else []


class MariaDB:
    """A server that can be killed and started again."""

    def __init__(self, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
        self.port = free_port()
        # A server removes at its start what any other has in a temporary folder that they share.
        (self._folder / "tmp").mkdir()
        self._environment = {**os.environ, "TMPDIR": str(self._folder / "tmp")}
        made = subprocess.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={self._folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *_AS,
            ],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        assert made.returncode == 0, made.stdout
        self._options = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "datadir": str(self._folder / "data"),
            "socket": str(self._folder / "socket"),
            "pid-file": str(self._folder / "pid"),
            "innodb-buffer-pool-size": "16M",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it takes connections."""
        self._tries = 0
        self._begin()
        wait_until(self._answers, "the database server to answer")

    def _begin(self) -> None:
        assert PROGRAM is not None
        command = [
            PROGRAM,
            "--no-defaults",
            *_AS,
            *(f"--{n}={v}" for n, v in self._options.items()),
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, env=self._environment
            )

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._tries += 1
            time.sleep(POLL_S)
            assert self._tries < TRIES_MAX, (self._folder / "log").read_text()[-2000:]
            self._begin()
        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _connect(self, database: str | None = None) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            sql_mode="ANSI",
        )

    def kill(self) -> None:
        """Kills it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it, and removes what it had."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """The address of a database."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def session(self, database: str | None = None) -> Iterator[Any]:
        """A cursor of a new connection."""
        with self._connect(database) as one, one.cursor() as cursor:
            yield cursor

    def rows(self, query: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        with self._connect(database) as one, one.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


@contextmanager
def mariadb(**settings: str) -> Iterator[MariaDB]:
    """A server, for a while; skips the test where there is none."""
    if PROGRAM is None:
        pytest.skip("mariadb-server is not installed")
    server = MariaDB(**settings)
    try:
        yield server
    finally:
        server.stop()
