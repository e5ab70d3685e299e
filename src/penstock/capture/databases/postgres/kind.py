"""What captures of PostgreSQL are made of."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.capture.database import Condition, Kind, unspelled
from penstock.capture.databases.postgres.columns import describe
from penstock.capture.databases.postgres.copy import parse_tables, quoted
from penstock.capture.databases.postgres.database import PostgresDatabase, own_name
from penstock.capture.databases.postgres.pgoutput import lsn_number, lsn_text
from penstock.capture.databases.postgres.server import Publication, Server
from penstock.capture.progress import State
from penstock.core.databases import described
from penstock.drivers import psycopg_module
from penstock.errors import UserError

__all__ = ["POSTGRES"]

RELEASE_S: Final = 5.0
"""How long the slot of a capture that has ended may still be in use."""


def _patterns(_: str, tables: Iterable[str]) -> tuple[str, ...]:
    return tuple(parse_tables(tables))


def _passes(error: Exception) -> bool:
    import psycopg

    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


_ADVICE: Final = {
    "42501": "Grant the privilege that it names to the role, and start it again",
    "42704": "Something that it needs was dropped: start it again, so that it is created; if that isn't "
    "enough, start again with a new snapshot: penstock capture drop {name}",
    "42P01": "A table was dropped: start it again",
    "55000": "Changes were lost, or the server isn't set up for logical replication (wal_level = logical). "
    "Start again with a new snapshot: penstock capture drop {name}",
    "58P01": "Changes were lost: the server has removed its log. Start again with a new snapshot: penstock "
    "capture drop {name}, and set max_slot_wal_keep_size to more",
    "53400": "The server has no place for one more: set max_replication_slots and max_wal_senders to more, "
    "and restart it, or drop slots that nobody needs",
    "0A000": "The server doesn't support it",
}
"""What to do about errors that don't pass, by their codes in PostgreSQL's documentation, "Error Codes";
`{name}` is the capture's."""


def _refuses(error: Exception, name: str) -> str:
    return _ADVICE.get(getattr(error, "sqlstate", None) or "", "").format(name=name)


def _setup(url: str, tables: Sequence[str], name: str) -> str:
    """The SQL of what a capture needs, and no more."""
    parameters = psycopg_module().conninfo.conninfo_to_dict(url)
    user, database = (
        str(parameters.get("user") or getpass.getuser()),
        str(parameters.get("dbname") or ""),
    )
    role = quoted(user)
    names = [unspelled(one) for one in parse_tables(tables)]
    schemas = sorted({schema for schema, _ in names})
    whole = {schema for schema, table in names if "*" in schema + table}
    single = [f"{quoted(s)}.{quoted(t)}" for s, t in names if s not in whole]
    lines = [
        f"-- What the capture {name!r} of {described(url)} needs. As a superuser, once:",
        "ALTER SYSTEM SET wal_level = logical;               -- then restart the server",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB';   -- of its log, while no capture runs",
        f"CREATE ROLE {role} LOGIN REPLICATION;               -- and a password",
        f"GRANT CONNECT ON DATABASE {quoted(database or user)} TO {role};",
        "-- As the tables' owner:",
        *(f"GRANT USAGE ON SCHEMA {quoted(one)} TO {role};" for one in schemas if "*" not in one),
        *(f"GRANT SELECT ON {one} TO {role};" for one in single),
    ]
    for one in sorted(whole):
        if "*" in one:
            lines.append("-- and USAGE and SELECT for each schema that the pattern matches")
        else:
            lines.append(f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(one)} TO {role};")
    publication = f"CREATE PUBLICATION {quoted(own_name(name))} FOR "
    if whole:
        lines += ["-- As a superuser, with PostgreSQL 15 or newer; else FOR TABLE and all of them:"]
        some = ", ".join(quoted(one) for one in sorted(whole) if "*" not in one)
        what = f"TABLES IN SCHEMA {some}" if some and not any("*" in one for one in whole) else ""
        publication += what or "ALL TABLES"
        if what and single:
            publication += f", TABLE {', '.join(single)}"
    else:
        publication += f"TABLE {', '.join(single)}"
    return "\n".join([*lines, publication + " WITH (publish_via_partition_root = true);", ""])


def _look(url: str, state: State) -> Condition:
    server = Server(url)
    try:
        slot = server.slot(state.details["slot"])
    finally:
        server.close()
    if slot is None:
        return Condition("stopped", slot="missing")
    return Condition(
        "running" if slot.is_active else "stopped",
        slot.lag_bytes,
        slot.wal_status,
        slot.safe_bytes,
        slot.kept_bytes,
    )


def _forget(url: str, name: str, state: State) -> None:
    server, slot = Server(url), state.details["slot"]
    try:
        _release(server, name, slot)
        server.drop_slot(slot)
        Publication(server, state.details["publication"], name).drop()
    finally:
        server.close()


def _release(server: Server, name: str, slot: str) -> None:
    """Waits until the slot is free: the server notices after a moment that a process has ended.

    Raises:
        UserError: a process uses it.
    """
    deadline = time.monotonic() + RELEASE_S
    while (found := server.slot(slot)) is not None and found.is_active:
        if time.monotonic() > deadline:
            raise UserError(
                f"expected the capture {name!r} to be stopped; found its slot {slot!r} in use. Stop its "
                "process first"
            )
        time.sleep(0.1)


POSTGRES: Final = Kind(
    name="postgresql",
    schemes=("postgresql", "postgres"),
    options=frozenset(
        (
            *("slot", "publication", "transactions", "heartbeat_s", "outbox", "max_lag"),
            *("snapshot_connections", "registry", "large_values"),
        )
    ),
    open=PostgresDatabase,
    patterns=_patterns,
    position=lambda number, _: lsn_text(number),
    number=lambda text, _: lsn_number(text),
    passes=_passes,
    refuses=_refuses,
    setup=_setup,
    look=_look,
    forget=_forget,
    describe=describe,
    words=("POSTGRES",),
)
KINDS: Final = (POSTGRES,)
