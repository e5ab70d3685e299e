"""Functions of other distributions, in SQL and in expressions: scalar ones, and aggregates.

A function is a value that declares itself (entry points `penstock.functions`). DuckDB learns it on the first
query that calls it, on each connection; until then none of its code is imported.

Contract of a function, which nothing can check:

1. It gives the same of the same values whenever it is computed, wherever: nothing of a clock, of chance, of
   files or a network. A batch may be computed again.
2. A value that it can't be computed of is an exception: the rows are then computed one by one, and that one
   is a dead letter.
3. What an aggregate gives doesn't depend on the order of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.core.vectors import contiguous
from penstock.expr.typed import sql_type

if TYPE_CHECKING:
    import duckdb

__all__ = ["AggregateFunction", "ScalarFunction", "SqlFunction"]

_LISTS: Final = "penstock_of_list_"
"""Before an aggregate's name: the function of the list of a group's values."""


@dataclass(frozen=True, kw_only=True)
class SqlFunction:
    """A function that a query may call.

    Attributes:
        name: in lower case.
        help: what it gives, in a sentence.
    """

    name: str
    help: str

    def add(self, con: duckdb.DuckDBPyConnection) -> None:
        """Lets a connection know it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ScalarFunction(SqlFunction):
    """A function of the values of one row. It is NULL where an argument is.

    Attributes:
        arguments: types, as in schemas: `("STRING", "BIGINT")`.
        result: the type of what it gives.
        compute: of Arrow arrays of equal length, one for each argument, the array of results. None of the
            values is NULL.
    """

    arguments: tuple[str, ...]
    result: str
    compute: Callable[..., Any]

    def add(self, con: duckdb.DuckDBPyConnection) -> None:
        """Lets a connection know it."""
        type_ = _type(self.result)

        def computed(*columns: pa.ChunkedArray) -> pa.Array:
            return _checked(self, self.compute(*map(contiguous, columns)), type_, len(columns[0]))

        types: list[Any] = [sql_type(_type(one)) for one in self.arguments]
        vars(computed)["__signature__"] = Signature(  # DuckDB counts its parameters
            [Parameter(f"x{i}", Parameter.POSITIONAL_ONLY) for i in range(len(types))]
        )
        con.create_function(self.name, computed, types, sql_type(type_), **_HOW)


@dataclass(frozen=True, kw_only=True)
class AggregateFunction(SqlFunction):
    """A function of a column's values in a group, without NULL.

    All values of a group are kept, and it is computed again when one of them changes.

    Attributes:
        argument: the column's type, as in schemas: `STRING`.
        result: the type of what it gives.
        compute: of an Arrow array of lists, one for each group, the array of results. A list may be empty.
    """

    argument: str
    result: str
    compute: Callable[[Any], Any]

    @property
    def types(self) -> tuple[pa.DataType, pa.DataType]:
        """Of the argument, and of the result."""
        return _type(self.argument), _type(self.result)

    def of_lists(self, lists: Any) -> pa.Array:
        """The results of groups.

        Raises:
            ValueError: the function gave something else.
        """
        return _checked(self, self.compute(lists), _type(self.result), len(lists))

    def add(self, con: duckdb.DuckDBPyConnection) -> None:
        """Lets a connection know it: as a function of lists, as Python can't give DuckDB an aggregate."""
        of, type_ = self.types

        def computed(lists: pa.ChunkedArray) -> Any:
            return self.of_lists(contiguous(lists))

        inner = _LISTS + self.name
        types: list[Any] = [f"{sql_type(of)}[]"]
        con.create_function(inner, computed, types, sql_type(type_), **_HOW)
        values = f"list(x) FILTER (WHERE x IS NOT NULL)::{types[0]}"
        con.execute(f"CREATE TEMP MACRO {self.name}(x) AS {inner}(coalesce({values}, []))")


_HOW: Final[dict[str, Any]] = {"type": "arrow"}


def _type(text: str) -> pa.DataType:
    return Schema.parse(f"x {text}")["x"].type


def _checked(function: SqlFunction, found: Any, type_: pa.DataType, count: int) -> pa.Array:
    """What a function gave, as an array of its type.

    Raises:
        ValueError: it isn't one, or not one value each.
    """
    found = contiguous(found) if isinstance(found, pa.ChunkedArray) else found
    if not isinstance(found, pa.Array) or len(found) != count:
        shown = f"{len(found)}" if isinstance(found, pa.Array) else type(found).__name__
        raise ValueError(
            f"expected an Arrow array of {count} values of the function {function.name}; found {shown}"
        )
    return found if found.type == type_ else found.cast(type_)
