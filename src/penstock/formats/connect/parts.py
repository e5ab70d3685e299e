"""What the encoders of Kafka Connect's records have in common."""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol, TypeAlias

__all__ = ["FORMER", "UNFIT", "Avro", "Losses", "fields_of", "inner"]

Avro: TypeAlias = Any
"""A schema of Avro: a name, or what JSON has."""
FORMER: Final = ("Envelope", "before")
"""The record, and its field, that has a row as it was before: it was judged when it was new."""
UNFIT: Final = (
    *(ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError),
    struct.error,
)
"""Errors that say that a value doesn't fit its type."""


class Losses(Protocol):
    """Takes values that don't fit their types.

    Attributes:
        found: what was noted, in order; the newest may be deleted.
    """

    found: list[Any]

    def note(self, column: str, value: Any, error: BaseException) -> Any:
        """A column has a value that doesn't fit, and why."""


def inner(schema: Avro) -> Avro:
    """A type without the choice of null."""
    if isinstance(schema, list):
        [schema] = [one for one in schema if one != "null"]
    return schema


def fields_of(schema: Avro, members: Any) -> list[tuple[str, Avro]]:
    """The fields of a record, each with its name in JSON.

    Args:
        schema: the record.
        members: by record, the names of its fields in JSON, where they are others there.
    """
    names = members.get(schema["name"]) or [one["name"] for one in schema["fields"]]
    return list(zip(names, schema["fields"], strict=True))
