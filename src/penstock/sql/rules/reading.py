"""Reading a text by sqlglot, with the meaning that DuckDB gives it.

x.upper()                      ->  upper(x)            it would be a function of the schema x
t.tags.list_sort()[1]          ->  list_sort(t.tags)[1]
(a || b).substr(1, 2).lower()  ->  lower(substr((a || b), 1, 2))
k IN [1, NULL]                 ->  k IN list_value(1, NULL)   it would be k IN (1, NULL), and never false
SESSION(clicks, …)             ->  a function; in some dialects the word is one of its own
x / 2                          ->  x // 2  of integers, in PostgreSQL's dialect and others
t MATCH_RECOGNIZE (…)          ->  a subquery that has the clause; see `text.matches`
p -> k                         ->  the member k of an object, in PostgreSQL's dialect; see `members`
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from sqlglot import Dialect, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.tokenizer_core import Token, TokenType

import penstock.expr.dialect  # noqa: F401 - what "duckdb" is
from penstock.errors import SchemaError
from penstock.expr.walks import find_all
from penstock.sql.places import unplaced
from penstock.sql.text.matches import around_clauses, with_clauses, without_clauses
from penstock.sql.text.members import PATHS, with_members
from penstock.sql.text.pattern_windows import (
    around_windows,
    with_pattern_windows,
    without_windows,
)

__all__ = ["read", "with_divisions"]

_UNKNOWN: Final = (exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL)
SCHEMAS: Final = {"main", "pg_catalog", "information_schema", "system"}


def read(text: str, dialect: str = "duckdb") -> list[exp.Expr]:
    """The trees of a text's statements.

    Raises:
        SqlglotError: it can't be read.
        SchemaError: a dialect's path into JSON isn't written out.
    """
    reader = Dialect.get_or_raise(dialect)
    text, clauses = without_clauses(text, dialect)
    text, windows = without_windows(text, dialect)
    tokens = around_clauses(reader.tokenize(text), clauses)
    tokens = around_windows(tokens, windows) if windows else tokens
    for one, after in pairwise(tokens):
        if one.token_type == TokenType.SESSION and after.token_type == TokenType.L_PAREN:
            one.token_type = TokenType.VAR
    chained = False
    if dialect == "duckdb":
        kinds = [one.token_type for one in tokens]
        dots = [at for at, kind in enumerate(kinds[:-2]) if kind == TokenType.DOT]
        chained = any(kinds[at + 2] == TokenType.L_PAREN for at in dots)
        for at in range(len(tokens) - 1, 0, -1):
            if kinds[at - 1] == TokenType.IN and kinds[at] == TokenType.L_BRACKET:
                _call(tokens, at)
    parser: Any = reader.parser()
    if isinstance(reader, Postgres):
        known = parser.FUNCTIONS.items()
        parser.FUNCTIONS = {name: made for name, made in known if name not in PATHS}
    trees: list[exp.Expr] = [tree for tree in parser.parse(tokens, text) if tree is not None]
    trees = [with_clauses(tree, clauses) for tree in trees] if clauses else trees
    trees = [with_pattern_windows(tree, windows) for tree in trees] if windows else trees
    if isinstance(reader, Postgres):
        return [with_members(tree) for tree in trees]
    return [_with_calls(tree) for tree in trees] if chained else trees


def _call(tokens: list[Token], opening: int) -> None:
    """Makes brackets a call."""
    depth = 0
    for at in range(opening, len(tokens)):
        if tokens[at].token_type == TokenType.L_BRACKET:
            depth += 1
        elif tokens[at].token_type == TokenType.R_BRACKET:
            depth -= 1
            if depth == 0:
                first = tokens[opening]
                tokens[at] = _made(TokenType.R_PAREN, ")", tokens[at])
                tokens[opening : opening + 1] = [
                    _made(TokenType.VAR, "list_value", first),
                    _made(TokenType.L_PAREN, "(", first),
                ]
                return


def _made(kind: TokenType, text: str, at: Token) -> Token:
    """A token at the place of another."""
    return Token(kind, text, at.line, at.col, at.start, at.end)


def _with_calls(tree: exp.Expr) -> exp.Expr:
    """The query with calls whose first argument is in parentheses."""
    for node in reversed(find_all(tree, exp.Dot, exp.Column)):  # inner ones first
        call = node.expression if isinstance(node, exp.Dot) else node.this
        called = call.this if isinstance(call, exp.Filter) else call
        if not isinstance(called, exp.Anonymous):
            continue
        # What is before the dot has identifiers where there were columns. Its text is read again.
        text = _before(node).sql("duckdb")
        if text.lower() in SCHEMAS:
            continue
        for one in called.expressions:
            is_argument = not isinstance(one, exp.Order) or one.this is not None
            text += f"{', ' if is_argument else ' '}{one.sql('duckdb').strip()}"
        [select] = read(f"SELECT {called.name}({text})")
        made = unplaced(select.expressions[0].pop())
        if isinstance(call, exp.Filter):
            made = exp.Filter(this=made, expression=call.expression)
        node.replace(made)
    return tree


def _before(node: exp.Expression) -> exp.Expression:
    """What is before the last dot."""
    if isinstance(node, exp.Dot):
        before: exp.Expression = node.this
        return before
    names = [part for part in (node.args.get(one) for one in ("catalog", "db", "table")) if part]
    return exp.Dot.build(names) if len(names) > 1 else names[0]


def with_divisions(tree: exp.Expr, schema: dict[str, object]) -> exp.Expr:
    """The query with `//` where a dialect's `/` is of integers.

    Args:
        tree: its names qualified.
        schema: the tables' columns and their types.

    Raises:
        SchemaError: the type of a side isn't known.
    """
    divisions = [one for one in find_all(tree, exp.Div) if one.args.get("typed")]
    if not divisions:
        return tree
    annotate_types(tree, schema=schema, dialect="duckdb")
    for one in reversed(divisions):  # inner ones first
        sides = [_type(one.this), _type(one.expression)]
        if all(side in exp.DataType.INTEGER_TYPES for side in sides):
            one.replace(exp.IntDiv(this=one.this, expression=one.expression))
        elif any(side in _UNKNOWN for side in sides):
            raise SchemaError(
                "expected a division of known types, on which its result depends in this dialect; found "
                f"{one.sql(dialect='duckdb')!r}. Cast both sides, as in CAST(x AS BIGINT)"
            )
        else:
            one.args.pop("typed")
    return tree


def _type(node: exp.Expr) -> object:
    if isinstance(node, exp.Paren):
        return _type(node.this)
    if isinstance(node, exp.IntDiv):
        return exp.DataType.Type.BIGINT
    return exp.DataType.Type.UNKNOWN if node.type is None else node.type.this
