"""Avro schemas: parsed, brought to one form, and compared by the rules of schema resolution.

The source is the specification of Apache Avro 1.12: "Names", "Schema Resolution", "Parsing Canonical Form".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.schemas.breaks import Break, Malformed

__all__ = ["AvroSchema", "AvroType", "avro_breaks", "parse_avro"]

PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
DEPTH_MAX: Final = 100
"""Of nested types: deeper is a mistake, and a parser's stack ends."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_FIRST: Final = ("name", "type", "fields", "symbols", "items", "values", "size")
"""The order of attributes in the canonical form; others follow in that of their names."""


@dataclass(eq=False)
class AvroType:
    """A type. Named ones are shared by all places that name them, so a graph may have circles.

    Attributes:
        kind: "record", "enum", "array", "map", "fixed", "union", or a primitive type's name.
        name: of a named type, with its namespace.
        aliases: with their namespaces.
        fields: of a record, in order.
        symbols: of an enum.
        default: of an enum; None: none.
        size: of a fixed.
        parts: the items' type, the values' type, or the branches.
        attributes: as they were written, without what is above.
    """

    kind: str
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    parts: list[AvroType] = field(default_factory=list)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.parts))}]"
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(eq=False)
class AvroField:
    """A record's field."""

    name: str
    type: AvroType
    aliases: frozenset[str]
    has_default: bool
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema.

    Attributes:
        root: its type.
        source: the JSON that it was parsed from.
    """

    root: AvroType
    source: Any

    @property
    def text(self) -> str:
        """The schema without spaces between its words; everything else is as it was written."""
        return json.dumps(self.source, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> str:
        """One text for all ways of writing it: names with namespaces, attributes in one order."""
        return json.dumps(_plain(self.root, set()), separators=(",", ":"), ensure_ascii=False)


def parse_avro(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parses a schema.

    Args:
        text: JSON; a primitive type's name may stand without quotes.
        references: schemas whose named types it may name, each after those that it names itself.

    Raises:
        Malformed: it is none.
    """
    parser = _Parser()
    for one in references:
        parser.type(_loaded(one), "", "", 0)
    root = _loaded(text)
    return AvroSchema(parser.type(root, "", "", 0), root)


def _loaded(text: str) -> Any:
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(
            f"expected an Avro schema as JSON; found {text[:100]!r} ({error})"
        ) from None


class _Parser:
    def __init__(self) -> None:
        self.names: dict[str, AvroType] = {}

    def type(self, node: Any, space: str, path: str, depth: int) -> AvroType:
        """The type that JSON says, within a namespace."""
        if depth > DEPTH_MAX:
            raise Malformed(f"expected at most {DEPTH_MAX} nested types; found more at {path[:60]}")
        match node:
            case str():
                return self._named(node, space, path)
            case list():
                return self._union(node, space, path, depth)
            case {"type": "record" | "error" | "enum" | "fixed" as kind}:
                return self._defined(
                    "record" if kind == "error" else kind, node, space, path, depth
                )
            case {"type": "array" | "map" as kind}:
                part = "items" if kind == "array" else "values"
                if part not in node:
                    raise Malformed(f"{path or '/'}: expected {part!r} of the {kind}; found none")
                inner = self.type(node[part], space, f"{path}/{part}", depth + 1)
                return AvroType(kind, parts=[inner], attributes=_others(node, part))
            case {"type": str() as name} if name in PRIMITIVES:
                return AvroType(name, attributes=_others(node))
            case {"type": inner}:
                return self.type(inner, space, path, depth + 1)
        raise Malformed(f"{path or '/'}: expected a type; found {node!r}")

    def _named(self, name: str, space: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self.names.get(_full(name, space)) or self.names.get(name)
        if found is None:
            raise Malformed(
                f"{path or '/'}: expected a type of Avro, or one that is defined before; found {name!r}"
            )
        return found

    def _union(self, node: list[Any], space: str, path: str, depth: int) -> AvroType:
        parts = [self.type(one, space, f"{path}/{at}", depth + 1) for at, one in enumerate(node)]
        seen: set[str] = set()
        for one in parts:
            if one.kind == "union":
                raise Malformed(f"{path or '/'}: expected no union within a union; found {one}")
            if (key := one.name or one.kind) in seen:
                raise Malformed(
                    f"{path or '/'}: expected each type once in a union; found {key} twice"
                )
            seen.add(key)
        return AvroType("union", parts=parts)

    def _defined(
        self, kind: str, node: Mapping[str, Any], space: str, path: str, depth: int
    ) -> AvroType:
        name = node.get("name")
        if not isinstance(name, str):
            raise Malformed(f"{path or '/'}: expected a name of the {kind}; found {name!r}")
        if "." not in name and isinstance(node.get("namespace"), str):
            space = node["namespace"]
        full = _full(name, space)
        space = full.rpartition(".")[0]
        wrong = [one for one in full.split(".") if not _NAME.fullmatch(one)]
        if wrong:
            raise Malformed(
                f"{path or '/'}: expected a name of letters, digits and _; found {full!r}"
            )
        if full in self.names:
            raise Malformed(f"{path or '/'}: expected one definition of {full}; found a second one")
        aliases = frozenset(_full(one, space) for one in _names(node, "aliases", path))
        made = AvroType(kind, full, aliases, attributes=_others(node))
        self.names[full] = made
        match kind:
            case "record":
                self._fill_fields(made, node, space, path, depth)
            case "enum":
                symbols = _names(node, "symbols", path)
                if "symbols" not in node or len(set(symbols)) != len(symbols):
                    raise Malformed(
                        f"{path}/symbols: expected different symbols; found {symbols!r}"
                    )
                made.symbols = tuple(symbols)
                made.default = node.get("default")
                if made.default is not None and made.default not in made.symbols:
                    raise Malformed(
                        f"{path}/default: expected one of the symbols; found {made.default!r}"
                    )
            case _:
                size = node.get("size")
                if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                    raise Malformed(f"{path}/size: expected a number of bytes; found {size!r}")
                made.size = size
        return made

    def _fill_fields(
        self, made: AvroType, node: Mapping[str, Any], space: str, path: str, depth: int
    ) -> None:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise Malformed(f"{path}/fields: expected a list of fields; found {fields!r}")
        seen: set[str] = set()
        for at, one in enumerate(fields):
            here = f"{path}/fields/{at}"
            if not isinstance(one, dict) or "type" not in one:
                raise Malformed(f"{here}: expected a field with a name and a type; found {one!r}")
            name = one.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise Malformed(f"{here}: expected a name of letters, digits and _; found {name!r}")
            if name in seen:
                raise Malformed(f"{here}: expected one field {name!r}; found a second one")
            seen.add(name)
            type_ = self.type(one["type"], space, f"{here}/type", depth + 1)
            if "default" in one and not _is_default(one["default"], type_, 0):
                raise Malformed(
                    f"{here}/default: expected a value of type {type_}; found {one['default']!r}"
                )
            aliases = frozenset(_names(one, "aliases", here))
            others = {key: value for key, value in one.items() if key not in ("name", "type")}
            made.fields.append(AvroField(name, type_, aliases, "default" in one, others))


def _names(node: Mapping[str, Any], key: str, path: str) -> list[str]:
    """A list of names; one that isn't there is empty."""
    found = node.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Malformed(f"{path}/{key}: expected a list of names; found {found!r}")
    return found


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _others(node: Mapping[str, Any], *known: str) -> dict[str, Any]:
    out = {"type", "name", "namespace", "fields", "symbols", "size", "aliases", *known}
    return {key: value for key, value in node.items() if key not in out}


def _is_default(value: Any, type_: AvroType, depth: int) -> bool:
    """Whether a JSON value can be a field's default: of a union, of any of its branches."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if type_.kind == "int" else 63
            whole = number and (isinstance(value, int) or value.is_integer())
            return whole and -(2**bits) <= value < 2**bits
        case "float" | "double":
            return number or value in ("NaN", "Infinity", "-Infinity")
        case "string" | "bytes":
            return isinstance(value, str)
        case "fixed":
            return isinstance(value, str) and len(value) == type_.size
        case "enum":
            return value in type_.symbols
        case "array":
            return isinstance(value, list) and all(
                _is_default(one, type_.parts[0], depth + 1) for one in value
            )
        case "map":
            return isinstance(value, dict) and all(
                _is_default(one, type_.parts[0], depth + 1) for one in value.values()
            )
        case "union":
            return any(_is_default(value, one, depth + 1) for one in type_.parts)
    return isinstance(value, dict) and all(
        _is_default(value[one.name], one.type, depth + 1) if one.name in value else one.has_default
        for one in type_.fields
    )


def _plain(type_: AvroType, known: set[str]) -> Any:
    """A type as JSON in the normal form; a named one that was written before by its name."""
    if type_.kind == "union":
        return [_plain(one, known) for one in type_.parts]
    if type_.name in known:
        return type_.name
    found: dict[str, Any] = {"type": type_.kind, **type_.attributes}
    if type_.name:
        known.add(type_.name)
        found["name"] = type_.name
        if type_.aliases:
            found["aliases"] = sorted(type_.aliases)
    match type_.kind:
        case "record":
            found["fields"] = [
                _ordered({**one.attributes, "name": one.name, "type": _plain(one.type, known)})
                for one in type_.fields
            ]
        case "enum":
            found["symbols"] = list(type_.symbols)
        case "fixed":
            found["size"] = type_.size
        case "array" | "map":
            part = "items" if type_.kind == "array" else "values"
            found[part] = _plain(type_.parts[0], known)
    return type_.kind if found == {"type": type_.kind} else _ordered(found)


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    def place(key: str) -> tuple[int, str]:
        return (_FIRST.index(key) if key in _FIRST else len(_FIRST), key)

    return {key: node[key] for key in sorted(node, key=place)}


# -- resolution ------------------------------------------------------------------------------------


def avro_breaks(reader: AvroSchema, writer: AvroSchema) -> list[Break]:
    """What of a writer's data a reader can't read; nothing where it can read all."""
    return list(_Resolution().breaks(reader.root, writer.root, ""))


class _Resolution:
    """Looks at each pair of types once, so schemas may have circles, and what is shared doesn't multiply.

    A pair is assumed to resolve while it is looked at and afterwards; what a trial of a branch assumed goes
    on if it succeeds. A pair that fails does so under any assumptions.
    """

    def __init__(self) -> None:
        self.assumed: set[tuple[int, int]] = set()
        self.refused: set[tuple[int, int]] = set()

    def breaks(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Break]:
        pair = id(reader), id(writer)
        if pair in self.assumed:  # a circle: it holds if the rest does
            return
        self.assumed.add(pair)
        if writer.kind == "union":
            for at, one in enumerate(writer.parts):
                if not self._reads(reader, one):
                    same = [part for part in reader.parts if part.kind == one.kind]
                    inner = list(self.breaks(same[0], one, path)) if len(same) == 1 else []
                    yield from inner or [
                        Break(
                            "MISSING_UNION_BRANCH" if reader.kind == "union" else "TYPE_MISMATCH",
                            path if reader.kind == "union" else f"{path}/{at}",
                            f"the writer may write {one}, which the reader's {reader} doesn't have",
                        )
                    ]
        elif reader.kind == "union":
            if not any(self._reads(one, writer) for one in reader.parts):
                same = [one for one in reader.parts if one.kind == writer.kind]
                inner = list(self.breaks(same[0], writer, path)) if len(same) == 1 else []
                yield from inner or [
                    Break(
                        "MISSING_UNION_BRANCH",
                        path,
                        f"the writer writes {writer}, which the reader's {reader} doesn't have",
                    )
                ]
        elif reader.kind == writer.kind:
            yield from self._same(reader, writer, path)
        elif reader.kind not in _PROMOTED.get(writer.kind, ()):
            yield Break(
                "TYPE_MISMATCH", path, f"the writer writes {writer}; the reader expects {reader}"
            )

    def _reads(self, reader: AvroType, writer: AvroType) -> bool:
        pair = id(reader), id(writer)
        if pair in self.refused:
            return False
        trial = _Resolution()
        trial.assumed, trial.refused = set(self.assumed), self.refused
        reads = next(trial.breaks(reader, writer, ""), None) is None
        if reads:
            self.assumed = trial.assumed
        else:
            self.refused.add(pair)
        return reads

    def _same(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Break]:
        """Types of the same kind."""
        if reader.name and not _is_named(reader, writer):
            yield Break(
                "NAME_MISMATCH",
                f"{path}/name",
                f"the writer's {writer} has another name than the reader's {reader}",
            )
            return
        match reader.kind:
            case "array":
                yield from self.breaks(reader.parts[0], writer.parts[0], f"{path}/items")
            case "map":
                yield from self.breaks(reader.parts[0], writer.parts[0], f"{path}/values")
            case "fixed" if reader.size != writer.size:
                yield Break(
                    "FIXED_SIZE_MISMATCH",
                    f"{path}/size",
                    f"the writer's {writer} has {writer.size} bytes; the reader's {reader.size}",
                )
            case "enum":
                lost = [one for one in writer.symbols if one not in reader.symbols]
                if lost and reader.default is None:
                    yield Break(
                        "MISSING_ENUM_SYMBOLS",
                        f"{path}/symbols",
                        f"the reader's {reader} lacks the symbols {', '.join(lost)}, and has no default",
                    )
            case "record":
                yield from self._records(reader, writer, path)
            case _:
                yield from _decimals(reader, writer, path)

    def _records(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Break]:
        known = {one.name: one for one in writer.fields}
        for at, one in enumerate(reader.fields):
            names = [one.name, *sorted(one.aliases)]
            found = next((known[name] for name in names if name in known), None)
            if found is not None:
                yield from self.breaks(one.type, found.type, f"{path}/fields/{at}/type")
            elif not one.has_default:
                yield Break(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    f"{path}/fields/{at}",
                    f"the reader's field {one.name!r} has no default, and the writer doesn't have it",
                )


def _is_named(reader: AvroType, writer: AvroType) -> bool:
    short = reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2]
    return short or writer.name in reader.aliases


def _decimals(reader: AvroType, writer: AvroType, path: str) -> Iterator[Break]:
    """Decimals of different scale aren't the same numbers."""
    if "decimal" in (reader.attributes.get("logicalType"), writer.attributes.get("logicalType")):
        both = [
            (one.attributes.get("logicalType"), one.attributes.get("precision"),
             one.attributes.get("scale", 0))
            for one in (reader, writer)
        ]  # fmt: skip
        if both[0][0] == both[1][0] and both[0][1:] != both[1][1:]:
            shown = ["DECIMAL({}, {})".format(*one[1:]) for one in both]
            yield Break(
                "TYPE_MISMATCH",
                path,
                f"the writer writes {shown[1]}; the reader expects {shown[0]}",
            )
