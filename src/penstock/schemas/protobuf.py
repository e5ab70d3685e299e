"""Protobuf files: parsed from `.proto` text or from a serialized descriptor, and compared.

Python's serializers of Confluent register a `FileDescriptorProto` in base64, Java's the text; both are kept
as they come. Data is compared by what is on the wire: numbers and wire types. The sources are the language's
specification (proto2, proto3, editions), `descriptor.proto`, and the guide's "Updating A Message Type".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.schemas.breaks import Break, Malformed
from penstock.schemas.descriptors import decode_file, encode_file
from penstock.schemas.protos import TYPES, ProtoEnum, ProtoField, ProtoFile, ProtoMessage

__all__ = ["ProtoFile", "defined", "parse_protobuf", "proto_breaks", "serialized"]

DEPTH_MAX: Final = 32
"""Of nested messages: Protobuf's own parsers allow as many."""
NUMBER_MAX: Final = (1 << 29) - 1
"""Of a field: Protobuf's limit."""
_KNOWN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every compiler has."""
_WORD: Final = re.compile(
    r"""\s*(?://[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_0-9.+-]+|[{}\[\]<>();=,:/]))""",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS: Final = frozenset(TYPES) - {"group", "message", "enum"}
_SAME: Final = (
    frozenset(("int32", "uint32", "int64", "uint64", "bool", "enum")),
    frozenset(("sint32", "sint64")),
    frozenset(("string", "bytes")),
    frozenset(("fixed32", "sfixed32")),
    frozenset(("fixed64", "sfixed64")),
)
"""Types that are read as one another."""


def parse_protobuf(text: str, references: Mapping[str, str] | None = None) -> ProtoFile:
    """Parses a file.

    Args:
        text: as `.proto`, or a `FileDescriptorProto` in base64.
        references: the files that it imports, by the names under which it does.

    Raises:
        Malformed: it is none.
    """
    others = [_parsed(one) for one in (references or {}).values()]
    found = _parsed(text)
    missing = [
        one for one in found.imports if one not in (references or {}) and not one.startswith(_KNOWN)
    ]
    if missing:
        raise Malformed(f"expected a reference for each import; found none for {missing[0]!r}")
    names: dict[str, ProtoMessage | ProtoEnum] = {}
    for one in (*others, found):
        names |= dict(defined(one.messages, one.enums, one.package))
    _resolve(found.messages, names, found.package, may_import=bool(found.imports))
    return found


def serialized(file: ProtoFile, name: str = "default.proto") -> str:
    """The file as a `FileDescriptorProto` in base64."""
    return file.text if file.is_descriptor else base64.b64encode(encode_file(file, name)).decode()


def _parsed(text: str) -> ProtoFile:
    if not any(one in text for one in "{;"):
        try:
            data = base64.b64decode(text.strip(), validate=True)
            return decode_file(data, text.strip())
        except (binascii.Error, ValueError) as error:
            raise Malformed(
                f"expected a .proto file, or its descriptor in base64; found {text[:100]!r} ({error})"
            ) from None
    return _Parser(text).file()


def defined(
    messages: list[ProtoMessage], enums: list[ProtoEnum], scope: str
) -> Iterator[tuple[str, ProtoMessage | ProtoEnum]]:
    """What a file defines, by its full names."""
    for one in enums:
        yield f"{scope}.{one.name}".lstrip("."), one
    for message in messages:
        full = f"{scope}.{message.name}".lstrip(".")
        yield full, message
        yield from defined(message.messages, message.enums, full)


def _resolve(
    messages: list[ProtoMessage],
    names: Mapping[str, ProtoMessage | ProtoEnum],
    scope: str,
    *,
    may_import: bool,
) -> None:
    """Gives fields of named types their full names."""
    for message in messages:
        full = f"{scope}.{message.name}".lstrip(".")
        seen: set[int] = set()
        for one in message.fields:
            if not 0 < one.number <= NUMBER_MAX or one.number in seen:
                raise Malformed(
                    f"{full}.{one.name}: expected a number of its own, 1 to {NUMBER_MAX}; found {one.number}"
                )
            seen.add(one.number)
            if one.type in _SCALARS:
                continue
            found = _lookup(one.type, names, full)
            if found is not None:
                one.type, one.is_enum = found, isinstance(names[found], ProtoEnum)
            elif may_import:
                one.type = one.type.lstrip(".")  # of a file that every compiler has
            else:
                raise Malformed(f"{full}.{one.name}: expected a type; found {one.type!r}")
        _resolve(message.messages, names, full, may_import=may_import)


def _lookup(name: str, names: Mapping[str, ProtoMessage | ProtoEnum], scope: str) -> str | None:
    """A name's full name, from the innermost scope outwards."""
    if name.startswith("."):
        return name[1:] if name[1:] in names else None
    while True:
        full = f"{scope}.{name}".lstrip(".")
        if full in names:
            return full
        if not scope:
            return None
        scope = scope.rpartition(".")[0]


class _Parser:
    """Reads `.proto` text; options, services and extensions are passed over."""

    def __init__(self, text: str) -> None:
        self.source = text
        self.words: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _WORD.match(text, at)
            if found is None:
                raise Malformed(f"expected a .proto file; found {text[at:].strip()[:40]!r}")
            if found[1]:
                self.words.append(found[1])
            at = found.end()
        self.at = 0

    def next(self) -> str:
        if self.at >= len(self.words):
            raise Malformed("expected more of the .proto file; found its end")
        self.at += 1
        return self.words[self.at - 1]

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _is_block(self) -> bool:
        """Whether a name and its block follow; else the word before may be a type's name."""
        return bool(_NAME.fullmatch(self.peek())) and self.words[self.at + 1 : self.at + 2] == ["{"]

    def expect(self, wanted: str) -> None:
        if (found := self.next()) != wanted:
            raise Malformed(f"expected {wanted!r} after {self._before()!r}; found {found!r}")

    def _before(self) -> str:
        return " ".join(self.words[max(self.at - 6, 0) : self.at - 1])

    def name(self) -> str:
        found = self.next()
        if not _NAME.fullmatch(found):
            raise Malformed(f"expected a name after {self._before()!r}; found {found!r}")
        return found

    def skip(self) -> None:
        """Passes over a statement: to its semicolon, or to the end of its block."""
        depth = 0
        while True:
            word = self.next()
            depth += (word in "{[(") - (word in "}])")
            if depth == 0 and word in (";", "}"):
                return

    def file(self) -> ProtoFile:
        found = ProtoFile(self.source, " ".join(self.words))
        while self.at < len(self.words):
            match self.next():
                case "syntax":
                    self.expect("=")
                    found.syntax = self.next().strip("\"'")
                    self.expect(";")
                case "edition":
                    self.expect("=")
                    self.next()
                    self.expect(";")
                case "package":
                    found.package = self.next()
                    self.expect(";")
                case "import":
                    path = self.next()
                    if path in ("public", "weak", "option"):
                        path = self.next()
                    found.imports.append(path.strip("\"'"))
                    self.expect(";")
                case "message":
                    found.messages.append(self.message(0))
                case "enum":
                    found.enums.append(self.enum())
                case "option" | "service" | "extend":
                    self.skip()
                case ";":
                    pass
                case other:
                    raise Malformed(f"expected a definition in a .proto file; found {other!r}")
        return found

    def message(self, depth: int) -> ProtoMessage:
        if depth > DEPTH_MAX:
            raise Malformed(f"expected at most {DEPTH_MAX} nested messages; found more")
        found = ProtoMessage(self.name())
        self.expect("{")
        while (word := self.next()) != "}":
            match word:
                case "message" if self._is_block():
                    found.messages.append(self.message(depth + 1))
                case "enum" if self._is_block():
                    found.enums.append(self.enum())
                case "oneof" if self._is_block():
                    name = self.name()
                    self.expect("{")
                    while (word := self.next()) != "}":
                        if word == "option":
                            self.skip()
                        elif word != ";":
                            found.fields.append(self.field(word, oneof=name))
                case "option" | "reserved" | "extensions" | "extend":
                    self.skip()
                case ";":
                    pass
                case _:
                    found.fields.append(self.field(word))
        return found

    def field(self, word: str, oneof: str = "") -> ProtoField:
        label = ""
        if word in ("optional", "required", "repeated"):
            label, word = word, self.next()
        if word == "group":
            raise Malformed("expected no group, which Protobuf has deprecated; found one")
        key = ""
        if word == "map" and self.peek() == "<":
            self.next()
            key = self.next()
            self.expect(",")
            word = self.next()
            self.expect(">")
        name = self.name()
        self.expect("=")
        number = self.next()
        if not number.isdigit():
            raise Malformed(f"expected the number of field {name!r}; found {number!r}")
        if self.peek() == "[":
            self.skip()
        else:
            self.expect(";")
        return ProtoField(name, int(number), word, label, oneof, key)

    def enum(self) -> ProtoEnum:
        found = ProtoEnum(self.name())
        self.expect("{")
        while (word := self.next()) != "}":
            if word in ("option", "reserved"):
                self.skip()
                continue
            if word == ";":
                continue
            self.expect("=")
            number = self.next()
            try:
                found.values[word] = int(number, 0)
            except ValueError:
                raise Malformed(
                    f"expected a number of {found.name}.{word}; found {number!r}"
                ) from None
            self.skip()
        return found


# -- comparison ------------------------------------------------------------------------------------


def proto_breaks(reader: ProtoFile, writer: ProtoFile) -> list[Break]:
    """What of a writer's messages a reader reads wrongly or not at all."""
    comparison = _Comparison(reader.package, writer.package)
    return list(comparison.messages(reader.messages, writer.messages, ""))


@dataclass
class _Comparison:
    new_package: str
    old_package: str

    def messages(
        self, new: list[ProtoMessage], old: list[ProtoMessage], path: str
    ) -> Iterator[Break]:
        known = {one.name: one for one in new}
        for one in old:
            here = f"{path}/{one.name}"
            if one.name not in known:
                yield Break("MESSAGE_REMOVED", here, f"the reader has no message {one.name!r}")
                continue
            yield from self.fields(known[one.name], one, here)
            yield from self.messages(known[one.name].messages, one.messages, here)

    def fields(self, new: ProtoMessage, old: ProtoMessage, path: str) -> Iterator[Break]:
        mine = {one.number: one for one in new.fields}
        theirs = {one.number: one for one in old.fields}
        for number, one in mine.items():
            was = theirs.get(number)
            here = f"{path}/{number}"
            if was is not None:
                yield from self.field(one, was, here)
            if one.label == "required" and (was is None or was.label != "required"):
                yield Break(
                    "REQUIRED_FIELD_ADDED",
                    here,
                    f"the reader requires {one.name!r}, which the writer may omit",
                )
        yield from _oneofs(new, old, path)

    def field(self, new: ProtoField, old: ProtoField, path: str) -> Iterator[Break]:
        same = new.kind == old.kind or any({new.kind, old.kind} <= one for one in _SAME)
        if not same:
            scalar = "message" not in (new.kind, old.kind)
            yield Break(
                "FIELD_SCALAR_KIND_CHANGED" if scalar else "FIELD_KIND_CHANGED",
                path,
                f"field {new.name!r}: the writer writes {old.shown}; the reader expects {new.shown}",
            )
        elif new.kind == "message" and self._own(new) != self._own(old, is_old=True):
            yield Break(
                "FIELD_NAMED_TYPE_CHANGED",
                path,
                f"field {new.name!r}: the writer writes {old.shown}; the reader expects {new.shown}",
            )
        elif new.is_repeated != old.is_repeated and new.kind not in ("string", "bytes", "message"):
            yield Break(
                "FIELD_NUMERIC_LABEL_CHANGED",
                path,
                f"field {new.name!r} is repeated for one of reader and writer alone",
            )
        elif new.key != old.key and not any({new.key, old.key} <= one for one in _SAME):
            yield Break(
                "FIELD_KIND_CHANGED",
                path,
                f"field {new.name!r}: the writer writes {old.shown}; the reader expects {new.shown}",
            )

    def _own(self, one: ProtoField, *, is_old: bool = False) -> str:
        """A type's name without the file's package, which isn't on the wire."""
        package = self.old_package if is_old else self.new_package
        return one.type.removeprefix(f"{package}.") if package else one.type


def _oneofs(new: ProtoMessage, old: ProtoMessage, path: str) -> Iterator[Break]:
    """Of a oneof's fields, one is on the wire: the last that is read wins."""
    theirs = {one.number: one for one in old.fields}
    mine = {one.number for one in new.fields}
    known = {one.oneof for one in old.fields if one.oneof}
    for name in sorted({one.oneof for one in new.fields if one.oneof}):
        free = [
            one for one in new.fields
            if one.oneof == name and one.number in theirs and not theirs[one.number].oneof
        ]  # fmt: skip
        if len(free) > 1 or (free and name in known):
            shown = ", ".join(one.name for one in free)
            yield Break(
                "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
                if len(free) > 1
                else "FIELD_MOVED_TO_EXISTING_ONEOF",
                f"{path}/{name}",
                f"the writer may write {shown} next to others of the reader's oneof, which keeps one",
            )
        lost = [one for one in old.fields if one.oneof == name and one.number not in mine]
        if lost:
            yield Break(
                "ONEOF_FIELD_REMOVED",
                f"{path}/{name}",
                f"the reader's oneof lacks {', '.join(one.name for one in lost)}",
            )
