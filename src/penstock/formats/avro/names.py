"""Names of an Avro schema's types (the specification of Apache Avro 1.12, "Names")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Names"]

_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)


@dataclass(frozen=True)
class Names:
    """The types that a schema has defined so far, as they are known at some place in it.

    Attributes:
        types: by their full names; None within themselves.
        space: the namespace around the place.
    """

    types: dict[str, Any] = field(default_factory=dict)
    space: str = ""

    def defined(self, node: Mapping[str, Any]) -> tuple[Names, str]:
        """The names as they are within a type that is defined there, and its full name."""
        space = node.get("namespace")
        full = _full(str(node.get("name", "")), space if isinstance(space, str) else self.space)
        self.types[full] = None
        return Names(self.types, full.rpartition(".")[0]), full

    def find(self, name: str) -> str | None:
        """The full name of a defined type that is meant by a name; None: there is none."""
        if name in _PRIMITIVES:
            return None
        return next((one for one in (_full(name, self.space), name) if one in self.types), None)


def _full(name: str, space: str) -> str:
    """A name with dots has its namespace; another one is in that around it."""
    return name if "." in name or not space else f"{space}.{name}"
