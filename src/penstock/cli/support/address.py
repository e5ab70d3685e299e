"""Where the broker is: said, in the environment, of the pipeline that runs here, or the usual.

Whether a pipeline's broker runs is asked of its log's lock, so that a command never waits for one that
is stopped, and never takes another one that listens at the previous address.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from penstock.core.names import hint
from penstock.errors import SetupError, UserError

DEFAULT: Final = "127.0.0.1:9092"
VARIABLE: Final = "PENSTOCK_BROKER"
FILE: Final = "broker.json"  # in a pipeline's directory: where its broker is, or was last
LOG: Final = "log"  # in a pipeline's directory: its embedded broker's data
DATA: Final = "penstock-log"  # where `penstock broker` keeps its data by default
CONNECT_S: Final = 1.0  # a broker on this machine answers in less
STARTING_S_MAX: Final = 10.0  # a person waits so long for a broker that is being started
STARTING_LOOK_S: Final = 0.1
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what others listen on


@dataclass(frozen=True)
class Known:
    """A log that is known here.

    Attributes:
        name: the pipeline's; of a broker alone its data directory.
        data: the broker's data; None: the log is elsewhere, at `address`.
        address: where it is, or was when it was last started.
        command: that starts it.
    """

    name: str
    data: Path | None
    address: str | None
    command: str | None

    def running(self) -> str | None:
        """Its address, if it runs.

        Raises:
            SetupError: it runs, and doesn't serve this client.
        """
        if self.data is None:
            return self.address
        return _served(self.data)

    @property
    def start(self) -> str:
        """How to start it."""
        alone = f"penstock broker --data {shlex.quote(str(self.data))}"
        return alone if self.command is None else f"{self.command}, or its log alone: {alone}"


def find_broker(
    said: str | None, environment: Mapping[str, str] = os.environ, here: Path | None = None
) -> str:
    """The broker's address, `host:port[,host:port]`.

    Args:
        said: what `--broker` says: an address, or the directory or name of a running pipeline.
        environment: where PENSTOCK_BROKER may be.
        here: the folder whose `*.penstock` directories are looked at; None is the current one.

    Raises:
        UserError: what was said is no address.
        SetupError: the pipeline named, or those of this folder, don't run, or several do.
    """
    if said:
        return _read(said)
    if environment.get(VARIABLE):
        return _read(environment[VARIABLE])
    folder = here or Path()
    known = [one for path in sorted(folder.glob("*.penstock")) if (one := _pipeline(path))]
    if (alone := _data(folder / DATA)) is not None:
        known.append(alone)
    running = {one.name: address for one in known if (address := one.running()) is not None}
    if len(set(running.values())) > 1:
        raise SetupError(
            f"expected one running pipeline in this folder; found {', '.join(running)}. "
            f"Name one: --broker {next(iter(running))}"
        )
    if running:
        return next(iter(running.values()))
    if len(known) == 1:
        raise _stopped(known[0])
    if known:
        names = ", ".join(one.name for one in known)
        raise SetupError(
            f"expected a running pipeline in this folder; found {names}, all stopped. Start one, or its "
            f"log alone ({known[0].start}), or name another broker: --broker HOST:PORT"
        )
    if not _answers(DEFAULT):
        raise SetupError(
            f"expected a broker; found no address, no pipeline in this folder, and no broker at "
            f"{DEFAULT}. Name one (--broker HOST:PORT, or ${VARIABLE}), start a pipeline here, or a log "
            "alone: penstock broker"
        )
    return DEFAULT


def address_in(directory: Path) -> str:
    """The address of the log of the pipeline in a directory, whether it runs or not.

    Raises:
        SetupError: no pipeline has run there.
    """
    known = _pipeline(directory)
    address = known and ((known.data and _served(known.data)) or known.address)
    if not address:
        raise SetupError(f"expected a pipeline that has run in {directory}; found none")
    return address


def _pipeline(directory: Path) -> Known | None:
    """What is known of the log of the pipeline in a directory; None: nothing is."""
    name = directory.resolve().name.removesuffix(".penstock")
    data = directory / LOG if (directory / LOG).is_dir() else None
    try:
        content = orjson.loads((directory / FILE).read_bytes())
        address, command = str(content["address"]), content.get("command")
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return Known(name, data, None, None) if data else None
    return Known(name, data if content.get("pid") else None, address, command)


def _data(directory: Path) -> Known | None:
    """What is known of a broker's data directory; None: it is none."""
    if not (directory / "cluster.json").exists():
        return None
    return Known(str(directory), directory, None, None)


def _served(data: Path) -> str | None:
    """Where the broker of a data directory is; None: none runs."""
    from penstock.broker.storage.data_lock import owner_of

    deadline = time.monotonic() + STARTING_S_MAX
    while (owner := owner_of(data)) is not None:
        for listener in owner.listeners:
            if listener.startswith("PLAINTEXT://"):
                host, _, port = listener.removeprefix("PLAINTEXT://").rpartition(":")
                return f"{_ANY_HOST.get(host, host)}:{port}"
        if owner.listeners:
            raise SetupError(
                f"expected the broker of {data} to serve without a log-in; found "
                f"{', '.join(owner.listeners)}. Log in: --broker kafka+tls://user@host:port"
            )
        if time.monotonic() > deadline:
            raise SetupError(
                f"expected the broker of {data} (process {owner.pid}) to listen; found that it is still "
                "starting. Try again in some seconds"
            )
        time.sleep(STARTING_LOOK_S)
    return None


def owner_runs(data: Path) -> bool:
    """Whether a broker serves a data directory."""
    from penstock.broker.storage.data_lock import owner_of

    return owner_of(data) is not None


def _stopped(known: Known) -> SetupError:
    return SetupError(
        f"expected the broker of {known.name} to run; found it stopped. Start it ({known.start}), or "
        "name another broker: --broker HOST:PORT"
    )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _read(text: str) -> str:
    if "://" in text and not text.startswith("kafka://"):
        from penstock.client.network.security import parse_target

        parse_target(text)
        return text
    text = text.removeprefix("kafka://")
    for directory in (Path(text), Path(f"{text}.penstock")):
        if directory.is_dir():
            known = _pipeline(directory) or _data(directory)
            if known is None:
                raise SetupError(
                    f"expected the directory of a pipeline or of a broker; found neither in {directory}"
                )
            address = known.running()
            if address is None:
                raise _stopped(known)
            return address
    for part in text.split(","):
        host, colon, port = part.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
            there = [one.name.removesuffix(".penstock") for one in Path().glob("*.penstock")]
            raise UserError(
                "expected a broker as host:port[,host:port], or the directory of a running "
                f"pipeline; found {text!r}{hint(text, there)}"
            )
    return text
