"""One way to all kinds of schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.schemas.avro import AvroSchema, avro_breaks, parse_avro
from penstock.schemas.breaks import Break
from penstock.schemas.json_schema import JsonSchema, json_breaks, parse_json_schema
from penstock.schemas.protobuf import ProtoFile, parse_protobuf, proto_breaks

__all__ = ["Kind", "Parsed", "parse"]


class Kind(StrEnum):
    """Confluent's names of the kinds of schemas."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True)
class Parsed:
    """A schema that was understood.

    Attributes:
        kind: what it is.
        schema: as its kind has it.
    """

    kind: Kind
    schema: AvroSchema | JsonSchema | ProtoFile

    @property
    def text(self) -> str:
        """As it is kept: as it was written, without what stands between words."""
        return self.schema.text

    def normalized(self) -> str:
        """One text for all ways of writing it."""
        return self.schema.normalized()

    def breaks(self, writer: Parsed) -> list[Break]:
        """What this schema, as a reader's, can't read of a writer's data."""
        match self.schema, writer.schema:
            case AvroSchema() as mine, AvroSchema() as other:
                return avro_breaks(mine, other)
            case JsonSchema() as mine, JsonSchema() as other:
                return json_breaks(mine, other)
            case ProtoFile() as mine, ProtoFile() as other:
                return proto_breaks(mine, other)
        return [Break("SCHEMA_TYPE_CHANGED", "", f"expected {writer.kind}; found {self.kind}")]


def parse(
    kind: Kind, text: str, references: Sequence[tuple[str, str]] | Mapping[str, str] = ()
) -> Parsed:
    """Parses a schema.

    Args:
        kind: what it is.
        text: of the schema.
        references: names, and texts of schemas that it names, each after those that it names itself.

    Raises:
        Malformed: it is none of its kind.
    """
    named = dict(references)
    match kind:
        case Kind.AVRO:
            return Parsed(kind, parse_avro(text, list(named.values())))
        case Kind.JSON:
            return Parsed(kind, parse_json_schema(text, named))
        case Kind.PROTOBUF:
            return Parsed(kind, parse_protobuf(text, named))
