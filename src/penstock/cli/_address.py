"""Where the broker is: said, in the environment, of the pipeline that runs here, or the usual."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from penstock.errors import SetupError, UserError

DEFAULT: Final = "127.0.0.1:9092"
VARIABLE: Final = "PENSTOCK_BROKER"
FILE: Final = "broker.json"  # in a pipeline's directory: where its embedded broker is, or was last
CONNECT_S: Final = 1.0  # a broker on this machine answers in less


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
        SetupError: the directory named has no running broker, or several run here.
    """
    if said:
        return _read(said)
    if environment.get(VARIABLE):
        return _read(environment[VARIABLE])
    known = sorted(path.parent for path in (here or Path()).glob(f"*.penstock/{FILE}"))
    running = [directory for directory in known if _answers(address_in(directory))]
    if len(running) > 1:
        names = ", ".join(directory.name for directory in running)
        raise SetupError(
            f"expected one running pipeline in this folder; found {names}. Say which with --broker"
        )
    return address_in(running[0]) if running else DEFAULT


def address_in(directory: Path) -> str:
    """The address of the embedded broker of the pipeline in a directory.

    Raises:
        SetupError: none runs there.
    """
    path = directory / FILE
    try:
        address = orjson.loads(path.read_bytes())["address"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        raise SetupError(
            f"expected a running broker's address in {path}; found none. "
            "Start the pipeline, or name the broker's address: --broker 127.0.0.1:9092"
        ) from None
    return str(address)


def _running_in(directory: Path) -> str:
    address = address_in(directory)
    if not _answers(address):
        raise SetupError(
            f"expected a running pipeline in {directory}; its broker ({address}) doesn't answer. "
            f"Start the pipeline, or its log alone: penstock broker --data {directory / 'log'}"
        )
    return address


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _read(text: str) -> str:
    if "://" in text and not text.startswith("kafka://"):
        from penstock.client._security import parse_target

        parse_target(text)
        return text
    text = text.removeprefix("kafka://")
    for directory in (Path(text), Path(f"{text}.penstock")):
        if (directory / FILE).exists() or (":" not in text and directory.is_dir()):
            return _running_in(directory)
    for part in text.split(","):
        host, colon, port = part.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError(
                "expected a broker as host:port[,host:port], or the directory of a running "
                f"pipeline; found {text!r}"
            )
    return text
