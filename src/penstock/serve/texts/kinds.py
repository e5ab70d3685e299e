"""The types of expressions as PostgreSQL sees them, by DuckDB's names; None where nothing says one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sqlglot import exp

__all__ = [
    "ARRAY",
    "CONDITIONS",
    "MOMENTS",
    "NUMBERS",
    "NUMERIC",
    "Kinds",
    "common",
    "element",
    "type_named",
]

ARRAY: Final = "[]"
NUMERIC: Final = "DECIMAL(38, 9)"
NUMBERS: Final = ("SMALLINT", "INTEGER", "BIGINT", NUMERIC, "FLOAT", "DOUBLE")
"""From the narrowest to the widest."""
MOMENTS: Final = ("DATE", "TIMESTAMP", "TIMESTAMPTZ")
CONDITIONS: Final = (
    exp.And,
    exp.Or,
    exp.Not,
    exp.Where,
    exp.Having,
    exp.Filter,
    exp.Qualify,
    exp.Join,
)
"""What asks for a truth."""
INTEGER_MAX: Final = 2**31 - 1
_T: Final = exp.DataType.Type
_TYPES: Final = {
    _T.BOOLEAN: "BOOLEAN", _T.TINYINT: "SMALLINT", _T.SMALLINT: "SMALLINT", _T.INT: "INTEGER",
    _T.BIGINT: "BIGINT", _T.UTINYINT: "SMALLINT", _T.USMALLINT: "INTEGER", _T.UINT: "BIGINT",
    _T.UBIGINT: NUMERIC, _T.INT128: NUMERIC, _T.DECIMAL: NUMERIC, _T.FLOAT: "FLOAT",
    _T.DOUBLE: "DOUBLE", _T.TEXT: "VARCHAR", _T.VARCHAR: "VARCHAR", _T.CHAR: "VARCHAR",
    _T.NAME: "VARCHAR", _T.DATE: "DATE", _T.TIME: "TIME", _T.TIMESTAMP: "TIMESTAMP",
    _T.TIMESTAMPNTZ: "TIMESTAMP", _T.DATETIME: "TIMESTAMP", _T.TIMESTAMPTZ: "TIMESTAMPTZ",
    _T.TIMESTAMPLTZ: "TIMESTAMPTZ", _T.INTERVAL: "INTERVAL", _T.UUID: "UUID", _T.JSON: "JSON",
    _T.JSONB: "JSON", _T.BINARY: "BLOB", _T.VARBINARY: "BLOB",
}  # fmt: skip
_NAMES: Final = {
    "VARCHAR": "lower upper concat concat_ws to_char left right lpad rpad replace split_part substr "
    "string_agg repeat md5 quote_ident current_setting format_type version strftime",
    "INTEGER": "length char_length strpos array_length ntile",
    "BIGINT": "count row_number rank dense_rank",
    "TIMESTAMPTZ": "now to_timestamp transaction_timestamp statement_timestamp",
    "DOUBLE": "date_part sqrt random ln exp epoch stddev",
    "BOOLEAN": "starts_with bool_and bool_or regexp_matches",
    "DATE": "make_date to_date",
    NUMERIC: "to_number",
    "INTERVAL": "age",
}
_RETURNS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""By function: its type, whatever its arguments are."""
_FIRST: Final = frozenset(
    {"any_value", "first", "last", "first_value", "last_value", "nth_value", "lag", "lead",
     "abs", "mode", "arg_min", "arg_max"}
)  # fmt: skip
"""Functions that have the type of their first argument."""
_COMMON: Final = frozenset({"coalesce", "greatest", "least", "ifnull", "mod"})
_ROUNDED: Final = frozenset({"ceiling", "round", "trunc", "power", "pow"})
_TRUTHS: Final = (
    exp.Predicate, exp.And, exp.Or, exp.Not, exp.In, exp.Between, exp.Exists, exp.Is, exp.Like,
    exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo, exp.Boolean,
)  # fmt: skip
_CLOCK: Final = {
    exp.CurrentDate: "DATE", exp.CurrentTimestamp: "TIMESTAMPTZ", exp.CurrentTime: "TIME",
    exp.Localtimestamp: "TIMESTAMP", exp.Localtime: "TIME",
}  # fmt: skip


def type_named(kind: exp.DataType) -> str:
    """A type's one name.

    >>> type_named(exp.DataType.build("int[]", dialect="duckdb"))
    'INTEGER[]'
    """
    if kind.this in (_T.ARRAY, _T.LIST) and kind.expressions:
        return type_named(kind.expressions[0]) + ARRAY
    return _TYPES.get(kind.this) or kind.sql("duckdb")


def element(kind: str | None) -> str | None:
    """The type of an array's elements."""
    return kind.removesuffix(ARRAY) if kind is not None and kind.endswith(ARRAY) else None


def common(kinds: Iterable[str | None]) -> str | None:
    """The type of several values that have one: the widest number or moment, else the first."""
    found = [one for one in kinds if one is not None]
    for order in (NUMBERS, MOMENTS):
        if found and all(one in order for one in found):
            return max(found, key=order.index)
    return found[0] if found else None


class Kinds:
    """The types of a query's expressions.

    Args:
        tree: the query.
        tables: by name, the types of columns.
        parameter: the number of a parameter; None of other nodes.
    """

    def __init__(
        self,
        tree: exp.Expr,
        tables: Mapping[str, Mapping[str, str]],
        parameter: Callable[[object], int | None],
    ) -> None:
        self._tables, self._parameter = tables, parameter
        self._ctes = {one.alias.lower(): one for one in tree.find_all(exp.CTE)}
        self._open: set[int] = (
            set()
        )  # queries whose columns are being looked up: they may be recursive

    def of(self, node: object) -> str | None:
        """The type of an expression."""
        match node:
            case exp.Column():
                return None if self._parameter(node) else self._column(node)
            case exp.Cast():
                return type_named(node.to)
            case exp.Literal():
                return self._literal(node)
            case (
                exp.Paren() | exp.Neg() | exp.Alias() | exp.Window() | exp.Filter() | exp.Ordered()
            ):
                return self.of(node.this)
            case exp.Interval():
                return "INTERVAL"
            case exp.Min() | exp.Max():
                return self.of(node.this)
            case exp.Floor() | exp.Ceil():
                return NUMERIC if self.of(node.this) == NUMERIC else "DOUBLE"
            case exp.Extract():
                return NUMERIC
            case exp.Substring() | exp.Trim() | exp.GroupConcat():
                return "VARCHAR"
            case exp.StrPosition():
                return "INTEGER"
            case exp.Array():
                inner = common(map(self.of, node.expressions))
                return None if inner is None else inner + ARRAY
            case exp.Bracket():
                return element(self.of(node.this))
            case exp.AtTimeZone():
                return {"TIMESTAMPTZ": "TIMESTAMP"}.get(self.of(node.this) or "", "TIMESTAMPTZ")
            case exp.Case():
                results = [one.args.get("true") for one in node.args["ifs"]]
                return common(map(self.of, [*results, node.args.get("default")]))
            case exp.Subquery() | exp.Select() | exp.SetOperation():
                return self.output(node, 0)
            case exp.Anonymous():
                return self._call(node)
            case exp.DPipe():
                kind = self.of(node.this)
                return kind if element(kind) else "VARCHAR"
            case exp.Binary() if not isinstance(node, _TRUTHS):
                return self._computed(node)
        if isinstance(node, _TRUTHS):
            return "BOOLEAN"
        return next((kind for one, kind in _CLOCK.items() if isinstance(node, one)), None)

    @staticmethod
    def _literal(node: exp.Literal) -> str | None:
        if node.is_string:
            return None  # of any type, as a parameter
        if not node.is_int:
            return NUMERIC
        return "INTEGER" if abs(int(node.this)) <= INTEGER_MAX else "BIGINT"

    def _computed(self, node: exp.Binary) -> str | None:
        left, right = self.of(node.this), self.of(node.expression)
        moment = next((one for one in (left, right) if one in MOMENTS), None)
        if moment is not None and isinstance(node, exp.Add | exp.Sub):
            if left in MOMENTS and right in MOMENTS:
                return "INTEGER" if left == right == "DATE" else "INTERVAL"
            if moment == "DATE" and "INTERVAL" in (left, right):
                return "TIMESTAMP"
            return moment
        if "INTERVAL" in (left, right):
            return "INTERVAL"
        found = common((left, right))
        if isinstance(node, exp.Div) and found in ("SMALLINT", "INTEGER", "BIGINT"):
            return "DOUBLE"  # as in DuckDB, whose SQL it is
        return found

    def _call(self, node: exp.Anonymous) -> str | None:
        name, arguments = node.name.lower(), node.expressions
        if name in _RETURNS:
            return _RETURNS[name]
        first = self.of(arguments[0]) if arguments else None
        if name in _FIRST:
            return first
        if name in _COMMON:
            return common(map(self.of, arguments))
        if name == "nullif":
            return first or self.of(arguments[-1])
        if name in ("array_agg", "list"):
            return None if first is None else first + ARRAY
        if name == "sum":
            return {"SMALLINT": "BIGINT", "INTEGER": "BIGINT", "BIGINT": NUMERIC}.get(
                first or "", first
            )
        if name == "avg":
            is_exact = first in NUMBERS and first not in ("FLOAT", "DOUBLE")
            return NUMERIC if is_exact else "DOUBLE" if first in NUMBERS else first
        if name in _ROUNDED:
            return NUMERIC if first == NUMERIC else "DOUBLE"
        if name in ("date_trunc", "time_bucket") and len(arguments) > 1:
            kind = self.of(arguments[1])
            return "TIMESTAMPTZ" if kind == "DATE" else kind
        return None

    def _column(self, column: exp.Column) -> str | None:
        name, table = column.name.lower(), column.table.lower()
        select = column.parent_select
        while select is not None:
            for source in _sources(select):
                if table in ("", source.alias_or_name.lower()):
                    found = self._of_source(source, name)
                    if found is not None:
                        return found
            select = select.parent_select
        return None

    def _of_source(self, source: exp.Expr, name: str) -> str | None:
        """The type of a column of one of the tables in FROM."""
        names = [one.lower() for one in source.alias_column_names]
        if name in names:
            inner = source.this if isinstance(source, exp.Subquery) else source
            return self.output(inner, names.index(name))
        if isinstance(source, exp.Table):
            table = source.name.lower()
            cte = self._ctes.get(table) if not source.db else None
            if cte is not None:
                return self._of_source(cte, name)
            return self._tables.get(table, {}).get(name)
        return self._named(source.this, name)

    def _named(self, query: object, name: str) -> str | None:
        """The type of a query's column of a name."""
        if isinstance(query, exp.SetOperation | exp.Subquery):
            return self._named(query.this, name)
        if not isinstance(query, exp.Select) or id(query) in self._open:
            return None
        self._open.add(id(query))
        try:
            for one in query.expressions:
                if one.alias_or_name.lower() == name:
                    return self.of(one)
            if any(one.is_star for one in query.expressions):
                found = (self._of_source(one, name) for one in _sources(query))
                return next((one for one in found if one is not None), None)
        finally:
            self._open.discard(id(query))
        return None

    def output(self, query: object, at: int) -> str | None:
        """The type of a query's column at a place."""
        if isinstance(query, exp.SetOperation):
            return self.output(query.this, at) or self.output(query.expression, at)
        if isinstance(query, exp.Subquery | exp.CTE):
            return self.output(query.this, at)
        if isinstance(query, exp.Values):
            rows = [one.expressions for one in query.expressions if isinstance(one, exp.Tuple)]
            return common(self.of(row[at]) for row in rows if at < len(row))
        if not isinstance(query, exp.Select) or id(query) in self._open:
            return None
        columns = query.expressions
        if at >= len(columns) or any(one.is_star for one in columns[: at + 1]):
            return None
        self._open.add(id(query))
        try:
            return self.of(columns[at])
        finally:
            self._open.discard(id(query))


def _sources(select: exp.Expr) -> Iterator[exp.Expr]:
    """The tables in a query's FROM."""
    first = select.args.get("from_")
    joins = select.args.get("joins") or []
    for one in [*([first.this] if first is not None else []), *(join.this for join in joins)]:
        if isinstance(one, exp.Paren | exp.Subquery) and isinstance(one.this, exp.Table):
            yield one.this
        else:
            yield one
