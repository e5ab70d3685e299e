"""Asks a schema registry for schemas by their ids, over Confluent's REST API."""

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
from urllib.parse import quote
from urllib.request import Request, urlopen

from penstock.errors import BrokerError, SchemaError, SetupError
from penstock.schemas import Kind, parse

__all__ = ["PASSWORD", "registered_schemas"]

PASSWORD: Final = "PENSTOCK_REGISTRY_PASSWORD"  # noqa: S105 - a variable's name
ANSWER_S_MAX: Final = 10.0
"""How long one answer may take."""
PATIENCE_S: Final = 30.0
"""How long a registry that is away is waited for at a time; the batch is then tried again."""
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0
_NOT_FOUND: Final = 404
_NOT_FOUND_CODES: Final = range(40400, 40500)
"""By which a registry says that it has no such thing; who else answers 404 is none."""


@functools.lru_cache(maxsize=64)
def registered_schemas(url: str, *, patience_s: float = PATIENCE_S) -> Callable[[int], str | None]:
    """What gives the Avro schemas of a registry by their ids, with the types that they name written out.

    Args:
        url: of the registry, without a slash at its end.
        patience_s: how long it may be away.

    Returns:
        A function. It gives None for an id that the registry doesn't know, and raises `BrokerError`
        (retriable) when the registry doesn't answer in time, `SetupError` where it wants another password.
    """

    def schema(id_: int) -> str | None:
        told = _asked(url, f"/schemas/ids/{id_}", patience_s)
        if told is None:
            return None
        kind = told.get("schemaType", "AVRO")
        if kind != "AVRO":
            return json.dumps({"type": f"a schema of {kind}"})  # which no column fits
        references: dict[str, str] = {}
        _collect(url, told, references, patience_s)
        try:
            return parse(Kind.AVRO, told["schema"], references).normalized()
        except SchemaError:
            return str(told["schema"])

    return schema


def _collect(url: str, told: Mapping[str, Any], found: dict[str, str], patience_s: float) -> None:
    """The texts of what a schema names, each after what it names itself."""
    for one in told.get("references") or ():
        if one["name"] not in found:
            path = (
                f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}?deleted=true"
            )
            other = _asked(url, path, patience_s) or {}
            _collect(url, other, found, patience_s)
            found[one["name"]] = str(other.get("schema", ""))


def _asked(url: str, path: str, patience_s: float) -> dict[str, Any] | None:
    """An answer; None: there is no such thing."""
    asked = Request(url + path, headers={"Accept": "application/vnd.schemaregistry.v1+json"})  # noqa: S310 - http and https alone
    if password := os.environ.get(PASSWORD):
        told = base64.b64encode(f"penstock:{password}".encode()).decode()
        asked.add_unredirected_header("Authorization", f"Basic {told}")  # not for other servers
    begun, pause = time.monotonic(), PAUSE_S
    while True:
        try:
            with urlopen(asked, timeout=ANSWER_S_MAX) as answer:  # noqa: S310
                found = json.loads(answer.read())
            if isinstance(found, dict) and isinstance(found.get("schema"), str):
                return found
            cause: Exception = ValueError("an answer that is no schema")
        except HTTPError as error:
            with error:
                if error.code == _NOT_FOUND and _is_told(error):
                    return None
            if error.code in (401, 403):
                raise SetupError(
                    f"expected the schema registry at {url} to answer; found {error}. Put its password into "
                    f"{PASSWORD}"
                ) from None
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


def _is_told(error: HTTPError) -> bool:
    """Whether a registry says it, and not a proxy in front of one, or another server."""
    try:
        told = json.loads(error.read())
    except (OSError, HTTPException, ValueError):
        return False
    return isinstance(told, dict) and told.get("error_code") in _NOT_FOUND_CODES
