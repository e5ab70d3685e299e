"""PostgreSQL's `to_char`: moments, spans and numbers as text, by a format.

https://www.postgresql.org/docs/16/functions-formatting.html. DuckDB has `strftime` and `format`, whose
formats are others; dashboards and reports for PostgreSQL write this one.
"""

from penstock.serve.characters.function import add_function

__all__ = ["add_function"]
