"""Asks a schema registry for schemas by their ids, and for ids of schemas, over Confluent's REST API."""

from __future__ import annotations

import base64
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from penstock.errors import BrokerError, SchemaError, SetupError
from penstock.schemas import Kind, parse

__all__ = [
    "PASSWORD",
    "registered_kinds",
    "registered_schemas",
    "schema_id",
    "schema_versions",
]

PASSWORD: Final = "PENSTOCK_REGISTRY_PASSWORD"  # noqa: S105 - a variable's name
ANSWER_S_MAX: Final = 10.0
"""How long one answer may take."""
PATIENCE_S: Final = 30.0
"""How long a registry that is away is waited for at a time; the batch is then tried again."""
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_REFUSED: Final = (409, 422)
"""Incompatible schemas; and those that are invalid, or that may not be registered."""
_NOT_FOUND: Final = 404
_NOT_FOUND_CODES: Final = range(40400, 40500)
"""By which a registry says that it has no such thing; who else answers 404 is none."""


@functools.lru_cache(maxsize=64)
def registered_schemas(
    url: str, kind: Kind = Kind.AVRO, *, patience_s: float = PATIENCE_S
) -> Callable[[int], str | None]:
    """What gives the schemas of a registry by their ids; Avro's with the types that they name written out.

    Args:
        url: of the registry, without a slash at its end.
        kind: of the schemas.
        patience_s: how long it may be away.

    Returns:
        A function. It gives None for an id that the registry doesn't know, and raises `BrokerError`
        (retriable) when the registry doesn't answer in time, `SetupError` where it wants another password,
        `SchemaError` where the schema is of another kind.
    """

    def schema(id_: int) -> str | None:
        answer = _asked(url, f"/schemas/ids/{id_}", patience_s, "schema")
        if answer is None:
            return None
        found = answer.get("schemaType", Kind.AVRO)
        if found != kind:
            raise SchemaError(f"expected a schema of {kind}; found one of {found}")
        if kind != Kind.AVRO:
            return str(answer["schema"])
        references: dict[str, str] = {}
        _collect(url, answer, references, patience_s)
        try:
            return parse(Kind.AVRO, answer["schema"], references).normalized()
        except SchemaError:
            return str(answer["schema"])

    return schema


@functools.lru_cache(maxsize=64)
def registered_kinds(url: str, *, patience_s: float = PATIENCE_S) -> Callable[[int], Kind | None]:
    """What gives the kinds of a registry's schemas by their ids; see `registered_schemas`."""

    def kind(id_: int) -> Kind | None:
        answer = _asked(url, f"/schemas/ids/{id_}", patience_s, "schema")
        return None if answer is None else Kind(answer.get("schemaType", Kind.AVRO))

    return kind


def schema_versions(url: str, subject: str, *, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """The schemas of a subject, the newest first; none where there is no such subject.

    Args:
        url: of the registry, without a slash at its end.
        subject: such as `orders-value`.
        patience_s: how long the registry may be away.

    Raises:
        SetupError: the registry wants another password.
        BrokerError: the registry doesn't answer in time (retriable).
    """
    path = f"/subjects/{quote(subject, safe='')}/versions"
    numbers = _asked(url, path, patience_s, "") or {"": ()}
    found = (_asked(url, f"{path}/{one}", patience_s, "schema") for one in reversed(numbers[""]))
    return tuple(str(one["schema"]) for one in found if one is not None)


def _collect(url: str, answer: Mapping[str, Any], found: dict[str, str], patience_s: float) -> None:
    """The texts of what a schema names, each after what it names itself."""
    for one in answer.get("references") or ():
        if one["name"] not in found:
            path = (
                f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}?deleted=true"
            )
            other = _asked(url, path, patience_s, "schema") or {}
            _collect(url, other, found, patience_s)
            found[one["name"]] = str(other.get("schema", ""))


@functools.lru_cache(maxsize=4096)
def schema_id(
    url: str,
    subject: str,
    schema: str,
    kind: Kind = Kind.AVRO,
    *,
    patience_s: float = PATIENCE_S,
) -> int:
    """The id of a schema of a subject; a registry that doesn't have it registers it.

    Args:
        url: of the registry, without a slash at its end.
        subject: such as `orders-value`.
        schema: its text.
        kind: what it is.
        patience_s: how long the registry may be away.

    Raises:
        SetupError: the schema isn't compatible with the subject's versions, or may not be registered; the
            registry wants another password.
        BrokerError: the registry doesn't answer in time (retriable).
    """
    path, body = f"/subjects/{quote(subject, safe='')}", {"schema": schema}
    if kind != Kind.AVRO:
        body["schemaType"] = kind
    found = _asked(url, path, patience_s, "id", body)
    if found is None:
        found = _asked(url, f"{path}/versions", patience_s, "id", body)
    if found is None:
        raise SetupError(
            f"expected the registry at {url} to register {subject}; found no such path"
        )
    return int(found["id"])


def _asked(
    url: str, path: str, patience_s: float, field: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """An answer, which has a field, or a list, which becomes the field ""; None: there is no such thing."""
    asked = _request(url + path, body)
    begun, pause = time.monotonic(), PAUSE_S
    while True:
        try:
            with urlopen(asked, timeout=ANSWER_S_MAX) as answer:  # noqa: S310
                found = json.loads(answer.read())
            if not field and isinstance(found, list):
                found = {"": found}
            if isinstance(found, dict) and field in found:
                return found
            cause: Exception = ValueError(f"an answer without {field!r}")
        except HTTPError as error:
            with error:
                code, message = _reported(error)
            if error.code == _NOT_FOUND and code in _NOT_FOUND_CODES:
                return None
            if error.code in (401, 403):
                raise SetupError(
                    f"expected the schema registry at {url} to answer; found {error}. Put its password into "
                    f"{PASSWORD}"
                ) from None
            if error.code in _REFUSED and code:
                raise SetupError(_refused(path, message)) from None
            cause = error
        except (OSError, HTTPException, ValueError) as error:
            cause = error
        if time.monotonic() - begun + pause > patience_s:
            raise BrokerError(
                f"expected the schema registry at {url} to answer within {patience_s:.0f} s; found: {cause}. "
                "Check the address, and that it runs (penstock registry)",
                retriable=True,
            ) from cause
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_S_MAX)


def _request(url: str, body: Mapping[str, Any] | None) -> Request:
    """A request, with the password if there is one."""
    headers = {"Accept": _CONTENT_TYPE}
    data = None
    if body is not None:
        headers["Content-Type"] = _CONTENT_TYPE
        data = json.dumps(body).encode()
    asked = Request(url, data, headers)  # noqa: S310 - http and https alone
    if password := os.environ.get(PASSWORD):
        credentials = base64.b64encode(f"penstock:{password}".encode()).decode()
        asked.add_unredirected_header(
            "Authorization", f"Basic {credentials}"
        )  # not for other servers
    return asked


def _refused(path: str, message: str) -> str:
    subject = unquote(path.split("/")[2])
    return (
        f"expected a schema for {subject} that its registry takes; found one that it refuses: {message}. "
        "Nothing was written by it. Change the columns, write to another topic, or set the subject's "
        "compatibility level"
    )


def _reported(error: HTTPError) -> tuple[int, str]:
    """A registry's code and message; 0 of a proxy in front of one, or of another server."""
    try:
        answer = json.loads(error.read())
        return int(answer["error_code"]), str(answer.get("message", ""))
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return 0, ""
