"""`COPY … TO STDOUT`: the rows of a query as text, CSV or PostgreSQL's binary format; no I/O here.

https://www.postgresql.org/docs/16/sql-copy.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import sqlglot
from sqlglot.tokenizer_core import Token, TokenType

from penstock.serve.answers import Answer
from penstock.serve.catalogs.types import encode_column
from penstock.serve.postgres.commands import Refused
from penstock.serve.postgres.messages import data_rows, message

__all__ = ["Copying", "Writing", "copied", "copying_of"]

ROWS_AT_ONCE: Final = 10_000  # that are written to the client together
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = struct.pack("!h", -1)
_ESCAPES: Final = {
    "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip
_AFTER: Final = ("TO", "FROM", "(")  # a name; one that is quoted may be one of them
_NOISE: Final = frozenset({"WITH", "(", ")", ",", "AS"})


@dataclass(frozen=True)
class Copying:
    """What is copied, and how it is written.

    Attributes:
        query: whose rows.
        format: of the rows.
        header: whether the names of columns come first.
        delimiter: between values; one character.
        null: what stands for NULL.
        quote: around values of CSV that need it.
        escape: before a quote within them.
    """

    query: str
    format: Literal["text", "csv", "binary"] = "text"
    header: bool = False
    delimiter: str = "\t"
    null: str = "\\N"
    quote: str = '"'
    escape: str = '"'


def copying_of(text: str) -> Copying:
    """Reads a COPY statement.

    Raises:
        Refused: it isn't one, or writes.

    >>> copying_of("COPY per_user (n) TO STDOUT CSV HEADER").query
    'SELECT n FROM per_user'
    >>> copying_of('COPY "to" TO STDOUT').query
    'SELECT * FROM "to"'
    """
    try:
        tokens = sqlglot.tokenize(text, dialect="postgres")
    except sqlglot.errors.SqlglotError as error:
        raise Refused("42601", f"expected COPY … TO STDOUT; found {error}") from None
    at, end = 1, _closing(tokens, 1) if len(tokens) > 1 else 0
    if end:
        query = text[tokens[1].start + 1 : tokens[end].start]
        at = end + 1
    else:
        while (
            at < len(tokens) and text[tokens[at].start : tokens[at].end + 1].upper() not in _AFTER
        ):
            at += 1
        name = text[tokens[1].start : tokens[at - 1].end + 1] if at > 1 else ""
        end = _closing(tokens, at)
        columns = text[tokens[at].start + 1 : tokens[end].start] if end else "*"
        query = f"SELECT {columns} FROM {name}"
        at = end + 1 if end else at
    direction = [one.text.upper() for one in tokens[at : at + 2]]
    if direction[:1] == ["FROM"]:
        raise Refused("25006", "expected COPY … TO STDOUT, because views are only read; found FROM")
    if direction != ["TO", "STDOUT"]:
        raise Refused("0A000", f"expected COPY … TO STDOUT; found {' '.join(direction)!r}")
    return _with_options(query, tokens[at + 2 :])


def _closing(tokens: list[Token], at: int) -> int:
    """Where the parenthesis that opens at a token closes; 0: none opens there."""
    if at >= len(tokens) or tokens[at].token_type is not TokenType.L_PAREN:
        return 0
    depth = 0
    for i, one in enumerate(tokens[at:], at):
        depth += (one.token_type is TokenType.L_PAREN) - (one.token_type is TokenType.R_PAREN)
        if not depth:
            return i
    raise Refused("42601", "expected a closing parenthesis; found none")


def _with_options(query: str, tokens: list[Token]) -> Copying:
    words = [
        one
        for one in tokens
        if one.token_type is TokenType.STRING or one.text.upper() not in _NOISE
    ]
    found: dict[str, str] = {}
    while words:
        name = words.pop(0).text.upper()
        match name:
            case "CSV" | "BINARY":
                found["FORMAT"] = name
            case "HEADER":
                has_value = words and words[0].text.upper() in (
                    "TRUE",
                    "FALSE",
                    "ON",
                    "OFF",
                    "1",
                    "0",
                )
                found[name] = words.pop(0).text.upper() if has_value else "TRUE"
            case "FORMAT" | "DELIMITER" | "NULL" | "QUOTE" | "ESCAPE" | "ENCODING" if words:
                found[name] = words.pop(0).text
            case _:
                raise Refused(
                    "0A000",
                    "expected the options FORMAT, HEADER, DELIMITER, NULL, QUOTE and ESCAPE; found "
                    f"{name}",
                )
    form = found.get("FORMAT", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise Refused("22023", f"expected FORMAT text, csv or binary; found {form!r}")
    is_csv = form == "csv"
    quote = found.get("QUOTE", '"')
    made = Copying(
        query,
        form,  # type: ignore[arg-type] # checked above
        found.get("HEADER", "FALSE") in ("TRUE", "ON", "1"),
        found.get("DELIMITER", "," if is_csv else "\t"),
        found.get("NULL", "" if is_csv else "\\N"),
        quote,
        found.get("ESCAPE", quote),
    )
    for what, one in (("DELIMITER", made.delimiter), ("QUOTE", quote), ("ESCAPE", made.escape)):
        if len(one.encode()) != 1 or one in "\r\n":
            raise Refused("22023", f"expected {what} of one character of ASCII; found {one!r}")
    return made


def copied(how: Copying, answer: Answer) -> Iterator[bytes]:
    """The messages of a copy, but for the last one, which has the number of rows."""
    writing = Writing(how, answer.types or ("",) * answer.table.num_columns)
    yield writing.begin(answer.table)
    yield from writing.rows(answer.table)
    yield writing.end()


class Writing:
    """Writes the messages of a copy.

    Args:
        how: rows are written.
        types: of the columns, as DuckDB calls them.
    """

    def __init__(self, how: Copying, types: Sequence[str]) -> None:
        self._how, self._types = how, types
        self._is_binary = how.format == "binary"
        self._ahead = _SIGNATURE if self._is_binary else b""
        """As PostgreSQL sends it: together with what follows first."""

    def begin(self, table: pa.Table) -> bytes:
        """What is said about a table's columns."""
        count, binary = table.num_columns, int(self._is_binary)
        begun = message(b"H", struct.pack("!bh", binary, count) + struct.pack("!h", binary) * count)
        if self._how.header and not binary:
            names = [one.encode() for one in table.column_names]
            begun += message(b"d", _line(self._how, names))
        return begun

    def rows(self, table: pa.Table) -> Iterator[bytes]:
        """The rows of a table."""
        for begin in range(0, len(table), ROWS_AT_ONCE):
            some = table.slice(begin, ROWS_AT_ONCE)
            columns = [
                encode_column(column, int(self._is_binary), name)
                for column, name in zip(some.columns, self._types, strict=True)
            ]
            if self._is_binary:  # a row is what it is in an answer
                rows = [one[5:] for one in data_rows(columns, len(some))]
                rows[0], self._ahead = self._ahead + rows[0], b""
                parts = [message(b"d", one) for one in rows]
            else:
                texts = zip(*columns, strict=True) if columns else [()] * len(some)
                parts = [message(b"d", _line(self._how, row)) for row in texts]
            yield b"".join(parts)

    def end(self) -> bytes:
        """What is said behind the last row."""
        last = message(b"d", self._ahead + _END) if self._is_binary else b""
        return last + message(b"c")


def _line(how: Copying, row: tuple[bytes | None, ...] | list[bytes]) -> bytes:
    """A row of text or CSV, with its end."""
    values = [None if one is None else one.decode() for one in row]
    write = _quoted if how.format == "csv" else _escaped
    texts = [how.null if one is None else write(how, one, len(row)) for one in values]
    return (how.delimiter.join(texts) + "\n").encode()


def _escaped(how: Copying, value: str, _: int) -> str:
    found = "".join(_ESCAPES.get(one, one) for one in value)
    return found if how.delimiter == "\t" else found.replace(how.delimiter, f"\\{how.delimiter}")


def _quoted(how: Copying, value: str, columns: int) -> str:
    needs = value == how.null or (columns == 1 and value == "\\.")
    if not needs and not any(one in value for one in (how.delimiter, how.quote, "\n", "\r")):
        return value
    inner = value.replace(how.escape, how.escape * 2)
    if how.escape != how.quote:
        inner = inner.replace(how.quote, how.escape + how.quote)
    return f"{how.quote}{inner}{how.quote}"
