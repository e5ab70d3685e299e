"""A stream of Redis that gets changes as entries: entries and offsets are one `MULTI … EXEC`.

    invariant: what was added comes to the rows before the offsets that are stored, each change once

A change that lies before a stored offset was added, so a batch that is written again adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.core.databases import described
from penstock.errors import UserError
from penstock.sinks.targets.contract import Batch, Rows, Unchanged
from penstock.sinks.targets.kind import Address, Facts, Option, TargetKind
from penstock.sinks.targets.redis import RedisBase
from penstock.sinks.targets.texts import json_rows, key_texts

__all__ = ["KINDS", "RedisStreamTarget", "redis_stream"]

SCHEME_END: Final = "+stream"
"""What distinguishes the address of a stream from that of keys."""


def redis_stream(url: str, *, table: str, maxlen: int | None = None) -> RedisStreamTarget:
    """A stream of a Redis server, which gets changes as entries; of a batch, the last one of each key.

    An entry has the fields `op` (`upsert` or `delete`), `key`, unless the sink has no key, and of an upsert
    `row`, as JSON. `key` is the text of the key column, or a JSON object of several.

    Args:
        url: `redis://host:port/database`, or `rediss://…` for TLS; with user and password where needed.
        table: the stream's key, such as `users`.
        maxlen: after a write, the oldest entries are removed until about as many remain; by default all do.
    """
    return RedisStreamTarget(url, table, maxlen)


class RedisStreamTarget(RedisBase):
    """See `redis_stream`."""

    unchanged: Unchanged = "logged"

    def __init__(self, url: str, table: str, maxlen: int | None) -> None:
        if not isinstance(table, str) or not table:
            raise UserError(f"expected a stream, such as table='users'; found {table!r}")
        if maxlen is not None and maxlen < 1:
            raise UserError(f"expected maxlen to be 1 or more; found {maxlen!r}")
        super().__init__(url.replace(SCHEME_END, "", 1))
        self.table, self._maxlen = table, maxlen
        self.name = f"{described(url)} {table}"

    def check_rows(self, rows: Rows) -> None:
        """Any rows fit."""

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Adds entries in the order of their records."""
        with self._transaction() as pipe:
            pipe.multi()
            done = self._offsets.get(batch.partition, 0)
            changes = [one for one in self._changes(batch) if one[0] >= done]
            for _, fields in sorted(changes, key=lambda one: one[0]):
                pipe.xadd(self.table, fields, maxlen=self._maxlen)
            self._end_with(pipe, offsets)

    def _changes(self, batch: Batch) -> Iterator[tuple[int, dict[str, str | bytes]]]:
        """Of each change its record's offset, and the fields; a record's deletion is before its upsert."""
        for op, rows, at in (
            ("delete", batch.deletes, batch.deleted_at),
            ("upsert", batch.upserts, batch.upserted_at),
        ):
            keys = key_texts(rows, self._rows.key) if self._rows.key and len(rows) else []
            texts = json_rows(rows) if op == "upsert" else []
            for i, offset in enumerate(at.tolist()):
                fields: dict[str, str | bytes] = {"op": op}
                if keys:
                    fields["key"] = keys[i]
                if texts:
                    fields["row"] = texts[i]
                yield offset, fields


def _of(address: Address) -> RedisStreamTarget:
    url = address.with_password(needs_user=False)
    return redis_stream(url, table=address.table, **address.options)


KINDS: Final = (
    TargetKind(
        name="redis_stream",
        title="Redis, a stream",
        make=redis_stream,
        arguments="url, table=…",
        examples=("redis+stream://host",),
        schemes=("redis+stream", "rediss+stream"),
        table="the stream",
        options=(Option("maxlen", "COUNT", "About as many entries remain", int),),
        extra="redis",
        of=_of,
        facts=Facts(
            guarantee="yes",
            exactly_once="entries and offsets are one `MULTI … EXEC`",
            older_process="is refused: `WATCH` on the key with the epoch",
            loading="`XADD`, in one pipeline",
            others="can read; may remove entries",
            left_out="is the placeholder, with a warning: the stream has all changes, and its readers know "
            "the earlier value",
        ),
    ),
)
