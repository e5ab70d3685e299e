"""A PostgreSQL database's side of a capture: its slot, its publication, its tables."""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.capture.database import Settings, TableName, spelled
from penstock.capture.databases.postgres.copy import parse_tables
from penstock.capture.databases.postgres.encoder import Encoder
from penstock.capture.databases.postgres.pgoutput import lsn_text
from penstock.capture.databases.postgres.rows import key_columns
from penstock.capture.databases.postgres.server import (
    PARTITIONS,
    Publication,
    Server,
    Waits,
    partitions_of,
)
from penstock.capture.databases.postgres.snapshots import Snapshot, slot_name
from penstock.capture.databases.postgres.stream import Stream
from penstock.capture.databases.postgres.watched import Extras
from penstock.capture.output import Output
from penstock.capture.progress import State
from penstock.capture.snapshots import Progress
from penstock.capture.table_schemas import Shape
from penstock.errors import SetupError

__all__ = ["PostgresDatabase"]

_log = logging.getLogger(__name__)
TAKEOVER_S: Final = 10.0
"""How long the slot may still be in use by a connection that we have ended."""


class PostgresDatabase:
    """See `penstock.capture.database.Database`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        own = own_name(settings.name)
        self._slot: str = settings.options.get("slot", own)
        self._publication: str = settings.options.get("publication", own)
        self._server = Server(settings.url)
        self._progress = Progress()
        self._streams: list[Stream] = []
        self.name = self._server.name
        self.source = ("postgresql", self._server.database)
        self._extras = _extras(settings)
        self.topics = self._extras.topics

    def close(self) -> None:
        """Closes the connections."""
        for one in self._streams:
            one.close()
        self._server.close()

    @property
    def claims(self) -> dict[str, str]:
        """Slot and publication."""
        return {"slot": self._slot, "publication": self._publication}

    def check(self) -> str:
        """Whether it can be captured; which cluster and database it is."""
        self._server.check()
        return self._server.system

    def tables(self, patterns: Iterable[str]) -> dict[TableName, int]:
        """The tables that patterns name, with their oids."""
        return {one: self._server.oid(one) for one in self._server.tables(patterns)}

    def shape(self, table: TableName) -> Shape:
        """What a table looks like now."""
        relation = self._server.relation(table)
        facts = self._server.facts(relation.oid)
        return self._server.shape(relation, facts, key_columns(relation, facts))

    def prepare(
        self, state: State | None, tables: Iterable[TableName], end: Callable[[float], bool]
    ) -> dict[str, Any]:
        """Makes slot and publication be there; those that it had before, where none are named now."""
        self._server.waits = Waits(self._server.connect, self._settings.name, end)
        if state is not None:
            options = self._settings.options
            self._slot = options.get("slot", state.details["slot"])
            self._publication = options.get("publication", state.details["publication"])
        if state is not None:
            self._check_log(state)
        self._check_slot(state, end)
        self._progress = Progress.of({} if state is None else state.details)
        some = [*tables]
        self._check_publication(state, some)
        for one in self._server.unidentified(some):
            _log.warning(
                "%s: expected a primary key or another replica identity of %s; found none. While it is "
                "captured, the database refuses to update and delete its rows. As its owner: ALTER TABLE %s "
                "REPLICA IDENTITY FULL;",
                *(self._settings.name, spelled(one), self._server.quoted(one)),
            )
        publication = self._published
        publication.make(some)
        number = publication.number
        # Those of tables that are new as they are before the snapshot.
        known = {} if state is None else state.details.get(PARTITIONS, {})
        return {
            PARTITIONS: {**partitions_of(self._server, some), **known},
            "slot": self._slot,
            "publication": self._publication,
            "published_as": number,
            "timeline": self._server.place.timeline,
        }

    @property
    def _published(self) -> Publication:
        return Publication(self._server, self._publication, self._settings.name)

    def _check_publication(self, state: State | None, tables: Iterable[TableName]) -> None:
        """Makes sure that the publication has had all tables since they were captured.

        Raises:
            SetupError: it hasn't. The server passes over the changes of others without a word.
        """
        known = None if state is None else state.details.get("published_as")
        if state is None or known is None:
            return
        publication = self._published
        is_same = self._publication == state.details["publication"]
        if is_same and publication.number != known:
            raise SetupError(publication.gone)
        publication.check(state.tables, is_read=is_same)
        has = publication.tables
        missing = [one for one in tables if one not in has]
        for one in missing:
            watched = state.tables.get(spelled(one))
            if watched is not None and watched.identity == self._server.oid(one):
                raise SetupError(publication.lacks(spelled(one)))

    def _check_log(self, state: State) -> None:
        """Makes sure that the server has the log that was captured.

        Positions of another log are the same numbers: the server would pass over its own changes up to there.

        Raises:
            SetupError: it doesn't have all of it.
        """
        server, timeline = self._server, state.details.get("timeline")
        if timeline is None:  # an earlier version has stored it
            return
        captured = max(state.position, *(one.since for one in state.tables.values()), 0)
        end = server.end_of(timeline)
        if end is not None and captured <= end:
            return
        has = "another log" if end is None else f"that it has this log up to {lsn_text(end)}"
        raise SetupError(
            f"expected the log of timeline {timeline} up to {lsn_text(captured)} at {server.name}, which "
            f"this capture has read; found {has}: a standby was promoted that didn't have all, or an older "
            "copy was restored. The topics may have changes that the database lacks. Go back to the server "
            "before, or start again with a new snapshot: penstock capture drop "
            f"{self._settings.name}. Before the next failover, name the standbys' slots in "
            "synchronized_standby_slots (PostgreSQL 17)"
        )

    def _check_slot(self, state: State | None, end: Callable[[float], bool]) -> None:
        """Makes the slot be there, and ours.

        Raises:
            SetupError: changes were lost.
        """
        server, name = self._server, self._slot
        timeline = server.place.timeline
        lost = (
            "Changes between were lost. Start again with a new snapshot: penstock capture drop "
            f"{self._settings.name}"
        )
        slot = server.slot(name)
        if slot is None:
            if state is not None:
                why = ""
                if state.details.get("timeline", timeline) != timeline:
                    why = (
                        ": the server was promoted, and as a standby it hadn't synchronized the slot "
                        "(sync_replication_slots, PostgreSQL 17 or newer)"
                    )
                raise SetupError(
                    f"expected the slot {name!r} at {server.name}, where this capture stopped at "
                    f"{lsn_text(state.position)}; found none{why}. {lost}"
                )
            server.create_slot(name)
            return
        if slot.wal_status == "lost":
            raise SetupError(
                f"expected the slot {name!r} to have kept the server's log; found that the server "
                f"has removed it ({slot.reason or 'max_slot_wal_keep_size'}). {lost}"
            )
        if state is not None and state.position and slot.confirmed > state.position:
            raise SetupError(
                f"expected the slot {name!r} to be at {lsn_text(state.position)} or before; found it "
                f"at {lsn_text(slot.confirmed)}: something else has read from it, or the log was "
                f"restored. {lost}"
            )
        deadline = time.monotonic() + TAKEOVER_S
        while slot is not None and slot.is_active:
            # Whoever has ours can't write any more: it was fenced when this one began. One that this
            # capture has never used may belong to another program; not while it is being created.
            is_ours = state is not None or not slot.confirmed
            if slot.pid is not None and is_ours:
                server.disconnect(slot.pid)
            if time.monotonic() > deadline and is_ours:
                raise ConnectionError(
                    f"expected the server's process {slot.pid} to leave the slot {name!r} within "
                    f"{TAKEOVER_S:g} s"
                )
            if time.monotonic() > deadline:
                raise SetupError(
                    f"expected the slot {name!r} to be free; found it in use by the server's process "
                    f"{slot.pid}. End that, or name another slot"
                )
            end(0.1)
            slot = server.slot(name)
        if (
            slot is None
        ):  # the process that was creating it was killed, and its connection was still open
            self._check_slot(state, end)

    def snapshot(self) -> Snapshot:
        """The rows as they are."""
        encoder, values = self._encoder(), self._settings.values
        name = slot_name(self._slot)
        outbox = self._extras.outbox
        return Snapshot(self._server, name, encoder, values, self._progress, outbox)

    def end(self) -> int:
        """Up to where the server's log can be sent."""
        [(position,)] = self._server.ask("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
        return int(position)

    def stream(self, output: Output) -> Stream:
        """What committed at the output's position and behind it."""
        extras = self._extras
        pg = self._server.start(
            *(self._slot, self._publication, output.position),
            messages=extras.messages is not None,
        )
        self._streams.append(
            Stream(pg, self._server, self._encoder(), self._settings, output, extras)
        )
        return self._streams[-1]

    def _encoder(self) -> Encoder:
        settings = self._settings
        counts = self._extras.transactions is not None
        arguments = (settings.source_name, self._server.database, settings.format, time.time_ns)
        return Encoder(*arguments, counts=counts)


def own_name(name: str) -> str:
    """What the slot and the publication of a capture are called: another name for each capture's.

    >>> own_name("shop_2"), own_name("shop.2")
    ('penstock_shop_2', 'penstock_shop_2_615235e9')
    """
    own = re.sub(r"[^a-z0-9_]", "_", name)
    if own == name:
        return f"penstock_{name}"
    return f"penstock_{own[:40]}_{zlib.crc32(name.encode()):08x}"


def _extras(settings: Settings) -> Extras:
    """The topics that the settings ask for."""
    options, is_debezium = (
        settings.options,
        settings.format == "debezium" and settings.to is not None,
    )
    prefix = re.sub(r"[^A-Za-z0-9._-]", "_", settings.source_name)
    heartbeat_s = options.get("heartbeat_s")
    return Extras(
        messages=f"{prefix}.message" if is_debezium else None,
        transactions=f"{prefix}.transaction" if options.get("transactions") else None,
        heartbeats=None if heartbeat_s is None else f"__debezium-heartbeat.{prefix}",
        heartbeat_s=heartbeat_s or 0.0,
        outbox=parse_tables([options["outbox"]])[0] if options.get("outbox") else "",
        source_name=settings.source_name,
    )
