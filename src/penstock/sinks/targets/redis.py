"""Keys of Redis that follow a topic: rows and offsets change in one `MULTI … EXEC`.

A rebuild writes keys with another beginning (`users__new:1`), and renames them all in one `MULTI … EXEC`.
The keys are looked for before that. Meanwhile, and for a minute after a kill, the key `SWITCHING` keeps the
sink from opening them.
"""

from __future__ import annotations

import abc
import contextlib
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from penstock.core.databases import described
from penstock.core.lazy import installed
from penstock.core.schema import JSON
from penstock.errors import SetupError, UserError
from penstock.sinks.targets.contract import (
    NEW,
    OLD,
    BaseTarget,
    Batch,
    Rows,
    Unchanged,
    fenced,
    no_row,
    nothing_before,
    nothing_built,
    replaced,
)
from penstock.sinks.targets.kind import Address, Facts, Option, Rebuilt, TargetKind
from penstock.sinks.targets.texts import completed, json_members, json_values

__all__ = ["KINDS", "RedisBase", "RedisTarget", "redis"]

Value = Literal["hash", "json"]
BUSY_S: Final = 10.0
"""How long an answer is waited for."""
STATE: Final = "penstock:sink:{sink}:{topic}"
"""The key of a sink's offsets (fields `p0`, `p1`, …) and its epoch (field `epoch`), which the
field `switched` repeats where no process took over, and other keys took the place of these."""
SWITCHING: Final = STATE + ":switching"
"""The key that is there while keys are renamed."""
SWITCHING_S: Final = 60
"""How long that lasts after a kill."""
APART: Final = "__apart"
"""Behind the beginning of keys, while they are on their way."""
SCANNED: Final = 10_000
"""Keys that are looked at in one step, in which the server does nothing else."""


def redis(
    url: str,
    *,
    table: str,
    value: Value | str = "hash",
    expire_s: int | None = None,
) -> RedisTarget:
    """Keys of a Redis server.

    Args:
        url: `redis://host:port/database`, or `rediss://…` for TLS; with user and password where needed.
        table: of what form keys are, such as `users:{id}`, with each column of the key. A name without
            columns, such as `users`, stands for `users:{id}`.
        value: `hash` (default): a field of each column that isn't NULL. `json`: the row as text. Or the name
            of a column: its value alone.
        expire_s: seconds after its last change in which a key expires; by default it stays.
    """
    return RedisTarget(url, table, value, expire_s)


class RedisBase(BaseTarget):
    """A server whose transactions have offsets and an epoch, in a hash, next to what a subclass writes."""

    def __init__(self, url: str) -> None:
        self._url, self._module = url, installed("redis", "redis", "to talk to Redis")
        self._connection: Any = None
        self._owned: tuple[str, int] | None = (
            None  # the state's key, and the epoch that this one had
        )

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections; a server that loads, is full, or was changed meanwhile."""
        return (self._module.RedisError,)

    @abc.abstractmethod
    def check_rows(self, rows: Rows) -> None:
        """Checks what it is to have; see `Choosing`."""

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over; the next offsets."""
        self.close()
        self.check_rows(rows)
        self._sink, self._rows = sink, rows
        self._state = STATE.format(sink=sink, topic=rows.topic)
        self._connection = self._connect()
        try:
            if self._connection.exists(SWITCHING.format(sink=sink, topic=rows.topic)):
                raise self._module.ConnectionError("its keys are being exchanged")
            self._epoch = self._take_over()
        except self._module.AuthenticationError as error:
            raise SetupError(
                f"expected to log in at {described(self._url)}; found: {error}. Correct the user and the "
                "password in the address"
            ) from None
        self._owned = (self._state, self._epoch)
        found = self._connection.hgetall(self._state)
        self._offsets = {int(f[1:]): int(v) for f, v in found.items() if f[:1] == b"p"}
        return dict(self._offsets)

    def _take_over(self) -> int:
        """Raises the sink's epoch.

        Raises:
            FencedError: another process has done so since this one had it.
        """
        with self._connection.pipeline(transaction=True) as pipe:
            pipe.watch(self._state)
            found = pipe.hgetall(self._state)
            epoch = int(found.get(b"epoch", 0))
            is_switched = found.get(b"switched") == found.get(b"epoch")
            owned, before = self._owned or ("", 0)
            if owned == self._state and epoch > before and not is_switched:
                raise fenced(self.table, self._sink)
            pipe.multi()
            pipe.hset(self._state, "epoch", epoch + 1)
            pipe.execute()
        return epoch + 1

    def _connect(self, timeout_s: float = BUSY_S) -> Any:
        return self._module.Redis.from_url(
            self._url, socket_timeout=timeout_s, socket_connect_timeout=BUSY_S, retry=None
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A pipeline that reads first; `_end_with` ends it, unless another process has taken over."""
        if self._connection is None:
            raise self._module.ConnectionError("the connection is closed")
        with self._connection.pipeline(transaction=True) as pipe:
            pipe.watch(self._state)  # EXEC does nothing if another one takes over from here on
            self._check(pipe.hgetall(self._state))
            yield pipe

    def _end_with(self, pipe: Any, offsets: Mapping[int, int]) -> None:
        """Makes what the pipeline has and the offsets true together."""
        if offsets:
            pipe.hset(self._state, mapping={f"p{p}": o for p, o in offsets.items()})
        pipe.execute()
        self._offsets.update(offsets)

    def _check(self, found: Mapping[bytes, bytes]) -> None:
        """Whether the server has what it had after the last write.

        Raises:
            FencedError: another process has begun.
        """
        if int(found.get(b"epoch", 0)) > self._epoch:
            if found.get(b"switched") == found[b"epoch"]:
                raise replaced(self.table)
            raise fenced(self.table, self._sink)
        now = {int(f[1:]): int(v) for f, v in found.items() if f[:1] == b"p"}
        if int(found.get(b"epoch", 0)) < self._epoch or now != self._offsets:
            raise self._module.ConnectionError(
                "the server lost its newest writes; continuing from the offsets that it has"
            )

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class RedisTarget(RedisBase):
    """See `redis`."""

    unchanged: Unchanged = "kept"

    def __init__(self, url: str, table: str, value: str, expire_s: int | None) -> None:
        if not isinstance(table, str) or not table:
            raise UserError(f"expected keys, such as table='users:{{id}}'; found {table!r}")
        if expire_s is not None and expire_s < 1:
            raise UserError(f"expected expire_s to be 1 or more; found {expire_s!r}")
        super().__init__(url)
        self.table = table.partition(":")[0] if "{" in table else table
        self._form, self._value, self._expire_s = table, value, expire_s

    @property
    def name(self) -> str:
        """The address without a password, and the form of the keys."""
        return f"{described(self._url)} {self._form}"

    def check_rows(self, rows: Rows) -> None:
        """Checks that the form of the keys tells the rows apart, and what values are.

        Raises:
            UserError: they can't be so.
        """
        self._parts = _parsed(self._form, rows.key)
        if self._value not in (*get_args(Value), *rows.schema.names):
            raise UserError(
                "expected value to be 'hash', 'json' or a column among "
                f"{', '.join(rows.schema.names)}; found {self._value!r}"
            )

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
        with self._transaction() as pipe:
            gone = list(self._keys(batch.deletes))
            keys = list(self._keys(batch.upserts))
            olds = self._olds(keys, batch)
            pipe.multi()
            if gone:
                pipe.delete(*gone)
            self._set(pipe, keys, batch, olds)
            self._end_with(pipe, offsets)

    def _olds(self, keys: list[str], batch: Batch) -> list[Any]:
        """Of each row that lacks values what its key has; of a hash, only whether it is there.

        Raises:
            RefusedError: it isn't.
        """
        lacks = {
            i: [name for name, some in batch.kept.items() if some[i]]
            for i in np.flatnonzero(batch.is_partial).tolist()
        }
        if self._value not in get_args(Value):  # the column that is written may be there
            lacks = {i: names for i, names in lacks.items() if self._value in names}
        with self._connection.pipeline(transaction=False) as reads:
            for i in lacks:
                reads.type(keys[i])
                if self._value == "json":
                    reads.get(keys[i])
            found = iter(reads.execute(raise_on_error=False))
        olds: list[Any] = [None] * len(keys)
        for i, names in lacks.items():
            if next(found) != (b"hash" if self._value == "hash" else b"string"):
                raise no_row(names)
            olds[i] = json_members(next(found)) if self._value == "json" else names
        return olds

    def _set(self, pipe: Any, keys: list[str], batch: Batch, olds: list[Any]) -> None:
        """Writes rows; what they lack stays as it is."""
        whole = [key for key, old in zip(keys, olds, strict=True) if old is None]
        if whole and self._value == "hash":
            pipe.delete(*whole)  # fields that are NULL now, and keys of another kind
        values = self._values(batch, olds)
        for key, value, old in zip(keys, values, olds, strict=True):
            if isinstance(value, dict):
                names = batch.upserts.schema.names
                null = [n for n in names if n not in value and n not in old] if old else []
                if null:
                    pipe.hdel(key, *null)
                pipe.hset(key, mapping=value)
                if self._expire_s is not None:
                    pipe.expire(key, self._expire_s)
            elif old is not None and self._value != "json":
                if self._expire_s is not None:
                    pipe.expire(key, self._expire_s)
            elif value is None:
                pipe.delete(key)
            else:
                pipe.set(key, value, ex=self._expire_s)

    def _keys(self, rows: pa.RecordBatch) -> Iterator[str]:
        columns = {n: rows.column(n) for n in self._rows.key} if len(rows) else {}
        texts = {
            n: [quote(one or b"") for one in c.to_pylist()] if c.type == pa.binary() else _texts(c)
            for n, c in columns.items()
        }
        between = "".join(literal for literal, name in self._parts[1:] if name is not None)
        for i in range(len(rows)):
            yield "".join(
                literal + ("" if name is None else _escaped(texts[name][i], between))
                for literal, name in self._parts
            )

    def _values(self, batch: Batch, olds: list[Any]) -> list[Any]:
        rows = batch.upserts
        if not len(rows):
            return []
        if self._value == "json":
            return list(completed(rows, batch.kept, olds))
        names = rows.schema.names if self._value == "hash" else [self._value]
        columns = [_texts(rows.column(name)) for name in names]
        if self._value != "hash":
            return columns[0]
        return [
            {n: v for n, v in zip(names, row, strict=True) if v is not None}
            for row in zip(*columns, strict=True)
        ]

    # -- keys that are rebuilt -----------------------------------------------------------------------

    def beside(self, sink: str, rows: Rows) -> RedisTarget:
        """The same with `__new` behind the beginning of the keys."""
        form = self._beginning(rows, NEW) + self._end(rows)
        one = RedisTarget(self._url, form, self._value, self._expire_s)
        with self._connect() as connection:
            state = STATE.format(sink=f"{sink}.rebuild", topic=rows.topic)
            if connection.exists(state) and not self._found(connection, rows, NEW):
                connection.delete(state)
        return one

    def switch(self, sink: str, rows: Rows) -> None:
        """Renames keys; those of before the last rebuild are deleted first."""
        with self._connect(timeout_s=SWITCHING_S) as connection:
            state = STATE.format(sink=f"{sink}.rebuild", topic=rows.topic)
            if not connection.exists(state):
                raise nothing_built(self.table)
            old = self._found(connection, rows, OLD)
            for start in range(0, len(old), SCANNED):
                connection.unlink(*old[start : start + SCANNED])
            connection.delete(STATE.format(sink=f"{sink}.old", topic=rows.topic))
            self._rename(connection, sink, rows, [("", OLD), (NEW, "")])

    def go_back(self, sink: str, rows: Rows) -> None:
        """Exchanges the keys with those of before the last rebuild."""
        with self._connect(timeout_s=SWITCHING_S) as connection:
            if not connection.exists(STATE.format(sink=f"{sink}.old", topic=rows.topic)):
                raise nothing_before(self.table)
            self._rename(connection, sink, rows, [("", APART), (OLD, ""), (APART, OLD)])

    def _rename(self, connection: Any, sink: str, rows: Rows, moves: list[tuple[str, str]]) -> None:
        """Renames keys and offsets, in one transaction.

        Raises:
            UserError: there is nothing that could get the live ones' place.
        """
        names = {"": sink, NEW: f"{sink}.rebuild", OLD: f"{sink}.old", APART: f"{sink}.apart"}
        states = {one: STATE.format(sink=n, topic=rows.topic) for one, n in names.items()}
        switching = SWITCHING.format(sink=sink, topic=rows.topic)
        connection.set(switching, "1", ex=SWITCHING_S)
        connection.transaction(lambda pipe: _let_reopen(pipe, states[""]), states[""])
        with connection.pipeline(transaction=True) as pipe:
            pipe.watch(*states.values())
            there = {one: pipe.exists(states[one]) for one, _ in moves}
            source = moves[1][0]
            if not there[source]:  # another process has done it meanwhile
                connection.delete(switching)
                raise (nothing_built if source == NEW else nothing_before)(self.table)
            epochs = [int(pipe.hget(one, "epoch") or 0) for one in states.values()]
            keys = {
                one: self._found(connection, rows, one, switching)
                for one, _ in moves
                if one != APART
            }
            pipe.multi()
            for one, to in moves:
                before, after = self._beginning(rows, one), self._beginning(rows, to)
                found = "" if one == APART else one
                for key in keys[found]:
                    place = key[len(self._beginning(rows, found)) :]
                    pipe.rename(before + place, after + place)
                if one == APART or there[one]:
                    pipe.rename(states[one], states[to])
            epoch = max(epochs) + 1
            pipe.hset(states[""], mapping={"epoch": epoch, "switched": epoch})
            pipe.delete(switching)
            for error in pipe.execute(raise_on_error=False):
                if isinstance(error, Exception) and "no such key" not in str(error):
                    raise error  # one that has expired meanwhile is no error

    def _beginning(self, rows: Rows, end: str) -> str:
        """What all keys begin with, of the live ones (`end` is empty), or of others.

        Raises:
            UserError: they begin with nothing that could be distinguished: `users__new1` is of the form
                `users{id}` as well.
        """
        first = _parsed(self._form, rows.key)[0][0]
        name = first.rstrip(":/.-|#")
        if name in ("", first):
            raise UserError(
                "expected keys with a beginning that a rebuild can change, such as 'users:{id}'; found "
                f"{self._form!r}"
            )
        return name + end + first[len(name) :]

    def _end(self, rows: Rows) -> str:
        first, *others = _parsed(self._form, rows.key)
        return "".join(
            ("" if one is first else one[0]) + ("" if one[1] is None else f"{{{one[1]}}}")
            for one in (first, *others)
        )

    def _found(
        self, connection: Any, rows: Rows, end: str, renewed: str | None = None
    ) -> list[str]:
        """The keys of this form."""
        beginning, parts = self._beginning(rows, end), _parsed(self._form, rows.key)
        pattern = "".join(
            (re.escape(literal if i else beginning)) + ("" if name is None else ".*")
            for i, (literal, name) in enumerate(parts)
        )
        form, keys = re.compile(pattern, re.DOTALL), set[str]()
        glob = re.sub(r"([\[\]?*\\^-])", r"\\\1", beginning) + "*"
        cursor = 0
        while True:
            cursor, some = connection.scan(cursor, match=glob, count=SCANNED)
            texts = (key.decode(errors="replace") for key in some)
            keys.update(text for text in texts if form.fullmatch(text))
            if renewed is not None:
                connection.expire(renewed, SWITCHING_S)
            if not cursor:
                return sorted(keys)


def _let_reopen(pipe: Any, state: str) -> None:
    """Makes a live sink open its keys again before it writes."""
    found = pipe.hget(state, "epoch")
    pipe.multi()
    if found is not None:
        pipe.hset(state, mapping={"epoch": int(found) + 1, "switched": int(found) + 1})


def _parsed(form: str, key: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """A form of keys as literals, each with the column that follows it.

    Raises:
        UserError: two rows could have the same key.
    """
    template = (
        form if "{" in form or not key else ":".join([form, *(f"{{{name}}}" for name in key)])
    )
    try:
        parts = [(literal, name) for literal, name, _, _ in string.Formatter().parse(template)]
    except ValueError:
        parts = []
    names = [name for _, name in parts if name is not None]
    if not key or sorted(names) != sorted(key):
        raise UserError(
            f"expected each column of the key ({', '.join(key)}) once in the keys of Redis, such as "
            f"'users:{{id}}'; found {form!r}"
        )
    if any(not literal for literal, name in parts[1:] if name is not None):
        raise UserError(
            f"expected text between the columns of the keys, such as ':'; found {form!r}"
        )
    return parts


def _escaped(text: str, between: str) -> str:
    """A part of a key of several columns, in which what stands between the columns is escaped."""
    if not between:
        return text
    return "".join(f"%{ord(c):02X}" if c in between or c == "%" else c for c in text)


def _texts(column: pa.Array) -> list[Any]:
    """Values as Redis keeps them: text and bytes as they are, others as in JSON, without quotes."""
    if column.type in (pa.string(), pa.binary()):
        return list(column.to_pylist())
    if column.type == JSON:
        return json_values(column)
    return [None if text is None else text.strip('"') for text in json_values(column)]


def _of(address: Address) -> RedisTarget:
    url = address.with_password(needs_user=False)
    return redis(url, table=address.table, **address.options)


KINDS: Final = (
    TargetKind(
        name="redis",
        title="Redis",
        make=redis,
        arguments='url, table="users:{id}"',
        examples=("redis://host",),
        schemes=("redis", "rediss"),
        table="the form of the keys: users:{id}",
        options=(
            Option(
                "value",
                "hash|json|COLUMN",
                "What a key has: fields, the row as text, or a column's value",
            ),
            Option("expire_s", "SECONDS", "After its last change, a key expires", int),
        ),
        extra="redis",
        of=_of,
        facts=Facts(
            guarantee="yes",
            exactly_once="rows, deletions and offsets are one `MULTI … EXEC`",
            older_process="is refused: `WATCH` on the key with the epoch",
            loading="`HSET` or `SET`, in one pipeline",
            others="can read; should not write these keys",
            left_out="isn't written (`hash`), or is read from the target, and written again (`json`)",
            rebuilt=Rebuilt(
                new="keys that begin with `users__new` instead of `users`",
                replaced="one `MULTI … EXEC` renames all keys; it blocks the server for about a second per "
                "million keys. All keys of the form (`users:{id}`: those that begin with `users:`) belong to "
                "the sink. If it is killed, the sink waits for up to a minute. The form must have one of "
                r"`: / . - \| #` before its first column",
                old="`users__old`",
            ),
        ),
    ),
)
