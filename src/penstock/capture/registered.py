"""Records of captured tables as Avro, JSON Schema or Protobuf, by schemas that a registry has.

    records as JSON, and what their table looks like  ->  a zero byte, the schema's id, the encoded record

A schema is registered when the first record by it is written, under the subjects `TOPIC-key` and
`TOPIC-value`, as Confluent's serializers do. One that a subject has is only looked up, so a process that
continues after a kill gets the same ids. Records are written many at a time, as columns; few of them, and
those with values that don't fit, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import connect as connect_module
from penstock.capture.table_schemas import Shape
from penstock.capture.unread import Losses, Lost
from penstock.client.schemas import schema_id, schema_versions
from penstock.formats.connect import Avro, ChangelogEncoder
from penstock.schemas import Kind

__all__ = ["HEAD_BYTES", "Registered"]

HEAD_BYTES: Final = 5
"""Of a record, before what its columns are."""
MANY: Final = 64
"""From so many records on columns cost less: they take some 50 µs for each field of a schema, whose values by
themselves take 1 µs each."""


@dataclass(frozen=True)
class _Pair:
    """How the records of a topic are written while its table looks like this; None: keys as they are."""

    shape: Shape
    key: ChangelogEncoder | None
    value: ChangelogEncoder


class Registered:
    """Writes the records of tables by their schemas; those of other topics stay as they are.

    Args:
        url: of the registry.
        kind: of the schemas.
        connector: `postgresql`, `mysql` or `mariadb`.
    """

    def __init__(self, url: str, kind: Kind, connector: str) -> None:
        self._url, self._kind, self._connector = url.rstrip("/"), kind, connector
        self._shapes: dict[str, Shape] = {}
        self._pairs: dict[str, _Pair] = {}
        self._lost: list[Lost] = []

    def use(self, topic: str, shape: Shape) -> None:
        """The records of a topic that follow have these columns."""
        self._shapes[topic] = shape

    def shape(self, topic: str) -> Shape | None:
        """The columns that a topic's records have; None where they stay as they are."""
        return self._shapes.get(topic)

    def are_many(self, count: int) -> bool:
        """Whether so many records are written as columns."""
        return count >= MANY or self._kind is Kind.JSON

    def record(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Key and value of a record, from JSON.

        Raises:
            SetupError: the registry refuses the schema.
            BrokerError: the registry doesn't answer (retriable).
        """
        shape = self._shapes.get(topic)
        if shape is None:
            return key, value
        return self._made(self._pair(topic, shape), key, value)

    def take(self) -> tuple[Lost, ...]:
        """The values of the record that was made last that don't fit their types."""
        found = tuple(self._lost)
        self._lost.clear()
        return found

    def columns(
        self, topic: str, keys: pa.Array[Any], values: pa.Array[Any], shape: Shape
    ) -> tuple[pa.Array[Any], pa.Array[Any], dict[int, tuple[Lost, ...]]]:
        """Keys and values of records, from JSON, and by place the values that don't fit. See `record`."""
        if not len(values):
            return keys, values, {}
        pair, count = self._pair(topic, shape), len(values)
        left = np.ones(count, np.bool_)
        new_keys, new_values = keys, values
        if self.are_many(count):
            new_values, left = pair.value.many(values)
            if pair.key is not None:
                new_keys, others = pair.key.many(keys)
                left |= others
        places = np.flatnonzero(left).tolist()
        if not places:
            return new_keys, new_values, {}
        lost = dict[int, tuple[Lost, ...]]()
        made = list[tuple[bytes | None, bytes | None]]()
        chosen: Any = pa.array(places)
        some = zip(keys.take(chosen).to_pylist(), values.take(chosen).to_pylist(), strict=True)
        for i, (key, value) in zip(places, some, strict=True):
            made.append(self._made(pair, key, value))
            if self._lost:
                lost[i] = self.take()
        by_one = [pa.array(list(one), pa.binary()) for one in zip(*made, strict=True)]
        if len(places) == count:
            return by_one[0], by_one[1], lost
        mask = pa.array(left)
        return (
            _replaced(new_keys, mask, by_one[0]),
            _replaced(new_values, mask, by_one[1]),
            lost,
        )

    def _made(
        self, pair: _Pair, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """A record; of a row that is gone, only the values of the key are lost."""
        made_key = key if key is None or pair.key is None else pair.key.one(key)
        of_key, made_value = self.take(), None if value is None else pair.value.one(value)
        if self._lost and value is not None and orjson.loads(value).get("after") is None:
            self._lost.clear()
        # Such a value is in both, and is one.
        known = {one.column for one in of_key}
        self._lost[:] = [*of_key, *(one for one in self._lost if one.column not in known)]
        return made_key, made_value

    def _pair(self, topic: str, shape: Shape) -> _Pair:
        known = self._pairs.get(topic)
        if known is not None and known.shape is shape:
            return known
        by_name = {one.name: one for one in shape.members}
        key = connect_module.key(topic, [by_name[name] for name in shape.key if name in by_name])
        value = connect_module.envelope(topic, shape.members, self._connector)
        members = [one.name for one in shape.members]
        found = _Pair(
            shape,
            self._encoder(topic, "key", key, [*shape.key]) if shape.key else None,
            self._encoder(topic, "value", value, members),
        )
        self._pairs[topic] = found
        return found

    def _encoder(self, topic: str, part: str, schema: Avro, names: list[str]) -> ChangelogEncoder:
        """What writes keys or values; its schema is registered."""
        subject = f"{topic}-{part}"
        losses = Losses(topic, names if part == "key" else ())
        losses.found = self._lost
        found = ChangelogEncoder(
            *(self._kind, schema, {"Key": names, "Value": names}, losses, topic),
            lambda: schema_versions(self._url, subject),
            is_mysql=self._connector != "postgresql",
        )
        found.use(schema_id(self._url, subject, found.text, self._kind))
        return found


def _replaced(column: Any, mask: Any, others: Any) -> Any:
    """A column with others where the mask is true."""
    return pc.replace_with_mask(column, mask, others)
