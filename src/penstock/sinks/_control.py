"""What is done with sinks from outside: they are paused, looked at, and their tables built anew.

A sink may run anywhere, so it is told by a record of the log: the newest one of `NAME.sink.control`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa

from penstock.client import Client, Producer
from penstock.client.groups import GroupAdmin
from penstock.errors import SetupError, UserError
from penstock.sinks._report import SILENT_MS
from penstock.sinks._sink import GROUP_PREFIX, Followed, Sink, control_topic
from penstock.sinks._target import STATE_TABLE, SqlTarget, quoted

__all__ = ["go_back", "pause", "rebuild", "resume", "status"]

NEW, OLD, APART = "__new", "__old", "__apart"
"""Behind a table's name: the one that is built, the one before, and one that is on its way."""
SWITCHED: Final = -2
"""In place of a partition: the row whose epoch says that a table was switched, and no process took over."""


def pause(address: str, name: str, **settings: Any) -> None:
    """Pauses a sink within a second or so, also one that starts later; its offsets stay.

    Args:
        address: the broker's.
        name: the sink's.
        settings: as of `penstock.client.Client`.

    Raises:
        UserError: no sink of this name has ever run.
    """
    _tell(address, name, "pause", settings)


def resume(address: str, name: str, **settings: Any) -> None:
    """Lets a paused sink go on. Arguments and errors as of `pause`."""
    _tell(address, name, "resume", settings)


def _tell(address: str, name: str, what: Literal["pause", "resume"], settings: Any) -> None:
    known = [one["name"] for one in status(address, **settings)]
    if name not in known:
        raise UserError(
            f"expected a sink that has run with this log ({', '.join(known) or 'there is none'}); found "
            f"{name!r}"
        )
    topic = control_topic(name)
    with Client(address, **settings) as client, Producer(address, **settings) as producer:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"}, exists_ok=True)
        now_ms = np.array([time.time_ns() // 1_000_000])
        key = pa.array([b"command"], pa.binary())
        producer.send(topic, 0, key, pa.array([what.encode()], pa.binary()), now_ms)


def status(address: str, **settings: Any) -> list[dict[str, Any]]:
    """Each sink that has run with a log, by name.

    Returns:
        `name`, `topic`, `phase` (of `Followed`, or `silent`: it was killed, or hangs), `lag` in records,
        `upserts`, `deletes` and `dead` since it began, `target`, `trouble`, and `reported_ms`, the time of
        its last report since 1970.
    """
    found = []
    with GroupAdmin(address, **settings) as admin:
        for one in admin.list_groups():
            if not one.name.startswith(GROUP_PREFIX):
                continue
            positions = admin.positions(one.name)
            told = max(map(_report, positions), key=lambda r: r.get("at_ms", 0), default={})
            counts = {name: told.get(name) for name in ("upserts", "deletes", "dead", "target")}
            found.append(
                {
                    "name": one.name.removeprefix(GROUP_PREFIX),
                    "topic": next((p.topic for p in positions), ""),
                    "phase": _phase(told),
                    "lag": sum(p.lag for p in positions),
                    **counts,
                    "trouble": told.get("trouble", ""),
                    "reported_ms": told.get("at_ms"),
                }
            )
    return sorted(found, key=lambda one: str(one["name"]))


def _report(position: Any) -> dict[str, Any]:
    try:
        told = orjson.loads(position.metadata)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _phase(told: dict[str, Any]) -> str:
    phase, at_ms = str(told.get("phase", "unknown")), told.get("at_ms")
    ends = phase in ("failed", "stopped", "unknown")
    is_old = isinstance(at_ms, int) and time.time_ns() // 1_000_000 - at_ms > SILENT_MS
    return "silent" if is_old and not ends else phase


def rebuild(sink: Sink) -> Followed:
    """Builds a sink's table anew from the topic, beside the live one, and puts it in its place.

    The live one stays as it is, and is written by its sink, until `TABLE__new` has all that the topic has.
    Then both are renamed in one transaction, with their offsets; the old one is `TABLE__old` until the next
    time. A sink that runs goes on with the new one by itself. If this is killed, the next one goes on.

    Args:
        sink: as the live one is, with what the new table should have.

    Raises:
        UserError: the target can't rename tables in a transaction.
        SetupError: the target is away.
    """
    target = _switchable(sink)
    beside = sink.beside(target.beside(target.table + NEW), f"{sink.name}.rebuild")
    _forget_if_gone(target.beside(target.table + NEW), beside)
    done = beside.run(until=lambda done: done.lag == 0)
    _switch(target, sink, [(OLD, None), ("", OLD), (NEW, "")])
    return done


def go_back(sink: Sink) -> None:
    """Puts `TABLE__old` back in its place, with its offsets, and the live table aside in turn.

    Raises:
        UserError: there is no such table.
        SetupError: the target is away.
    """
    target = _switchable(sink)
    _switch(target, sink, [("", APART), (OLD, ""), (APART, OLD)])


def _switchable(sink: Sink) -> SqlTarget:
    target = sink.target
    if not isinstance(target, SqlTarget) or not target.renames_in_transactions:
        raise UserError(
            "expected a table of PostgreSQL, SQLite or DuckDB, which can be renamed in a transaction; found "
            f"{target.name}. Let a sink with another name=… write another table or index, and read that"
        )
    return target


@contextlib.contextmanager
def _opened(target: SqlTarget) -> Iterator[None]:
    """A connection for a while.

    Raises:
        SetupError: there is none, it breaks, or somebody else has what it needs.
    """
    try:
        target.connect()
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *target.passing)):
            raise
        raise SetupError(
            f"expected to read and write {target.name}; found: {str(error).strip()}. Run this again, it "
            "continues; a file of DuckDB must not be open elsewhere"
        ) from None
    finally:
        target.close()


def _forget_if_gone(target: SqlTarget, sink: Sink) -> None:
    """Removes the offsets of a table that was removed: another one begins with the first record."""
    mark = target.placeholder
    with _opened(target):
        if target.columns_of(STATE_TABLE) and not target.columns():
            target.execute(
                f"DELETE FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark}",
                (sink.name, sink.topic),
            )


def _switch(target: SqlTarget, sink: Sink, moves: list[tuple[str, str | None]]) -> None:
    """Renames tables and the sinks of their offsets, in one transaction."""
    names = {"": sink.name, NEW: f"{sink.name}.rebuild", OLD: f"{sink.name}.old"}
    names[APART] = f"{sink.name}.apart"
    mark, topic = target.placeholder, sink.topic
    where = f"WHERE sink = {mark} AND topic = {mark}"
    with _opened(target):
        target.execute("BEGIN")
        # First what a write of the live sink locks first.
        target.execute(
            f"UPDATE {STATE_TABLE} SET next = 0 {where} AND part = -1", (sink.name, topic)
        )
        [(epoch,)] = target.execute(
            f"SELECT coalesce(max(epoch), 0) + 1 FROM {STATE_TABLE} WHERE topic = {mark}", (topic,)
        )
        for one, to in moves:
            beside = target.beside(target.table + one)
            is_there = bool(target.columns_of(beside.table))
            if to is None:
                target.execute(f"DROP TABLE IF EXISTS {beside.path}")
                target.execute(f"DELETE FROM {STATE_TABLE} {where}", (names[one], topic))
                continue
            if not is_there and one != "":
                raise UserError(
                    f"expected the table {beside.table!r}; found none. Only what a rebuild has replaced "
                    "can be put back"
                )
            if is_there:
                last = (target.table + to).split(".")[-1]
                target.execute(f"ALTER TABLE {beside.path} RENAME TO {quoted(last)}")
            target.execute(
                f"UPDATE {STATE_TABLE} SET sink = {mark} {where}", (names[to], names[one], topic)
            )
        own = (sink.name, topic)
        target.execute(f"DELETE FROM {STATE_TABLE} {where} AND part < 0", own)
        for part in (-1, SWITCHED):
            target.execute(
                f"INSERT INTO {STATE_TABLE} (sink, topic, part, next, epoch) "
                f"VALUES ({mark}, {mark}, {part}, 0, {epoch})",
                own,
            )
        target.execute("COMMIT")
