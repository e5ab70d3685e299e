"""A server that gets changes by HTTP, and the connection that other targets over HTTP use."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlsplit

import orjson

from penstock.core.databases import described
from penstock.errors import SetupError, UserError
from penstock.sinks.targets.contract import BaseTarget, Batch, RefusedError, Rows, Unchanged
from penstock.sinks.targets.kind import Address, Facts, TargetKind
from penstock.sinks.targets.texts import json_members, json_rows

__all__ = ["KINDS", "AwayError", "HttpTarget", "Web", "http"]

ANSWER_S: Final = 30.0
"""How long an answer is waited for."""
PASSING: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which the same may succeed."""
REQUEST_ROWS_MAX: Final = 500
"""Changes of a request, at most."""
TEXT_CHARS_MAX: Final = 500
"""Of an answer's text in messages."""


class AwayError(OSError):
    """The server is overloaded or away."""


class Web:
    """A connection to a server that stays open between requests.

    Args:
        url: `http://user:password@host:port/path`, or `https://…`.
        headers: sent with each request.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.parts = urlsplit(url)
        if self.parts.scheme not in ("http", "https") or not self.parts.hostname:
            raise UserError(f"expected http://host/path or https://…; found {described(url)!r}")
        self.headers = dict(headers or {})
        if self.parts.username is not None:
            credentials = f"{unquote(self.parts.username)}:{unquote(self.parts.password or '')}"
            self.headers["Authorization"] = (
                f"Basic {base64.b64encode(credentials.encode()).decode()}"
            )
        self._connection: HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Sends a request; the status and the text of the answer.

        Args:
            method: such as `POST`.
            path: with the query.
            body: what is sent.
            headers: further ones; `_` stands for `-`.

        Raises:
            AwayError: the same may succeed later.
            SetupError: the server wants to know who asks, refuses it, or is at another address.
        """
        header_fields = {**self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
        is_kept = self._connection is not None
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request(method, path, body, header_fields)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, HTTPException) as error:
            self.close()
            if is_kept and isinstance(error, ConnectionError):
                return self.ask(
                    method, path, body, **headers
                )  # the server has closed what was idle
            raise AwayError(
                f"{self.parts.hostname} doesn't answer: {error or type(error).__name__}"
            ) from error
        if answer.status in PASSING or answer.status >= 500:
            raise AwayError(f"{self.parts.hostname} answered {answer.status}: {cut(text)}")
        if answer.status in (401, 403):
            raise SetupError(
                f"expected to be let in by {self.parts.hostname}; found {answer.status}: {cut(text)}. "
                "Correct the user, the password or the headers"
            )
        if 300 <= answer.status < 400 or answer.status == 405:
            place = answer.getheader("Location")
            raise SetupError(
                f"expected {self.parts.hostname} to take {method} {path.partition('?')[0]}; found "
                f"{answer.status}{f', which leads to {place}' if place else ''}. Correct the address"
            )
        return answer.status, text

    def _connect(self) -> HTTPConnection:
        host, port = str(self.parts.hostname), self.parts.port
        if self.parts.scheme == "https":
            context = ssl.create_default_context()
            return HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
        return HTTPConnection(host, port, timeout=ANSWER_S)

    def close(self) -> None:
        """Ends the connection; the next request makes another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def cut(text: bytes) -> str:
    """The beginning of an answer."""
    return text.decode(errors="replace")[:TEXT_CHARS_MAX]


def http(
    url: str,
    *,
    batch: Literal["ndjson", "one"] = "ndjson",
    headers: Mapping[str, str] | None = None,
) -> HttpTarget:
    """A server that gets each change at least once, with an id that doesn't change.

    A change is `{"id": "TOPIC-PARTITION-OFFSET", "op": "upsert", "row": {…}}`, or
    `{"id": "TOPIC-PARTITION-OFFSET-delete", "op": "delete", "row": {…}}`, in which `row` has the key.
    A change may leave out large values that an update didn't change: `row` doesn't have these columns, and
    `"unchanged": ["body"]` names them.
    After a status from 200 to 299, the request is complete. After 408, 425, 429 and 500 to 599, it is
    retried. 300 to 399, 401, 403 and 405 end the sink. Other statuses refuse the change.

    Args:
        url: where changes are sent, by POST.
        batch: `ndjson` (default): up to 500 changes in a request, one a line; each line that a refused
            request has is then sent alone. `one`: a change in a request, as JSON.
        headers: further ones of each request, such as `Authorization`.
    """
    return HttpTarget(url, batch, headers)


class HttpTarget(BaseTarget):
    """See `http`."""

    keeps_offsets = False
    unchanged: Unchanged = "kept"

    def __init__(self, url: str, batch: str, headers: Mapping[str, str] | None) -> None:
        if batch not in ("ndjson", "one"):
            raise UserError(f"expected batch to be 'ndjson' or 'one'; found {batch!r}")
        self._web, self._batch = Web(url, headers), batch
        self.table = self._web.parts.path.rpartition("/")[2] or str(self._web.parts.hostname)
        parts = self._web.parts
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.name = described(url).partition("?")[0]

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections; overload."""
        return (OSError,)

    def open(self, sink: str, rows: Rows) -> dict[int, int]:  # noqa: ARG002 - it has no place for it
        """Does nothing: offsets are the group's."""
        self._rows = rows
        return {}

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:  # noqa: ARG002 - nor for them
        """Sends changes in the order of their records."""
        many = self._batch == "ndjson"
        size = REQUEST_ROWS_MAX if many else 1
        changes = sorted(self._changes(batch))
        for start in range(0, len(changes), size):
            some = changes[start : start + size]
            first, last = some[0][2], some[-1][2]
            status, text = self._web.ask(
                "POST",
                self._path,
                b"".join(one[3] + b"\n" for one in some) if many else some[0][3],
                Content_Type="application/x-ndjson" if many else "application/json",
                Idempotency_Key=quote(first if first == last else f"{first}..{last}", safe="-._"),
            )
            if not 200 <= status < 300:
                raise RefusedError(f"the server answered {status}: {cut(text)}")

    def _changes(self, batch: Batch) -> Iterator[tuple[int, str, str, bytes]]:
        """Of each change its record's offset, what is done, its id, and the line."""
        # A record that changes a key is a deletion and an upsert, which must not have the same id.
        for op, end, rows, at in (
            ("upsert", "", batch.upserts, batch.upserted_at),
            ("delete", "-delete", batch.deletes, batch.deleted_at),
        ):
            for i, (offset, row) in enumerate(zip(at.tolist(), json_rows(rows), strict=True)):
                id_ = f"{self._rows.topic}-{batch.partition}-{offset}{end}"
                change: dict[str, Any] = {"id": id_, "op": op, "row": orjson.Fragment(row)}
                lacks = [n for n, some in batch.kept.items() if some[i]] if op == "upsert" else []
                if lacks:
                    members = json_members(row).items()
                    change |= {
                        "row": {n: v for n, v in members if n not in lacks},
                        "unchanged": lacks,
                    }
                yield offset, op, id_, orjson.dumps(change)

    def close(self) -> None:
        """Ends the connection."""
        self._web.close()


def _of(address: Address) -> HttpTarget:
    return http(address.with_password(), headers=address.headers)


KINDS: Final = (
    TargetKind(
        name="http",
        title="HTTP",
        make=http,
        arguments="url",
        examples=("https://host/path",),
        schemes=("http", "https"),
        table="",
        of=_of,
        facts=Facts(
            guarantee="no: at least once, each change with an id that doesn't change",
            exactly_once="no: at least once",
            loading="NDJSON, or one by one",
            left_out='isn\'t in `row`; `"unchanged": ["body"]` names the columns',
        ),
    ),
)
