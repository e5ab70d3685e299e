"""The state of captures, and requests to them: from anywhere that reaches the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa

from penstock.capture.kinds import kind_named, kind_of
from penstock.capture.output import UNREAD
from penstock.capture.progress import (
    KIND,
    POSITION,
    REQUEST,
    State,
    control_topic,
    load,
    schemas_topic,
    state_topic,
    stored,
    versions,
)
from penstock.capture.table_schemas import Version, spelled, unspelled
from penstock.client import Client, Producer
from penstock.core.databases import described
from penstock.core.names import unknown
from penstock.errors import (
    BrokerError,
    CorruptError,
    LimitError,
    PenstockError,
    SetupError,
    UserError,
)
from penstock.follow.control import COMMAND, asked_of, send
from penstock.follow.listing import forget

__all__ = ["Status", "control", "drop", "names", "schemas", "setup", "snapshot", "status", "token"]

LOOK_S: Final = 0.03
"""How often is looked whether a capture has got to a position that is waited for."""
NO_CAPTURES: Final = "Start one: penstock capture URL --tables TABLES --to PREFIX"


@dataclass(frozen=True)
class Status:
    """How a capture is.

    Attributes:
        name: its name.
        server: the database, without a password.
        state: `running`, `paused`, or `stopped`: no process takes its changes; `unknown` where that can't
            be said.
        position: transactions that committed before are in the log.
        tables: by name, the topics.
        lag_bytes: of the database's log that it is behind; the database keeps them for it. None: unknown.
        lag_s: how long ago the position was stored, if the capture is behind.
        slot: `reserved` or `extended` as long as the database keeps all that is needed, `unreserved` when
            it soon won't, `lost` when it hasn't; `another server` where the capture has not run there yet.
        safe_bytes: that can be written before the slot is lost; None: there is no limit.
        trouble: why the database couldn't be asked.
        snapshot: the table that is being read while changes flow, and how far that is.
        unread: by column, values that couldn't be read or written, since the capture's beginning; by table,
            changes that couldn't be read; by topic, records that were too long for it.
        letters: rows that are dead letters.
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
    snapshot: str = ""
    unread: dict[str, int] = field(default_factory=dict)
    letters: int = 0


def names(client: Client) -> list[str]:
    """The captures that the log knows of."""
    topics = client.topics()  # others may have topics whose names end so
    some = (one.removesuffix(".capture") for one in topics if one.endswith(".capture"))
    return [name for name in some if control_topic(name) in topics]


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
        found = _stored(client, log, name, **settings)
    is_paused = asked_of(log, KIND, name, **settings).is_paused
    if found is None or found.is_begun:
        never = "it has stored no position yet: its snapshot isn't complete, or it couldn't begin"
        server = found.server if found else ""
        return Status(name, server, "paused" if is_paused else "unknown", "", {}, trouble=never)
    kind = kind_named(found.kind)
    tables = {table: one.topic for table, one in found.tables.items()}
    identity = (name, found.server)
    counts = found.details.get(UNREAD, {})
    unread = {"unread": counts.get("columns", {}), "letters": counts.get("letters", 0)}
    position = kind.position(found.position, found.details)
    try:
        now = kind.look(url or found.server, found)
    except Exception as error:
        if not (isinstance(error, PenstockError | OSError) or kind.passes(error)):
            raise
        state: Any = "paused" if is_paused else "unknown"
        return Status(*identity, state, position, tables, trouble=str(error).strip(), **unread)
    if now.slot == "missing":
        return Status(*identity, "stopped", position, tables, slot="missing", **unread)
    state = "paused" if is_paused else now.state
    lag_s = max(time.time() - found.stored_ms / 1000, 0.0) if now.lag_bytes else 0.0
    lag_bytes = None if now.lag_bytes is None else max(now.lag_bytes, 0)
    return Status(
        *(
            *identity,
            state,
            position,
            tables,
            lag_bytes,
            None if lag_bytes is None else lag_s,
            now.slot,
            now.safe_bytes,
        ),
        snapshot=_snapshot_text(found),
        **unread,
    )


def schemas(name: str, log: str, **settings: Any) -> dict[str, Version]:
    """What the tables of a capture look like: by table, the newest version of its schema.

    Args:
        name: the capture's.
        log: the broker's address.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: there is no such capture.
    """
    with Client(log, **settings) as client:
        _load(client, log, name, **settings)
        if schemas_topic(name) not in client.topics():  # a former release has captured it
            return {}
        return versions(client, log, name, **settings)


def setup(url: str, tables: Sequence[str], name: str) -> str:
    """What an administrator runs on a database before it is captured: SQL, with the least privileges.

    Args:
        url: of the database; it isn't connected to.
        tables: as for `Capture`.
        name: the capture's.

    Raises:
        UserError: an argument is wrong.
    """
    return kind_of(url).setup(url, tables, name)


def control(name: str, what: Literal["pause", "resume"], log: str, **settings: Any) -> None:
    """Pauses or resumes a capture: within a second, or when it is started.

    Raises:
        UserError: there is no such capture.
    """
    _send(name, COMMAND, what.encode(), log, **settings)


def snapshot(
    name: str,
    tables: Sequence[str] = (),
    *,
    log: str,
    what: Literal["start", "pause", "resume", "stop"] = "start",
    where: str | None = None,
    delete_missing: bool = False,
    **settings: Any,
) -> None:
    """Lets a capture read tables again while their changes flow, or pauses, resumes or stops that.

    Args:
        name: the capture's.
        tables: of the capture, `schema.table`; by default all. They need a primary key.
        log: the broker's address.
        what: to do.
        where: a condition in SQL: only rows that meet it are read.
        delete_missing: whether keys that the topic has and the table hasn't are deleted, once it was read.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: there is no such capture, or it has no such table; or some rows are asked for, and others
            are to be deleted.
    """
    if delete_missing and (where or what != "start"):
        raise UserError(
            "expected delete_missing with whole tables, which are read; found a condition, or another request"
        )
    found = _send(name, None, b"", log, **settings)
    known = [] if found is None else sorted(found.tables)
    schema = _schema_of(found)
    some = [spelled(unspelled(one, schema)) if schema else one for one in tables] or known
    if found is None or not set(some) <= set(known):
        raise UserError(
            f"expected tables that {name!r} captures: {', '.join(known) or 'none yet'}; found "
            f"{', '.join(some) or 'none'}"
        )
    number = time.time_ns()
    request = {"what": what, "tables": some, "where": where, "delete_missing": delete_missing}
    _send(name, REQUEST + b"%d" % number, orjson.dumps(request), log, **settings)


def _schema_of(state: State | None) -> str:
    """Where tables are whose names don't say it."""
    match None if state is None else state.kind:
        case "postgresql":
            return "public"
        case "mysql":
            assert state is not None, "a kind without a state"
            return state.system.rpartition("/")[2]
        case _:
            return ""


def _send(name: str, key: bytes | None, value: bytes, log: str, **settings: Any) -> State | None:
    """Writes a request to a capture; its state."""
    with Client(log, **settings) as client:
        found = _load(client, log, name, **settings)
    if key is not None:
        send(log, KIND, name, key, value, **settings)
    return found


def _snapshot_text(state: State) -> str:
    """What is being read, and how far it is."""
    progress = state.details.get("snapshot") or {}
    if not progress.get("tables"):
        return ""
    table, rows, estimate = progress["tables"][0], progress["rows"], progress["estimate"]
    share = f" {min(100 * rows // estimate, 99)} %" if estimate else f" {rows:,} rows"
    more = f", {len(progress['tables']) - 1} more" if len(progress["tables"]) > 1 else ""
    return f"{table}{share}{more}" + (" (paused)" if progress["is_paused"] else "")


def drop(name: str, log: str, *, url: str | None = None, **settings: Any) -> None:
    """Forgets a capture: what the database keeps for it, and its position.

    Topics stay, also that of the versions of their tables' schemas. If a capture starts again under this name
    and writes to the same topics, it deletes the keys in them that its tables no longer have. A process that
    still has it, such as one that is paused, ends with an error.

    Raises:
        UserError: there is no such capture, or it takes changes of PostgreSQL.
        SetupError: the database doesn't let go of what it keeps.
    """
    with Client(log, **settings) as client:
        found = _stored(client, log, name, **settings)
        if found is not None:
            _forget(url or found.server, name, found)
            _keep_topics(client, log, name, found, **settings)
        client.delete_topic(state_topic(name), missing_ok=True)
        client.delete_topic(control_topic(name), missing_ok=True)
    with contextlib.suppress(BrokerError):  # there may be none, or it may not be deleted
        forget(log, KIND, name, **settings)


def _forget(url: str, name: str, state: State) -> None:
    """Lets a database go of what it keeps for a capture.

    Raises:
        SetupError: it doesn't.
        UserError: it is in use.
    """
    kind = kind_named(state.kind)
    try:
        kind.forget(url, name, state)
    except Exception as error:
        advice = kind.refuses(error, name)
        if not (advice or isinstance(error, OSError) or kind.passes(error)):
            raise
        again = advice or "Run it again once that is possible, or with another address: --url URL"
        raise SetupError(
            f"expected {described(url)} to let go of what it keeps for the capture {name!r}; found: "
            f"{str(error).strip()}. {again}. If that database is gone for good, nothing is kept there: "
            f"penstock topics delete {state_topic(name)}, and {control_topic(name)}"
        ) from None


def _keep_topics(client: Client, log: str, name: str, state: State, **settings: Any) -> None:
    """Writes where the tables' records went into the versions of their schemas."""
    if schemas_topic(name) not in client.topics():  # a former release has captured it
        return
    known = versions(client, log, name, **settings)
    kept = {
        table: replace(known[table], topic=one.topic).encoded()
        for table, one in state.tables.items()
        if table in known
    }
    keys = pa.array([one.encode() for one in kept], pa.binary())
    values = pa.array([*kept.values()], pa.binary())
    if kept:
        with Producer(log, **settings) as producer:
            times_ms = np.full(len(kept), time.time_ns() // 1_000_000)
            producer.send(schemas_topic(name), 0, keys, values, times_ms)


def _load(client: Client, log: str, name: str, **settings: Any) -> State | None:
    found = _stored(client, log, name, **settings)
    return None if found is None or found.is_begun else found


def _stored(client: Client, log: str, name: str, **settings: Any) -> State | None:
    if state_topic(name) not in client.topics():
        raise UserError(unknown("capture", name, names(client), NO_CAPTURES))
    return stored(client, log, name, **settings)


def token(
    name: str,
    position: str,
    *,
    log: str,
    topics: Collection[str] | None = None,
    timeout: float = 10.0,
    gone: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> str:
    """Waits until a capture has written what its database had committed, and says where that is.

    The capture's state says up to where the database was captured. Once that is behind the position, the ends
    of the topics are behind the write's records; they may be behind later ones as well.

    Args:
        name: the capture's.
        position: of the database: of PostgreSQL `pg_current_wal_lsn()`, asked after the commit; of MySQL and
            MariaDB the file's number and the place in it, `000003:1234`.
        log: the broker's address.
        topics: of the capture, those that are waited for; by default all.
        timeout: in seconds.
        gone: polled; waiting ends when it returns true.
        settings: further arguments of `penstock.client.Client`.

    Returns: a token, `topic-partition:offset` with commas between several, for `Views.wait_for` and
        `sinks.wait_for`; empty where the topics have no records.

    Raises:
        UserError: there is no such capture, it is no position, or none of the topics is the capture's.
        LimitError: the time is up, or nobody waits any more.
    """
    deadline, is_asked = time.monotonic() + timeout, False
    with Client(log, **settings) as client:
        if state_topic(name) not in client.topics():
            raise UserError(unknown("capture", name, names(client), NO_CAPTURES))
        while True:
            state = load(client, log, name, **settings)
            if state is not None and state.position >= (wanted := _number(state, position)):
                break
            if state is not None and not is_asked:
                is_asked = True
                _ask(name, wanted, log, **settings)
            if time.monotonic() > deadline or gone():
                found = "none yet" if state is None else _position(state)
                raise LimitError(
                    f"expected the capture {name!r} to have got to {position} within {timeout:g} s; found "
                    f"it at {found}. See how it is: penstock capture status"
                )
            time.sleep(LOOK_S)
        own = {one.topic for one in state.tables.values()}
        some = own if topics is None else own.intersection(topics)
        if not some:
            raise UserError(
                f"expected one of the topics of the capture {name!r}, {', '.join(sorted(own))}; found "
                f"{', '.join(sorted(topics or ())) or 'none'}"
            )
        ends = {one: client.offsets(one, uncommitted=True) for one in sorted(some)}
    return ",".join(
        f"{topic}-{partition}:{end - 1}"
        for topic, offsets in ends.items()
        for partition, end in sorted(offsets.items())
        if end
    )


def _position(state: State) -> str:
    return kind_named(state.kind).position(state.position, state.details)


def _number(state: State, position: str) -> int:
    kind = kind_named(state.kind)
    try:
        return kind.number(position, state.details)
    except (ValueError, CorruptError):
        raise UserError(
            f"expected a position of {kind.name}, such as {_position(state)}; found {position!r}"
        ) from None


def _ask(name: str, wanted: int, log: str, **settings: Any) -> None:
    """Asks the capture to store its position soon, also if no table that it captures has changed."""
    send(log, KIND, name, POSITION, b"%d" % wanted, **settings)
