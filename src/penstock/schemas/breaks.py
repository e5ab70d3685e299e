"""What makes schemas incompatible, and what isn't a schema at all."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import SchemaError

__all__ = ["Break", "Malformed"]


class Malformed(SchemaError):  # noqa: N818 - reads as a schema's attribute
    """A text that is no schema of its kind."""


@dataclass(frozen=True)
class Break:
    """Data of a writer that a reader can't read.

    Attributes:
        rule: which rule is broken, such as `TYPE_MISMATCH`.
        path: where in the reader's schema, as a JSON pointer; empty is the whole.
        text: what was found there.
    """

    rule: str
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.path or '/'}: {self.text}"
