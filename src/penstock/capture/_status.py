"""What is known of captures, and what they are told: from anywhere that reaches the log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from penstock.capture._pgoutput import lsn_text
from penstock.capture._progress import State, control_topic, last_value, load, state_topic
from penstock.capture._server import Server
from penstock.client import Client, Producer
from penstock.errors import PenstockError, UserError

__all__ = ["Status", "drop", "names", "status", "tell"]

RELEASE_S: Final = 5.0
"""How long the slot of a capture that has ended may still be in use."""


@dataclass(frozen=True)
class Status:
    """How a capture is.

    Attributes:
        name: its name.
        server: the database, without a password.
        state: `running`, `paused`, or `stopped`: no process has the slot; `unknown` where the database
            can't be asked.
        position: transactions that committed before are in the log.
        tables: by `schema.table`, the topics.
        lag_bytes: of the database's log that it is behind; the database keeps them for it. None: unknown.
        lag_s: how long ago the position was stored, where it is behind.
        slot: `reserved` or `extended` as long as the database keeps all that is needed, `unreserved` when
            it soon won't, `lost` when it hasn't.
        safe_bytes: that can be written before the slot is lost; None: there is no limit.
        trouble: why the database couldn't be asked.
    """

    name: str
    server: str
    state: Literal["running", "paused", "stopped", "unknown"]
    position: str
    tables: dict[str, str]
    lag_bytes: int | None = None
    lag_s: float | None = None
    slot: str = ""
    safe_bytes: int | None = None
    trouble: str = ""


def names(client: Client) -> list[str]:
    """The captures that the log knows of."""
    return [name.removesuffix(".capture") for name in client.topics() if name.endswith(".capture")]


def status(name: str, log: str, *, url: str | None = None, **settings: Any) -> Status:
    """How a capture is.

    Args:
        name: its name.
        log: the broker's address.
        url: of the database; by default the one that it was captured from, without a password.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: there is no such capture.
    """
    with Client(log, **settings) as client:
        found = _load(client, log, name, **settings)
        is_paused = last_value(client, log, control_topic(name), **settings) == b"pause"
    if found is None:
        never = "it has stored no position yet: its snapshot isn't complete, or it couldn't begin"
        return Status(name, "", "unknown", "0/0", {}, trouble=never)
    tables = {table: one.topic for table, one in found.tables.items()}
    told = (name, found.server)
    try:
        server = Server(url or found.server)
        try:
            slot = server.slot(found.slot)
        finally:
            server.close()
    except Exception as error:
        import psycopg

        if not isinstance(error, psycopg.Error | PenstockError):
            raise
        state: Any = "paused" if is_paused else "unknown"
        return Status(*told, state, lsn_text(found.lsn), tables, trouble=str(error).strip())
    if slot is None:
        return Status(*told, "stopped", lsn_text(found.lsn), tables, slot="missing")
    state = "paused" if is_paused else "running" if slot.is_active else "stopped"
    lag_s = time.time() - found.stored_ms / 1000 if slot.lag_bytes else 0.0
    return Status(
        *told,
        state,
        lsn_text(found.lsn),
        tables,
        max(slot.lag_bytes, 0),
        max(lag_s, 0.0),
        slot.wal_status,
        slot.safe_bytes,
    )


def tell(name: str, what: Literal["pause", "resume"], log: str, **settings: Any) -> None:
    """Lets a capture pause or continue; it is told within a second, or when it is started.

    Raises:
        UserError: there is no such capture.
    """
    with Client(log, **settings) as client, Producer(log, **settings) as producer:
        _load(client, log, name, **settings)
        producer.send(
            control_topic(name),
            0,
            pa.array([b"command"], pa.binary()),
            pa.array([what.encode()], pa.binary()),
            np.array([time.time_ns() // 1_000_000]),
        )


def drop(name: str, log: str, *, url: str | None = None, **settings: Any) -> None:
    """Forgets a capture, which must not run: its slot, its publication, its position. Its topics stay.

    Raises:
        UserError: there is no such capture, or it runs.
    """
    with Client(log, **settings) as client:
        found = _load(client, log, name, **settings)
        if found is not None:
            server = Server(url or found.server)
            try:
                _release(server, name, found.slot)
                server.drop_slot(found.slot)
                server.unpublish(found.publication)
            finally:
                server.close()
        client.delete_topic(state_topic(name), missing_ok=True)
        client.delete_topic(control_topic(name), missing_ok=True)


def _release(server: Server, name: str, slot: str) -> None:
    """Waits until nobody has the slot: the server notices after a moment that a process has ended.

    Raises:
        UserError: somebody has it.
    """
    deadline = time.monotonic() + RELEASE_S
    while (found := server.slot(slot)) is not None and found.is_active:
        if time.monotonic() > deadline:
            raise UserError(
                f"expected the capture {name!r} to be stopped; found its slot {slot!r} in use. Stop its "
                "process first"
            )
        time.sleep(0.1)


def _load(client: Client, log: str, name: str, **settings: Any) -> State | None:
    if state_topic(name) not in client.topics():
        known = ", ".join(names(client)) or "none"
        raise UserError(f"expected a capture among {known}; found {name!r}")
    return load(client, log, name, **settings)
