"""Avro values as JSON for the page: one at a time, whatever their schema has.

The engine reads columns (`penstock.formats.avro`), and only what a stream names. A person looks at whole
records, maps and unions included. Schemas come from the program that runs, and from a schema registry's
topic `_schemas` in the log. The source is the specification of Apache Avro 1.12.
"""

from __future__ import annotations

import decimal
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from penstock.client import Client, Reader
from penstock.core.time import instant_text
from penstock.schemas.subjects import TOPIC as REGISTRY_TOPIC

__all__ = ["REGISTRY_TOPIC", "AvroTexts", "decoded"]

HEAD: Final = struct.Struct(">bI")
"""Before a value: a zero byte and the schema's id."""
ITEMS_MAX: Final = 10_000
"""Items of one value: a page shows 20,000 characters of it."""
DEPTH_MAX: Final = 64
"""Of nested types: deeper is damage, or a list that Avro spells as nested records."""
SCHEMAS_MAX: Final = 20_000
"""Records of the registry's topic that are read."""
_FIXED: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class AvroTexts:
    """Decodes the values of topics.

    Args:
        of_program: gives the writers' schemas of the program's topics, by topic and id; the id None is of
            values without a head.
    """

    def __init__(
        self, of_program: Callable[[], Mapping[str, Mapping[int | None, str]]] = dict
    ) -> None:
        self._of_program = of_program
        self._registry: tuple[int, dict[int, Any]] = (0, {})

    def of(self, client: Client, reader: Reader, topic: str) -> Callable[[bytes], str | None]:
        """What gives a value of a topic as JSON; None where it isn't Avro of a known schema."""
        known: dict[int | None, Any] = dict(self._registered(client, reader).items())
        known |= {one: json.loads(text) for one, text in self._of_program().get(topic, {}).items()}

        def text_of(value: bytes) -> str | None:
            id_: int | None = None
            if None not in known and len(value) > HEAD.size:
                zero, id_ = HEAD.unpack_from(value)
                value = value[HEAD.size :]
                if zero:
                    return None
            if id_ not in known:
                return None
            try:
                return orjson.dumps(decoded(value, known[id_])).decode()
            except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, struct.error):
                return None

        return text_of if known else lambda _: None

    def _registered(self, client: Client, reader: Reader) -> dict[int, Any]:
        """The registry's Avro schemas by id, read again when its topic has grown."""
        if REGISTRY_TOPIC not in client.topics():
            return {}
        first = client.offsets(REGISTRY_TOPIC, "earliest")[0]
        end = client.offsets(REGISTRY_TOPIC, "latest")[0]
        if self._registry[0] != end:
            found: dict[int, Any] = {}
            begin = max(first, end - SCHEMAS_MAX)
            for records in reader.read(REGISTRY_TOPIC, 0, begin, end, missing="skip"):
                for value in records.values().to_pylist():
                    try:
                        registered = orjson.loads(value or b"null")
                        if registered.get("schemaType", "AVRO") == "AVRO":
                            found[int(registered["id"])] = json.loads(registered["schema"])
                    except (ValueError, TypeError, KeyError, AttributeError):
                        continue  # a config, a deletion, another kind of schema
            self._registry = (end, found)
        return self._registry[1]


def decoded(data: bytes, schema: Any) -> Any:
    """A value by its writer's schema, as JSON's types.

    Raises:
        ValueError: the bytes aren't of the schema.

    >>> decoded(bytes([4]) + b"hi", "string")
    'hi'
    """
    reading = _Reading(data)
    found = reading.value(schema, {}, 0)
    if reading.at != len(data):
        raise ValueError(f"expected {reading.at} bytes; found {len(data)}")
    return found


class _Reading:
    """A cursor in one value."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.items = data, 0, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ValueError("expected more bytes; found the end")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        """Zigzag, seven bits a byte."""
        bits = shift = 0
        while True:
            [byte] = self.take(1)
            bits |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (bits >> 1) ^ -(bits & 1)
            if shift > 63:
                raise ValueError("expected a number of 64 bits; found a longer one")

    def value(self, schema: Any, names: dict[str, Any], depth: int) -> Any:
        self.items += 1
        if depth > DEPTH_MAX or self.items > ITEMS_MAX:
            raise ValueError("expected a value that a page can show; found a larger one")
        if isinstance(schema, list):
            return self.value(schema[self._index(len(schema))], names, depth + 1)
        if isinstance(schema, str) and schema in names:
            return self.value(names[schema], names, depth + 1)
        definition: dict[str, Any] = {"type": schema} if isinstance(schema, str) else schema
        kind = definition["type"]
        if not isinstance(kind, str) or kind in names:
            return self.value(kind, names, depth + 1)
        if "name" in definition:
            names[definition["name"]] = definition
            names[f"{definition.get('namespace', '')}.{definition['name']}"] = definition
        if kind in ("record", "error"):
            return {
                f["name"]: self.value(f["type"], names, depth + 1) for f in definition["fields"]
            }
        if kind == "array":
            return [self.value(definition["items"], names, depth + 1) for _ in self._blocks()]
        if kind == "map":
            pairs = (
                (self._text(), self.value(definition["values"], names, depth + 1))
                for _ in self._blocks()
            )
            return dict(pairs)
        return _shown(self._single(kind, definition), definition)

    def _single(self, kind: str, definition: Mapping[str, Any]) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.take(1) != b"\0"
            case "int" | "long":
                return self.number()
            case "float" | "double":
                return _FIXED[kind].unpack(self.take(_FIXED[kind].size))[0]
            case "bytes":
                return self.take(self.number())
            case "string":
                return self._text()
            case "fixed":
                return self.take(int(definition["size"]))
            case "enum":
                return definition["symbols"][self._index(len(definition["symbols"]))]
        raise ValueError(f"expected a type of Avro; found {kind!r}")

    def _text(self) -> str:
        return self.take(self.number()).decode()

    def _index(self, count: int) -> int:
        found = self.number()
        if not 0 <= found < count:
            raise ValueError(f"expected an index below {count}; found {found}")
        return found

    def _blocks(self) -> Any:
        """Once for each item of an array or a map."""
        while count := self.number():
            if count < 0:
                self.number()  # the block's size
            for _ in range(min(abs(count), ITEMS_MAX + 1)):
                yield None


def _shown(value: Any, definition: Mapping[str, Any]) -> Any:
    """A value with its logical type, as JSON says it."""
    match definition.get("logicalType"):
        case "timestamp-millis":
            return instant_text(value * 1_000)
        case "timestamp-micros":
            return instant_text(value)
        case "date":
            return instant_text(value * 86_400_000_000)[:10]
        case "decimal" if isinstance(value, bytes):
            number = decimal.Decimal(int.from_bytes(value, "big", signed=True))
            return format(number.scaleb(-int(definition.get("scale", 0))), "f")
    return value.hex(" ") if isinstance(value, bytes) else value
