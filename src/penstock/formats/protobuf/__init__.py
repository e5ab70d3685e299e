"""Protobuf's binary encoding, to columns and from columns, with the head of a schema registry."""

from penstock.formats.protobuf.changes import ProtobufChangelogDecoder
from penstock.formats.protobuf.reading import ProtobufDecoder
from penstock.formats.protobuf.schemas import ProtobufSchema, numbered, protobuf_schema
from penstock.formats.protobuf.writing import FIRST_MESSAGE, ProtobufEncoder, tag

__all__ = [
    "FIRST_MESSAGE",
    "ProtobufChangelogDecoder",
    "ProtobufDecoder",
    "ProtobufEncoder",
    "ProtobufSchema",
    "numbered",
    "protobuf_schema",
    "tag",
]
