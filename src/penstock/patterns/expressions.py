"""Expressions of a row pattern: SQL over columns, in which each reference to a matched row is resolved.

A column belongs to a row: the last one of a variable (`a.price`), its first (`FIRST(a.price)`), the one so
many before (`LAST(a.price, 2)`), and from there so many rows of the partition on or back (`PREV(…, 3)`).
`Resolved` has a name for each such place, and the expression over these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.errors import SchemaError

# sqlglot is imported where it is used: lanes that only load a compiled pattern need none.
if TYPE_CHECKING:
    from sqlglot import exp

__all__ = [
    "Aggregate",
    "Base",
    "Classifier",
    "MatchNumber",
    "Part",
    "Place",
    "Resolved",
    "Variables",
    "resolve",
]

OFFSET_MAX: Final = 10_000
"""Rows that PREV, NEXT, FIRST and LAST look back or ahead: so many are kept behind a match."""

_MODE: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(?P<mode>RUNNING|FINAL)\s+(?P<name>\w+)\s*\(""",
    re.IGNORECASE,
)
_AS_NAVIGATION: Final = {"first_value": "first", "last_value": "last"}


@dataclass(frozen=True)
class Base:
    """A matched row.

    Attributes:
        kind: counted from the first or from the last one.
        names: of the variables that it may be; None is all.
        n: how many others lie before it, from there.
        final: of the whole match, or of the rows up to this one; None: as the measure is.
    """

    kind: Literal["first", "last"]
    names: frozenset[str] | None
    n: int = 0
    final: bool | None = None


@dataclass(frozen=True)
class Place:
    """A column of a row: so many rows behind a matched one."""

    base: Base
    column: str
    shift: int = 0


@dataclass(frozen=True)
class Aggregate:
    """An aggregate over matched rows.

    Attributes:
        sql: of DuckDB's, over columns of the rows; a star's is `count(*)`.
        function: its name.
        argument: SQL of its only argument; None: it has none, or several.
        names: as in `Base`.
        final: likewise.
        is_plain: its argument is all that it has: no DISTINCT, no order.
    """

    sql: str
    function: str
    argument: str | None
    names: frozenset[str] | None
    final: bool | None = None
    is_plain: bool = True


@dataclass(frozen=True)
class Classifier:
    """The variable that a matched row is."""

    base: Base


@dataclass(frozen=True)
class MatchNumber:
    """The number of the match in its partition, from 1."""


Part: TypeAlias = Place | Aggregate | Classifier | MatchNumber


@dataclass(frozen=True)
class Variables:
    """The names of a pattern's variables.

    Attributes:
        names: as they are written.
        subsets: of each further name, the variables that it stands for.
    """

    names: tuple[str, ...]
    subsets: Mapping[str, frozenset[str]]

    def find(self, name: str) -> frozenset[str] | None:
        """The variables that a name stands for; None: it is no variable's."""
        for one in self.names:
            if one.lower() == name.lower():
                return frozenset([one])
        for one, members in self.subsets.items():
            if one.lower() == name.lower():
                return members
        return None


@dataclass
class Resolved:
    """An expression.

    Attributes:
        text: as it was written.
        tree: its columns are the names of parts.
        parts: what these stand for.
    """

    text: str
    tree: Any
    parts: dict[str, Part]


def resolve(text: str, schema: Schema, variables: Variables) -> Resolved:
    """Reads an expression, and finds the row of each of its columns.

    Raises:
        SchemaError: it can't be read, or names what isn't there.
    """
    import sqlglot
    from sqlglot import exp

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is

    try:
        tree = sqlglot.parse_one(_with_modes(text), dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        if reason.startswith(
            "Required keyword"
        ):  # continues with the name of a class of the parser
            reason = "a part is missing"
        raise SchemaError(f"expected a SQL expression; found {text!r} ({reason})") from None
    if isinstance(tree, exp.Alias):
        raise SchemaError(f"expected an expression without AS; found {text!r}")
    resolver = _Resolver(text, schema, variables)
    return Resolved(text, resolver.of(tree, None), resolver.parts)


def _with_modes(text: str) -> str:
    """`FINAL last(x)` as `final(last(x))`, which a parser of expressions reads."""
    found = next((one for one in _MODE.finditer(text) if one["mode"]), None)
    if found is None:
        return text
    depth = 0
    for one in re.finditer(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()]""", text[found.end("name") :]):
        depth += {"(": 1, ")": -1}.get(one[0], 0)
        if depth == 0:
            end = found.end("name") + one.end()
            call = text[found.start("name") : end]
            return f"{text[: found.start()]}{found['mode']}({call}){_with_modes(text[end:])}"
    return text  # the parser says what is missing


@dataclass(frozen=True)
class _Frame:
    """What lies around a part: navigation that its columns have from there."""

    kind: Literal["first", "last"] = "last"
    n: int = 0
    shift: int = 0
    final: bool | None = None
    is_logical: bool = False
    is_physical: bool = False


class _Resolver:
    """Replaces the columns of one expression."""

    def __init__(self, text: str, schema: Schema, variables: Variables) -> None:
        self.text = text
        self.schema = schema
        self.variables = variables
        self.parts: dict[str, Part] = {}
        self._by_lower = {name.lower(): name for name in schema.names}

    def of(self, node: exp.Expr, frame: _Frame | None) -> exp.Expr:
        """A node, its columns replaced."""
        from sqlglot import exp

        frame = frame or _Frame()
        name = _call(node)
        if isinstance(node, exp.Query | exp.Subquery | exp.Window):
            raise self._error("no subquery and no window", node)
        if name in ("prev", "next"):
            return self._physical(node, name, frame)
        if name in ("first", "last"):
            return self._logical(node, name, frame)
        if name in ("running", "final"):
            return self.of(self._arguments(node, 1)[0], replace(frame, final=name == "final"))
        if name == "classifier":
            return self._classifier(node, frame)
        if name == "match_number":
            return self._named(MatchNumber(), "match number")
        if _is_aggregate(node):
            return self._aggregate(node, frame)
        if isinstance(node, exp.Column):
            return self._column(node, frame)
        return self._below(node, frame)

    def _below(self, node: exp.Expr, frame: _Frame) -> exp.Expr:
        for key, value in list(node.args.items()):
            if isinstance(value, list):
                node.set(key, [self.of(v, frame) if hasattr(v, "args") else v for v in value])
            elif hasattr(value, "args"):
                node.set(key, self.of(value, frame))
        return node

    def _physical(self, node: exp.Expr, name: str, frame: _Frame) -> exp.Expr:
        if frame.is_physical or frame.is_logical:
            raise self._error("PREV and NEXT outside of FIRST, LAST, PREV and NEXT", node)
        argument, offset = self._navigation(node, 1)
        shift = -offset if name == "prev" else offset
        return self._of_one_row(argument, replace(frame, shift=shift, is_physical=True), node)

    def _logical(self, node: exp.Expr, name: str, frame: _Frame) -> exp.Expr:
        if frame.is_logical:
            raise self._error("one of FIRST and LAST only", node)
        argument, offset = self._navigation(node, 0)
        kind: Literal["first", "last"] = "first" if name == "first" else "last"
        return self._of_one_row(
            argument, replace(frame, kind=kind, n=offset, is_logical=True), node
        )

    def _of_one_row(self, argument: exp.Expr, frame: _Frame, node: exp.Expr) -> exp.Expr:
        from sqlglot import exp

        shown = node.sql("duckdb")
        made = self.of(argument, frame)
        names = {one.name for one in made.find_all(exp.Column)}
        parts = [self.parts[one] for one in names]
        if any(isinstance(one, Aggregate) for one in parts):
            raise self._error("no aggregate within navigation", shown)
        bases = {one.base for one in parts if isinstance(one, Place | Classifier)}
        if len(bases) != 1:
            raise self._error("columns of one variable within navigation", shown)
        return made

    def _navigation(self, node: exp.Expr, default: int) -> tuple[exp.Expr, int]:
        from sqlglot import exp

        found = _arguments(node)
        if len(found) not in (1, 2):
            raise self._error("one or two arguments", node)
        if len(found) == 1:
            return found[0], default
        number = found[1]
        if not isinstance(number, exp.Literal) or number.is_string:
            raise self._error("a whole number as the second argument", node)
        text = str(number.this)
        if not text.isdecimal() or int(text) > OFFSET_MAX:
            raise self._error(f"a whole number of at most {OFFSET_MAX:,}", node)
        return found[0], int(text)

    def _arguments(self, node: exp.Expr, count: int) -> list[exp.Expr]:
        found = _arguments(node)
        if len(found) != count:
            raise self._error(f"{count} argument{'' if count == 1 else 's'}", node)
        return found

    def _classifier(self, node: exp.Expr, frame: _Frame) -> exp.Expr:
        found = _arguments(node)
        names = None
        if found:
            names = self.variables.find(found[0].name)
            if len(found) > 1 or names is None:
                raise self._error("CLASSIFIER of a variable or a subset", node)
        base = Base(frame.kind, names, frame.n, frame.final)
        if frame.shift:
            raise self._error("CLASSIFIER outside of PREV and NEXT", node)
        return self._named(Classifier(base), "classifier")

    def _column(self, node: exp.Column, frame: _Frame) -> exp.Expr:
        from sqlglot import exp

        first, *rest = node.parts
        names = self.variables.find(first.name) if rest else None
        if names is not None:
            first, *rest = rest
        column = self._known(first.name)
        base = Base(frame.kind, names, frame.n, frame.final)
        place = Place(base, column, frame.shift)
        made = self._named(place, column)
        return exp.Dot.build([made, *rest]) if rest else made

    def _known(self, name: str) -> str:
        if name in self.schema.names:
            return name
        found = self._by_lower.get(name.lower())
        if found is None:
            known = [*self.schema.names, *self.variables.names, *self.variables.subsets]
            raise self._error(
                f"one of the columns {known_names(self.schema.names)}", f"{name}", hint(name, known)
            )
        return found

    def _aggregate(self, node: exp.Expr, frame: _Frame) -> exp.Expr:
        """An aggregate: its columns are those of its variable's rows."""
        from sqlglot import exp

        if frame.is_logical or frame.is_physical:
            raise self._error("no aggregate within navigation", node)
        shown = node.sql("duckdb")
        found: set[frozenset[str] | None] = set()
        copy = node.copy()
        for one in list(copy.find_all(exp.Column)):
            first, *rest = one.parts
            names = self.variables.find(first.name) if rest else None
            found.add(names)
            if names is None:
                if not isinstance(first, exp.Star):
                    first.set("this", self._known(first.name))
                if len(rest):
                    one.replace(exp.Dot.build([exp.Column(this=first), *rest]))
                continue
            first, *rest = rest
            if isinstance(first, exp.Star):
                one.replace(exp.Star())
                continue
            first = first.copy()
            first.set("this", self._known(first.name))
            whole = exp.Column(this=first)
            one.replace(exp.Dot.build([whole, *rest]) if rest else whole)
        if any(_call(one) in _NAVIGATION for one in copy.walk()):
            raise self._error("no navigation within an aggregate", shown)
        if len(found) > 1:
            raise self._error("columns of one variable within an aggregate", shown)
        part = _aggregate_of(copy, found.pop() if found else None, final=frame.final)
        return self._named(part, shown)

    def _named(self, part: Part, name: str) -> exp.Expr:
        from sqlglot import exp

        for known, one in self.parts.items():
            if one == part:
                return exp.column(known, quoted=True)
        taken = name
        while taken in self.parts:
            taken += "'"
        self.parts[taken] = part
        return exp.column(taken, quoted=True)

    def _error(self, expected: str, node: exp.Expr | str, more: str = "") -> SchemaError:
        found = node if isinstance(node, str) else node.sql("duckdb")
        return SchemaError(f"expected {expected}; found {found!r} in {self.text!r}{more}")


_NAVIGATION: Final = (
    "prev",
    "next",
    "first",
    "last",
    "running",
    "final",
    "classifier",
    "match_number",
)


def _call(node: Any) -> str:
    """The name of a function of row patterns; empty: it is none."""
    from sqlglot import exp

    match node:
        case exp.Anonymous():
            name = str(node.this).lower()
            return name if name in _NAVIGATION else ""
        case exp.First() | exp.FirstValue():
            return "first"
        case exp.Last() | exp.LastValue():
            return "last"
        case exp.IgnoreNulls() if isinstance(node.this, exp.First | exp.Last):
            return _call(node.this)
        case _:
            return ""


def _arguments(node: Any) -> list[Any]:
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    if isinstance(node, exp.IgnoreNulls):
        return _arguments(node.this)
    second = node.args.get("expression")
    return [node.this] if second is None else [node.this, second]


def _is_aggregate(node: Any) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
        return True
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        return _is_aggregate(node.this)
    if isinstance(node, exp.Anonymous):
        from penstock.expr.duck import connection
        from penstock.expr.purity import names_aggregate

        return names_aggregate(connection(), str(node.this).lower())
    return False


def _aggregate_of(node: exp.Expr, names: frozenset[str] | None, *, final: bool | None) -> Aggregate:
    """An aggregate by its name and its argument, where it has one; conditions are a part of that."""
    from sqlglot import exp

    sql = node.sql(dialect="duckdb", identify=True)
    condition = None
    if isinstance(node, exp.Filter):
        condition = node.expression.this
        node = node.this
    if isinstance(node, exp.CountIf):
        condition, node = node.this, exp.Count(this=exp.Star())
    function = node.key
    argument = node.args.get("this")
    is_plain = function in ("count", "sum", "avg", "min", "max") and not isinstance(
        argument, exp.Distinct | exp.Order
    )
    is_plain = is_plain and not node.args.get("expressions") and node.args.get("expression") is None
    if not is_plain:
        return Aggregate(sql, function, None, names, final, is_plain=False)
    if isinstance(argument, exp.Star):
        argument = None if condition is None else exp.Literal.number(1)
    if condition is not None:
        argument = exp.Case(ifs=[exp.If(this=condition, true=argument)])
    text = None if argument is None else argument.sql(dialect="duckdb", identify=True)
    return Aggregate(sql, function, text, names, final)
