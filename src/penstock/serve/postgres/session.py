"""One client's session: its messages in, the server's out; no sockets here.

Each statement reads one committed version, by default the newest (`READ COMMITTED`). A transaction of
`REPEATABLE READ` or `SERIALIZABLE` reads one version from its first statement to its end.

A statement is recognized by its first word. What isn't a query is the session's (`SET`, `BEGIN`,
cursors) or is refused: the endpoint only reads. An error within an extended query skips what the client
has sent ahead, up to its `Sync`, and fails its transaction, as in PostgreSQL.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.errors import PenstockError, ProtocolError
from penstock.serve.answers import Answer
from penstock.serve.catalogs.types import duck_of_oid, encode_column, literal, oid_of_duck
from penstock.serve.following import Subscription, subscription_of
from penstock.serve.plans import COLUMN
from penstock.serve.postgres import messages
from penstock.serve.postgres.commands import (
    WRITES,
    Refused,
    explaining,
    is_empty,
    name_of,
    setting_of,
    split,
    words_of,
)
from penstock.serve.postgres.copying import copied, copying_of
from penstock.serve.postgres.failures import failure, too_much, warnings_of
from penstock.serve.postgres.messages import Column, Reader, message
from penstock.serve.postgres.portals import (
    Portal,
    Statement,
    Status,
    columns_of,
    described,
    is_query,
    kinds_of,
    tag_of,
)
from penstock.serve.postgres.settings import (
    FIXED,
    ISOLATIONS,
    PINNING,
    REPORTED,
    SETTINGS,
    seconds_of,
)
from penstock.serve.postgres.subscribing import columns_question, subscribed
from penstock.serve.questions import ROWS_ALL, Question
from penstock.serve.texts.words import substituted

__all__ = ["Session"]

LOG: Final = logging.getLogger("penstock.postgres")

STATEMENTS_MAX: Final = 1_000
"""Prepared statements of a session, its cursors, and its settings: clients keep some hundred."""
ANSWER_BYTES_MAX: Final = 256 << 20
"""Of all that a session keeps in memory: answers as a whole, cursors' too, and texts of statements.
Clients that want more ask by parts, or read with Python."""
ROWS_AT_ONCE: Final = 10_000  # rows that are written to the client together
BACKWARD: Final = frozenset({"BACKWARD", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE", "-"})
"""Words of a FETCH that doesn't read on."""


class Session:
    """A session, from its log-in on.

    Args:
        ask: answers a question; raises `PenstockError`.
        newest: the number of the last committed version.
        wait: waits for a token, so many seconds at most; the version that has read it.
        cancelled: whether the client has asked to cancel what runs.
        parameters: those of the startup message, in which a client says who it is.
        hold: takes note of how many bytes the session keeps; False where all sessions keep too much.
        now: a clock in seconds.
        follow: gives a view's changes, until nobody reads them any more.
    """

    def __init__(
        self,
        ask: Callable[[Question], Answer],
        newest: Callable[[], int],
        wait: Callable[[str, float], int],
        cancelled: Callable[[], bool],
        parameters: dict[str, str],
        hold: Callable[[int], bool] = lambda _: True,
        now: Callable[[], float] = time.monotonic,
        follow: Callable[[Subscription], Iterator[Answer]] = lambda _: iter(()),
    ) -> None:
        self._now, self._follow = now, follow
        self._hold = hold
        self._ask, self._newest, self._wait, self._cancelled = ask, newest, wait, cancelled
        self._initial = {**SETTINGS, "application_name": parameters.get("application_name", "")}
        self._settings = dict(self._initial)
        self._status = Status.IDLE
        self._pinned: int | None = None
        self._isolation = "read committed"
        self._statements: dict[str, Statement] = {}
        self._portals: dict[str, Portal] = {}
        self._skipping = False
        self._warnings = b""  # that the client gets before the next message
        self._deadline_s: float | None = None

    def is_late(self) -> bool:
        """Whether what runs has taken longer than `statement_timeout`; then nobody waits for it."""
        return self._deadline_s is not None and self._now() >= self._deadline_s

    def greeting(self) -> bytes:
        """What the server says about itself."""
        return messages.parameters({shown: self._settings[n] for n, shown in REPORTED.items()})

    def ready(self) -> bytes:
        """That the next statement may come."""
        return message(b"Z", self._status.value)

    def take(self, kind: bytes, body: bytes) -> Iterator[bytes]:
        """The answers to a message.

        Raises:
            ProtocolError: the message makes no sense.
        """
        if kind == b"S":
            self._skipping = False
            if self._status is Status.IDLE:
                self._portals.clear()
            self._hold(self._held())
            yield self.ready()
            return
        if self._skipping:
            return
        try:
            for one in self._handled(kind, Reader(body)):
                yield self._warnings + one
                self._warnings = b""
        except ProtocolError:
            raise
        except Exception as error:
            if not isinstance(error, Refused | PenstockError | ValueError):
                LOG.exception("expected an answer to a client of PostgreSQL's protocol")
            if self._status is Status.OPEN:
                self._status = Status.FAILED
            yield failure(error, cancelled=self._cancelled(), is_late=self.is_late())
            self._skipping = kind != b"Q"
        finally:
            self._hold(self._held())
            self._deadline_s = None
        if kind == b"Q":
            yield self.ready()

    def _handled(self, kind: bytes, reader: Reader) -> Iterator[bytes]:
        match kind:
            case b"Q":
                yield from self._simple(reader.text())
            case b"P":
                yield self._parse(reader)
            case b"B":
                yield self._bind(reader)
            case b"D":
                yield from self._describe(reader)
            case b"E":
                yield from self._execute(reader)
            case b"C":
                what, name = reader.take(1), reader.text()
                (self._statements if what == b"S" else self._portals).pop(name, None)
                yield message(b"3")
            case b"H":
                return
            case b"F":
                raise Refused(
                    "0A000", "expected a query; found a function call, which isn't served"
                )
            case _:
                raise ProtocolError(f"expected a message of PostgreSQL's protocol; found {kind!r}")

    def _simple(self, text: str) -> Iterator[bytes]:
        statements = split(text)
        if not statements:
            yield message(b"I")
        for one in statements:
            portal = Portal(one)
            columns, tag = self._run(portal)
            if columns is not None:
                yield messages.row_description(columns)
                yield from self._rows(portal, columns, 0)
                tag = tag_of(portal)
            yield from portal.copied
            yield messages.command_complete(tag_of(portal) if tag == "COPY" else tag)

    def _parse(self, reader: Reader) -> bytes:
        name, query = reader.text(), reader.text()
        oids = [one & 0xFFFFFFFF for one in reader.numbers(4)]
        found = split(query)
        if len(found) > 1:
            raise Refused("42601", "expected one statement; found several")
        self._statements.pop(name, None)
        self._check_room(len(self._statements), "prepared statements", len(query))
        self._statements[name] = Statement(found[0] if found else "", oids)
        return message(b"1")

    def _check_room(self, count: int, what: str, size: int) -> None:
        """Refuses one more of what the session keeps, if it keeps too much."""
        if count >= STATEMENTS_MAX:
            raise Refused("53400", f"expected at most {STATEMENTS_MAX} {what}; found more")
        if self._held() + size > ANSWER_BYTES_MAX:
            raise Refused(
                "53200",
                f"expected at most {ANSWER_BYTES_MAX >> 20} MiB in a session's statements and cursors "
                "(ANSWER_BYTES_MAX); found more. Close some",
            )

    def _held(self) -> int:
        """How many bytes the session keeps, about."""
        portals = self._portals.values()
        answers = sum(one.answer.table.nbytes for one in portals if one.answer is not None)
        texts = sum(
            len(one.query) for some in (self._statements, self._portals) for one in some.values()
        )
        return answers + texts + sum(map(len, self._settings.values()))

    def _statement(self, name: str) -> Statement:
        if name not in self._statements:
            raise Refused("26000", f'expected a prepared statement; found none named "{name}"')
        return self._statements[name]

    def _bind(self, reader: Reader) -> bytes:
        name, statement = reader.text(), self._statement(reader.text())
        self._portals.pop(name, None)
        formats = reader.numbers(2)
        given = []
        for i in range(reader.number(2)):
            size = reader.number(4)
            data = None if size < 0 else reader.take(size)
            form = formats[0] if len(formats) == 1 else formats[i] if i < len(formats) else 0
            given.append((data, form))
        oids = [*statement.oids, *[0] * (len(given) - len(statement.oids))]
        if any(
            not oid and (data or b"")[:1] == b"{"
            for oid, (data, _) in zip(oids, given, strict=False)
        ):
            self._columns_of(statement)  # an array perhaps, which is none without its type
            oids = [*statement.oids, *oids[len(statement.oids) :]]
        values = [literal(data, oids[i], form) for i, (data, form) in enumerate(given)]
        query = statement.query
        if values:
            query = substituted(query, values)
        self._check_room(len(self._portals), "cursors", len(query))
        self._portals[name] = Portal(query, reader.numbers(2), described=statement.answer)
        return message(b"2")

    def _describe(self, reader: Reader) -> Iterator[bytes]:
        what, name = reader.take(1), reader.text()
        if what == b"S":
            statement = self._statement(name)
            found = self._columns_of(statement)
            numbers = b"".join((one & 0xFFFFFFFF).to_bytes(4, "big") for one in statement.oids)
            yield message(b"t", len(statement.oids).to_bytes(2, "big") + numbers)
            yield described(None if found is None else columns_of(found, Portal("")))
            return
        columns, _ = self._run(self._portal(name), only_queries=True)
        yield described(columns)

    def _columns_of(self, statement: Statement) -> Answer | None:
        """A statement's answer without rows; the types of its parameters are noted in it."""
        words = words_of(statement.query)
        if not words or not is_query(words):
            is_show = bool(words) and words[0].upper() == "SHOW"
            return self._show(words) if is_show else None
        if statement.answer is None:
            types = tuple(duck_of_oid(one) for one in statement.oids)
            kind, query = explaining(statement.query)
            found = self._asked(Question(query, 0, kind="columns", types=types))
            if kind:
                plan = pa.table({COLUMN: pa.array([], pa.string())})
                found = found._replace(table=plan, types=("VARCHAR",))
            known = [*statement.oids, *[0] * (len(found.parameters) - len(statement.oids))]
            statement.oids = [
                oid or oid_of_duck(name) for oid, name in zip(known, found.parameters, strict=False)
            ]
            statement.answer = found
        return statement.answer

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise Refused("34000", f'expected a portal; found none named "{name}"')
        return self._portals[name]

    def _execute(self, reader: Reader) -> Iterator[bytes]:
        portal = self._portal(reader.text())
        most = reader.number(4)
        if is_empty(portal.query):
            yield message(b"I")
            return
        columns, tag = self._run(portal)
        if columns is None:
            yield from portal.copied
            yield messages.command_complete(tag_of(portal) if tag == "COPY" else tag)
            return
        answer = portal.described
        if answer is not None and kinds_of(columns) != kinds_of(columns_of(answer, portal)):
            raise Refused(
                "0A000",
                "expected the columns that the statement was described with; found others, because the "
                "view was changed: cached plan must not change result type. Prepare it again",
                "RevalidateCachedQuery",
            )
        yield from self._rows(portal, columns, most)
        assert portal.answer is not None
        if portal.sent < len(portal.answer.table):
            yield message(b"s")
        else:
            yield messages.command_complete(tag_of(portal))

    def _run(
        self, portal: Portal, *, only_queries: bool = False
    ) -> tuple[list[Column] | None, str]:
        """Does a statement: the columns of its answer, or the tag of a command that has none."""
        if portal.answer is None:
            words = words_of(portal.query)
            if not words or (
                only_queries and not is_query(words) and words[0].upper() not in ("SHOW", "FETCH")
            ):
                return None, ""
            self._check_transaction(words)
            timeout_s = seconds_of("statement_timeout", self._settings["statement_timeout"])
            self._deadline_s = self._now() + timeout_s if timeout_s else None
            if not is_query(words):
                done = self._command(words, portal)
                if done is not None:
                    return None, done
            else:
                kind, query = explaining(portal.query)
                portal.answer = self._asked(Question(query, ROWS_ALL, explain=kind))
        assert portal.answer is not None
        return columns_of(portal.answer, portal), ""

    def _check_transaction(self, words: Sequence[str]) -> None:
        ending = ("ROLLBACK", "ABORT", "COMMIT", "END")
        if self._status is Status.FAILED and words[0].upper() not in ending:
            raise Refused(
                "25P02", "expected ROLLBACK, because a statement of this transaction has failed"
            )

    def _asked(self, question: Question) -> Answer:
        """Asks, of the version that the transaction reads."""
        token = self._settings["penstock.after"]
        if token and self._pinned is None:
            self._wait(token, self._seconds("penstock.wait"))
        if self._status is not Status.IDLE and self._isolation in PINNING and self._pinned is None:
            self._pinned = self._newest()
        version = self._pinned
        most = max(0, ANSWER_BYTES_MAX - self._held())
        found = self._ask(replace(question, version=version, dialect="postgres", bytes_max=most))
        if not self._hold(self._held() + found.table.nbytes):
            raise too_much()
        self._settings["penstock.version"] = str(found.version)
        self._warnings += warnings_of(found, self._settings.get("client_min_messages", ""))
        return found

    def _seconds(self, name: str, text: str | None = None) -> float:
        text = self._settings[name] if text is None else text
        try:
            seconds = (
                float(text.removesuffix("ms")) / 1000
                if text.endswith("ms")
                else float(text.removesuffix("s"))
            )
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= 3600:
            raise Refused("22023", f"expected {name} in seconds, such as '10s'; found {text!r}")
        return seconds

    def _rows(self, portal: Portal, columns: Sequence[Column], most: int) -> Iterator[bytes]:
        """Rows that haven't been sent yet, so many at most (0: all)."""
        assert portal.answer is not None
        table = portal.answer.table
        end = len(table) if most <= 0 else min(len(table), portal.sent + most)
        while portal.sent < end:
            some = table.slice(portal.sent, min(ROWS_AT_ONCE, end - portal.sent))
            names = portal.answer.types or [""] * len(columns)
            encoded = [
                encode_column(column, one.format, name)
                for column, one, name in zip(some.columns, columns, names, strict=True)
            ]
            yield b"".join(messages.data_rows(encoded, len(some)))
            portal.sent += len(some)

    def _command(self, words: list[str], portal: Portal) -> str | None:
        """Does what isn't a query: its tag; None where it has an answer."""
        first, second = words[0].upper(), words[1].upper() if len(words) > 1 else ""
        match first:
            case "BEGIN" | "START":
                return self._begin(words)
            case "COMMIT" | "END":
                failed = self._status is Status.FAILED
                self._end()
                return "ROLLBACK" if failed else "COMMIT"
            case "ROLLBACK" | "ABORT":
                if "TO" in (one.upper() for one in words):
                    if self._status is Status.IDLE:
                        raise Refused("25P01", "expected a transaction to roll back; found none")
                    self._status = Status.OPEN
                else:
                    self._end()
                return "ROLLBACK"
            case "SAVEPOINT" | "RELEASE" | "LISTEN" | "UNLISTEN":
                return first
            case "SET":
                return self._set(words)
            case "RESET":
                if second == "ALL":
                    self._settings = dict(self._initial)
                elif second:
                    self._put(words[1].lower(), None)
                return "RESET"
            case "SHOW":
                portal.answer = self._show(words)
                return None
            case "DISCARD":
                if second == "ALL":  # pools send it between two clients
                    self._settings = dict(self._initial)
                    self._statements.clear()
                    self._portals.clear()
                return f"DISCARD {second}"
            case "DEALLOCATE":
                if words[-1].upper() == "ALL":
                    self._statements.clear()
                else:
                    self._statements.pop(name_of(words[-1]), None)
                return "DEALLOCATE"
            case "COPY":
                how = copying_of(portal.query)
                what = subscription_of(how.query)
                if what is not None:
                    head = self._asked(columns_question(what))
                    portal.copied = subscribed(what, how, portal, head, self._followed(what))
                else:
                    found = self._asked(Question(how.query, ROWS_ALL))
                    portal.copied, portal.sent = copied(how, found), found.table.num_rows
                return "COPY"
            case "SUBSCRIBE":
                raise Refused(
                    "0A000", "expected COPY (SUBSCRIBE view) TO STDOUT; found SUBSCRIBE by itself"
                )
            case "DECLARE":
                return self._declare(words, portal.query)
            case "FETCH":
                portal.answer = self._fetch(words)
                return None
            case "CLOSE":
                if second == "ALL":
                    self._portals.clear()
                elif len(words) > 1:
                    self._portals.pop(name_of(words[1]), None)
                return "CLOSE CURSOR"
        if first in WRITES:
            raise Refused("25006", f"expected a query, because views are only read; found {first}")
        raise Refused(
            "0A000", f"expected SELECT, SHOW, SET, BEGIN, COMMIT or a cursor; found {words[0]!r}"
        )

    def _followed(self, what: Subscription) -> Iterator[Answer]:
        """A view's changes, each held until it has been sent."""
        for found in self._follow(what):
            if not self._hold(self._held() + found.table.nbytes):
                raise too_much()
            self._settings["penstock.version"] = str(found.version)
            yield found
            self._hold(self._held())

    def _begin(self, words: list[str]) -> str:
        self._isolation = self._settings["default_transaction_isolation"]
        self._take_isolation(words)
        self._status = Status.OPEN
        return "START TRANSACTION" if words[0].upper() == "START" else "BEGIN"

    def _take_isolation(self, words: list[str]) -> None:
        text = " ".join(words).lower()
        for level in ISOLATIONS:
            if level in text:
                self._isolation = level
        if "read write" in text:
            raise Refused("25006", "expected a transaction that only reads; found READ WRITE")

    def _end(self) -> None:
        self._status, self._pinned = Status.IDLE, None
        self._portals.clear()

    def _set(self, words: list[str]) -> str:
        text = " ".join(words).upper()
        if "CHARACTERISTICS" in text:
            before, self._isolation = (
                self._isolation,
                self._settings["default_transaction_isolation"],
            )
            self._take_isolation(words)
            self._settings["default_transaction_isolation"] = self._isolation
            self._isolation = before
            return "SET"
        if len(words) > 1 and words[1].upper() == "TRANSACTION":
            self._take_isolation(words)
            return "SET"
        name, value = setting_of(words)
        if name in FIXED:
            raise Refused("55P02", f"expected a setting that may be changed; found {name}")
        self._put(name, value)
        return "SET"

    def _put(self, name: str, value: str | None) -> None:
        """Notes what a setting is; None: what it was at first."""
        value = self._initial.get(name, "") if value is None else value
        match name:
            case "client_encoding" if value.upper() not in ("UTF8", "UTF-8", "UNICODE"):
                raise Refused("22023", f"expected client_encoding UTF8; found {value}")
            case "timezone":
                value = "UTC"  # instants are sent in UTC; clients show them in their own zone
            case "transaction_isolation" | "default_transaction_isolation":
                value = value.lower()
                if value not in ISOLATIONS:
                    raise Refused(
                        "22023", f"expected one of {', '.join(ISOLATIONS)}; found {value}"
                    )
                if name == "transaction_isolation":
                    self._isolation = value
                    return
            case "statement_timeout":
                seconds_of(name, value)
            case "penstock.wait":
                self._seconds(name, value)
        if name not in self._settings:
            self._check_room(len(self._settings), "settings", len(value))
        self._settings[name] = value

    def _show(self, words: list[str]) -> Answer:
        name = "_".join(one.lower() for one in words[1:])
        name = {
            "transaction_isolation_level": "transaction_isolation",
            "time_zone": "timezone",
        }.get(name, ".".join(words[1:]).replace("...", ".").lower())
        if name == "transaction_isolation":
            value = (
                self._isolation
                if self._status is not Status.IDLE
                else self._settings["default_transaction_isolation"]
            )
        elif name == "all":
            names = sorted(self._settings)
            table = pa.table({"name": names, "setting": [self._settings[one] for one in names]})
            return Answer(table, len(table))
        elif name in ("tables", "views", "sinks"):
            return self._asked(Question(f"SHOW {name}", ROWS_ALL))
        elif name not in self._settings:
            raise Refused("42704", f'expected a setting; found "{name}", which is none')
        else:
            value = self._settings[name]
        return Answer(pa.table({name: [value]}), 1)

    def _declare(self, words: list[str], query: str) -> str:
        upper = [one.upper() for one in words]
        if "CURSOR" not in upper or "FOR" not in upper:
            raise Refused("42601", "expected DECLARE name CURSOR FOR SELECT …")
        name, words = name_of(words[1]), words[upper.index("FOR") + 1 :]
        found = re.search(r"\bFOR\b(.*)", query, re.IGNORECASE | re.DOTALL)
        if not words or not is_query(words) or found is None:
            raise Refused("42601", "expected a query behind FOR; found something else")
        self._portals.pop(name, None)
        self._check_room(len(self._portals), "cursors", len(found[1]))
        portal = Portal(found[1])
        self._run(portal)
        self._portals[name] = portal
        return "DECLARE CURSOR"

    def _fetch(self, words: list[str]) -> Answer:
        portal = self._portal(name_of(words[-1]))
        if BACKWARD.intersection(one.upper() for one in words[1:-1]):
            raise Refused("55000", "expected FETCH of the next rows; found another direction")
        if not is_query(words_of(portal.query) or [""]):
            raise Refused("34000", f"expected the cursor of a query; found {portal.query!r}")
        self._run(portal)
        assert portal.answer is not None
        count = next((min(int(one), ROWS_ALL) for one in words[1:-1] if one.isdecimal()), 1)
        if any(one.upper() == "ALL" for one in words[1:-1]):
            count = ROWS_ALL
        rows = portal.answer.table.slice(portal.sent, count)
        portal.sent += len(rows)
        return Answer(rows, len(rows))
