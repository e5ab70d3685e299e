"""SQL expressions over the columns of a delta.

An expression is read by sqlglot (so that a column named `at` or `end` needs no quotes), checked against
the columns that there are, and evaluated by DuckDB on whole Arrow columns: `where("status >= 500")`.
It sees one row at a time: aggregates, windows and subqueries are refused, because their meaning would
depend on how the log was cut into batches; so is what reads the clock or is left to chance, because a
batch may be computed again (see `penstock.expr.purity`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.core.schema import INTERVAL, TIMESTAMP, UUID, Field, Schema, holds_json, type_text
from penstock.errors import SchemaError
from penstock.expr.casts import check_casts
from penstock.expr.duck import EvaluationError, connection, quoted, sql_type, types_of
from penstock.expr.patterns import check_patterns
from penstock.expr.purity import check_pure
from penstock.expr.tree import Call, Column, Tree, tree_of
from penstock.expr.typed import fitting

# sqlglot is imported where it is used: lanes need none, and start sooner.
if TYPE_CHECKING:
    from sqlglot import exp

__all__ = [
    "Expression",
    "cast_sql",
    "column_expression",
    "compile_expression",
    "known_type",
    "sql_type",
]

_NAMED: Final[dict[str, pa.DataType]] = {
    "UUID": UUID,
    "INTERVAL": INTERVAL,
    "HUGEINT": pa.int64(),
    "UHUGEINT": pa.int64(),
}
"""What Arrow's types don't distinguish. HUGEINT is what whole numbers become, as in `list_sum`."""
_PARTS: Final = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"|\.\s*"(?:[^"]|"")*"|\w+""")
"""Parts of an expression: text, name in quotes, member of a struct, word; the group is the name."""
_UNFIT: Final = re.compile(r"--|/\*|\$\w*\$|\b[eE]'")
"""Comments, and texts of other forms, in which quotes mean something else."""


@dataclass(frozen=True)
class Expression:
    """One compiled expression.

    Attributes:
        text: as the user wrote it, for messages.
        sql: the same for DuckDB, every name quoted, cast to `type`, or to what `typed` makes one of.
        type: the Arrow type of its values.
        tree: the same for `penstock.expr.columnar`; None where it has parts that only DuckDB knows.
        columns: that it names.
    """

    text: str
    sql: str
    type: pa.DataType
    tree: Tree | None = field(default=None, compare=False, repr=False)
    columns: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def typed(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """What `sql` gives, as a column of `type`: UUIDs are its bytes, intervals its microseconds."""
        if holds_json(self.type):
            found: pa.ChunkedArray = fitting(column, self.type)
            return found
        if column.type == self.type or self.type not in (UUID, INTERVAL):
            return column
        return column.cast(self.type)


def compile_expression(text: str, schema: Schema) -> Expression:
    """Reads an expression and finds its type.

    Raises:
        SchemaError: it is not one SQL expression, it names a column that isn't there, its types don't
            fit, or it is more than a function of one row: it reads the clock, say.
    """
    if (name := _column_alone(text)) in schema.names:  # most of what SQL's plans compute
        return _column(text, name, schema[name].type)
    words = text.lower()
    named = [one for one in schema if one.name.lower() in words] or schema.fields[:1]
    try:
        if (alike := _alike(text, schema)) is not None:
            return alike
        return _compiled(text, Schema(tuple(Field(one.name, one.type) for one in named)))
    except SchemaError:
        return _compiled.__wrapped__(text, schema)  # it says which columns there are
    except RecursionError:
        raise SchemaError(
            f"expected an expression that nests less deeply; found {text[:60]!r}…, which is beyond Python's "
            "limit. Compute parts of it first, in a select"
        ) from None


def column_expression(field: Field) -> Expression:
    """A column, as it is."""
    return _column(quoted(field.name), field.name, field.type)


@functools.lru_cache(maxsize=4_096)
def _column(text: str, name: str, type_: pa.DataType) -> Expression:
    tree = Column(name, type_)
    return Expression(text, cast_sql(text, type_), type_, tree, frozenset([name]))


def _alike(text: str, schema: Schema) -> Expression | None:
    """An expression by one that differs from it in its columns' names, which is compiled once.

    SQL's plans compute the same of many columns: that a key is NULL, say. To compile one takes some ten
    milliseconds, half of them DuckDB's.

    Returns:
        None where a name may be more than a column's: it stands without quotes, or is in the result's type.
    """
    if _UNFIT.search(text):
        return None
    columns: dict[str, str] = {}  # and what stands for them
    words: set[str] = set()
    for found in _PARTS.finditer(text):
        if found[1] is not None:
            columns.setdefault(found[1].replace('""', '"'), f"column {len(columns)}")
        elif found[0][0] not in "'.":
            words.add(found[0].lower())
    there = schema.names
    lowered = [name.lower() for name in there]
    if not words.isdisjoint(lowered) or not columns.keys() <= set(there):
        return None
    if any(lowered.count(name.lower()) > 1 for name in columns):
        return None
    fields = [Field(alias, schema[name].type) for name, alias in columns.items()]
    try:
        known = Schema(tuple(fields) or (Field("column 0", pa.bool_()),))
        made = _compiled(_renamed(text, columns), known)
    except SchemaError:
        return None  # its message names what the user didn't write
    if pa.types.is_nested(made.type):
        return None
    names = {alias: name for name, alias in columns.items()}
    tree = None if made.tree is None else _of_columns(made.tree, names)
    return replace(
        made,
        text=text,
        sql=_renamed(made.sql, names),
        tree=tree,
        columns=frozenset(names[one] for one in made.columns),
    )


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """SQL with other names of columns, all of which are in quotes."""

    def other(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        name = names.get(found[1].replace('""', '"'))
        return found[0] if name is None else quoted(name)

    return _PARTS.sub(other, text)


def _of_columns(tree: Tree, names: Mapping[str, str]) -> Tree:
    """A tree with other names of columns."""
    match tree:
        case Column(name):
            return replace(tree, name=names[name])
        case Call(arguments=arguments):
            return replace(tree, arguments=tuple(_of_columns(one, names) for one in arguments))
        case _:
            return tree


@functools.lru_cache(maxsize=4_096)
def _compiled(text: str, schema: Schema) -> Expression:
    """See `compile_expression`: views that are alike compute the same."""
    import sqlglot
    from sqlglot import exp

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is
    from penstock.expr.walks import find_all, nodes_of

    refused = (
        exp.AggFunc, exp.Window, exp.Query, exp.Subquery, exp.Alias, exp.Block, exp.Star,
    )  # fmt: skip
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        if reason.startswith(
            "Required keyword"
        ):  # continues with the name of a class of the parser
            reason = "a part is missing"
        raise SchemaError(f"expected a SQL expression; found {text!r} ({reason})") from None
    for node in nodes_of(tree):
        if isinstance(node, refused):
            raise SchemaError(
                f"expected an expression over the columns of one row; found {node.sql()!r} in {text!r}. "
                "Aggregate with group_by(…).agg(…)"
            )
    tree = _resolve_columns(tree, text, schema)
    sql = tree.sql(dialect="duckdb", identify=True)
    found = tree_of(tree, schema)
    if found is None:  # a tree has functions of a closed list
        check_pure(connection(), sql, text, schema)
        check_patterns(tree)
    # A tree that is true or false is a comparison, or made of some, whatever types it compares.
    is_condition = found is not None and found.type == pa.bool_()
    type_ = pa.bool_() if is_condition else _type_of(sql, text, schema)
    check_casts(tree, text, schema)
    if found is not None and found.type != type_:
        found = None  # DuckDB knows better what this is
    columns = frozenset(one.name for one in find_all(tree, exp.Column))
    return Expression(text, cast_sql(sql, type_), type_, found, columns)


def _column_alone(text: str) -> str:
    """The name of the column that an expression is, if it is one in quotes; otherwise nothing."""
    name = text[1:-1].replace('""', '"')
    return name if text == quoted(name) else ""


def cast_sql(sql: str, type_: pa.DataType) -> str:
    """An expression of a type; see `Expression.typed`."""
    if type_ == UUID:
        return f"unhex(replace(CAST(CAST({sql} AS UUID) AS VARCHAR), '-', ''))"
    if type_ == INTERVAL:
        return f"epoch_us(CAST({sql} AS INTERVAL))"
    return f"CAST({sql} AS {sql_type(type_)})"


def _resolve_columns(tree: exp.Expr, text: str, schema: Schema) -> exp.Expr:
    """The tree with names as the schema has them, and members of structs as what they are."""
    from sqlglot import exp

    from penstock.expr.walks import find_all

    by_lower = {name.lower(): name for name in schema.names}
    for column in find_all(tree, exp.Column):
        first, *rest = column.parts
        if rest:  # a member of a struct
            whole = exp.Column(this=first)
            member = exp.Dot.build([whole, *rest])
            tree = member if column is tree else tree
            if column.parent is not None:
                column.replace(member)
            column = whole  # noqa: PLW2901
        name = column.name
        if name in schema.names:
            continue
        if name.lower() not in by_lower:
            raise SchemaError(
                f"expected one of the columns {known_names(schema.names)}; found {name!r} in {text!r}"
                f"{hint(name, schema.names)}"
            )
        column.this.set("this", by_lower[name.lower()])
    return tree


def _type_of(sql: str, text: str, schema: Schema) -> pa.DataType:
    try:
        [(_, found, name)] = types_of({"rows": schema.arrow}, f"SELECT ({sql}) AS x FROM rows")
    except EvaluationError as error:
        raise SchemaError(
            f"expected an expression that DuckDB understands; found {text!r}: {error}"
        ) from None
    type_ = known_type(found, name)
    type_text(type_)
    return type_


def _narrow(found: pa.DataType) -> pa.DataType:
    """Penstock's type for one of DuckDB's."""
    types = pa.types
    if types.is_list(found):
        return pa.list_(_narrow(found.value_type))
    if types.is_struct(found):
        return pa.struct([(one.name, _narrow(one.type)) for one in found])
    if types.is_map(found):
        return pa.map_(_narrow(found.key_type), _narrow(found.item_type))
    if types.is_large_binary(found) or found == pa.binary_view():
        return pa.binary()
    if (
        types.is_int8(found)
        or types.is_int16(found)
        or types.is_uint8(found)
        or types.is_uint16(found)
    ):
        return pa.int32()
    if types.is_uint32(found) or types.is_uint64(found):
        return pa.int64()
    if types.is_decimal(found):
        return pa.decimal128(found.precision, found.scale)
    if types.is_timestamp(found):
        return TIMESTAMP
    if types.is_null(found):
        return pa.string()
    if found == pa.string_view():
        return pa.string()
    return found


def known_type(found: pa.DataType, name: str) -> pa.DataType:
    """Penstock's type for one of DuckDB's: as Arrow has it, and as DuckDB calls it."""
    return _NAMED.get(name) or _narrow(found)
