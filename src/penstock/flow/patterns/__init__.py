"""What `match` is given, checked, and made a row pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from penstock.core.time import DAY_US, duration_text
from penstock.errors import FlowError
from penstock.flow.algebra import patterns
from penstock.flow.checks import check_columns, check_duration, check_number, check_text
from penstock.flow.graph import Node, Stateful, retracts
from penstock.flow.shaping import ordered
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import RowPattern, parse_pattern, pattern_text
from penstock.patterns.tree import names_of

__all__ = ["MatchedRows", "Names", "Options", "Pattern", "pattern_of"]

MatchedRows: TypeAlias = Literal["one", "all", "all, unmatched too"]
Names: TypeAlias = str | tuple[str, ...]
WITHIN_MAX_US: Final = 3_660 * DAY_US
"""Ten years: times plus an interval fit 64 bits."""


@dataclass(frozen=True)
class Options:
    """The arguments of `Stream.match` next to the pattern and its variables, as they were given."""

    by: Names
    within: str | timedelta | None
    keep: int | None
    measures: Mapping[str, str] | None
    after: str
    rows: MatchedRows
    order: Names
    subsets: Mapping[str, Sequence[str]] | None
    correct: str | timedelta | None = None


@dataclass(frozen=True)
class Pattern:
    """A pattern over some rows.

    Attributes:
        node: the rows.
        per: the key.
        order: of a table, of its rows; of a stream, of those of one instant.
        clause: the pattern with all that belongs to it.
        keep: how many rows an attempt may look at.
        correct_us: how far behind the watermark rows still count.
    """

    node: Node
    per: tuple[str, ...]
    order: tuple[Ordered, ...]
    clause: RowPattern
    keep: int | None
    correct_us: int

    def matches(self) -> Stateful:
        """The node of its matches."""
        return self._match(timed_out=False)

    def timed_out(self) -> Stateful:
        """The node of attempts that ran out of time."""
        if self.clause.within_us is None:
            raise FlowError(
                "expected a pattern with within=…, whose attempts run out of time; found one without"
            )
        return self._match(timed_out=True)

    def partial(self) -> Stateful:
        """The node of open attempts."""
        return patterns.partial(self.node, self.per, self.order, self.clause, keep=self.keep)

    def _match(self, *, timed_out: bool) -> Stateful:
        return patterns.match(
            self.node,
            self.per,
            self.order,
            self.clause,
            keep=self.keep,
            timed_out=timed_out,
            correct_us=self.correct_us,
        )


def pattern_of(
    node: Node,
    text: str,
    options: Options,
    define: Mapping[str, str] | None,
    defines: Mapping[str, str],
) -> Pattern:
    """What `Stream.match` and `Table.match` are given.

    Raises:
        FlowError: an argument isn't what it must be.
        SchemaError: there is no such column, or the pattern can't be read.
    """
    tree = parse_pattern(check_text(text, "a pattern", "'fail{5,} ok'"))
    per, order = _key(node, options.by), _order(node, options.order)
    if options.rows not in get_args(MatchedRows):
        known = ", ".join(map(repr, get_args(MatchedRows)))
        raise FlowError(f"expected rows= as one of {known}; found {options.rows!r}")
    if options.keep is not None:
        check_number(options.keep, "rows that a match may span (keep=)", 1, patterns.ROWS_MAX)
    measures = _texts(options.measures or {}, "measures", "{'first': 'FIRST(at)'}")
    is_one = options.rows == "one"
    if is_one and not measures and not per:
        raise FlowError(
            "expected what to give of a match, such as measures={'since': 'FIRST(at)'}; found nothing. Name "
            "some measures, or use rows='all'"
        )
    subsets = options.subsets or {}
    clause = RowPattern(
        pattern=pattern_text(tree),
        defines=_defines(names_of(tree), subsets, define or {}, defines),
        subsets=tuple((name, tuple(of)) for name, of in subsets.items()),
        measures=tuple(
            (name, of, "final" if is_one else "running") for name, of in measures.items()
        ),
        after=_after(options.after),
        within_us=None if options.within is None else _within(options.within),
        rows="one" if is_one else "all",
        unmatched=options.rows == "all, unmatched too",
    )
    correct_us = 0
    if options.correct is not None:
        correct_us = check_duration(options.correct, "correct", "'1 hour'")
        if not 0 < correct_us <= WITHIN_MAX_US:
            raise FlowError(
                f"expected correct= longer than nothing, of at most {duration_text(WITHIN_MAX_US)}; found "
                f"{options.correct!r}"
            )
    return Pattern(node, per, order, clause, options.keep, correct_us)


def _key(node: Node, by: Names) -> tuple[str, ...]:
    per = (by,) if isinstance(by, str) else tuple(by)
    check_columns(per, node.schema, "by")
    for name in per:
        if pa.types.is_nested(node.schema[name].type):
            raise FlowError(f"expected columns of single values in by=; found {name!r}")
    return tuple(node.schema[name].name for name in per)


def _order(node: Node, order: Names) -> tuple[Ordered, ...]:
    listed = (order,) if isinstance(order, str) else tuple(order)
    if retracts(node) and not listed:
        raise FlowError("expected the order of a table's rows, such as order='at'; found none")
    return tuple(Ordered(*ordered(one, node.schema)) for one in listed)


def _texts(given: object, what: str, example: str) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise FlowError(f"expected {what}= as a mapping, such as {example}; found {given!r}")
    return {name: check_text(text, f"{what} {name!r}", example) for name, text in given.items()}


def _defines(
    names: Sequence[str],
    subsets: Mapping[str, Sequence[str]],
    define: Mapping[str, str],
    defines: Mapping[str, str],
) -> tuple[tuple[str, str], ...]:
    """Definitions of variables, each of which is in the pattern."""
    twice = define.keys() & defines.keys()
    if twice:
        raise FlowError(f"expected one definition of {min(twice)!r}; found two")
    found = {**_texts(define, "define", "{'fail': 'NOT success'}")}
    for name, text in defines.items():
        found[name] = check_text(text, f"the variable {name!r}", f"{name}='NOT success'")
    known = {name.lower() for name in (*names, *subsets)}
    for name in found:
        if name.lower() not in known:
            raise FlowError(
                f"expected definitions of the pattern's variables {', '.join(names)}; found one of {name!r}"
            )
    return tuple(found.items())


def _after(text: str) -> str:
    """Where to go on, as `RowPattern` has it."""
    words = check_text(text, "after", "'past last row'").lower().split()
    while words and words[0] in ("skip", "to"):
        words = words[1:]
    if not words:
        raise FlowError(
            "expected after='past last row', 'next row', 'first x' or 'last x' of a variable x; found "
            f"{text!r}"
        )
    if words[-1:] == ["row"]:
        return " ".join(words)
    return " ".join([*words[:-1], check_text(text, "after", "").split()[-1]])


def _within(within: str | timedelta) -> int:
    us = check_duration(within, "within", "'10 minutes'")
    if not 0 < us <= WITHIN_MAX_US:
        raise FlowError(
            f"expected within= longer than nothing, of at most {duration_text(WITHIN_MAX_US)}; found "
            f"{within!r}"
        )
    return us
