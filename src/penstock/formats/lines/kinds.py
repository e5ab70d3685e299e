"""`FormatKind`: how a format of a stream's records declares itself, and those of other distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from penstock.core.schema import Schema
from penstock.errors import UserError
from penstock.formats.avro.reading import Lookups
from penstock.formats.json import Decoded
from penstock.plugins import Option, Registry, read_options

__all__ = ["FORMATS", "Decoder", "Format", "FormatKind", "Named", "named_format"]


class Decoder(Protocol):
    """Contract: the same bytes give the same rows; a bad row touches no other."""

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """Decodes rows that lie in a buffer; a length of -1 is a row that is null, which is bad."""
        ...


class Format(Protocol):
    """A format of records' values, a value itself: plans know it by its text."""

    def decoder(
        self, schema: Schema, columns: frozenset[str] | None, lookups: Lookups | None
    ) -> Decoder:
        """Its decoder.

        Args:
            schema: of the values.
            columns: that are wanted; None is all. A decoder may give others, too.
            lookups: gives what asks a schema registry; None: it knows no schema.

        Raises:
            SchemaError: the format doesn't have these columns.
        """


@dataclass(frozen=True)
class FormatKind:
    """A format of records' values.

    Attributes:
        name: in `format="NAME"`, and in `WITH (format = 'NAME')`.
        help: what it is, in a sentence.
        decoder: makes a decoder of a schema and options. It raises `penstock.errors.SchemaError` if the
            format doesn't have these columns.
        options: that programs may give.
    """

    name: str
    help: str
    decoder: Callable[..., Decoder]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Named:
    """A format of another distribution: plans know it by its name.

    Attributes:
        name: the kind's.
        options: as texts.
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def decoder(self, schema: Schema, *_: object) -> Decoder:
        """Its decoder.

        Raises:
            UserError: there is no such format, or an option is wrong.
            SetupError: it can't be loaded.
        """
        kind = FORMATS.named(self.name)
        if kind is None:
            raise UserError(
                f"expected an installed plugin with the format {self.name!r}; found none"
            )
        values: dict[str, Any] = read_options(
            kind.options, dict(self.options), f"with the format {self.name!r}", dict(self.options)
        )
        return kind.decoder(schema, **values)


FORMATS: Final = Registry("penstock.formats", None, FormatKind)
"""Those of other distributions."""


def named_format(name: str, options: Mapping[str, object]) -> Named:
    """A format of another distribution, with options.

    Raises:
        UserError: there is no such format.
        SetupError: it can't be loaded.
    """
    if name not in FORMATS.names() or FORMATS.named(name) is None:
        raise UserError(f"expected the name of an installed plugin's format; found {name!r}")
    return Named(name, tuple(sorted((one, str(value)) for one, value in options.items())))
