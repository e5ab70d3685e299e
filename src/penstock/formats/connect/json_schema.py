"""Kafka Connect's schemas as JSON Schemas, as Confluent's JSON Schema converter writes them. Pure.

Titles are the names of types (`io.debezium.time.Date`), as with that converter. Schemas are closed
(`additionalProperties: false`), so that a column that may be NULL can be added; decimals are base64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.formats.connect.parts import Avro, fields_of, inner

__all__ = ["json_schema_of"]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_NO_NUMBER: Final = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}
_PLAIN: Final[dict[str, tuple[str, str]]] = {
    "int": ("integer", "int32"),
    "long": ("integer", "int64"),
    "float": ("number", "float32"),
    "double": ("number", "float64"),
    "boolean": ("boolean", ""),
    "string": ("string", ""),
    "bytes": ("string", "bytes"),
}


def json_schema_of(schema: Avro, members: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The JSON Schema of what Avro's schema is of.

    Args:
        schema: of Kafka Connect's; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
    """
    found = _Converter(members).convert(schema)
    assert isinstance(found, dict)
    return {"$schema": _DIALECT, **found}


class _Converter:
    def __init__(self, members: Mapping[str, Sequence[str]]) -> None:
        self._members = members
        self._records: dict[str, Any] = {}

    def convert(self, schema: Avro) -> Any:
        if isinstance(schema, list):
            return {"oneOf": [{"type": "null"}, *_choices(self.convert(inner(schema)))]}
        more: dict[str, Any] = schema if isinstance(schema, dict) else {}
        kind: Any = more.get("type", schema)
        title = {"title": more["connect.name"]} if "connect.name" in more else {}
        if kind == "record":
            return self._record(schema, title)
        if kind == "array":
            items = [{"type": "null"}, *_choices(self.convert(inner(more["items"])))]
            nested = {"type": "array"}  # of several dimensions
            return {"type": "array", "items": {"oneOf": [*items, nested]}}
        if kind not in _PLAIN:
            return self._records[kind]
        name, connect = _PLAIN[kind]
        annotation = {"connect.type": more.get("connect.type", connect)} if connect else {}
        plain = {"type": name, **title, **annotation}
        return {"oneOf": [plain, _NO_NUMBER]} if name == "number" else plain

    def _record(self, schema: Avro, title: Mapping[str, str]) -> Any:
        pairs = fields_of(schema, self._members)
        found = {
            "type": "object",
            **title,
            "properties": {name: self._property(one) for name, one in pairs},
            "required": [
                name
                for name, one in pairs
                if not isinstance(one["type"], list) and "default" not in one
            ],
            "additionalProperties": False,
        }
        self._records.update(
            dict.fromkeys(
                (schema["name"], f"{schema.get('namespace', '')}.{schema['name']}"), found
            )
        )
        return found

    def _property(self, field: Mapping[str, Any]) -> Any:
        """A member; one with a default may be missing, so that adding it is compatible."""
        found = self.convert(field["type"])
        if "default" in field and not isinstance(field["type"], list):
            return {**found, "default": field["default"]}
        return found


def _choices(found: Any) -> list[Any]:
    """What a schema is one of."""
    return list(found["oneOf"]) if "oneOf" in found else [found]
