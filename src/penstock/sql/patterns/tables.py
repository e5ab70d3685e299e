"""MATCH_RECOGNIZE in FROM: the rows of patterns as a table.

    FROM s MATCH_RECOGNIZE (…) AS m  ->  FROM (SELECT * FROM s) AS m  ->  FROM "matches 2" AS m

The first step is made before sqlglot reads the text (`text.matches`); the subquery has the clause. In the
second the subquery is compiled by itself, with the CTEs that it sees, and its rows are matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.core.time import duration_text
from penstock.errors import FlowError, SchemaError
from penstock.expr.expression import sql_type
from penstock.expr.walks import find_all
from penstock.flow.algebra.clocks import event_time_column, is_read
from penstock.flow.algebra.patterns import ROWS_MAX, match
from penstock.flow.interval_join import WITHIN_MAX_US
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import Matcher, RowPattern, parse_pattern, pattern_text
from penstock.patterns.tree import names_of
from penstock.sql.places import within
from penstock.sql.relation import Relation
from penstock.sql.rules.intervals import interval_us
from penstock.sql.rules.reading import read, with_divisions
from penstock.sql.scope import Environment, Named
from penstock.sql.tables import is_windowed
from penstock.sql.text.matches import CLAUSE, MARK, Clause, Part, with_marks

__all__ = ["Compile", "row_pattern", "with_matches"]

_OWN: Final = re.compile(r"\.\s*\w+\s*\(|\bIN\s*\[|\b(?:LAG|LEAD)\s*\(", re.IGNORECASE)
"""What sqlglot reads otherwise than DuckDB: `x.upper()`, `x IN [1, 2]`; and other names of PREV and NEXT."""

Compile = Callable[[exp.Expr, Environment], Relation]
"""The rows of a query, of which no name is qualified."""


# -- in the query ------------------------------------------------------------------------------------


def with_matches(
    tree: exp.Expr, env: Environment, compile_: Compile, dialect: str
) -> tuple[exp.Expr, Environment]:
    """The query with a table's name for each MATCH_RECOGNIZE, and these tables.

    Args:
        tree: the query.
        env: the tables that it may name.
        compile_: what gives the rows that are matched.
        dialect: of the clauses.

    Raises:
        SchemaError: a clause doesn't fit the rows before it.
    """
    found = [one for one in find_all(tree, exp.Subquery) if CLAUSE in one.args]
    if not found:
        return tree, env
    tree = tree.copy()
    found = [one for one in find_all(tree, exp.Subquery) if CLAUSE in one.args]
    # Inner ones are first, and those of a CTE before those of what reads it.
    for number, subquery in enumerate(sorted(found, key=lambda one: one.args[CLAUSE].start)):
        clause: Clause = subquery.args[CLAUSE]
        _check_source(subquery, clause)
        with within(subquery.this):
            rows = compile_(_alone(subquery), env)
        name = f"matches {len(env.tables)}"
        source = subquery.this.args["from_"].this.alias_or_name
        env = env.with_(name, Named.of(_matched(rows, clause, source, dialect)))
        made = exp.Table(this=exp.to_identifier(name, quoted=True))
        alias = subquery.args.get("alias")
        if alias is None or alias.this is None:
            own = CLAUSE if not number else f"{CLAUSE}_{number + 1}"
            alias = exp.TableAlias(this=exp.to_identifier(own))
        made.set("alias", alias)
        for part in ("joins", "pivots", "laterals"):
            made.set(part, subquery.args.get(part))
        subquery.replace(made)
    return tree, env


def _check_source(subquery: exp.Subquery, clause: Clause) -> None:
    """Checks that rows are matched, not windows of them."""
    source = subquery.this.args["from_"].this
    if is_windowed(source.this):
        raise _at(
            clause.start,
            "expected a stream, a table or a subquery before MATCH_RECOGNIZE; found "
            f"{source.this.name.upper()}(…). WITHIN INTERVAL '10' MINUTE behind PATTERN bounds a match in "
            "time",
        )


def _alone(subquery: exp.Subquery) -> exp.Expr:
    """The query of a clause's rows, with the CTEs that it reads."""
    seen: dict[str, exp.CTE] = {}
    recursive = False
    below: exp.Expr = subquery
    node = subquery.parent
    while node is not None:
        with_ = node if isinstance(node, exp.With) else node.args.get("with_")
        if isinstance(with_, exp.With) and (with_ is node or below is not with_):
            ctes = with_.expressions
            visible = ctes[: ctes.index(below)] if with_ is node else ctes
            recursive = recursive or bool(with_.args.get("recursive"))
            for one in reversed(visible):
                seen.setdefault(one.alias.lower(), one)
        below, node = node, node.parent
    query: exp.Expr = subquery.this.copy()
    wanted: list[exp.CTE] = []
    named = {one.name.lower() for one in find_all(query, exp.Table)}
    for name, one in seen.items():  # later ones first, which read earlier ones
        if name in named:
            wanted.insert(0, one.copy())
            named |= {table.name.lower() for table in find_all(one, exp.Table)}
    if wanted:
        mine = query.args.get("with_")
        own = [] if mine is None else mine.expressions
        query.set("with_", exp.With(expressions=[*wanted, *own], recursive=recursive))
    return query


# -- what is made of it -----------------------------------------------------------------------------


def _matched(rows: Relation, clause: Clause, source: str, dialect: str) -> Relation:
    """The rows of the matches, with their columns in the standard's order."""
    columns = Named.of(rows).columns
    per = [_name(_tree(one, dialect), one, columns, source) for one in clause.partition]
    for name, one in zip(per, clause.partition, strict=True):
        if pa.types.is_nested(rows.schema[name].type):
            raise _at(
                one.start, f"expected columns of single values in PARTITION BY; found {one.text!r}"
            )
    order = [_ordered(one, columns, source, dialect) for one in clause.order]
    rows, ties = _in_order(rows, clause, order)
    pattern = row_pattern(clause, rows.schema, dialect)
    head = per if pattern.rows == "one" else [*per, *(one.name for one in order)]
    head = [*rows.names] if clause.in_window else head
    names = [*head, *(one.name for one in clause.measures)]
    if pattern.rows == "all":
        names += [name for name in rows.names if name not in names]
    _check_names(clause, names)
    keep = None if clause.keep is None else _keep(clause.keep)
    correct_us = 0 if clause.correct is None else _microseconds(clause.correct, dialect)
    if clause.correct is not None and not rows.is_stream:
        raise _at(
            clause.correct.start,
            "expected CORRECT in a pattern over a stream in the order of its event time, where rows may be "
            "late; found a table, whose changes are always corrected. Leave it out",
        )
    with _placed(clause, pattern, rows.schema):
        node = match(rows.node, per, ties, pattern, keep=keep, correct_us=correct_us)
        made = rows.over(node)
    return made.only(list(dict.fromkeys(names)))


def _keep(part: Part) -> int:
    rows = int(part.text)
    if not 1 <= rows <= ROWS_MAX:
        raise _at(part.start, f"expected from 1 to {ROWS_MAX:,} rows in KEEP; found {part.text}")
    return rows


def _check_names(clause: Clause, names: Sequence[str]) -> None:
    """Checks that there are columns, and that measures have names of their own."""
    if not names:
        raise _at(
            clause.start,
            "expected MEASURES or PARTITION BY, whose columns ONE ROW PER MATCH has; found neither",
        )
    alike = [name.lower() for name in names]
    for one in clause.measures:
        if alike.count(one.name.lower()) > 1:
            raise _at(
                one.start,
                "expected a measure of another name than the other measures and columns; found "
                f"{one.name!r} twice",
            )


def _name(tree: exp.Expr, part: Part, columns: Mapping[str, str], source: str) -> str:
    """The relation's column that an expression is."""
    if not isinstance(tree, exp.Column) or isinstance(tree.this, exp.Star):
        raise _at(
            part.start,
            f"expected columns in PARTITION BY and ORDER BY of MATCH_RECOGNIZE; found {part.text!r}. Compute "
            "it in a subquery in FROM",
        )
    if tree.table.lower() not in ("", source.lower()) or tree.name.lower() not in columns:
        known = list(columns.values())
        raise _at(
            part.start,
            f"expected a column of the rows before MATCH_RECOGNIZE, {known_names(known)}; found "
            f"{part.text!r}{hint(tree.name, known)}",
        )
    return columns[tree.name.lower()]


def _ordered(part: Part, columns: Mapping[str, str], source: str, dialect: str) -> Ordered:
    """An item of ORDER BY."""
    try:
        tree = parse_one(f"ORDER BY {part.text}", dialect=dialect, into=exp.Order).expressions[0]
    except SqlglotError:
        raise _at(
            part.start, f"expected a column in ORDER BY; found {part.text!r}, which can't be read"
        ) from None
    name = _name(tree.this, part, columns, source)
    return Ordered(name, bool(tree.args.get("desc")), bool(tree.args.get("nulls_first")))


def _in_order(
    rows: Relation, clause: Clause, order: Sequence[Ordered]
) -> tuple[Relation, list[Ordered]]:
    """The rows, and what orders them: of a stream, those of one instant.

    A stream is matched in the order of its event time, with which ORDER BY begins. Where no column is its
    time, as behind a join or another pattern, its rows are kept, and are a table in whatever order.
    """
    known = event_time_column(rows.node) if rows.is_stream else None
    if not order:
        by = "the rows' event time" if known is None else known
        raise _at(
            clause.start,
            f"expected ORDER BY {by}, as a pattern is of rows in an order; found none in MATCH_RECOGNIZE",
        )
    first, part = order[0], clause.order[0]
    if known is None:
        if rows.is_stream and is_read(rows.node):
            raise _at(
                part.start,
                "expected rows with a column of event time, which WATERMARK FOR declares in CREATE STREAM; "
                f"found ORDER BY {part.text} over rows without one",
            )
        return rows.kept() if rows.is_stream else rows, list(order)
    if first.name != known:
        raise _at(
            part.start,
            f"expected the event time {known!r} first in ORDER BY, as rows are matched when the watermark "
            f"has passed them; found {part.text!r}. Other columns order rows of one time",
        )
    if first.descending:
        raise _at(
            part.start,
            f"expected the event time in ascending order; found {part.text!r}. The pattern of "
            "what comes before can be written the other way round",
        )
    return rows, list(order[1:])


def row_pattern(clause: Clause, schema: Schema, dialect: str) -> RowPattern:
    """What a clause says, with its expressions in DuckDB's SQL.

    Args:
        clause: of a query.
        schema: of the rows that are matched.
        dialect: of the expressions.

    Raises:
        SchemaError: an expression can't be read.
    """
    which: Literal["running", "final"] = "running"
    if clause.rows == "one" or clause.in_window:
        which = "final"
    with _beginning(clause.pattern, known=True):
        tree = parse_pattern(clause.pattern.text)
    _check_variables(clause, names_of(tree))
    measures = tuple((one.name, _in_duckdb(one, schema, dialect), which) for one in clause.measures)
    return RowPattern(
        pattern=pattern_text(tree),
        defines=tuple((one.name, _in_duckdb(one, schema, dialect)) for one in clause.defines),
        subsets=tuple((one.name, tuple(one.text.split(","))) for one in clause.subsets),
        measures=measures,
        after=clause.after.text,
        within_us=None if clause.within is None else _microseconds(clause.within, dialect),
        rows=clause.rows,
        empty=clause.empty,
        unmatched=clause.unmatched,
    )


def _check_variables(clause: Clause, names: Sequence[str]) -> None:
    """Checks that the clause is about variables of its pattern."""
    known = {name.lower(): name for name in names}
    for one in clause.subsets:
        for member in one.text.split(","):
            _check_variable(member, one.start, names, "SUBSET")
        if one.name.lower() in known:
            raise _at(
                one.start,
                f"expected a name in SUBSET that is no variable's; found {one.name!r}, which is one of "
                "PATTERN",
            )
    seen: set[str] = set()
    for one in clause.defines:
        _check_variable(one.name, one.start, names, "DEFINE")
        if one.name.lower() in seen:
            raise _at(one.start, f"expected each variable once in DEFINE; found {one.name!r} twice")
        seen.add(one.name.lower())
    if clause.after.name:
        named = [*names, *(one.name for one in clause.subsets)]
        _check_variable(clause.after.name, clause.after.start, named, "AFTER MATCH SKIP")


def _check_variable(name: str, at: int, names: Sequence[str], where: str) -> None:
    if name.lower() not in map(str.lower, names):
        raise _at(
            at,
            f"expected variables of PATTERN in {where}, {known_names(names)}; found "
            f"{name!r}{hint(name, names)}",
        )


def _in_duckdb(part: Part, schema: Schema, dialect: str) -> str:
    """An expression of a dialect in DuckDB's SQL."""
    if dialect == "duckdb" and not _OWN.search(part.text):
        return part.text
    tree = _tree(Part(with_marks(part.text, dialect), part.start), dialect, of=part)
    for division in reversed(find_all(tree, exp.Div)):  # inner ones first
        if division.args.get("typed"):
            with _beginning(part):
                made = _divided(division, schema)
            tree = made if division is tree else tree
            division.replace(made)
    for call in find_all(tree, exp.Anonymous):
        if call.name.lower().startswith(MARK):
            call.set("this", call.name[len(MARK) :])
    return tree.sql(dialect="duckdb")


def _divided(division: exp.Div, schema: Schema) -> exp.Expr:
    """A division of a dialect in which that of integers is an integer."""

    def plain(node: exp.Expr) -> exp.Expr:
        if (
            isinstance(node, exp.Anonymous)
            and node.name.lower().startswith(MARK)
            and node.expressions
        ):
            return plain(node.expressions[0])
        return exp.column(node.this, "rows") if isinstance(node, exp.Column) else node

    select = exp.select(division.copy().transform(plain)).from_("rows")
    types: dict[str, object] = {"rows": {one.name: sql_type(one.type) for one in schema}}
    made = with_divisions(select, types).expressions[0]
    kind = exp.IntDiv if isinstance(made, exp.IntDiv) else exp.Div
    return kind(this=division.this, expression=division.expression)


def _tree(part: Part, dialect: str, of: Part | None = None) -> exp.Expr:
    """An expression as sqlglot reads it; of: the part that it is made of."""
    of = of or part
    try:
        with _beginning(of):
            [select] = read(f"SELECT {part.text}", dialect)
        [tree] = select.expressions
    except (SqlglotError, ValueError):
        raise _at(
            of.start, f"expected an expression; found {of.text!r}, which can't be read"
        ) from None
    found: exp.Expr = tree.pop()
    return found


def _microseconds(part: Part, dialect: str) -> int:
    us = interval_us(_tree(part, dialect))
    if us is None or not 0 < us <= WITHIN_MAX_US:
        raise _at(
            part.start,
            "expected a constant interval of fixed length, such as INTERVAL '10' MINUTE, of at most "
            f"{duration_text(WITHIN_MAX_US)}; found {part.text!r}",
        )
    return us


@contextmanager
def _beginning(part: Part, *, known: bool = False) -> Iterator[None]:
    """What is wrong here is wrong with a part of a clause: at its beginning, or where the error knows."""
    try:
        yield
    except SchemaError as error:
        made = error.reworded(_unmarked(str(error)))
        inside = min(error.at or 0, len(part.text) - 1) if known else 0
        made.at, made.near = part.start + inside, None
        raise made from None


@contextmanager
def _placed(clause: Clause, pattern: RowPattern, schema: Schema) -> Iterator[None]:
    """What is wrong with a part of the clause is wrong at that part's place in the query."""
    try:
        yield
    except FlowError as error:
        raise _at(clause.pattern.start, error.in_sql or str(error)) from None
    except SchemaError as error:
        part = _culprit(clause, pattern, schema, str(error))
        if part is None:
            raise _at(clause.pattern.start, _unmarked(str(error))) from None
        word = re.search(r"found (['\"])(.+?)\1", str(error))
        inside = -1 if word is None else part.text.lower().find(word[2].lower())
        raise _at(part.start + max(inside, 0), _unmarked(str(error))) from None


def _culprit(clause: Clause, pattern: RowPattern, schema: Schema, refusal: str) -> Part | None:
    """The part of a clause for which a pattern is refused, as it is without the others."""
    alone = replace(pattern, defines=(), measures=(), within_us=None)
    defines = [replace(alone, defines=(one,)) for one in pattern.defines]
    measures = [replace(alone, measures=(one,)) for one in pattern.measures]
    parts = zip((*clause.defines, *clause.measures), (*defines, *measures), strict=True)
    for part, one in parts:
        try:
            Matcher(one, schema.arrow, None)
        except SchemaError as error:
            if str(error) == refusal:
                return part
    return None


def _unmarked(message: str) -> str:
    """A message without the line of its part with a caret: the query's is shown."""
    return message.split("\n\nLINE ", 1)[0]


def _at(at: int, message: str) -> SchemaError:
    failure = SchemaError(message)
    failure.at = at
    return failure
