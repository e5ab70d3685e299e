"""Small files that say what can't be worked out again: JSON objects with a checksum of themselves.

    {"partitions": 3, ..., "crc": "0c1d2e3f"}

`crc` is the CRC-32C of the object without it, keys sorted, no white space. A file without one is
taken as it is, so that a person may write it.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import SetupError
from penstock.wire.checksum import crc32c

__all__ = ["dump", "load"]


def _checksum(fields: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(fields, sort_keys=True, separators=(',', ':')).encode()):08x}"


def dump(fields: dict[str, Any]) -> bytes:
    """The file's bytes.

    >>> load(dump({"next": 7}), "ids.json")
    {'next': 7}
    """
    return json.dumps({**fields, "crc": _checksum(fields)}).encode()


def load(content: bytes, path: str) -> dict[str, Any]:
    """The object in a file's bytes.

    Raises:
        SetupError: the file was changed or torn; the message names it.
    """
    try:
        fields = json.loads(content)
        checksum = fields.pop("crc", None) if isinstance(fields, dict) else None
    except ValueError:
        fields, checksum = None, None
    if not isinstance(fields, dict) or (checksum is not None and checksum != _checksum(fields)):
        raise SetupError(
            f"expected a JSON object with its checksum in {path}; found {content[:80]!r}; the file "
            "was changed or torn: restore it"
        )
    return fields
