"""The text of a row pattern, read and written: SQL's syntax, and what Python's patterns add to it.

    pattern    = chain {"|" chain}
    chain      = sequence {("->" | "->>") sequence}      rows between: that don't begin the next part | any
    sequence   = item {item}
    item       = ("!" | "NOT") name | factor
    factor     = primary [quantifier] {"UNTIL" name | "WITHIN" number unit}
    primary    = name | "(" [pattern] ")" | "{-" pattern "-}" | "PERMUTE" "(" pattern {"," pattern} ")" | "^"
    | "$" quantifier = ("*" | "+" | "?" | "{" n "}" | "{" [n] "," [m] "}") ["?"]

A name is a word, or anything in double quotes. Names of different case are the same, unless they are in
quotes.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from penstock.core.text.carets import caret
from penstock.core.time import duration_text, duration_us
from penstock.errors import SchemaError, UserError
from penstock.patterns.tree import (
    Absent,
    Bounded,
    Choice,
    Empty,
    End,
    Excluded,
    Gap,
    Name,
    Node,
    Permute,
    Repeat,
    Sequence,
    Start,
    Then,
    Until,
)

__all__ = ["parse_pattern", "pattern_text"]

NESTING_MAX: Final = 64
"""Of groups in groups: it bounds recursion."""
COUNT_MAX: Final = 10_000
"""Of a quantifier: its iterations are written out."""
PERMUTED_MAX: Final = 6
"""Parts of a PERMUTE: they have 720 orders."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>(?:\s|--[^\n]*|/\*.*?\*/)+)
    |"(?P<quoted>(?:[^"]|"")+)"|(?P<word>[^\W\d]\w*)|(?P<number>\d+)
    |(?P<mark>\{-|-\}|->>|->|[()|{}?*+,!^$])""",
    re.DOTALL | re.VERBOSE,
)
_RESERVED: Final = frozenset({"permute", "until", "within", "not"})
_PLAIN: Final = re.compile(r"[^\W\d]\w*\Z")

_Kind = Literal["quoted", "word", "number", "mark", "end"]


class _Token(NamedTuple):
    kind: _Kind
    text: str
    at: int


def parse_pattern(text: str) -> Node:
    """Reads a pattern.

    Raises:
        SchemaError: it can't be read; the message shows where.

    >>> parse_pattern("a b+?")
    Sequence(parts=(Name(name='a'), Repeat(part=Name(name='b'), least=1, most=None, greedy=False)))
    """
    try:
        return _Parser(text).whole()
    except SchemaError as error:
        if error.at is None:
            raise
        raise error.reworded(f"{error}{caret(text, error.at)}") from None


class _Parser:
    """Recursive descent, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0
        self._spelled: dict[str, str] = {}

    def whole(self) -> Node:
        found = self._pattern()
        if self._token.kind != "end":
            raise self._error("a variable, a quantifier or the end")
        return found

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *marks: str) -> str | None:
        """The mark that comes next, if it is one of these, or the word."""
        token = self._token
        if token.kind not in ("mark", "word"):
            return None
        for mark in marks:
            if token.text.lower() == mark:
                self._next += 1
                return mark
        return None

    def _expect(self, mark: str, what: str) -> None:
        if self._take(mark) is None:
            raise self._error(what)

    def _error(self, expected: str) -> SchemaError:
        token = self._token
        found = "the end" if token.kind == "end" else repr(token.text)
        error = SchemaError(f"expected {expected} in the pattern; found {found}")
        error.at = token.at
        return error

    def _pattern(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"at most {NESTING_MAX} groups in each other")
        parts = [self._chain()]
        while self._take("|"):
            parts.append(self._chain())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _chain(self) -> Node:
        parts, gaps = [self._sequence()], list[Gap]()
        while mark := self._take("->", "->>"):
            gaps.append("relaxed" if mark == "->" else "any")
            parts.append(self._sequence())
        if isinstance(parts[0], Absent) and gaps:
            self._next = 0
            raise self._error("a step before what must be absent")
        return Then(tuple(parts), tuple(gaps)) if gaps else parts[0]

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._begins_item():
            parts.append(self._item())
        if not parts:
            raise self._error("a variable or a group")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _begins_item(self) -> bool:
        kind, text, _ = self._token
        if kind == "word":
            return text.lower() not in ("until", "within")
        return kind == "quoted" or (kind == "mark" and text in ("(", "{-", "^", "$", "!"))

    def _item(self) -> Node:
        if self._take("!", "not"):
            absent = Absent(self._name())
            return Bounded(absent, self._duration()) if self._take("within") else absent
        found = self._quantified(self._primary())
        while mark := self._take("until", "within"):
            is_until = mark == "until"
            found = Until(found, self._name()) if is_until else Bounded(found, self._duration())
        return found

    def _primary(self) -> Node:
        if self._take("("):
            if self._take(")"):
                return Empty()
            found = self._pattern()
            self._expect(")", "')'")
            return found
        if self._take("{-"):
            found = self._pattern()
            self._expect("-}", "'-}'")
            return Excluded(found)
        if self._take("^"):
            return Start()
        if self._take("$"):
            return End()
        if self._take("permute"):
            return self._permute()
        return Name(self._name())

    def _permute(self) -> Node:
        at = self._next
        self._expect("(", "'(' behind PERMUTE")
        parts = [self._pattern()]
        while self._take(","):
            parts.append(self._pattern())
        self._expect(")", "',' or ')'")
        if len(parts) > PERMUTED_MAX:
            self._next = at
            raise self._error(f"at most {PERMUTED_MAX} parts of PERMUTE")
        return parts[0] if len(parts) == 1 else Permute(tuple(parts))

    def _name(self) -> str:
        kind, text, _ = self._token
        if kind == "word" and text.lower() not in _RESERVED:
            self._next += 1
            return self._spelled.setdefault(text.lower(), text)
        if kind == "quoted":
            self._next += 1
            name = text.replace('""', '"')
            return self._spelled.setdefault(name.lower(), name)
        raise self._error("the name of a variable")

    def _quantified(self, part: Node) -> Node:
        at = self._next
        mark = self._take("*", "+", "?", "{")
        if mark is None:
            return part
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(mark) or self._counts()
        greedy = self._take("?") is None
        if isinstance(part, Start | End):
            self._next = at
            raise self._error("no quantifier behind an anchor")
        return Repeat(part, least, most, greedy)

    def _counts(self) -> tuple[int, int | None]:
        at = self._next
        least = self._number()
        if not self._take(","):
            self._expect("}", "a number, ',' or '}'")
            if not least:
                self._next = at
                raise self._error("a number above 0")
            return least, least
        most = self._number()
        self._expect("}", "a number or '}'")
        if most is not None and (most == 0 or most < (least or 0)):
            self._next = at
            raise self._error("the lower number first, and a greater one than 0 behind it")
        return least or 0, most

    def _number(self) -> int | None:
        kind, text, _ = self._token
        if kind != "number":
            return None
        if len(text) > len(str(COUNT_MAX)) or int(text) > COUNT_MAX:
            raise self._error(f"a number of at most {COUNT_MAX:,}")
        self._next += 1
        return int(text)

    def _duration(self) -> int:
        """Numbers with their units, such as `1 minute 30 seconds`."""
        total = 0
        while self._token.kind == "number":
            number = self._token.text
            self._next += 1
            unit = self._token
            try:
                total += duration_us(f"{number} {unit.text}") if unit.kind == "word" else -1
            except UserError:
                total = -1
            if total < 0:
                raise self._error("a unit of time, such as minutes")
            self._next += 1
        if not total:
            raise self._error("a duration, such as 10 minutes")
        return total


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            error = SchemaError(
                f"expected a variable, a group or a quantifier in the pattern; found {text[at]!r}"
            )
            error.at = at
            raise error
        kinds: tuple[_Kind, ...] = ("quoted", "word", "number", "mark")
        found += [_Token(kind, token[kind], at) for kind in kinds if token[kind] is not None]
        at = token.end()
    return [*found, _Token("end", "", len(text))]


def pattern_text(node: Node) -> str:
    """The canonical text of a pattern, which is read as the same tree.

    >>> pattern_text(parse_pattern("a(b|c)*?  ->  d{,2}"))
    'a (b | c)*? -> d{0,2}'
    """
    return _text(node, 0)


_BINDING: Final = {Choice: 0, Then: 1, Sequence: 2}
"""How closely the parts of a node are bound; others are one factor."""
_FACTOR: Final = 3
_PRIMARY: Final = 4


def _text(node: Node, least: int) -> str:
    binding = _BINDING.get(type(node), _PRIMARY)
    if isinstance(node, Repeat | Until | Bounded | Absent):
        binding = _FACTOR
    found = _bare(node)
    return f"({found})" if binding < least else found


def _bare(node: Node) -> str:
    match node:
        case Name(name):
            return _quoted(name)
        case Absent(name):
            return f"!{_quoted(name)}"
        case Sequence(parts):
            return " ".join(_text(one, _FACTOR) for one in parts)
        case Choice(parts):
            return " | ".join(_text(one, 1) for one in parts)
        case Then(parts, gaps):
            marks = ["", *(" -> " if one == "relaxed" else " ->> " for one in gaps)]
            return "".join(m + _text(one, 2) for m, one in zip(marks, parts, strict=True))
        case Permute(parts):
            return f"PERMUTE({', '.join(_text(one, 0) for one in parts)})"
        case Excluded(part):
            return f"{{- {_text(part, 0)} -}}"
        case Repeat(part):
            return _text(part, _PRIMARY) + _quantifier(node)
        case Until(part, name):
            inner = _text(part, _within(part))
            return f"{inner} UNTIL {_quoted(name)}"
        case Bounded(part, within_us):
            inner = _text(part, _within(part))
            return f"{inner} WITHIN {duration_text(within_us)}"
        case Start():
            return "^"
        case End():
            return "$"
        case Empty():
            return "()"


def _within(part: Node) -> int:
    """How closely a part is bound that UNTIL or WITHIN stands behind."""
    return _FACTOR if isinstance(part, Repeat | Until | Bounded) else _PRIMARY


def _quantifier(node: Repeat) -> str:
    match node.least, node.most:
        case 0, None:
            mark = "*"
        case 1, None:
            mark = "+"
        case 0, 1:
            mark = "?"
        case least, None:
            mark = f"{{{least},}}"
        case least, most:
            mark = f"{{{least}}}" if least == most else f"{{{least},{most}}}"
    return mark if node.greedy else mark + "?"


def _quoted(name: str) -> str:
    if _PLAIN.match(name) and name.lower() not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'
