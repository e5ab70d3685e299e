"""Avro's binary encoding, to columns and from columns, with or without the head of a schema registry."""

from penstock.formats.avro.changes import (
    AvroChangelogDecoder,
    HeadedChangelogDecoder,
    envelope_schema,
    key_schema,
)
from penstock.formats.avro.reading import Avro, AvroDecoder, Lookup, Lookups
from penstock.formats.avro.schemas import avro_schema
from penstock.formats.avro.writing import AvroEncoder, headed

__all__ = [
    "Avro",
    "AvroChangelogDecoder",
    "AvroDecoder",
    "AvroEncoder",
    "HeadedChangelogDecoder",
    "Lookup",
    "Lookups",
    "avro_schema",
    "envelope_schema",
    "headed",
    "key_schema",
]
