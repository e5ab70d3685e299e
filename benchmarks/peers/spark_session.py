"""The Spark session of the peers' side: Spark's own Kafka source and operators, well set up."""

import os
import sys
from typing import TYPE_CHECKING

from cache import jars, java

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DRIVER_MEMORY = "6g"  # holds the in-memory store's state of 10 M events twice over
STATE_PROVIDERS = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
# Three times as fast as the default on a local file system, so that the peer isn't held up by it.
CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
PROGRESS_UPDATES_KEPT = 10_000  # every batch of a run


def session(state: str, parallelism: int) -> "SparkSession":
    """A local session with one state store and as many tasks as the topic has partitions.

    Args:
        state: `memory` or `rocksdb` (with changelog checkpoints).
        parallelism: Cores, and shuffle partitions.
    """
    launcher = java()
    assert launcher is not None  # the caller asked `cache.problem`
    os.environ.setdefault("JAVA_HOME", str(launcher.resolve().parent.parent))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.jars": ",".join(str(jar) for jar in jars("spark")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(parallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": STATE_PROVIDERS[state],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_UPDATES_KEPT),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{parallelism}]").appName("penstock-peer")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def events(
    spark: "SparkSession", bootstrap: str, topic: str, schema: str, per_batch: int | None
) -> "DataFrame":
    """The topic's JSON values as columns, with the event time `et`.

    Args:
        spark: The session.
        bootstrap: The broker, `host:port`.
        topic: The topic, read from its beginning.
        schema: Spark's DDL of the values; must have `ts long`, epoch milliseconds.
        per_batch: Events per micro-batch at most, or None.
    """
    from pyspark.sql import functions as F  # noqa: N812

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if per_batch:
        source = source.option("maxOffsetsPerTrigger", per_batch)
    rows = source.load().select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return rows.select("row.*", F.timestamp_millis("row.ts").alias("et"))


def checkpoint(work: "Path") -> str:
    """Where a query keeps its offsets and state below a working folder."""
    return (work / "checkpoint").resolve().as_uri()
