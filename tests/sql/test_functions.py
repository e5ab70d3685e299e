"""Which of DuckDB's functions a view may call: as documented, and as they are kept up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sql.beside_duckdb import compare, flow
from tests.sql.functions import functions, markdown

from penstock.errors import SchemaError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"


def test_the_table_of_functions_is_that_of_the_program() -> None:
    """`python -m tests.sql.functions` prints it for the page; a function is in it once."""
    assert markdown() in PAGE.read_text()
    names = [name for kind in functions() for name in kind.names]
    assert len(names) == len(set(names)) > 500
    assert all(kind.names for kind in functions())


def test_macros_are_what_they_expand_to() -> None:
    """Those of aggregates aggregate, as in DuckDB."""
    aggregates = "geomean(v + 10) AS g, weighted_avg(v, id) AS w, sum(v) AS s"
    compare(f"SELECT k, {aggregates} FROM t GROUP BY k HAVING geomean(id) > 0", seed=1, batches=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("list(ago(INTERVAL 1 DAY))", r"found ago\(\). It reads the clock"),
        ("list(pg_conf_load_time())", "reads the clock"),
        ("reservoir_quantile(v, 0.5)", "use approx_quantile or quantile_cont"),
    ],
)
def test_what_differs_from_time_to_time_is_refused(call: str, message: str) -> None:
    """Within aggregates and macros too, where DuckDB computes the group."""
    with pytest.raises(SchemaError, match=message):
        flow().view("q", sql=f"SELECT k, {call} AS c FROM t GROUP BY k")
