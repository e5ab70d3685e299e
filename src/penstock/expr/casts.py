"""Casts that fail for every value: found when an expression is read, by their types alone.

DuckDB accepts them in a plan and says so only when a value comes by. So a value of the type is cast, once for
each pair of types.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.schema import INTERVAL, UUID, Schema, type_text
from penstock.errors import SchemaError
from penstock.expr.duck import EvaluationError, query_tables, sql_type, types_of

# sqlglot is imported where it is used: lanes need none, and start sooner.
if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["check_casts"]

_NEVER: Final = "Unimplemented type for cast"
_INSTEAD: Final = {
    ("TIMESTAMP", "TIME"): ". For the time of day write ({} AT TIME ZONE 'UTC')::TIME",
    ("TIMESTAMP", "number"): ". For seconds since 1970 write epoch({})",
    ("number", "TIMESTAMP"): ". For seconds since 1970 write to_timestamp({})",
}


def check_casts(tree: exp.Expr, text: str, schema: Schema) -> None:
    """Refuses casts that no value survives, TRY_CAST as well: NULL in every row is a mistake.

    Args:
        tree: the expression, its columns resolved.
        text: as the user wrote it.
        schema: of the rows.

    Raises:
        SchemaError: there is one.
    """
    from sqlglot import exp

    from penstock.expr.walks import find_all

    for cast in find_all(tree, exp.Cast):
        is_condition = isinstance(cast.this.unnest(), exp.Predicate | exp.Connector | exp.Not)
        if is_condition and cast.to.is_type(exp.DataType.Type.BOOLEAN):
            continue  # it is what it is cast to: most casts, as conditions are such
        if cast.to.this in exp.DataType.TEXT_TYPES:
            continue  # every value has a text
        of = cast.this.sql(dialect="duckdb", identify=True)
        to = cast.to.sql(dialect="duckdb")
        found = _type_of(of, schema)
        if found is None or (_is_number(found[0]) and _family(to.upper()) == "number"):
            continue
        if not _never_works(*found, to):
            continue
        kind = type_text(found[0])
        instead = _INSTEAD.get((_family(kind), _family(to.upper())), "").format(cast.this.sql())
        raise SchemaError(
            f"expected a cast that some value survives; found {text!r}: nothing of type {kind} can be cast "
            f"to {to}{instead}"
        )


def _is_number(type_: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(type_) or is_.is_floating(type_) or is_.is_decimal(type_))


def _family(kind: str) -> str:
    word = kind.partition("(")[0]
    if word in {"INT", "INTEGER", "BIGINT", "DOUBLE", "FLOAT", "DECIMAL", "SMALLINT", "HUGEINT"}:
        return "number"
    return "TIMESTAMP" if word == "TIMESTAMPTZ" else word


@functools.lru_cache(maxsize=1_024)
def _type_of(sql: str, schema: Schema) -> tuple[pa.DataType, str] | None:
    """The type of a part of an expression, in Arrow and as DuckDB calls it; None: it has none by itself."""
    names = {f'"{one.name}"': one.type for one in schema}
    if sql in names:
        return names[sql], sql_type(names[sql])
    try:
        [(_, type_, name)] = types_of({"rows": schema.arrow}, f"SELECT ({sql}) AS x FROM rows")
    except EvaluationError:  # within a lambda, say
        return None
    return type_, name


@functools.lru_cache(maxsize=1_024)
def _never_works(type_: pa.DataType, name: str, to: str) -> bool:
    """Whether a cast fails for every value of a type."""
    sample = _sample(type_)
    if sample is None:
        return False
    try:
        query_tables({}, f"SELECT CAST(CAST({sample} AS {name}) AS {to})")
    except EvaluationError as error:
        return _NEVER in str(error)
    return False


def _sample(type_: pa.DataType) -> str | None:
    """A value of a type, in SQL; None: nothing is known of it."""
    if pa.types.is_list(type_):
        inner = _sample(type_.value_type)
        return None if inner is None else f"[{inner}]"
    if pa.types.is_struct(type_):
        inner_ = {one.name.replace('"', '""'): _sample(one.type) for one in type_}
        parts = [f'"{name}" := {value}' for name, value in inner_.items()]
        return None if None in inner_.values() else f"struct_pack({', '.join(parts)})"
    if pa.types.is_map(type_):
        inner = _sample(type_.item_type)
        return None if inner is None else f"MAP {{'k': {inner}}}"
    if type_ in (UUID, INTERVAL):
        return "'00000000-0000-0000-0000-000000000000'" if type_ == UUID else "INTERVAL 1 DAY"
    is_ = pa.types
    known = (
        (is_.is_boolean, "TRUE"),
        (is_.is_integer, "1"),
        (is_.is_floating, "1.0"),
        (is_.is_decimal, "0"),
        (is_.is_timestamp, "'2000-01-01 00:00:00+00'"),
        (is_.is_date, "'2000-01-01'"),
        (is_.is_time, "'00:00:00'"),
    )
    return next((value for fits, value in known if fits(type_)), None)
