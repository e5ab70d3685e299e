"""What stands in the parentheses of CREATE STREAM and CREATE TABLE.

    id BIGINT, ts BIGINT, at AS to_timestamp(ts), WATERMARK FOR at AS at - INTERVAL 5 SECONDS

The columns of the records are left to `Schema.of_columns`, in their text as it is: what else the list has is
blank there, so that a character's place in it is its place in the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from penstock.core.text.types import CONSTRAINTS

__all__ = ["ColumnError", "Columns", "Computed", "Watermark", "is_computed", "read_columns"]

TIME_MARK: Final = ("WATERMARK", "FOR")


class ColumnError(Exception):
    """A part of the list can't be read.

    Args:
        expected: what would be right there.
        token: that is there.
    """

    def __init__(self, expected: str, token: Token) -> None:
        super().__init__(expected)
        self.expected, self.token = expected, token


@dataclass(frozen=True)
class Watermark:
    """`WATERMARK FOR column AS column - INTERVAL lateness`."""

    column: str
    lateness: str


@dataclass(frozen=True)
class Computed:
    """`name AS expression`.

    Attributes:
        name: of the column.
        text: the expression.
        start: where it begins in the program, from 0.
        before: how many columns of the records are in the list before it.
    """

    name: str
    text: str
    start: int
    before: int


@dataclass(frozen=True)
class Columns:
    """What stands in the parentheses of CREATE STREAM and CREATE TABLE.

    Attributes:
        text: the records' columns, as `Schema.parse` reads them.
        watermark: of a stream.
        key: of a table.
        computed: columns that are computed of the others.
        start: where `text` begins in the program, from 0.
    """

    text: str
    watermark: Watermark | None = None
    key: tuple[str, ...] = ()
    computed: tuple[Computed, ...] = ()
    start: int = 0


def is_computed(item: Sequence[Token]) -> bool:
    """Whether an item of the list has an expression, in which `<` is no bracket."""
    words = _words(item[:2])
    return words[1:] == ["AS"] or tuple(words) == TIME_MARK


def read_columns(text: str, start: int, end: int, items: Sequence[Sequence[Token]]) -> Columns:
    """The list's parts.

    Args:
        text: the program.
        start: the first character behind the opening parenthesis.
        end: the closing parenthesis.
        items: the tokens between commas.

    Raises:
        ColumnError: a part isn't of a form that there is.
    """
    left = list(text[start:end])
    watermark: Watermark | None = None
    key: tuple[str, ...] = ()
    computed: list[Computed] = []
    plain = 0

    def blank(first: Token, behind: int) -> None:
        for at in range(first.start - start, behind - start):
            left[at] = left[at] if left[at] == "\n" else " "

    for item, after in zip(items, [*(one[0].start for one in items[1:] if one), end], strict=False):
        if not item:
            continue
        first, words = item[0], _words(item)
        if words[:1] == ["CONSTRAINT"] and words[2:3] == ["PRIMARY KEY"]:
            item, words = item[2:], words[2:]  # noqa: PLW2901 # a key's name means nothing
        if not item:
            continue
        if tuple(words[:2]) == TIME_MARK:
            watermark = _watermark(item)
        elif words[0] == "PRIMARY KEY":
            key = tuple(one.text for one in _enclosed(item))
        elif words[1:2] == ["AS"] and len(item) > 2:
            begin = item[2].start
            computed.append(Computed(item[0].text, text[begin : item[-1].end + 1], begin, plain))
        elif (word := words[0].split()[0]) in CONSTRAINTS and words[1:2] == ["("]:
            raise ColumnError(CONSTRAINTS[word], item[0])
        else:
            plain += 1
            if "PRIMARY KEY" in words[2:]:
                at = words.index("PRIMARY KEY", 2)
                key = (item[0].text,)
                last = item[at + 2 if words[at + 1 : at + 3] == ["NOT", "ENFORCED"] else at]
                blank(item[at], last.end + 1)
            continue
        blank(first, after)
    return Columns("".join(left) if plain else "", watermark, key, tuple(computed), start)


def _enclosed(item: Sequence[Token]) -> list[Token]:
    """The names of `PRIMARY KEY (a, b) [NOT ENFORCED]`."""
    closing = next((i for i, one in enumerate(item) if one.token_type == TokenType.R_PAREN), 0)
    behind = _words(item[closing + 1 :])
    if len(item) < 2 or item[1].token_type != TokenType.L_PAREN or closing < 3:
        raise ColumnError("PRIMARY KEY (id)", item[0])
    if behind not in ([], ["NOT", "ENFORCED"]):
        raise ColumnError("',' or ')' after PRIMARY KEY (…)", item[closing + 1])
    return [one for one in item[2:closing] if one.token_type != TokenType.COMMA]


def _watermark(item: Sequence[Token]) -> Watermark:
    """`WATERMARK FOR at [AS at [- INTERVAL 30 SECONDS]]`."""
    words = [token.text for token in item]
    if len(words) == 3 or (len(words) == 5 and words[3].upper() == "AS" and words[4] == words[2]):
        return Watermark(words[2], "0 seconds")
    fits = len(words) in (8, 9) and [w.upper() for w in words[3:7:2]] == ["AS", "-"]
    if not fits or words[4] != words[2] or words[6].upper() != "INTERVAL":
        raise ColumnError(
            "WATERMARK FOR at AS at - INTERVAL 30 SECONDS, with a column or one that the list computes "
            "(at AS to_timestamp(ts))",
            item[0],
        )
    return Watermark(words[2], " ".join(words[7:]).lower())


def _words(item: Sequence[Token]) -> list[str]:
    return [token.text.upper() for token in item]
