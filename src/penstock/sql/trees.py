"""Looking at a query's tree: conjuncts, subqueries, aggregates, and columns of an outer query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from sqlglot import exp

from penstock.expr.dialect import Own
from penstock.expr.duck import connection, quoted
from penstock.expr.purity import names_aggregate
from penstock.expr.walks import children

__all__ = [
    "AsValue",
    "Name",
    "aggregates",
    "aliases_of",
    "conjuncts",
    "cuts",
    "free",
    "is_aggregate",
    "joined_in",
    "lowered",
    "name_of",
    "own",
    "own_columns",
    "parts_of",
    "replaced",
    "shallow",
    "subqueries",
    "window_functions",
]

Name = tuple[str | None, str]
"""A column as queries name it: its table's alias, and its own name; without alias, as the relation does."""


class AsValue(exp.Expression):
    """The side of an IS NOT DISTINCT FROM: it is equal to another also where both are NULL."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


_AROUND_CALLS: Final = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)
"""What is between a window and the function that it calls."""


def own(name: str) -> Own:
    """A column of the relation that an expression is over."""
    return Own(this=exp.Identifier(this=name, quoted=True))


def name_of(column: exp.Column) -> Name:
    """What a column is called in scopes."""
    return (None if isinstance(column, Own) else column.table), column.name


def lowered(tree: exp.Expr) -> str:
    """An expression whose columns are the relation's, as SQL over these."""
    if isinstance(tree, Own):
        return quoted(tree.name)
    return tree.sql(dialect="duckdb")


def conjuncts(tree: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND connects."""
    if tree is None:
        return []
    if isinstance(tree, exp.Paren):
        return conjuncts(tree.this)
    if isinstance(tree, exp.And):
        return [*conjuncts(tree.this), *conjuncts(tree.expression)]
    common = _factored(tree) if isinstance(tree, exp.Or) else []
    return [*common, tree] if not isinstance(tree, exp.Boolean) or not tree.this else []


def _factored(tree: exp.Or) -> list[exp.Expr]:
    """Conditions that all sides of an OR have: (a AND b) OR (a AND c) needs a anyway."""
    sides: list[list[exp.Expr]] = []
    pending: list[exp.Expr] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Paren):
            pending.append(node.this)
        elif isinstance(node, exp.Or):
            pending += [node.expression, node.this]
        else:
            sides.append(conjuncts(node))
    first, *others = sides
    return [one for one in first if all(one in side for side in others)]


def shallow(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of a tree, without the inside of subqueries."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, exp.Query) or (node is tree and isinstance(node, exp.Subquery)):
            pending += reversed(children(node))


def subqueries(tree: exp.Expr) -> list[exp.Expr]:
    """The outermost nodes that hold a query: scalar subqueries, EXISTS, IN."""
    found: list[exp.Expr] = []

    def visit(node: exp.Expr) -> None:
        holds = (
            isinstance(node, exp.Subquery | exp.Exists)
            or (isinstance(node, exp.In) and node.args.get("query") is not None)
            or (
                isinstance(node, exp.Binary)
                and isinstance(node.expression, exp.Any | exp.All)
                and isinstance(node.expression.this, exp.Query)
            )
        )
        if holds:
            found.append(node)
            return
        for child in children(node):
            visit(child)

    visit(tree)
    return found


def own_columns(tree: exp.Expr) -> list[exp.Column]:
    """All columns of an expression, and of the subqueries in it those that aren't these subqueries' own."""
    found: list[exp.Column] = []
    inner: list[exp.Column] = []
    for node in shallow(tree):
        if isinstance(node, exp.Column):
            found.append(node)
        elif isinstance(node, exp.Query):
            inner += free(node.this if isinstance(node, exp.Subquery) else node)
    return found + inner


def aliases_of(select: exp.Select) -> set[str]:
    """What a SELECT calls its tables."""
    sources = [join.this for join in select.args.get("joins") or ()]
    if (first := select.args.get("from_")) is not None:
        sources.append(first.this)
    return {one.alias_or_name for source in sources for one in parts_of(source)}


def joined_in(source: exp.Expr) -> exp.Table | None:
    """The first table of joins in parentheses, with these: `(a JOIN b ON …)`; None: it is something else."""
    is_joined = isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table)
    return source.this if is_joined else None


def parts_of(source: exp.Expr) -> list[exp.Expr]:
    """The tables of a source in FROM: of joins in parentheses each, else itself."""
    first = joined_in(source)
    if first is None:
        return [source]
    return [
        first,
        *(part for join in first.args.get("joins") or () for part in parts_of(join.this)),
    ]


def free(query: exp.Expr) -> list[exp.Column]:
    """The columns of a query that belong to a query around it."""
    match query:
        case exp.Subquery() | exp.Lateral():
            return free(query.this)
        case exp.Table():
            return [
                column for join in query.args.get("joins") or () for column in own_columns(join)
            ]
        case exp.SetOperation():
            return [*free(query.this), *free(query.expression)]
        case exp.Select():
            known = aliases_of(query)
            found: list[exp.Column] = []
            for name, value in query.args.items():
                parts = value if isinstance(value, list) else [value]
                if name == "with_":
                    parts = [cte.this for part in parts if part for cte in part.expressions]
                for part in parts:
                    if isinstance(part, exp.Expr):
                        inside = free(part) if isinstance(part, exp.Query) else own_columns(part)
                        found += inside
            return [
                column
                for column in found
                if isinstance(column, Own) or (column.table and column.table not in known)
            ]
        case _:
            return []


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is the call of an aggregate function."""
    if isinstance(node, exp.AggFunc):
        return True
    if isinstance(node, exp.Anonymous):
        return names_aggregate(connection(), node.name)
    return False


def aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """The outermost calls of aggregate functions, with their FILTER; not those that are window functions."""
    found: list[exp.Expr] = []

    def visit(node: exp.Expr) -> None:
        if isinstance(node, exp.Query):
            return
        if isinstance(node, exp.Window):
            inside = node.this
            while isinstance(inside, _AROUND_CALLS):
                inside = inside.this
            for child in children(inside):
                visit(child)
            for name, value in node.args.items():
                if name != "this":
                    for part in value if isinstance(value, list) else [value]:
                        if isinstance(part, exp.Expr):
                            visit(part)
            return
        filtered = isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls)
        if is_aggregate(node) or (filtered and aggregates(node.this)):
            found.append(node)
            return
        for child in children(node):
            visit(child)

    visit(tree)
    return found


def cuts(query: exp.Expr) -> bool:
    """Whether a query has LIMIT or OFFSET."""
    return any(query.args.get(what) is not None for what in ("limit", "offset"))


def window_functions(tree: exp.Expr) -> list[exp.Window]:
    """The window functions of an expression."""
    return [node for node in shallow(tree) if isinstance(node, exp.Window)]


def replaced(tree: exp.Expr, by: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """The tree with some nodes replaced, outermost first; what is put in stays as it is.

    The function of a window, such as the first `sum(v)` of `sum(v) OVER (ORDER BY sum(v))`, is none of the
    nodes: it means another thing than the same call elsewhere. Its arguments are.
    """
    return _rebuilt(tree, by)


def _rebuilt(
    tree: exp.Expr, by: Callable[[exp.Expr], exp.Expr | None], *, called: bool = False
) -> exp.Expr:
    """See `replaced`; called: by a window."""
    found = None if called else by(tree)
    if found is not None:
        return found
    if isinstance(tree, exp.Query):
        return tree
    calls = isinstance(tree, exp.Window) or (called and isinstance(tree, _AROUND_CALLS))

    def part(one: exp.Expr, *, called: bool = False) -> exp.Expr:
        made = _rebuilt(one, by, called=called)
        return one.copy() if made is one else made  # the tree keeps its own

    made = type(tree)()
    for name, value in tree.args.items():
        if isinstance(value, exp.Expr):
            made.set(name, part(value, called=calls and name == "this"))
        elif isinstance(value, list):
            made.set(name, [part(v) if isinstance(v, exp.Expr) else v for v in value])
        else:
            made.args[name] = value
    return made
