"""MATCH_RECOGNIZE as it is written: its clauses, and the query without it.

sqlglot reads the clause in some dialects only, and its pattern in none. So it is cut out before sqlglot sees
the text, in every dialect in the same way; the query keeps its length, and so the places in it.

    FROM ticks MATCH_RECOGNIZE (PATTERN (a b+) …) AS m    ->    FROM ticks                       AS m
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Final, Literal, NoReturn

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from penstock.core.names import hint
from penstock.errors import SchemaError
from penstock.expr.walks import find_all

__all__ = [
    "CLAUSE",
    "MARK",
    "Clause",
    "Part",
    "around_clauses",
    "with_clauses",
    "with_marks",
    "without_clauses",
]

CLAUSE: Final = "match_recognize"
"""The argument of a subquery that is the clause behind it; and how its mark begins."""
_BEFORE: Final = (TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN)
"""What is before a table of a FROM."""
MARK: Final = "pattern_"
"""What is before a pattern's functions while sqlglot reads them: it has others of their names."""
_FUNCTIONS: Final = ("FIRST", "LAST", "PREV", "NEXT", "CLASSIFIER", "MATCH_NUMBER")
_SEMANTICS: Final = ("RUNNING", "FINAL")
_OTHERS: Final = {"LAG": "PREV", "LEAD": "NEXT"}
"""What Snowflake calls functions of a pattern."""

_STRING: Final = r"[eE]'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"
_QUOTED: Final = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`"
_ESCAPED: Final = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`"
_CLAUSES: Final = (
    "PARTITION BY", "ORDER BY", "MEASURES", "ONE ROW PER MATCH", "ALL ROWS PER MATCH", "AFTER MATCH SKIP",
    "PATTERN", "WITHIN", "KEEP", "CORRECT", "SUBSET", "DEFINE",
)  # fmt: skip
"""In their order. ONE ROW and ALL ROWS exclude each other."""
_SORTS: Final = ("ASC", "DESC", "NULLS", "FIRST", "LAST")
_ROWS: Final = ("ONE ROW PER MATCH", "ALL ROWS PER MATCH")
_SKIPS: Final = "PAST LAST ROW, TO NEXT ROW, TO FIRST x, TO LAST x or TO x"
_KINDS: Final = "SHOW EMPTY MATCHES, OMIT EMPTY MATCHES or WITH UNMATCHED ROWS"


@dataclass(frozen=True)
class Word:
    """A word, mark, number or quoted text.

    Attributes:
        text: as it is written.
        start: its first character in the query, from 0.
    """

    text: str
    start: int

    @property
    def end(self) -> int:
        """Behind its last character."""
        return self.start + len(self.text)

    @property
    def upper(self) -> str:
        """In upper case; of a quoted text nothing that a keyword could be."""
        return self.text.upper()

    @property
    def is_name(self) -> bool:
        """Whether it is a name, in quotes or without."""
        return re.fullmatch(r"[^\W\d][\w$]*|\"(?:[^\"]|\"\")+\"|`[^`]+`", self.text) is not None

    @property
    def name(self) -> str:
        """The name that it is."""
        if self.text[0] in '"`':
            return self.text[1:-1].replace('""', '"')
        return self.text


@dataclass(frozen=True)
class Part:
    """A part of a clause.

    Attributes:
        text: as it is written.
        start: its first character in the query, from 0.
        name: that it defines, or has: of a measure, of a variable of DEFINE, of a SUBSET.
    """

    text: str
    start: int
    name: str = ""


@dataclass(frozen=True)
class Clause:
    """What a MATCH_RECOGNIZE says.

    Attributes:
        start: its word in the query, from 0.
        end: behind its closing parenthesis.
        pattern: what is in the parentheses of PATTERN.
        partition: expressions of PARTITION BY.
        order: those of ORDER BY, with ASC, DESC and NULLS.
        measures: with their names.
        rows: `"one"` or `"all"`.
        empty: `"show"` or `"omit"`.
        unmatched: WITH UNMATCHED ROWS.
        in_window: whether it was a window's: the rows keep their columns' order, and measures are final.
        after: where the next match is looked for: `past last row`, `next row`, `first x`, `last x`, `x`; its
            name is the variable.
        within: the interval of WITHIN.
        keep: the rows that an attempt may look at: `KEEP 1000 ROWS`.
        correct: how far behind the watermark late rows still count: `CORRECT INTERVAL '1' HOUR`.
        subsets: texts of names with commas.
        defines: conditions, with their variables.
    """

    start: int
    end: int
    pattern: Part
    partition: tuple[Part, ...] = ()
    order: tuple[Part, ...] = ()
    measures: tuple[Part, ...] = ()
    rows: Literal["one", "all"] = "one"
    empty: Literal["show", "omit"] = "show"
    unmatched: bool = False
    in_window: bool = False
    after: Part = Part("past last row", 0)
    within: Part | None = None
    keep: Part | None = None
    correct: Part | None = None
    subsets: tuple[Part, ...] = ()
    defines: tuple[Part, ...] = ()


def without_clauses(text: str, dialect: str) -> tuple[str, list[Clause]]:
    """A text with spaces in place of each MATCH_RECOGNIZE, and these.

    Args:
        text: a query, or a program.
        dialect: of the text.

    Raises:
        SchemaError: one can't be read; `at` is where.
    """
    spans, words = [], None
    for found in re.finditer(r"\bmatch_recognize\b", text, re.IGNORECASE):
        words = words or list(words_of(text, dialect))
        at = next((i for i, one in enumerate(words) if one.start == found.start()), None)
        if at is not None and at + 1 < len(words) and words[at + 1].text == "(":
            spans.append(at)
    clauses: list[Clause] = []
    for at in spans:
        assert words is not None
        if clauses and words[at].start < clauses[-1].end:
            refuse(
                "expected conditions and measures of a pattern's rows; found a MATCH_RECOGNIZE within "
                "another. Name the inner one's rows in a subquery in FROM",
                words[at].start,
            )
        clauses.append(Reader(text, words, at).clause())
        text = blanked(text, clauses[-1].start, clauses[-1].end)
    return text, clauses


def blanked(text: str, start: int, end: int) -> str:
    """A text with spaces in place of a part; its lines stay."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def around_clauses(tokens: list[Token], clauses: Sequence[Clause]) -> list[Token]:
    """A query's words with a subquery for each clause, which was cut out of its text.

    Raises:
        SchemaError: there is no table before one.
    """
    for number, clause in enumerate(clauses):
        at = next((i for i, one in enumerate(tokens) if one.start >= clause.end), len(tokens))
        first = _source(tokens, at)
        if first == at:
            failure = SchemaError(
                "expected a table of FROM before MATCH_RECOGNIZE, as in FROM ticks MATCH_RECOGNIZE (…); "
                "found none"
            )
            failure.at = clause.start
            raise failure
        opening, closing = tokens[first], tokens[at - 1]
        head = [
            (TokenType.L_PAREN, "("),
            (TokenType.SELECT, "SELECT"),
            (TokenType.IDENTIFIER, f"{CLAUSE} {number}"),
            (TokenType.FROM, "FROM"),
        ]
        before = [
            Token(kind, text, opening.line, opening.col, opening.start, opening.end)
            for kind, text in head
        ]
        end = clause.end - 1
        tokens = [
            *tokens[:first],
            *before,
            *tokens[first:at],
            Token(TokenType.R_PAREN, ")", closing.line, closing.col, end, end),
            *tokens[at:],
        ]
    return tokens


def _source(tokens: Sequence[Token], end: int) -> int:
    """The first word of the table before one."""
    depth, at = 0, end
    while at:
        kind = tokens[at - 1].token_type
        if not depth and kind in _BEFORE:
            break
        depth += (kind == TokenType.R_PAREN) - (kind == TokenType.L_PAREN)
        at -= 1
    return at


def with_clauses(tree: exp.Expr, clauses: Sequence[Clause]) -> exp.Expr:
    """A query whose subqueries for clauses have them."""
    marks = {f"{CLAUSE} {number}": clause for number, clause in enumerate(clauses)}
    for subquery in find_all(tree, exp.Subquery):
        items = subquery.this.expressions if isinstance(subquery.this, exp.Select) else []
        clause = marks.get(items[0].name) if len(items) == 1 else None
        if clause is not None:
            subquery.this.set("expressions", [exp.Star()])
            subquery.set(CLAUSE, clause)
    return tree


def with_marks(text: str, dialect: str) -> str:
    """An expression whose calls of a pattern's functions are marked, and whose RUNNING and FINAL are calls.

    >>> with_marks("FINAL LAST(a.x) - PREV(x)", "oracle")
    'pattern_FINAL(pattern_LAST(a.x)) - pattern_PREV(x)'
    """
    words = list(words_of(text, dialect))
    made, closing = [], []  # ends of calls that RUNNING and FINAL became
    at = depth = 0
    for i, word in enumerate(words):
        made.append(text[at : word.start])
        at = word.end
        depth += (word.text == "(") - (word.text == ")")
        calls = i + 1 < len(words) and words[i + 1].text == "("
        if (
            word.upper in _SEMANTICS
            and not calls
            and i + 2 < len(words)
            and words[i + 2].text == "("
        ):
            made.append(f"{MARK}{word.upper}(")
            at = words[i + 1].start
            closing.append(depth)
            continue
        if calls and word.upper in (*_FUNCTIONS, *_SEMANTICS, *_OTHERS):
            made.append(MARK + _OTHERS.get(word.upper, word.text))
        else:
            made.append(word.text)
        if word.text == ")" and closing and closing[-1] == depth:
            made.append(")")
            closing.pop()
    return "".join([*made, text[at:]])


@cache
def _lexer(dialect: str) -> re.Pattern[str]:
    """What cuts a text into words, in a dialect."""
    tokenizer = Dialect.get_or_raise(dialect).tokenizer_class
    escapes = "\\" in tokenizer.STRING_ESCAPES
    comment = r"--[^\n]*|#[^\n]*" if "#" in tokenizer.COMMENTS else r"--[^\n]*"
    quoted = _ESCAPED if escapes else _QUOTED
    return re.compile(
        rf"{comment}|/\*.*?\*/|\s+|(?P<word>{_STRING}|{quoted}|[\w$]*\w[\w$]*|.)", re.DOTALL
    )


def words_of(text: str, dialect: str) -> Iterator[Word]:
    """The words of a text, without blanks and comments."""
    for found in _lexer(dialect).finditer(text):
        if found["word"] is not None:
            yield Word(found["word"], found.start())


def refuse(message: str, at: int) -> NoReturn:
    """Refuses what is at a place of the query."""
    failure = SchemaError(message)
    failure.at = at
    raise failure


class Reader:
    """Reads one MATCH_RECOGNIZE.

    Args:
        text: the query.
        words: of it.
        at: which of them is the clause's first.

    Attributes:
        clauses: what there may be, in this order.
    """

    clauses: ClassVar[tuple[str, ...]] = _CLAUSES

    def __init__(self, text: str, words: Sequence[Word], at: int) -> None:
        self.text, self.words, self.at = text, words, at + 2
        self.start, self.done = words[at].start, -1  # which clause was read last
        closing = self._closing(at + 1)
        self.words = words[:closing]
        self.end = words[closing].end

    def clause(self) -> Clause:
        """What it says."""
        made = Clause(self.start, self.end, Part("", self.start))
        while self.at < len(self.words):
            first = self.words[self.at]
            head = self._head()
            if head is None:
                self._odd(first)
            place = self.clauses.index(head)
            before = self.clauses[self.done] if self.done >= 0 else ""
            if place == self.done or (head in _ROWS and before in _ROWS):
                refuse(f"expected {before} once; found {head} after it", first.start)
            if place < self.done:
                refuse(f"expected {head} before {before}; found it after", first.start)
            self.done = place
            made = self.taken(made, head)
        if not made.pattern.text:
            self._missing("PATTERN (…), which says in what order rows match")
        if not made.defines:
            self._missing(
                "DEFINE with the conditions of the pattern's variables, as in DEFINE b AS b.x > 1"
            )
        return made

    def _missing(self, what: str) -> NoReturn:
        refuse(f"expected {what}; found none", self.start)

    def _odd(self, word: Word, first: str = "") -> NoReturn:
        """Says what may follow what was read, instead of a word."""
        expected = [one for i, one in enumerate(self.clauses) if i > self.done]
        near = hint(word.upper, [one.split()[0] for one in expected])
        if first:
            expected.insert(0, first)
        refuse(f"expected {_listed(expected)}; found {word.text!r}{near}", word.start)

    # -- clauses ------------------------------------------------------------------------------------

    def taken(self, made: Clause, head: str) -> Clause:
        """The clause with what follows one of its words."""
        match head:
            case "PARTITION BY":
                return replace(made, partition=tuple(self._items()))
            case "ORDER BY":
                return replace(made, order=tuple(self._items()))
            case "MEASURES":
                return replace(made, measures=tuple(map(self._measure, self._items())))
            case "ONE ROW PER MATCH":
                return made
            case "ALL ROWS PER MATCH":
                return self._all_rows(replace(made, rows="all"))
            case "AFTER MATCH SKIP":
                return replace(made, after=self._after())
            case "PATTERN":
                return replace(made, pattern=self._pattern())
            case "WITHIN":
                return replace(made, within=self._interval(head))
            case "CORRECT":
                return replace(made, correct=self._interval(head))
            case "KEEP":
                return replace(made, keep=self._keep())
            case "SUBSET":
                return replace(made, subsets=tuple(map(self._subset, self._items())))
            case _:
                return replace(made, defines=tuple(map(self._define, self._items())))

    def _all_rows(self, made: Clause) -> Clause:
        if self._take("SHOW", "EMPTY", "MATCHES"):
            return made
        if self._take("OMIT", "EMPTY", "MATCHES"):
            return replace(made, empty="omit")
        if self._take("WITH", "UNMATCHED", "ROWS"):
            return replace(made, unmatched=True)
        if self.at < len(self.words) and self._word() in ("SHOW", "OMIT", "WITH"):
            self._expected(_KINDS)
        return made

    def _after(self) -> Part:
        start = self.words[self.at].start if self.at < len(self.words) else self.end - 1
        if self._take("PAST", "LAST", "ROW"):
            return Part("past last row", start)
        if not self._take("TO"):
            self._expected(_SKIPS)
        if self._take("NEXT", "ROW"):
            return Part("next row", start)
        for which in ("FIRST", "LAST"):
            if self._word() == which and self._is_name(self.at + 1) and not self._head(self.at + 1):
                self.at += 1
                name = self._name("a variable")
                return Part(f"{which.lower()} {name}", self.words[self.at - 1].start, name)
        if self._head(self.at) is not None:
            self._expected(_SKIPS)
        name = self._name(_SKIPS)
        return Part(name, self.words[self.at - 1].start, name)

    def _pattern(self) -> Part:
        start, opening = self.at + 1, self.words[self.at]
        closing = self._closing(self.at)
        self.at = closing + 1
        if closing == start:
            refuse("expected a pattern, as in PATTERN (a b+ c); found ()", opening.start)
        inside = self.words[start:closing]
        return Part(self.text[inside[0].start : inside[-1].end], inside[0].start)

    def _interval(self, head: str) -> Part:
        [part] = self._items()
        if not part.text.upper().startswith("INTERVAL"):
            refuse(
                f"expected {head} INTERVAL '10' MINUTE or the like; found {part.text!r}", part.start
            )
        return part

    def _keep(self) -> Part:
        number = self.words[self.at] if self.at < len(self.words) else None
        if number is None or not re.fullmatch(r"[0-9][0-9_]*", number.text):
            self._expected("a number of rows, as in KEEP 1000 ROWS")
        self.at += 1
        if not self._take("ROWS") and not self._take("ROW"):
            self._expected("ROWS")
        return Part(number.text, number.start)

    def _measure(self, part: Part) -> Part:
        words = self._inside(part)
        if len(words) < 3 or words[-2].upper != "AS" or not words[-1].is_name:
            refuse(
                f"expected a measure with its name, as in last(a.x) AS y; found {part.text!r}",
                part.start,
            )
        return Part(self.text[part.start : words[-3].end], part.start, words[-1].name)

    def _subset(self, part: Part) -> Part:
        words = self._inside(part)
        marks = [one.text for one in words[1:3]] + [words[-1].text]
        if not words[0].is_name or marks != ["=", "(", ")"] or len(words) < 5:
            refuse(f"expected SUBSET name = (a, b); found {part.text!r}", part.start)
        names = words[3:-1]
        for i, one in enumerate(names):
            if not (one.is_name if i % 2 == 0 else one.text == ",") or names[-1].text == ",":
                refuse(f"expected SUBSET name = (a, b); found {part.text!r}", part.start)
        members = ",".join(one.name for one in names[::2])
        return Part(members, names[0].start, words[0].name)

    def _define(self, part: Part) -> Part:
        words = self._inside(part)
        if len(words) < 3 or not words[0].is_name or words[1].upper != "AS":
            refuse(
                f"expected a variable and its condition, as in b AS b.x > 1; found {part.text!r}",
                part.start,
            )
        return Part(self.text[words[2].start : words[-1].end], words[2].start, words[0].name)

    # -- words --------------------------------------------------------------------------------------

    def _head(self, at: int | None = None) -> str | None:
        """The clause that begins at a word, which is then passed unless `at` is given; None: none does."""
        start = self.at if at is None else at
        for one in self.clauses:
            length = len(one.split())
            if [word.upper for word in self.words[start : start + length]] != one.split():
                continue
            after = self.words[start + length].text if start + length < len(self.words) else ""
            if (one == "PATTERN" and after != "(") or (one == "KEEP" and not after[:1].isdecimal()):
                continue  # it is a name
            if one == "CORRECT" and after.upper() != "INTERVAL":
                continue
            if at is None:
                self.at += length
            return one
        return None

    def _items(self) -> list[Part]:
        """Items with commas, up to the next clause."""
        found: list[list[Word]] = [[]]
        depth = 0
        while self.at < len(self.words):
            word = self.words[self.at]
            depth += (word.text in "([{") - (word.text in ")]}")
            if not depth and self._ends(found[-1]):
                break
            if not depth and word.text == ",":
                found.append([])
            else:
                found[-1].append(word)
            self.at += 1
        if not found[-1]:
            self._expected("an item" if len(found) == 1 else "an item after ','")
        for item in found:
            if (stray := self._stray(item)) is not None:
                self._odd(stray, "','")
        return [Part(self.text[one[0].start : one[-1].end], one[0].start) for one in found]

    def _ends(self, item: Sequence[Word]) -> bool:
        """Whether a clause begins here: behind AS, a word is a name."""
        is_name = bool(item) and item[-1].upper == "AS"
        return not is_name and self._head(self.at) is not None

    def _stray(self, item: Sequence[Word]) -> Word | None:
        """The word behind a whole item: of a clause that is misspelt."""
        named, depth = self.clauses[self.done] == "MEASURES", 0
        if self.clauses[self.done] in ("SUBSET", "DEFINE"):
            return None
        for i, word in enumerate(item[1:], 1):
            depth += (word.text in "([{") - (word.text in ")]}")
            follows = word.is_name and item[i - 1].is_name and word.upper not in _SORTS
            if named:
                follows = i > 1 and item[i - 2].upper == "AS" and item[i - 1].is_name
            if not depth and follows:
                return word
        return None

    def _inside(self, part: Part) -> list[Word]:
        end = part.start + len(part.text)
        return [one for one in self.words if part.start <= one.start < end]

    def _closing(self, opening: int) -> int:
        """The word that closes parentheses."""
        depth = 0
        for at in range(opening, len(self.words)):
            depth += (self.words[at].text == "(") - (self.words[at].text == ")")
            if not depth:
                return at
        refuse(
            "expected ')' that closes the parenthesis here; found the end of the query",
            self.words[opening].start,
        )

    def _word(self) -> str:
        return self.words[self.at].upper if self.at < len(self.words) else ""

    def _take(self, *words: str) -> bool:
        found = [one.upper for one in self.words[self.at : self.at + len(words)]]
        if found != list(words):
            return False
        self.at += len(words)
        return True

    def _is_name(self, at: int) -> bool:
        return at < len(self.words) and self.words[at].is_name

    def _name(self, what: str) -> str:
        if not self._is_name(self.at):
            self._expected(what)
        self.at += 1
        return self.words[self.at - 1].name

    def _expected(self, what: str) -> NoReturn:
        if self.at < len(self.words):
            word = self.words[self.at]
            refuse(f"expected {what}; found {word.text!r}", word.start)
        refuse(f"expected {what}; found the end of MATCH_RECOGNIZE", self.end - 1)


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "')'"
    return f"{', '.join(names[:-1])} or {names[-1]}"
