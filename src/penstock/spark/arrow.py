"""Arrow's types and Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["as_spark", "chosen", "fitted", "for_spark"]


def for_spark(schema: pa.Schema) -> StructType:
    """An Arrow schema as Spark's; every column may be NULL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    found: StructType = from_arrow_schema(
        pa.schema([pa.field(one.name, one.type) for one in schema])
    )
    return found


def as_spark(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of rows of its schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def chosen(known: pa.Schema, schema: StructType) -> pa.Schema:
    """Those of the known columns that Spark's schema names, in its order, as Spark expects them.

    Raises:
        UserError: it names another column, or another type.
    """
    theirs = for_spark(known)
    for one in schema.fields:
        if one.name not in known.names:
            raise UserError(f"expected columns of {', '.join(known.names)}; found {one.name!r}")
        if theirs[one.name].dataType != one.dataType:
            raise UserError(
                f"expected column {one.name!r} as {theirs[one.name].dataType.simpleString()}; found "
                f"{one.dataType.simpleString()}. Cast it after reading"
            )
    return as_spark(schema)


def fitted(tables: Iterable[pa.Table], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as batches of exactly the wanted columns."""
    names: Any = wanted.names
    for table in tables:
        yield from table.select(names).cast(wanted).combine_chunks().to_batches()
