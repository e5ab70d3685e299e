"""DuckDB's SQL as sqlglot reads it, and as DuckDB does: JSON's operators and paths.

p -> 'a.b'          the member "a.b"; sqlglot would write '$.a.b', a member within another
min(p -> 'a')       JSON; sqlglot would take it for a function of p, as in list_filter(l, x -> x > 1)

An expression may be over columns that are found already (`Own`): they are written by their names.

What is read by the name "duckdb" is read by this class, once the module is imported: whatever reads SQL does.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects import duckdb
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

__all__ = ["DuckDB", "Own"]

_NO_ARROWS: Final = {
    kind: parse for kind, parse in DuckDBParser.LAMBDAS.items() if kind != TokenType.ARROW
}


class Own(exp.Column):
    """A column of the rows that an expression is over, and not one that a query still has to find."""


class DuckDB(duckdb.DuckDB):
    """The dialect, which takes the name "duckdb"."""

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """A path as it is written: DuckDB reads it."""
        return path

    class Generator(DuckDBGenerator):
        """Writes columns that are found by their names."""

        TRANSFORMS: ClassVar = {
            **DuckDBGenerator.TRANSFORMS,
            Own: lambda self, column: self.sql(column, "this"),
        }

    class Parser(DuckDBParser):
        """Reads arrows in arguments: a function uses its parameter."""

        def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:  # noqa: FBT001, FBT002
            parser: Any = self
            begin, lambdas = parser._index, self.LAMBDAS  # noqa: SLF001
            found: exp.Expr | None = super()._parse_lambda(alias)
            if not isinstance(found, exp.Lambda) or _uses_parameter(found):
                return found
            parser._retreat(begin)  # noqa: SLF001
            try:
                parser.LAMBDAS = _NO_ARROWS
                found = super()._parse_lambda(alias)
            finally:
                parser.LAMBDAS = lambdas
            return found


def _uses_parameter(function: exp.Lambda) -> bool:
    names = {one.name.lower() for one in function.expressions}
    body: exp.Expr = function.this
    return any(one.name.lower() in names for one in body.find_all(exp.Identifier, exp.Column))
