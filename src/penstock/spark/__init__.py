"""Penstock as a data source of Spark: views, topics and tables of topics, read and written.

    ps.spark.register(spark)

    spark.read.format("penstock").option("view", "per_minute").load("shop.penstock")
    spark.read.format("penstock").option("log", "127.0.0.1:9092").option("topic", "clicks").load()
    spark.readStream.format("penstock").option("view", "per_minute").load("shop.penstock")
    df.writeStream.format("penstock").option("log", "127.0.0.1:9092").option("topic", "out").start()

docs/spark.md lists the options.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(session: SparkSession) -> None:
    """Lets a session read and write `format("penstock")`.

    It also switches on `spark.sql.python.filterPushdown.enabled`, which Spark asks of sources
    written in Python that take filters, and `spark.sql.timeType.enabled`, without which views with
    TIME columns can't be read. Relative paths in options are relative to the working
    directory of this call. Penstock must be installed where the session's tasks run.

    Args:
        session: Spark's, classic or Connect.

    Raises:
        SetupError: the session's Spark is older than 4.3.
    """
    from penstock.spark.source import source_at

    try:
        session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        session.conf.set("spark.sql.timeType.enabled", "true")
        session.dataSource.register(source_at(str(Path.cwd())))
    except AttributeError as error:
        raise SetupError(
            f"expected Spark 4.3 or newer; found {session.version} ({error})"
        ) from None
