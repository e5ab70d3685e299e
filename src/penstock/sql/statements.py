"""Programs in SQL: CREATE STREAM, TABLE, VIEW, MATERIALIZED VIEW and SINK, one after the other.

The head of a statement is read here, word by word; a query in it is left to `penstock.sql.views`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.core.databases import described
from penstock.core.text.carets import line_and_column
from penstock.errors import FlowError, SchemaError
from penstock.sql.text.columns import ColumnError, Columns, Watermark, is_computed, read_columns
from penstock.sql.text.foreign import begun, unread
from penstock.sql.text.pattern_windows import without_insides
from penstock.sql.text.wording import marked, unfinished

__all__ = ["Columns", "PlacedError", "Statement", "Watermark", "statements"]

KINDS: Final = ("STREAM", "TABLE", "VIEW", "MATERIALIZED VIEW", "SINK")
_OPEN: Final = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.LT)
_CLOSE: Final = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.GT)
_LESS: Final = (TokenType.LT, TokenType.GT)  # brackets of types, unless they compare


class PlacedError(FlowError):
    """A part of a statement is wrong.

    Args:
        message: what is wrong.
        place: line and column of the part, from 1; None: they aren't known.
    """

    def __init__(self, message: str, place: tuple[int, int] | None) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True)
class Statement:
    """One statement.

    Attributes:
        kind: one of `KINDS`, or `SET`.
        name: what is created.
        line: where it begins in the text, from 1.
        columns: of a stream or table.
        options: `WITH (name = 'value', …)`, names in lower case.
        query: the text after AS.
        source: the database that a table is captured from: the word of its kind, its address.
        into: what a sink writes: a topic, or the address of another system, which is in quotes.
        is_quoted: whether that is in quotes, as a text.
        emit: what a sink writes of a table: `closed`, `changes`, `upserts`; None is what fits.
        every: how often, if said.
        places: line and column of what follows INTO (by the name `into`), of each option, and of the query
            (by the name `as`).
        column: of `line` where it begins, from 1.
    """

    kind: str
    name: str
    line: int
    columns: Columns | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    source: tuple[str, str] | None = None
    into: str | None = None
    is_quoted: bool = False
    emit: str | None = None
    every: str | None = None
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    column: int = 1
    program: str = field(default="", repr=False, compare=False)

    @property
    def place(self) -> tuple[int, int]:
        """Line and column where it begins."""
        return self.line, self.column

    def in_program(self, place: tuple[int, int]) -> tuple[int, int]:
        """Line and column in the program of a place in the query's text."""
        line, column = self.places["as"]
        return line + place[0] - 1, place[1] + (column - 1 if place[0] == 1 else 0)


def statements(text: str) -> list[Statement]:
    """The statements of a program.

    Raises:
        FlowError: one can't be read, with its line and column, and a caret.
    """
    text = text.removeprefix("\ufeff")  # with which some editors begin a file
    try:
        found = DuckDB().tokenize(without_insides(text))
    except SchemaError as error:
        raise _refused(str(error), text, error.at or 0) from None
    except SqlglotError as error:
        what, at = unfinished(text) or (f"expected SQL; found {str(error).splitlines()[0]}", 0)
        raise _refused(what, text, at) from None
    made: list[Statement] = []
    part: list[Token] = []
    for token in [*found, None]:
        if token is None or token.token_type == TokenType.SEMICOLON:
            if part:
                made.append(_statement(text, part))
            part = []
        else:
            part.append(token)
    return made


def _statement(text: str, part: list[Token]) -> Statement:
    """One statement; where it can't be read and has a form of another system, what to write instead."""
    try:
        return _Reader(text, part).statement()
    except PlacedError as error:
        start = part[0].start
        source = text[start : part[-1].end + 1]
        form = begun(source) or unread(source)
        if form is not None:
            raise _refused(form.message, text, start + form.start) from None
        place = error.place or line_and_column(text, start)
        shown = f"line {place[0]}, column {place[1]}: {error}{marked(text, place)}"
        raise FlowError(shown) from None


def _refused(what: str, text: str, at: int) -> FlowError:
    line, column = line_and_column(text, at)
    return FlowError(f"line {line}, column {column}: {what}{marked(text, (line, column))}")


class _Reader:
    """Reads one statement's tokens."""

    def __init__(self, text: str, found: list[Token]) -> None:
        self.text, self.tokens, self.at = text, found, 0
        self.places: dict[str, tuple[int, int]] = {}

    def statement(self) -> Statement:
        line, column = self._begin(self.tokens[0])
        if self._take("SET"):
            name = self._name("a setting").lower()
            self._expect("=")
            value = self._next("a value").text
            return Statement("SET", name, line, options={"value": value}, program=self.text)
        self._expect("CREATE")
        if self._take("OR"):
            self._expect("REPLACE")
        kind = next((k for k in KINDS if self._take(*k.split())), None)
        if kind is None:
            raise self._error(f"CREATE {', '.join(KINDS)}")
        if self._take("IF"):  # as for OR REPLACE: a program describes what there is to be
            self._expect("NOT")
            self._expect("EXISTS")
        name = self._name("a name")
        columns = None
        is_captured = kind == "TABLE" and self._is_next("FROM")
        if kind in ("STREAM", "TABLE") and not self._is_next("AS") and not is_captured:
            columns = self._columns()
        source = self._database() if kind == "TABLE" and self._take("FROM") else None
        into = emit = every = query = None
        is_quoted = False
        if kind == "SINK":
            self._expect("INTO")
            into, is_quoted = self._destination()
        options = self._options()
        if kind not in ("STREAM", "TABLE") or (kind == "TABLE" and self._is_next("AS")):
            self._expect("AS")
            query, emit, every = self._query(kind)
        if self.at < len(self.tokens):
            raise self._error("the end of the statement, or ';'")
        return Statement(
            kind,
            name,
            line,
            columns,
            options,
            query,
            source,
            into,
            is_quoted,
            emit,
            every,
            self.places,
            column,
            self.text,
        )

    def _destination(self) -> tuple[str, bool]:
        """What is after INTO, and whether in quotes. A name in double quotes is a topic."""
        expected = "a topic, or the address of another system in quotes"
        token = self._next(expected)
        self.places["into"] = self._begin(token)
        is_quoted = token.token_type == TokenType.STRING
        self.at -= 1
        return self._name(expected), is_quoted

    def _database(self) -> tuple[str, str]:
        """`POSTGRES 'postgresql://ann@localhost/shop'`."""
        kind = self._name("a kind of database after FROM, such as POSTGRES")
        self.places["from"] = self._begin(self.tokens[self.at - 1])
        token = self._next("the database's address in quotes")
        if token.token_type != TokenType.STRING:
            found = described(token.text)  # a password isn't for messages
            raise PlacedError(
                f"expected the database's address in quotes; found {found!r}", self._begin(token)
            )
        return kind, token.text

    def _columns(self) -> Columns:
        self._expect("(")
        begin = self.tokens[self.at - 1].end + 1
        items: list[list[Token]] = [[]]
        depth = 1
        while True:
            token = self._next("')'")
            kind = token.token_type
            if kind not in _LESS or not is_computed(items[-1]):
                depth += (kind in _OPEN) - (kind in _CLOSE)
            if not depth:
                break
            if depth == 1 and kind == TokenType.COMMA:
                items.append([])
            else:
                items[-1].append(token)
        try:
            return read_columns(self.text, begin, token.start, items)
        except ColumnError as error:
            raise self._error(error.expected, error.token) from None

    def _options(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if not self._take("WITH"):
            return found
        self._expect("(")
        while not self._take(")"):
            place = self._begin(self.tokens[min(self.at, len(self.tokens) - 1)])
            name = self._name("an option").lower()
            self.places[name] = place
            self._expect("=")
            found[name] = self._next("a value").text
            if not self._take(","):
                self._expect(")")
                break
        return found

    def _query(self, kind: str) -> tuple[str, str | None, str | None]:
        """The query's text, and what `EMIT …` at its end says."""
        start, end = self.at, len(self.tokens)
        emit = every = None
        for at in range(start + 1, end):
            token = self.tokens[at]
            is_word = token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
            if is_word and token.text.upper() == "EMIT" and self._emits(at, kind):
                emit, every = self._emit([token.text for token in self.tokens[at + 1 :]])
                end = at
                break
        if start >= end:
            raise self._error("a SELECT")
        self.at = len(self.tokens)
        self.places["as"] = self._begin(self.tokens[start])
        return self._source(self.tokens[start:end]), emit, every

    def _emits(self, at: int, kind: str) -> bool:
        """Whether EMIT begins a sink's clause; elsewhere it may be a name.

        Raises:
            FlowError: a view has such a clause.
        """
        words = [token.text.upper() for token in self.tokens[at + 1 :]]
        if kind != "SINK" and (
            words in (["ON", "CLOSE"], ["CHANGES"], ["UPSERTS"]) or words[:1] == ["EVERY"]
        ):
            raise PlacedError(
                f"expected EMIT in CREATE SINK; found it in CREATE {kind}. A view shows what each version "
                "contains; a sink says which changes a topic gets",
                self._begin(self.tokens[at]),
            )
        return kind == "SINK"

    def _emit(self, words: list[str]) -> tuple[str | None, str | None]:
        match [word.upper() for word in words]:
            case ["ON", "CLOSE"]:
                return "closed", None
            case ["CHANGES"]:
                return "changes", None
            case ["UPSERTS"]:
                return "upserts", None
            case ["EVERY", "INTERVAL", *_] if len(words) > 2:
                return None, " ".join(words[2:]).lower()
            case _:
                raise self._error("EMIT ON CLOSE, CHANGES, UPSERTS or EVERY INTERVAL 10 SECONDS")

    # -- tokens -------------------------------------------------------------------------------------

    def _begin(self, token: Token) -> tuple[int, int]:
        """Line and column of a token's first character."""
        return line_and_column(self.text, token.start)

    def _source(self, part: list[Token]) -> str:
        return self.text[part[0].start : part[-1].end + 1]

    def _next(self, expected: str) -> Token:
        if self.at >= len(self.tokens):
            raise self._error(expected)
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, *words: str) -> bool:
        part = self.tokens[self.at : self.at + len(words)]
        if [token.text.upper() for token in part] != list(words):
            return False
        self.at += len(words)
        return True

    def _is_next(self, word: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at].text.upper() == word

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._error(word)

    def _name(self, what: str) -> str:
        """A name: a word, or anything in quotes; a topic's may have dots and dashes."""
        token = self._next(what)
        text = token.text
        if not text or not (
            text[0].isalpha() or text[0] == "_" or token.token_type == TokenType.STRING
        ):
            self.at -= 1
            raise self._error(what)
        return text

    def _error(self, expected: str, token: Token | None = None) -> PlacedError:
        if token is None and self.at < len(self.tokens):
            token = self.tokens[self.at]
        if token is None:
            line, column = self._begin(self.tokens[-1])
            column += self.tokens[-1].end + 1 - self.tokens[-1].start
            return PlacedError(
                f"expected {expected}; found the end of the statement", (line, column)
            )
        found = described(token.text) if "://" in token.text else token.text  # without a password
        return PlacedError(f"expected {expected}; found {found!r}", self._begin(token))
