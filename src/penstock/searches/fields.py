"""Which fields of documents a query can name, what they hold, and their values in a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.searches.analysis import Analyzer
from penstock.searches.bounds import is_ordered

__all__ = ["MEANING", "Field", "Fields", "Kind", "Values", "coordinates", "flattened"]

MEANING: Final = 1
"""Rises when queries match other documents than before: what was kept of matches is then made anew."""
_LATITUDE: Final = ("lat", "latitude")
_LONGITUDE: Final = ("lon", "lng", "longitude")


class Kind(Enum):
    """What a field holds."""

    TEXT = "text"
    ORDERED = "numbers or times"
    POINT = "points"
    NESTED = "structs"
    OTHER = "values without queries"


@dataclass(frozen=True)
class Field:
    """A field of documents.

    Attributes:
        name: of the column, and behind dots those of fields in structs.
        kind: what it holds.
        type: of a value; of a list, that of an element.
        analyzer: of its texts.
    """

    name: str
    kind: Kind
    type: pa.DataType
    analyzer: Analyzer


@dataclass(frozen=True)
class Values:
    """The values of a field in a batch, without NULLs.

    Attributes:
        name: of the field.
        values: of n values.
        rows: int32[n], the document of each, ascending.
    """

    name: str
    values: pa.Array
    rows: Vector


@dataclass(frozen=True)
class Fields:
    """The documents' columns, and how their texts are analyzed.

    Attributes:
        schema: of the documents.
        defaults: what a word without a field is looked for in.
        analyzer: of each text that `analyzers` doesn't name.
        analyzers: of some fields.
        operator: `OR` or `AND`: what stands between words that have nothing between them.
        prefix: of names: the list that these are the elements of, and a dot.
    """

    schema: pa.Schema
    defaults: tuple[str, ...] = ()
    analyzer: Analyzer = field(default_factory=Analyzer)
    analyzers: tuple[tuple[str, Analyzer], ...] = ()
    operator: str = "OR"
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.operator not in ("OR", "AND"):
            raise SchemaError(f"expected the operator 'OR' or 'AND'; found {self.operator!r}")
        for name in (*self.defaults, *(name for name, _ in self.analyzers)):
            found = self.find(name.removeprefix(self.prefix))
            if found is None:
                raise SchemaError(
                    f"expected a field of the documents, one of {', '.join(self.names())}; found {name!r}"
                )
            if found.kind is not Kind.TEXT and name in dict(self.analyzers):
                raise SchemaError(f"expected a field of texts; found {name!r} of {found.type}")

    def names(self) -> list[str]:
        """Of the fields at the top."""
        return list(self.schema.names)

    @cached_property
    def _found(self) -> dict[str, Field | None]:
        return {}

    def find(self, name: str) -> Field | None:
        """A field by its name, or none."""
        if name not in self._found:
            self._found[name] = self._resolved(name)
        return self._found[name]

    def _resolved(self, name: str) -> Field | None:
        names = self.schema.names
        top, _, rest = name.partition(".")
        if name in names:
            top, rest = name, ""
        if top not in names:
            return None
        type_ = _element(self.schema.field(top).type)
        for part in rest.split(".") if rest else ():
            at = type_.get_field_index(part) if pa.types.is_struct(type_) else -1
            if at < 0:
                return None
            type_ = _element(type_.field(at).type)
        full = self.prefix + name
        analyzer = dict(self.analyzers).get(full, self.analyzer)
        return Field(name, _kind(type_), type_, analyzer)

    def inside(self, found: Field) -> Fields:
        """The fields of a list's elements."""
        schema = pa.schema([found.type.field(i) for i in range(found.type.num_fields)])
        prefix = f"{self.prefix}{found.name}."
        inner = tuple((name, one) for name, one in self.analyzers if name.startswith(prefix))
        made = Fields(schema, (), self.analyzer, (), self.operator, prefix)
        texts = tuple(
            f"{prefix}{name}"
            for name in schema.names
            if (one := made.find(name)) is not None and one.kind is Kind.TEXT
        )
        return Fields(schema, texts, self.analyzer, inner, self.operator, prefix)

    def default_fields(self) -> list[Field]:
        """What a word without a field is looked for in."""
        found = [self.find(name.removeprefix(self.prefix)) for name in self.defaults]
        return [one for one in found if one is not None]


def _element(type_: Any) -> Any:
    """What a list has, or the values of a dictionary."""
    while True:
        if pa.types.is_dictionary(type_) or _is_list(type_):
            type_ = type_.value_type
        else:
            return type_


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def _kind(type_: pa.DataType) -> Kind:
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return Kind.TEXT
    if is_ordered(type_):
        return Kind.ORDERED
    if pa.types.is_struct(type_):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        if any(one in names for one in _LATITUDE) and any(one in names for one in _LONGITUDE):
            return Kind.POINT
        return Kind.NESTED
    return Kind.OTHER


def flattened(documents: pa.Table, name: str) -> Values:
    """The values of a field: those in lists one after another, none of them NULL."""
    top, _, rest = name.partition(".")
    if name in documents.schema.names:
        top, rest = name, ""
    values: Any = vectors.contiguous(documents[top])
    rows = np.arange(len(values), dtype=np.int32)
    for part in [*(rest.split(".") if rest else ()), None]:
        while True:
            if values.null_count:
                known = values.is_valid()
                rows = rows[known.to_numpy(zero_copy_only=False)]
                values = values.filter(known)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            elif _is_list(values.type):
                rows = rows[pc.list_parent_indices(values).to_numpy(zero_copy_only=False)]
                values = pc.list_flatten(values)
            else:
                break
        if part is not None:
            values = pc.struct_field(values, [part])
    return Values(name, values, rows)


def coordinates(points: pa.Array) -> tuple[Vector, Vector]:
    """float64[n] of latitudes and of longitudes; NaN for NULL."""
    names = [points.type.field(i).name for i in range(points.type.num_fields)]
    found = []
    for known in (_LATITUDE, _LONGITUDE):
        name = next(one for one in known if one in names)
        values: Any = pc.struct_field(points, [name]).cast(pa.float64(), safe=False)
        found.append(values.fill_null(float("nan")).to_numpy(zero_copy_only=False))
    return found[0], found[1]
