"""The embedded broker of an app: a child process that is started, watched and stopped."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Final

import orjson

from penstock.broker.process import BrokerProcess
from penstock.errors import PenstockError, SetupError

__all__ = ["EmbeddedBroker", "address_of"]

WATCH_S: Final = 0.2  # how soon a broker that died is noticed
ADDRESS_FILE: Final = "broker.json"


class EmbeddedBroker:
    """The broker of one app directory. A second process with the same directory shares the first's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self._process: BrokerProcess | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> str:
        """Starts the broker, or finds the one that another process started; its address."""
        known = address_of(self.directory)
        if known and _answers(known):
            self.address = known
        else:
            self._launch(known)
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

    def _launch(self, known: str | None) -> None:
        """Takes the address of before where it is free, so that producers find the log again."""
        listen = known if known and _free(known) else "127.0.0.1:0"
        self._process = BrokerProcess(self.directory / "log", listen=listen)
        self._process.start()
        self.address = self._process.address
        new = self.directory / f"{ADDRESS_FILE}.new"
        new.write_bytes(orjson.dumps({"address": self.address, "pid": self._process.pid}))
        new.replace(self.directory / ADDRESS_FILE)

    def _watch(self) -> None:
        """Restarts a broker that died; clients are patient meanwhile."""
        while not self._stopping.wait(WATCH_S):
            with contextlib.suppress(PenstockError, OSError):  # tried again in a moment
                if self._process is not None:
                    if not self._process.is_running():
                        self._process.start()
                elif not _answers(self.address):
                    self._launch(self.address)


def address_of(directory: Path) -> str | None:
    """The address that an app directory's broker has or had last."""
    path = directory / ADDRESS_FILE
    try:
        content = orjson.loads(path.read_bytes())
        return str(content["address"])
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise SetupError(
            f"expected {path} to hold a broker's address; found something else. Delete the file"
        ) from None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def _free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
        return True
