"""Changelogs whose keys and values are Protobuf: see `penstock.formats.avro.changes`."""

from __future__ import annotations

import functools
from typing import Literal

from penstock.core.schema import Schema
from penstock.formats.avro import HeadedChangelogDecoder, Lookup, envelope_schema, key_schema
from penstock.formats.protobuf.messages import File
from penstock.formats.protobuf.reading import ProtobufDecoder

__all__ = ["ProtobufChangelogDecoder"]


class ProtobufChangelogDecoder(HeadedChangelogDecoder):
    """Decodes the records of one table. It holds no state between batches, but schemas.

    Args:
        schema: of the rows.
        key: the columns that identify them, which are NOT NULL.
        format: `json` for rows, or `debezium`.
        lookup: asks a registry.
    """

    def __init__(
        self,
        schema: Schema,
        key: tuple[str, ...],
        format: Literal["json", "debezium"],  # noqa: A002
        lookup: Lookup,
    ) -> None:
        is_envelope = format == "debezium"
        values = ProtobufDecoder(envelope_schema(schema) if is_envelope else schema, lookup)
        keys = ProtobufDecoder(key_schema(schema, key), lookup)
        columns = functools.partial(_key_columns, lookup)
        super().__init__(schema, key, values, keys, columns, is_envelope=is_envelope)


def _key_columns(lookup: Lookup, id_: int) -> list[str]:
    """The fields of a schema's first message, which is the one that keys are of."""
    text = lookup(id_)
    messages = [] if text is None else File(text).messages
    return [one.name for one in messages[0].fields] if messages else []
