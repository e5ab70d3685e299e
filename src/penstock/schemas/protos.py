"""What a Protobuf file defines, as far as data depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["TYPES", "ProtoEnum", "ProtoField", "ProtoFile", "ProtoMessage"]

TYPES: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7,
    "bool": 8, "string": 9, "group": 10, "message": 11, "bytes": 12, "uint32": 13, "enum": 14,
    "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
"""FieldDescriptorProto.Type."""


@dataclass
class ProtoField:
    """A message's field.

    Attributes:
        name: of the field.
        number: on the wire.
        type: a scalar's name, or the full name of a message or enum; of a map, the values'.
        label: "optional", "required", "repeated", or "" where none is said.
        oneof: which one it belongs to; "": none.
        key: the type of a map's keys; "": it is no map.
        is_enum: whether `type` is an enum.
    """

    name: str
    number: int
    type: str
    label: str = ""
    oneof: str = ""
    key: str = ""
    is_enum: bool = False

    @property
    def kind(self) -> str:
        """A scalar's name, "enum" or "message"."""
        if self.is_enum:
            return "enum"
        return self.type if self.type in TYPES else "message"

    @property
    def is_repeated(self) -> bool:
        """Whether there may be several."""
        return self.label == "repeated" or bool(self.key)

    @property
    def shown(self) -> str:
        """The type as the language writes it."""
        return f"map<{self.key}, {self.type}>" if self.key else self.type


@dataclass
class ProtoEnum:
    """An enum: its values' numbers by their names."""

    name: str
    values: dict[str, int] = field(default_factory=dict)


@dataclass
class ProtoMessage:
    """A message, and what it defines within it."""

    name: str
    fields: list[ProtoField] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)


@dataclass
class ProtoFile:
    """A file.

    Attributes:
        source: as it was written, or its descriptor in base64.
        words: its words with one space between them; of a descriptor as `source`.
        syntax: "proto2" or "proto3".
    """

    source: str
    words: str
    package: str = ""
    syntax: str = "proto2"
    imports: list[str] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)
    is_descriptor: bool = False

    @property
    def text(self) -> str:
        """As it was written."""
        return self.source.strip()

    def normalized(self) -> str:
        """Without comments, with one space between words."""
        return self.words
