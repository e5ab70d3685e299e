"""JSON Schemas: parsed, and compared: does a reader's schema take every document of a writer's?

That is decided keyword by keyword, on the safe side: where a schema of the reader could refuse a document
that the writer's takes, it is a break; of keywords that aren't compared here, any change is one. A reader's
`oneOf` alone is taken for `anyOf`: whether its choices exclude each other isn't looked at. The source is
JSON Schema, drafts 4 to 2020-12, "Validation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from penstock.schemas.breaks import Break, Malformed

__all__ = ["JsonSchema", "json_breaks", "parse_json_schema"]

DEPTH_MAX: Final = 100
"""Of nested schemas: deeper is a mistake, and a parser's stack ends."""
TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_SILENT: Final = frozenset(
    ("$schema", "$id", "id", "$comment", "$defs", "definitions", "title", "description", "default",
     "examples", "readOnly", "writeOnly", "deprecated", "format", "contentMediaType",
     "contentEncoding", "javaType", "javaInterfaces", "$anchor", "connect.type", "connect.index")
)  # fmt: skip
"""Keywords that refuse no document."""
_SMALLEST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_GREATEST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_PARTS: Final = ("oneOf", "anyOf", "allOf")
_HANDLED: Final = frozenset(
    ("type", "enum", "const", "properties", "required", "additionalProperties", "items",
     "prefixItems", "uniqueItems", "multipleOf", "$ref", *_SMALLEST, *_GREATEST, *_PARTS)
)  # fmt: skip
_ANYTHING: Final[dict[str, Any]] = {}
"""What a writer's `true` says."""
_OBJECTS: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")


@dataclass(frozen=True)
class JsonSchema:
    """A parsed schema.

    Attributes:
        root: the JSON.
        references: schemas that it may point to, by name.
    """

    root: Any
    references: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The schema without spaces between its words; everything else is as it was written."""
        return json.dumps(self.root, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> str:
        """One text for all orders of its members."""
        return json.dumps(self.root, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def parse_json_schema(text: str, references: Mapping[str, str] | None = None) -> JsonSchema:
    """Parses a schema.

    Args:
        text: JSON.
        references: other schemas, by the names under which `$ref` points to them.

    Raises:
        Malformed: it is none, or it points to what isn't there.
    """
    others = {name: _loaded(one) for name, one in (references or {}).items()}
    found = JsonSchema(_loaded(text), others)
    _check(found, found.root, "", 0)
    return found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"expected a JSON Schema; found {text[:100]!r} ({error})") from None


def _check(schema: JsonSchema, node: Any, path: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Malformed(f"expected at most {DEPTH_MAX} nested schemas; found more at {path[:60]}")
    if isinstance(node, bool):
        return
    if not isinstance(node, dict):
        raise Malformed(
            f"{path or '/'}: expected a schema (an object, true or false); found {node!r}"
        )
    types = node.get("type", [])
    for one in types if isinstance(types, list) else [types]:
        if not isinstance(one, str) or one not in TYPES:
            raise Malformed(
                f"{path}/type: expected one of {', '.join(sorted(TYPES))}; found {one!r}"
            )
    if isinstance(node.get("$ref"), str):
        _target(schema, node["$ref"], path)
    required = node.get("required", [])
    if not isinstance(required, bool) and not (
        isinstance(required, list) and all(isinstance(one, str) for one in required)
    ):
        raise Malformed(f"{path}/required: expected a list of names; found {required!r}")
    if not isinstance(node.get("enum", []), list):
        raise Malformed(f"{path}/enum: expected a list of values; found {node['enum']!r}")
    for key in (*_SMALLEST, *_GREATEST, "multipleOf"):
        if key in node and not isinstance(node[key], int | float):
            raise Malformed(f"{path}/{key}: expected a number; found {node[key]!r}")
    for key in _OBJECTS:
        if key in node:
            if not isinstance(node[key], dict):
                raise Malformed(f"{path}/{key}: expected schemas by name; found {node[key]!r}")
            for name, one in node[key].items():
                _check(schema, one, f"{path}/{key}/{name}", depth + 1)
    for key in _PARTS:
        if key in node:
            if not isinstance(node[key], list):
                raise Malformed(f"{path}/{key}: expected a list of schemas; found {node[key]!r}")
            for at, one in enumerate(node[key]):
                _check(schema, one, f"{path}/{key}/{at}", depth + 1)
    for key in ("items", "additionalProperties", "not", "if", "then", "else", "contains"):
        if key in node and not (key == "items" and isinstance(node[key], list)):
            _check(schema, node[key], f"{path}/{key}", depth + 1)


def _target(schema: JsonSchema, pointer: str, path: str) -> Any:
    """What a `$ref` points to."""
    name, _, rest = pointer.partition("#")
    if name and name != (schema.root.get("$id") if isinstance(schema.root, dict) else None):
        if name not in schema.references:
            raise Malformed(
                f"{path}/$ref: expected a part of this schema, or a reference; found {pointer!r}"
            )
        found = schema.references[name]
    else:
        found = schema.root
    for step in rest.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Malformed(f"{path}/$ref: expected what exists; found {pointer!r}") from None
    return found


# -- comparison ------------------------------------------------------------------------------------


def json_breaks(reader: JsonSchema, writer: JsonSchema) -> list[Break]:
    """Documents of the writer's schema that the reader's may refuse; nothing where it takes all."""
    return list(_Comparison(reader, writer).breaks(reader.root, writer.root, "", 0))


class _Comparison:
    """Pairs of schemas are known by their identities, so each schema lives as long as the comparison.

    A pair is looked at once: it is assumed to hold while it is looked at (schemas may have circles) and
    afterwards, and what a trial assumed continues to hold if it succeeds. A pair that fails does so under any
    assumptions. So a comparison takes a number of steps that grows with the pairs, not with the paths.
    """

    def __init__(self, reader: JsonSchema, writer: JsonSchema) -> None:
        self.reader, self.writer = reader, writer
        self.assumed: set[tuple[int, int]] = set()
        self.refused: set[tuple[int, int]] = set()
        self.made: dict[tuple[int, str], Any] = {}

    def breaks(self, new: Any, old: Any, path: str, depth: int) -> Iterator[Break]:
        """Why `new` may refuse a document that `old` takes."""
        new, old = _followed(self.reader, new, path), _followed(self.writer, old, path)
        pair = id(new), id(old)
        if new in (True, {}) or old is False or pair in self.assumed:
            return
        if depth > DEPTH_MAX:
            yield Break(
                "TOO_DEEP", path, f"expected at most {DEPTH_MAX} nested schemas; found more"
            )
            return
        self.assumed.add(pair)
        if new is False:
            yield Break("TYPE_NARROWED", path, "the reader takes nothing here")
            return
        if isinstance(old, bool):
            old = _ANYTHING
        if any(key in one for key in _PARTS for one in (new, old)):
            yield from self._combined(new, old, path, depth)
            return
        yield from _types(new, old, path)
        yield from _values(new, old, path)
        yield from _numbers(new, old, path)
        yield from self._objects(new, old, path, depth)
        yield from self._arrays(new, old, path, depth)
        yield from _unknown(new, old, path)

    def _fits(self, new: Any, old: Any, depth: int) -> bool:
        pair = id(new), id(old)
        if pair in self.refused:
            return False
        trial = _Comparison(self.reader, self.writer)
        trial.assumed, trial.refused, trial.made = set(self.assumed), self.refused, self.made
        fits = next(trial.breaks(new, old, "", depth + 1), None) is None
        if fits:
            self.assumed = trial.assumed
        else:
            self.refused.add(pair)
        return fits

    def _derived(self, node: Any, how: str, make: Callable[[], Any]) -> Any:
        """What is made of a schema in some way: the same object each time."""
        key = id(node), how
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def _without(self, node: Any, key: str) -> Any:
        """A schema without one of its keywords."""
        return self._derived(
            node, key, lambda: {name: one for name, one in node.items() if name != key}
        )

    def _combined(self, new: Any, old: Any, path: str, depth: int) -> Iterator[Break]:
        """`oneOf`, `anyOf`, `allOf`, next to what else the schemas say."""
        for key in ("oneOf", "anyOf"):
            if key in old:  # each of the writer's choices by itself
                rest = self._without(old, key)
                for at, choice in enumerate(old[key]):
                    one = _followed(self.writer, choice, path)
                    if not self._fits(new, self._both(rest, one), depth):
                        yield Break(
                            "SUM_TYPE_NARROWED",
                            f"{path}/{key}/{at}",
                            "the reader doesn't take this choice of the writer's",
                        )
                return
        for key in ("oneOf", "anyOf"):
            if key in new:
                yield from self.breaks(self._without(new, key), old, path, depth + 1)
                if not any(self._fits(one, old, depth) for one in new[key]):
                    yield Break(
                        "SUM_TYPE_NARROWED", f"{path}/{key}", "no choice of the reader's takes all"
                    )
                return
        old = self._merged(old)
        for at, one in enumerate((self._without(new, "allOf"), *new.get("allOf", ()))):
            here = f"{path}/allOf/{at - 1}" if at else path
            yield from self.breaks(one, old, here, depth + 1)

    def _both(self, rest: Any, choice: Any) -> Any:
        """A writer's choice, next to what else its schema says."""
        if choice is False or not rest:
            return choice
        if choice is True:
            return rest
        return self._derived(rest, f"with {id(choice)}", lambda: {**rest, **choice})

    def _merged(self, node: Any) -> Any:
        """A writer's `allOf` as one schema, where its parts say different things."""
        if "allOf" not in node:
            return node
        return self._derived(node, "allOf in one", lambda: self._in_one(node))

    def _in_one(self, node: Any) -> Any:
        found = {name: one for name, one in node.items() if name != "allOf"}
        for part in node["allOf"]:
            one = _followed(self.writer, part, "")
            for key, value in (one if isinstance(one, dict) else {}).items():
                if key == "properties":
                    found[key] = {**found.get(key, {}), **value}
                elif key == "required":
                    found[key] = sorted({*found.get(key, ()), *value})
                else:
                    found.setdefault(key, value)
        return found

    def _objects(self, new: Any, old: Any, path: str, depth: int) -> Iterator[Break]:
        if _kinds(old).isdisjoint(("object",)) and "type" in old:
            return
        needed = set(_listed(new, "required")) - set(_listed(old, "required"))
        mine, theirs = new.get("properties", {}), old.get("properties", {})
        for name in sorted(needed):
            yield Break(
                "REQUIRED_ATTRIBUTE_ADDED",
                f"{path}/required",
                f"the reader requires {name!r}, which the writer may omit",
            )
        others = new.get("additionalProperties", True)
        patterns, written = new.get("patternProperties", {}), old.get("patternProperties", {})
        for name, one in theirs.items():
            here = f"{path}/properties/{name}"
            if name in mine:
                yield from self.breaks(mine[name], one, here, depth + 1)
            elif any(_matches(pattern, name) for pattern in patterns):
                continue  # the patterns are the writer's, too, or `_unknown` reports it
            elif others is False and one is not False:
                yield Break(
                    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                    here,
                    f"the writer may write {name!r}, and the reader takes no other properties",
                )
            elif isinstance(others, dict):
                yield from self.breaks(others, one, here, depth + 1)
        rest = old.get("additionalProperties", True)
        for name, one in mine.items():
            may = [each for pattern, each in written.items() if _matches(pattern, name)] or [rest]
            if name not in theirs and not all(self._fits(one, each, depth) for each in may):
                yield Break(
                    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                    f"{path}/properties/{name}",
                    f"the writer's schema is open (additionalProperties): it may hold another {name!r}. "
                    "Close it with additionalProperties: false",
                )
        may = [rest, *(one for pattern, one in written.items() if pattern not in patterns)]
        if not all(self._fits(others, one, depth) for one in may):
            yield Break(
                "ADDITIONAL_PROPERTIES_NARROWED",
                f"{path}/additionalProperties",
                "the writer may hold properties that the reader doesn't take",
            )

    def _arrays(self, new: Any, old: Any, path: str, depth: int) -> Iterator[Break]:
        if _kinds(old).isdisjoint(("array",)) and "type" in old:
            return
        mine, theirs = new.get("items", True), old.get("items", True)
        first, was_first = new.get("prefixItems", []), old.get("prefixItems", [])
        if isinstance(mine, list) or isinstance(theirs, list) or first != was_first:
            if (mine, first) not in ((theirs, was_first), (True, [])):
                yield Break("ITEMS_CHANGED", f"{path}/items", "the reader's tuple is another one")
        else:
            yield from self.breaks(mine, theirs, f"{path}/items", depth + 1)
        if new.get("uniqueItems") is True and old.get("uniqueItems") is not True:
            yield Break(
                "UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the writer may write an item twice"
            )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # of another dialect
        return False


def _followed(schema: JsonSchema, node: Any, path: str) -> Any:
    for _ in range(DEPTH_MAX):
        if not (isinstance(node, dict) and isinstance(node.get("$ref"), str)):
            return node
        node = _target(schema, node["$ref"], path)
    return node


def _listed(node: Any, key: str) -> list[str]:
    found = node.get(key, [])
    return found if isinstance(found, list) else []  # draft 3's true


def _kinds(node: Any) -> frozenset[str]:
    found = node.get("type")
    if found is None:
        return TYPES
    kinds = set(found) if isinstance(found, list) else {found}
    return frozenset(kinds | ({"integer"} if "number" in kinds else set()))


def _types(new: Any, old: Any, path: str) -> Iterator[Break]:
    if "enum" in old or "const" in old:
        return  # `_values` looks at each of them
    lost = _kinds(old) - _kinds(new)
    if lost:
        yield Break(
            "TYPE_CHANGED" if _kinds(old).isdisjoint(_kinds(new)) else "TYPE_NARROWED",
            f"{path}/type",
            f"the writer may write {', '.join(sorted(lost))}, which the reader doesn't take",
        )


def _values(new: Any, old: Any, path: str) -> Iterator[Break]:
    """`enum`, and `const`, which is one of one value."""
    mine = [new["const"]] if "const" in new else new.get("enum")
    theirs = [old["const"]] if "const" in old else old.get("enum")
    if theirs is not None:
        refused = [one for one in theirs if _kind(one) not in _kinds(new)]
        if refused:
            shown = ", ".join(map(json.dumps, refused))
            yield Break("TYPE_NARROWED", f"{path}/type", f"the reader doesn't take {shown}")
    if mine is None:
        return
    if theirs is None:
        yield Break(
            "ENUM_ARRAY_NARROWED", f"{path}/enum", "the reader takes few values, the writer any"
        )
        return
    # 1, 1.0 and true are equal in Python, and the first two in JSON
    known = {(isinstance(one, bool), json.dumps(one, sort_keys=True)) for one in mine}
    lost = [
        one for one in theirs
        if (isinstance(one, bool), json.dumps(one, sort_keys=True)) not in known
    ]  # fmt: skip
    if lost:
        shown = ", ".join(map(json.dumps, lost))
        yield Break("ENUM_ARRAY_NARROWED", f"{path}/enum", f"the reader doesn't take {shown}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _numbers(new: Any, old: Any, path: str) -> Iterator[Break]:
    for key in (*_SMALLEST, *_GREATEST):
        if key not in new or _is_flag(new[key]) or _is_flag(old.get(key)):
            if new.get(key) != old.get(key) and _is_flag(new.get(key)) and new[key]:
                yield Break("LIMIT_NARROWED", f"{path}/{key}", "the reader's limit is narrower")
            continue
        sign = -1 if key in _SMALLEST else 1
        if key not in old or new[key] * sign < old[key] * sign:
            before = old.get(key, "no limit")
            yield Break(
                "LIMIT_NARROWED",
                f"{path}/{key}",
                f"the reader takes {key} {new[key]}; the writer has {before}",
            )
    step = new.get("multipleOf")
    if step is not None and not (
        "multipleOf" in old and step and (old["multipleOf"] / step).is_integer()
    ):
        yield Break(
            "MULTIPLE_OF_NARROWED",
            f"{path}/multipleOf",
            f"the reader takes multiples of {step}; the writer has {old.get('multipleOf', 'any')}",
        )


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)  # draft 4's exclusiveMinimum


def _unknown(new: Any, old: Any, path: str) -> Iterator[Break]:
    for key in sorted(set(new) - _HANDLED - _SILENT):
        if new[key] != old.get(key):
            yield Break(
                f"{key.upper()}_CHANGED",
                f"{path}/{key}",
                f"the reader's {key!r} is new or another one, and may refuse what the writer's takes",
            )
