"""What sqlglot reads otherwise than DuckDB, before it reads it.

x.upper()                    ->  upper(x)            it would be a function of the schema x
t.tags.list_sort()[1]        ->  list_sort(t.tags)[1]
(a || b).substr(1, 2).lower()  ->  lower(substr((a || b), 1, 2))
k IN [1, NULL]               ->  k IN list_value(1, NULL)  it would be k IN (1, NULL), and never false
SESSION(clicks, …)           ->  a function; in some dialects the word is one of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

__all__ = ["as_meant"]

OPENING: Final = {
    TokenType.R_PAREN: TokenType.L_PAREN,
    TokenType.R_BRACKET: TokenType.L_BRACKET,
    TokenType.R_BRACE: TokenType.L_BRACE,
}
NAMES: Final = {TokenType.VAR, TokenType.IDENTIFIER}
NAMED: Final = NAMES | {TokenType.MAP, TokenType.ARRAY, TokenType.STRUCT, TokenType.LEFT, TokenType.RIGHT,
                        TokenType.FIRST, TokenType.REPLACE, TokenType.FORMAT, TokenType.ROW}  # fmt: skip
"""What a parenthesis or bracket belongs to, if it comes before it. After other words, such as WHERE, AND and
LIKE, an expression begins."""
SCHEMAS: Final = {"main", "pg_catalog", "information_schema", "system"}


def as_meant(tokens: Sequence[Token], dialect: str) -> list[Token]:
    """The tokens of a query, with those that sqlglot understands as they are meant.

    Args:
        tokens: of the query.
        dialect: as sqlglot calls it. Only DuckDB's has calls with a dot, and lists after IN.
    """
    found = list(tokens)
    for one, after in pairwise(found):
        if one.token_type == TokenType.SESSION and after.token_type == TokenType.L_PAREN:
            one.token_type = TokenType.VAR
    if dialect != "duckdb":
        return found
    at = 1
    while at < len(found) - 2:
        if found[at].token_type == TokenType.DOT and _is_call(found, at + 1):
            start = _start(found, at)
            if start is not None:
                call = found[at + 1 : at + 3]
                more = found[at + 3].token_type != TokenType.R_PAREN
                comma = [_made(TokenType.COMMA, ",", found[at])] if more else []
                found[start : at + 3] = [*call, *found[start:at], *comma]
        elif (
            found[at].token_type == TokenType.IN and found[at + 1].token_type == TokenType.L_BRACKET
        ):
            _list_value(found, at + 1)
        at += 1
    return found


def _list_value(tokens: list[Token], opening: int) -> None:
    """Makes brackets a call."""
    depth = 0
    for at in range(opening, len(tokens)):
        if tokens[at].token_type == TokenType.L_BRACKET:
            depth += 1
        elif tokens[at].token_type == TokenType.R_BRACKET:
            depth -= 1
            if depth == 0:
                tokens[at] = _made(TokenType.R_PAREN, ")", tokens[at])
                name = _made(TokenType.VAR, "list_value", tokens[opening])
                tokens[opening : opening + 1] = [
                    name,
                    _made(TokenType.L_PAREN, "(", tokens[opening]),
                ]
                return


def _is_call(tokens: Sequence[Token], at: int) -> bool:
    name, paren = tokens[at : at + 2]
    return name.token_type in NAMED and paren.token_type == TokenType.L_PAREN


def _start(tokens: Sequence[Token], dot: int) -> int | None:
    """Where the expression before a dot begins; None where there is none, as before a schema's function."""
    at = dot
    while True:
        one = tokens[at - 1]
        if one.token_type in OPENING:
            opening = _opening(tokens, at - 1)
            if opening is None:
                return None
            at = opening
            before = tokens[at - 1].token_type if at else None
            if before == TokenType.R_BRACKET or before in OPENING:
                continue  # [1] of a list, after an expression that ends there
            if before in NAMED:
                at -= 1
        elif one.token_type in NAMES or one.token_type == TokenType.STRING:
            at -= 1
        else:
            return None
        if at < 2 or tokens[at - 1].token_type != TokenType.DOT:
            break
        at -= 1  # more of a path: t.x, or a member
    is_schema = dot - at == 1 and tokens[at].text.lower() in SCHEMAS
    return None if is_schema else at


def _opening(tokens: Sequence[Token], closing: int) -> int | None:
    """Where what a token closes was opened."""
    depth = 0
    for at in range(closing, -1, -1):
        kind = tokens[at].token_type
        if kind in OPENING:
            depth += 1
        elif kind in OPENING.values():
            depth -= 1
            if depth == 0:
                return at
    return None


def _made(kind: TokenType, text: str, at: Token) -> Token:
    """A token at the place of another."""
    return Token(kind, text, at.line, at.col, at.start, at.end)
