"""How values are written as JSON, as their annotations say: the specs of operators follow from their fields.

    {"kind": kind, field: its value, ...}

Specs are kept: their digest is what an operator's state is found by, and views are read by them without the
program. So a codec never changes, and a field that is added later has a default and is `RARE`: specs that
lack it say what they said before.

    str, int, float, bool, Literal, None      as they are
    pa.Schema, Schema, pa.DataType            their SQL
    tuple                                     a list
    a dataclass                               an object of its fields; a list of them if it is `listed`
    a class with `to_spec` and `from_spec`    what these say

What a field does otherwise stands in its annotation: `Annotated[bool, UNSAID]`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from penstock.core.schema import Schema, type_text
from penstock.errors import CorruptError

__all__ = [
    "FLAT",
    "RARE",
    "UNSAID",
    "Codec",
    "Name",
    "Said",
    "flags",
    "read_fields",
    "written_fields",
]


@dataclass(frozen=True)
class Codec:
    """How values of an annotation are written, and read again."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Said:
    """Whether a field is in the spec.

    Attributes:
        never: it isn't, as it says nothing of what is computed.
        rarely: it is where it has another value than its default.
        flat: its own fields are, instead of it.
    """

    never: bool = False
    rarely: bool = False
    flat: bool = False


UNSAID: Final = Said(never=True)
RARE: Final = Said(rarely=True)
FLAT: Final = Said(flat=True)


@dataclass(frozen=True)
class Name:
    """What a field is called in the spec."""

    text: str


def flags(*names: str) -> Codec:
    """Of a tuple of as many booleans: the names of those that are true."""
    return Codec(
        lambda value: [name for name, is_so in zip(names, value, strict=True) if is_so],
        lambda found: tuple(name in found for name in names),
    )


def written_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as JSON."""
    kind: Any = type(value)
    return _record(kind).write(value)


def read_fields(kind: type, found: Mapping[str, Any]) -> Any:
    """A dataclass of what `written_fields` gave.

    Raises:
        CorruptError: a field that it must have is missing.
    """
    return _record(kind).read(found)


_AS_IS: Final = Codec(lambda value: value, lambda found: found)
_CODECS: Final[Mapping[Any, Codec]] = {
    **dict.fromkeys((str, int, float, bool), _AS_IS),
    Schema: Codec(lambda value: value.text, Schema.parse),
    pa.Schema: Codec(
        lambda value: Schema.from_arrow(value).text, lambda found: Schema.parse(found).arrow
    ),
    pa.DataType: Codec(type_text, lambda found: Schema.parse(f"x {found}")["x"].type),
}


def _codec(annotation: Any) -> Codec:
    """The codec of an annotation."""
    if annotation in _CODECS:
        return _CODECS[annotation]
    match get_origin(annotation):
        case origin if origin is Literal:
            return _AS_IS
        case origin if origin is tuple:
            return _tuple(get_args(annotation))
        case origin if origin in (Union, types.UnionType):
            return _either(get_args(annotation))
    if hasattr(annotation, "to_spec"):
        return Codec(annotation.to_spec, annotation.from_spec)
    if is_dataclass(annotation) and isinstance(annotation, type):
        record = _record(annotation)
        return record.listed() if getattr(annotation, "listed", False) else record.codec()
    raise TypeError(
        f"expected an annotation that {__name__} knows; found {annotation!r}. Add a codec, or leave the "
        "field out of specs: Annotated[…, UNSAID]"
    )


def _tuple(of: tuple[Any, ...]) -> Codec:
    if of[1:] == (...,):
        one = _codec(of[0])
        return Codec(
            lambda value: [one.write(each) for each in value],
            lambda found: tuple(one.read(each) for each in found),
        )
    each = [_codec(annotation) for annotation in of]
    return Codec(
        lambda value: [one.write(part) for one, part in zip(each, value, strict=True)],
        lambda found: tuple(one.read(part) for one, part in zip(each, found, strict=True)),
    )


def _either(options: tuple[Any, ...]) -> Codec:
    """Of one annotation or None; or of plain values and one kind of tuple, which is told by being a list."""
    some = [one for one in options if one is not types.NoneType]
    if len(some) == 1:
        [only] = map(_codec, some)
        return Codec(
            lambda value: None if value is None else only.write(value),
            lambda found: None if found is None else only.read(found),
        )
    [whole] = (_codec(one) for one in some if get_origin(one) is tuple)
    assert all(_codec(one) is _AS_IS for one in some if get_origin(one) is not tuple)
    return Codec(
        lambda value: whole.write(value) if isinstance(value, tuple) else value,
        lambda found: whole.read(found) if isinstance(found, list) else found,
    )


@dataclass(frozen=True)
class _Entry:
    """A field that is said."""

    field: Field[Any]
    name: str
    codec: Codec
    said: Said
    flat: _Record | None

    @property
    def default(self) -> Any:
        """Its value where the spec says nothing; `MISSING` where it must."""
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


@dataclass(frozen=True)
class _Record:
    """A dataclass, as its fields: those that are rarely said first."""

    kind: type
    entries: tuple[_Entry, ...]

    def write(self, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in self.entries:
            own = getattr(value, one.field.name)
            if one.flat is not None:
                found |= one.flat.write(own)
            elif not one.said.rarely or own != one.default:
                found[one.name] = one.codec.write(own)
        return found

    def read(self, found: Mapping[str, Any]) -> Any:
        given: dict[str, Any] = {}
        for one in self.entries:
            if one.flat is not None:
                given[one.field.name] = one.flat.read(found)
            elif one.name in found:
                given[one.field.name] = one.codec.read(found[one.name])
            elif one.default is MISSING:
                raise CorruptError(
                    f"expected {one.name!r} of {self.kind.__name__}; found {', '.join(found)}. Use the "
                    "release of Penstock that wrote it, or rebuild the state from the log with --rebuild"
                )
        return self.kind(**given)

    def codec(self) -> Codec:
        """Of the dataclass in another's field."""
        return Codec(self.write, self.read)

    def listed(self) -> Codec:
        """The same as a list."""
        names = [one.name for one in self.entries]
        return Codec(
            lambda value: list(self.write(value).values()),
            lambda found: self.read(dict(zip(names, found, strict=True))),
        )


@cache
def _record(kind: Any) -> _Record:
    hints = get_type_hints(kind, include_extras=True)
    entries = [_entry(one, hints[one.name]) for one in fields(kind) if one.init]
    said = [one for one in entries if not one.said.never]
    return _Record(kind, tuple(sorted(said, key=lambda one: not one.said.rarely)))


def _entry(one: Field[Any], annotation: Any) -> _Entry:
    name, said, codec = one.name, Said(), None
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        for note in notes:
            match note:
                case Name(text):
                    name = text
                case Said():
                    said = note
                case Codec():
                    codec = note
    if said.never:
        return _Entry(one, name, _AS_IS, said, None)
    if said.flat:
        return _Entry(one, name, _AS_IS, said, _record(annotation))
    return _Entry(one, name, codec or _codec(annotation), said, None)
