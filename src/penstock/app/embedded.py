"""The embedded broker of an app: a child process that is started, watched and stopped.

Who serves a directory's log is decided by the lock of its data, never by asking at the address of
before: another pipeline's broker may have taken the port.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from penstock.broker.listeners import Listener, SecurityProtocol, split_address
from penstock.broker.process import BrokerProcess
from penstock.broker.storage.data_lock import Owner, owner_of
from penstock.errors import PenstockError, SetupError, UserError

__all__ = [
    "ADDRESS_FILE",
    "EmbeddedBroker",
    "Exposed",
    "address_of",
    "checked_listen",
    "remember_log",
]

_log = logging.getLogger(__name__)

WATCH_S: Final = 0.5  # how soon a broker that died is noticed
STARTING_S_MAX: Final = 120.0  # how long another process's broker may take until it serves
ADDRESS_FILE: Final = "broker.json"
LOG: Final = "log"  # in the app's directory: the broker's data
ANYWHERE: Final = "127.0.0.1:0"


@dataclass(frozen=True)
class Exposed:
    """Where an embedded broker is reached by other machines, without authentication.

    Attributes:
        listen: `HOST:PORT` of this machine.
        advertise: `HOST:PORT` that clients connect to; None: the address at which they reached it.
    """

    listen: str
    advertise: str | None = None

    def __post_init__(self) -> None:
        split_address(self.listen)
        if self.advertise is not None:
            split_address(self.advertise)


class EmbeddedBroker:
    """The broker of one app directory. A second process with the same directory shares the first's.

    Args:
        directory: the app's.
        listen: `HOST:PORT`; None, or port 0: where it was before, else at a free port.
        command: that starts the app, for messages to processes that look for its broker while it is stopped.
        exposed: where it listens as well, for other machines.
    """

    def __init__(
        self,
        directory: Path,
        *,
        listen: str | None = None,
        command: str | None = None,
        exposed: Exposed | None = None,
    ) -> None:
        self.directory = directory
        self.address = ""
        self._listen, self._command = listen or ANYWHERE, command
        self._exposed = exposed
        self._process: BrokerProcess | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> str:
        """Starts the broker, or finds the one that another process started; its address.

        Raises:
            SetupError: the address is taken, or the log can't be served.
        """
        if not self._join():
            try:
                self._launch()
            except SetupError:  # both started at once, and the other was first
                if not self._join():
                    raise
        self._watcher = threading.Thread(target=self._watch, name="embedded broker", daemon=True)
        self._watcher.start()
        return self.address

    def stop(self) -> None:
        """Stops the broker, if this process started it."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._process is not None:
            self._process.stop()

    def _owner(self) -> Owner | None:
        return owner_of(self.directory / LOG)

    def _join(self) -> bool:
        """Takes the broker that serves the log already, if one does."""
        deadline = time.monotonic() + STARTING_S_MAX
        while (owner := self._owner()) is not None:
            plain = [one for one in owner.listeners if one.startswith(SecurityProtocol.PLAINTEXT)]
            if plain:
                self.address = plain[0].rpartition("://")[2]
                return True
            if owner.listeners or time.monotonic() > deadline:
                raise SetupError(
                    f"expected the broker of {str(self.directory / LOG)!r} (process {owner.pid}) to serve "
                    f"this machine without a log-in; found {', '.join(owner.listeners) or 'no listener'}. "
                    "Stop it, or name it: ps.App(log='kafka+tls://user@host:port')"
                )
            time.sleep(WATCH_S)
        return False

    def _launch(self) -> None:
        """Takes the previous address where it is free, so that producers find the log again."""
        listen, arguments = self._where()
        process = BrokerProcess(self.directory / LOG, listen=listen, arguments=arguments)
        process.start()
        self._process = process
        self.address = process.address
        known = {"address": self.address, "pid": process.pid, "command": self._command}
        _write(self.directory, known)

    def _where(self) -> tuple[str, list[str]]:
        """Where the broker listens, first for this app's own processes; further arguments of its process."""
        address, exposed = self._free_address(), self._exposed
        if exposed is None:
            return address, []
        host, port = split_address(exposed.listen)
        if split_address(address)[1] == port:  # one address can't be part of the other
            address = ANYWHERE
        if port and not _free(host, port):
            raise _taken(exposed.listen)
        more = ["--allow-remote"]
        if exposed.advertise is not None:
            more += ["--advertise", f",{exposed.advertise}"]
        return f"{address},{exposed.listen}", more

    def _free_address(self) -> str:
        host, port = split_address(self._listen)
        if port:
            if not _free(host, port):
                raise _taken(self._listen)
            return self._listen
        known = address_of(self.directory)
        if known is None or split_address(known)[0] != host:
            return self._listen
        if not _free(*split_address(known)):
            _log.warning(
                "expected %s, this log's previous address, to be free; found that another process "
                "listens there, and take another port", known,
            )  # fmt: skip
            return self._listen
        return known

    def _watch(self) -> None:
        """Restarts a broker that died; clients are patient meanwhile."""
        while not self._stopping.wait(WATCH_S):
            with contextlib.suppress(PenstockError, OSError):  # tried again in a moment
                if self._process is not None:
                    if not self._process.is_running():
                        self._process.start()
                elif self._owner() is None:
                    self._listen = self.address  # where this process's clients look for it
                    self._launch()


def checked_listen(listen: str) -> str:
    """An address for an embedded broker.

    Raises:
        UserError: it is none, or other machines would reach it.
    """
    host, port = split_address(listen)
    if not Listener(SecurityProtocol.PLAINTEXT, host, port).is_loopback:
        raise UserError(
            f"expected a loopback address such as 127.0.0.1:9092, because an embedded broker doesn't "
            f"authenticate clients; found {listen!r}. For other machines start a broker with TLS and users "
            "(docs/security.md), and name it: ps.App(log='kafka+tls://user@host:port'). If everyone who can "
            "reach the address may read and delete everything, add --allow-remote (in Python: App.expose)"
        )
    return listen


def address_of(directory: Path) -> str | None:
    """The address that an app directory's embedded broker has or had last."""
    path = directory / ADDRESS_FILE
    try:
        content = orjson.loads(path.read_bytes())
        address = content["address"] if content.get("pid") else None
        split_address(address or ANYWHERE)
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, UserError):
        raise SetupError(
            f"expected {path} to hold a broker's address; found something else. Delete the file"
        ) from None
    return address


def remember_log(directory: Path, address: str, command: str | None) -> None:
    """Notes that an app's log is elsewhere, for commands in its folder."""
    _write(directory, {"address": address, "command": command})


def _write(directory: Path, known: dict[str, object]) -> None:
    new = directory / f"{ADDRESS_FILE}.new"
    new.write_bytes(orjson.dumps(known))
    new.replace(directory / ADDRESS_FILE)


def _taken(address: str) -> SetupError:
    return SetupError(
        f"expected to listen on {address}; found that another process does. Stop that one, or choose "
        "another address: penstock run --listen, or ps.App(listen=…)"
    )


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
