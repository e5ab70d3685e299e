"""The types of a query's parameters: those that PostgreSQL would announce.

https://www.postgresql.org/docs/16/typeconv.html. A parameter has the type of what it is compared or
computed with, or that a function or a clause asks for; what nothing says is text. The first place that
says something decides. Types have DuckDB's names here, as in answers (`penstock.serve.catalogs.types`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import QueryError
from penstock.serve.texts.kinds import (
    ARRAY,
    CONDITIONS,
    MOMENTS,
    NUMBERS,
    NUMERIC,
    Kinds,
    common,
    element,
    type_named,
)
from penstock.serve.texts.words import parameters, read, substituted

__all__ = ["parameter_types"]

PARAMETERS_MAX: Final = 65_535
"""Of a query, as in PostgreSQL: their count has 16 bits in the protocol."""
_NAME: Final = "parameter $"
"""Of the columns that stand for parameters while the query is read."""
_TEXT: Final = "VARCHAR"
_ASKED: Final[dict[str, tuple[str | None, ...]]] = {
    "lower": (_TEXT,), "upper": (_TEXT,), "length": (_TEXT,), "char_length": (_TEXT,),
    "trim": (_TEXT, _TEXT), "ltrim": (_TEXT, _TEXT), "rtrim": (_TEXT, _TEXT), "btrim": (_TEXT, _TEXT),
    "substr": (None, "INTEGER", "INTEGER"), "left": (_TEXT, "INTEGER"), "right": (_TEXT, "INTEGER"),
    "lpad": (_TEXT, "INTEGER", _TEXT), "rpad": (_TEXT, "INTEGER", _TEXT), "repeat": (_TEXT, "INTEGER"),
    "replace": (_TEXT, _TEXT, _TEXT), "split_part": (_TEXT, _TEXT, "INTEGER"),
    "starts_with": (_TEXT, _TEXT), "strpos": (_TEXT, _TEXT), "string_agg": (_TEXT, _TEXT),
    "regexp_replace": (_TEXT, _TEXT, _TEXT, _TEXT), "regexp_matches": (_TEXT, _TEXT, _TEXT),
    "date_trunc": (_TEXT, None, _TEXT), "date_part": (_TEXT, None), "to_char": (None, _TEXT),
    "to_date": (_TEXT, _TEXT), "to_number": (_TEXT, _TEXT), "to_timestamp": ("DOUBLE",),
    "make_date": ("INTEGER", "INTEGER", "INTEGER"),
    "time_bucket": ("INTERVAL", None), "round": ("DOUBLE", "INTEGER"), "sqrt": ("DOUBLE",),
    "ntile": ("INTEGER",), "lag": (None, "INTEGER"), "lead": (None, "INTEGER"),
    "nth_value": (None, "INTEGER"), "array_length": (None, "INTEGER"), "to_regclass": (_TEXT,),
}  # fmt: skip
"""By function: the types of its arguments, where they don't follow from each other."""
_ALIKE: Final = frozenset(
    {"coalesce", "greatest", "least", "nullif", "mod", "power", "pow", "ifnull", "lag", "lead"}
)
"""Functions whose other arguments have one type."""
_COMPARISONS: Final = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip


def parameter_types(
    query: str,
    given: Sequence[str | None],
    tables: Mapping[str, Mapping[str, str]],
    dialect: str = "duckdb",
) -> list[str]:
    """What DuckDB calls the types of a query's parameters: as given, or as their surroundings show.

    Args:
        query: with `$1`, `$2`, ….
        given: the types of the first ones, where the client says them.
        tables: by name, the types of columns; all names in small letters.
        dialect: in which sqlglot reads it.

    Raises:
        QueryError: it has too many.

    >>> t = {"t": {"n": "DOUBLE", "id": "BIGINT"}}
    >>> parameter_types("SELECT $1::int, id + $2 FROM t WHERE n IN ($3,$4) LIMIT $5", [], t)
    ['INTEGER', 'BIGINT', 'DOUBLE', 'DOUBLE', 'BIGINT']
    """
    count = max((number for _, _, number in parameters(query)), default=0)
    if count > PARAMETERS_MAX:
        raise QueryError(f"expected at most {PARAMETERS_MAX} parameters; found ${count}")
    types = [*given, *[None] * (count - len(given))]
    if None not in types:
        return [str(one) for one in types]
    try:
        text = substituted(query, [f'"{_NAME}{i}"' for i in range(1, count + 1)])
        [tree] = read(text, dialect, lambda _: False)
        for number, found in _found(tree, Kinds(tree, tables, _number)):
            if types[number - 1] is None:
                types[number - 1] = found
    except (SqlglotError, ValueError, RecursionError):  # several statements, too
        pass  # what is wrong is said when the query is asked
    return [one or _TEXT for one in types]


def _number(node: object) -> int | None:
    """The number of a parameter; None: the node is something else."""
    if not isinstance(node, exp.Column) or not node.name.startswith(_NAME):
        return None
    return int(node.name.removeprefix(_NAME))


def _found(tree: exp.Expr, kinds: Kinds) -> Iterable[tuple[int, str]]:
    """The types that places say, in the order of the text."""
    places = [(node, number) for node in tree.find_all(exp.Column) if (number := _number(node))]
    places.sort(key=lambda one: int(one[0].this.meta.get("start", 0)))
    for node, number in places:
        found = _wanted(node, kinds)
        if found is not None:
            yield number, found


def _wanted(node: exp.Expr, kinds: Kinds) -> str | None:
    """The type that a place in a query asks for; None: any."""
    child, parent = node, node.parent
    while isinstance(parent, exp.Paren | exp.Neg | exp.Alias):
        child, parent = parent, parent.parent
    match parent:
        case exp.Cast() if child is parent.this:
            return type_named(parent.to)
        case exp.Limit() | exp.Offset():
            return "BIGINT"
        case exp.Bracket():
            return "INTEGER"
        case exp.AtTimeZone():
            return _TEXT
        case exp.Any() | exp.All():
            return _array(parent, kinds)
        case exp.Anonymous() | exp.Substring() | exp.Trim() | exp.StrPosition() | exp.GroupConcat():
            return _argument(parent, child, kinds)
        case exp.Case() | exp.If():
            return _branch(parent, child, kinds)
        case exp.Between() | exp.In() | exp.Tuple():
            return _member(parent, child, kinds)
        case exp.Select() | exp.Subquery():
            return _output(parent, child, kinds)
        case exp.Binary():
            return _operand(parent, child, kinds)
    return "BOOLEAN" if isinstance(parent, CONDITIONS) else None


def _operand(parent: exp.Binary, child: exp.Expr, kinds: Kinds) -> str | None:
    """Of an operator with two sides."""
    other = parent.expression if parent.this is child else parent.this
    if isinstance(parent, exp.And | exp.Or):
        return "BOOLEAN"
    if isinstance(parent, exp.Like | exp.ILike | exp.RegexpLike | exp.RegexpILike | exp.SimilarTo):
        return _TEXT
    if isinstance(other, exp.Any | exp.All):
        return element(kinds.of(other.this)) or kinds.of(other.this)
    kind = kinds.of(other)
    if isinstance(parent, exp.DPipe):
        return kind if kind is not None and kind.endswith(ARRAY) else _TEXT
    if isinstance(parent, exp.Add | exp.Sub) and kind in MOMENTS:
        if kind == "DATE" and isinstance(parent, exp.Add):
            return "INTEGER"  # PostgreSQL asks for a cast
        return "INTERVAL" if isinstance(parent, exp.Add) else kind
    if isinstance(parent, exp.Mul | exp.Div) and kind == "INTERVAL":
        return "DOUBLE"
    if isinstance(parent, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.IntDiv | exp.Mod):
        if kind is None:
            return _wanted(parent, kinds)
        return kind if kind in NUMBERS or kind == "INTERVAL" else None
    return (kind or _TEXT) if isinstance(parent, _COMPARISONS) else None


def _array(parent: exp.Expr, kinds: Kinds) -> str:
    """Of what `ANY` and `ALL` look into."""
    outer = parent.parent
    other = outer.this if isinstance(outer, exp.Binary) else None
    return f"{kinds.of(other) or _TEXT}{ARRAY}"


def _argument(parent: exp.Expr, child: exp.Expr, kinds: Kinds) -> str | None:
    """Of a function."""
    if isinstance(parent, exp.Substring):
        outer = kinds.of(parent.args.get("start")) or kinds.of(parent.args.get("length"))
        return _TEXT if child is parent.this else (outer or _TEXT)
    if not isinstance(parent, exp.Anonymous):
        return _TEXT
    name, arguments = parent.name.lower(), parent.expressions
    at = next(i for i, one in enumerate(arguments) if one is child)
    if name in ("all", "any"):  # `<> ALL($1)` is a call to sqlglot
        return _array(parent, kinds)
    asked = _ASKED.get(name, ())
    if at < len(asked) and asked[at] is not None:
        return asked[at]
    if name in _ALIKE:
        found = common(kinds.of(one) for i, one in enumerate(arguments) if i != at)
        if name in ("power", "pow"):
            return "DOUBLE" if found != NUMERIC else found
        return found or _TEXT
    return None


def _branch(parent: exp.Case | exp.If, child: exp.Expr, kinds: Kinds) -> str | None:
    """Of CASE: what is compared, a condition, a result."""
    case = parent if isinstance(parent, exp.Case) else parent.parent
    if not isinstance(case, exp.Case):
        return "BOOLEAN" if child is parent.this else None
    branches = case.args["ifs"]
    if child is case.this:
        return common(kinds.of(one.this) for one in branches) or _TEXT
    if isinstance(parent, exp.If) and child is parent.this:
        return "BOOLEAN" if case.this is None else kinds.of(case.this) or _TEXT
    return kinds.of(case) or _TEXT


def _member(parent: exp.Expr, child: exp.Expr, kinds: Kinds) -> str | None:
    """Of BETWEEN, of IN, and of rows that are compared."""
    if isinstance(parent, exp.Between):
        parts = [parent.this, parent.args["low"], parent.args["high"]]
        return common(kinds.of(one) for one in parts) or _TEXT
    if isinstance(parent, exp.In):
        if child is not parent.this:
            return kinds.of(parent.this) or common(map(kinds.of, parent.expressions)) or _TEXT
        query = parent.args.get("query")
        found = kinds.of(query) if query is not None else common(map(kinds.of, parent.expressions))
        return found or _TEXT
    at = next((i for i, one in enumerate(parent.expressions) if one is child), None)
    row, outer = parent, parent.parent
    while isinstance(outer, exp.Paren):
        row, outer = outer, outer.parent
    if at is None or not isinstance(outer, exp.Binary | exp.In):
        return None
    others = [outer.this, outer.args.get("expression"), *outer.expressions]
    rows = [one.unnest() for one in others if one is not None and one is not row]
    tuples = [one for one in rows if isinstance(one, exp.Tuple) and at < len(one.expressions)]
    return common(kinds.of(one.expressions[at]) for one in tuples) or _TEXT


def _output(parent: exp.Expr, child: exp.Expr, kinds: Kinds) -> str | None:
    """Of a column of a query that is united with others."""
    if not isinstance(parent, exp.Select):
        return None
    at = next((i for i, one in enumerate(parent.expressions) if one is child), None)
    outer = parent.parent
    if at is None or not isinstance(outer, exp.SetOperation):
        return None
    other = outer.expression if outer.this is parent else outer.this
    return kinds.output(other, at)
