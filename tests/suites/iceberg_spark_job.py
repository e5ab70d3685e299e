"""Runs SQL in Spark with Iceberg's runtime, for `iceberg_spark.py`, in the environment of its own.

    python iceberg_spark_job.py CATALOG.db WAREHOUSE JAR...

Reads requests from standard input, one a line, and answers each with a line that begins with
`RESULT`: `{"rows": [...]}` or `{"error": "..."}`. The catalog `penstock` is the broker's own: Iceberg's
JDBC catalog knows the tables that pyiceberg keeps in SQLite.

    {"sql": "SELECT ..."}                                   the rows, each a list
    {"stream": "TABLE", "into": FOLDER}                     what came since the last time, by a stream
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

CATALOG = "spark.sql.catalog.penstock"
STREAM_S_MAX = 120
ERROR_CHARACTERS_MAX = 1200  # of an exception's beginning: the JVM's stack follows


def settings(database: str, warehouse: str) -> dict[str, str]:
    """How Spark is told of Iceberg and of the broker's catalog (docs/tiering.md says the same)."""
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.type": "jdbc",
        f"{CATALOG}.uri": f"jdbc:sqlite:{database}",
        f"{CATALOG}.jdbc.schema-version": "V1",
        f"{CATALOG}.warehouse": warehouse,
    }


def session(database: str, warehouse: str, jars: list[str]) -> SparkSession:
    """Spark as anybody would set it up for Iceberg."""
    more = {
        "spark.jars": ",".join(jars),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock-iceberg")
    for name, value in {**settings(database, warehouse), **more}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes in hexadecimal, times in ISO 8601."""
    match value:
        case bytes() | bytearray():
            return value.hex()
        case datetime() | date():
            return value.isoformat()
        case Row() | list():
            return [plain(one) for one in value]
    return value


def stream(spark: SparkSession, table: str, into: str) -> list[Any]:
    """Reads a table as a stream, from where the last one with this folder ended."""
    rows: list[Any] = []
    query = (
        spark.readStream.format("iceberg")
        .load(table)
        .writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(Path(into).resolve()))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(STREAM_S_MAX):
        query.stop()
        raise TimeoutError(f"expected the stream's end within {STREAM_S_MAX} s")
    return rows


def main() -> None:
    """Answers until standard input ends."""
    with contextlib.redirect_stdout(sys.stderr):
        spark = session(sys.argv[1], sys.argv[2], sys.argv[3:])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "sql" in request:
                rows = spark.sql(request["sql"]).collect()
            else:
                rows = stream(spark, request["stream"], request["into"])
            answer: dict[str, Any] = {"rows": [plain(row) for row in rows]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]}
        print("RESULT " + json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
