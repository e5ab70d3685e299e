"""TPC-H's tables in DuckDB, and their changes as records.

    tables = Tables(scale, seed)
    for name, records in tables.all(): ...       # key and value of each record
    for name, records in tables.refreshed(share).items(): ...

`tpchgen-cli` makes the data. It has no refresh sets, so they are made here as the specification has them: RF1
inserts orders and their lineitems under keys that the data leaves free (of each 32 it takes the first 8), RF2
deletes others with theirs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

__all__ = ["KEYS", "Tables", "available", "program", "queries"]

FOLDER: Final = Path(__file__).parent
KEYS: Final = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
"""The tables, and the columns that identify their rows."""


def generator() -> str | None:
    """The program that makes the data: of this environment, or on the path."""
    return shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or shutil.which(
        "tpchgen-cli"
    )


def available() -> str | None:
    """Why there is no data; None where there is some."""
    return None if generator() else "tpchgen-cli is missing: pip install tpchgen-cli"


def program() -> str:
    """The tables in SQL."""
    return (FOLDER / "tables.sql").read_text()


def queries(scale: float) -> dict[str, str]:
    """The queries by name."""
    text = (FOLDER / "queries.sql").read_text().replace("{fraction}", f"{0.0001 / scale:.10f}")
    parts = [one.partition("\n") for one in text.split("\n-- ")[1:]]
    return {name: query.strip().removesuffix(";") for name, _, query in parts}


class Tables:
    """The tables as they are now."""

    def __init__(self, scale: float, seed: int = 0) -> None:
        self.scale, self.seed, self.round = scale, seed, 0
        self.con = duckdb.connect(":memory:")
        command = generator()
        assert command is not None, available()
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [command, "parquet", "-s", str(scale), "--output-dir", folder],
                check=True,
                capture_output=True,
            )
            for name in KEYS:
                self.con.execute(f"CREATE TABLE {name} AS FROM '{folder}/{name}.parquet'")
        # With fewer than some hundred suppliers, the data has a part's supplier twice.
        self.con.execute(
            "CREATE OR REPLACE TABLE partsupp AS "
            "SELECT DISTINCT ON (ps_partkey, ps_suppkey) * FROM partsupp ORDER BY ALL"
        )
        self.con.execute("CREATE TABLE old_orders AS SELECT o_orderkey FROM orders")

    def close(self) -> None:
        """Lets go of the tables."""
        self.con.close()

    def all(self) -> Iterator[tuple[str, pa.Table]]:
        """A record for each row of each table, table by table."""
        for name in KEYS:
            yield name, self._records(name, f"FROM {name}")

    def refreshed(self, share: float = 0.001) -> dict[str, pa.Table]:
        """Both refresh functions; TPC-H's own change a thousandth of the orders.

        Args:
            share: of the orders that are inserted, and likewise of those that are deleted.

        Returns:
            The records by table: rows, and keys without a value.
        """
        self.round += 1
        con, n = self.con, max(1, round(1_500_000 * self.scale * share))
        chosen = f"hash(o_orderkey, {self.seed}, {self.round})"
        con.execute(f"""
            CREATE OR REPLACE TABLE new_keys AS
            SELECT o_orderkey AS base, o_orderkey + 8 * (1 + {self.round} % 3) AS made FROM old_orders
            WHERE o_orderkey + 8 * (1 + {self.round} % 3) NOT IN (SELECT o_orderkey FROM orders)
              AND o_orderkey IN (SELECT o_orderkey FROM orders)
            ORDER BY {chosen} LIMIT {n};
            CREATE OR REPLACE TABLE gone AS
            SELECT o_orderkey AS key FROM orders ORDER BY hash({chosen}) LIMIT {n};
            CREATE OR REPLACE TABLE new_orders AS
            SELECT orders.* REPLACE (made AS o_orderkey) FROM orders JOIN new_keys ON base = o_orderkey;
            CREATE OR REPLACE TABLE new_lineitem AS
            SELECT lineitem.* REPLACE (made AS l_orderkey) FROM lineitem JOIN new_keys ON base = l_orderkey;
        """)
        found = {}
        for name, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            gone = self._records(name, f"FROM {name} WHERE {key} IN (FROM gone)", deleted=True)
            found[name] = pa.concat_tables([gone, self._records(name, f"FROM new_{name}")])
            con.execute(f"DELETE FROM {name} WHERE {key} IN (FROM gone)")
            con.execute(f"INSERT INTO {name} FROM new_{name}")
        return found

    def answer(self, query: str) -> pa.Table:
        """What DuckDB computes of the tables as they are."""
        return self.con.sql(query).to_arrow_table()

    def _records(self, name: str, rows: str, *, deleted: bool = False) -> pa.Table:
        """Key and value, both JSON: of deleted rows, the value is missing."""
        keys = ", ".join(KEYS[name])
        key = f"to_json({{{', '.join(f'{one!r}: {one}' for one in KEYS[name])}}})"
        value = "NULL" if deleted else f"to_json({name})"
        query = (
            f"SELECT CAST(CAST({key} AS VARCHAR) AS BLOB) AS key, "
            f"CAST(CAST({value} AS VARCHAR) AS BLOB) AS value FROM ({rows}) AS {name} ORDER BY {keys}"
        )
        return self.con.sql(query).to_arrow_table()
