"""How the value of a dead letter is repaired: fields of a JSON object set and removed, text replaced.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from penstock.errors import UserError

__all__ = ["parse_assignment", "repaired_value"]


def parse_assignment(text: str) -> tuple[list[str], Any]:
    """A field's path and its new value in `a.b=VALUE`; VALUE is JSON, or text where it isn't.

    >>> parse_assignment("user.id=7"), parse_assignment("name=Ada")
    ((['user', 'id'], 7), (['name'], 'Ada'))
    """
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise UserError(f"expected --set FIELD=VALUE, as in user.id=7; found {text!r}")
    try:
        return path.split("."), orjson.loads(value)
    except orjson.JSONDecodeError:
        return path.split("."), value


def repaired_value(
    value: bytes | None,
    *,
    assignments: Sequence[tuple[list[str], Any]] = (),
    removed: Sequence[str] = (),
    replacements: Sequence[tuple[str, str]] = (),
) -> bytes | None:
    """The value with text replaced first, then fields removed, then fields set.

    Raises:
        UserError: fields are to be changed, and it is no JSON object.

    >>> repaired_value(b'{"n": "7"}', assignments=[parse_assignment("n=7")])
    b'{"n":7}'
    """
    for old, new in replacements:
        if value is not None:
            value = value.replace(old.encode(), new.encode())
    if not assignments and not removed:
        return value
    try:
        content = orjson.loads(value or b"")
    except orjson.JSONDecodeError as error:
        raise UserError(
            f"expected a JSON object to set fields of; found {(value or b'')[:60]!r} ({error}); "
            "replace text (--replace OLD NEW), edit it (--edit), or give it whole (--value)"
        ) from None
    for path in removed:
        parent = _parent(content, path.split("."), make=False)
        if parent is not None:
            parent.pop(path.split(".")[-1], None)
    for parts, new_value in assignments:
        parent = _parent(content, parts, make=True)
        assert parent is not None
        parent[parts[-1]] = new_value
    return orjson.dumps(content)


def _parent(content: Any, parts: list[str], *, make: bool) -> dict[str, Any] | None:
    for name in parts[:-1]:
        if not isinstance(content, dict):
            break
        if name not in content:
            if not make:
                return None
            content[name] = {}
        content = content[name]
    if not isinstance(content, dict):
        raise UserError(
            f"expected an object that holds the field {'.'.join(parts)!r}; found "
            f"{orjson.dumps(content)[:60]!r}; name a field of an object"
        )
    return content
