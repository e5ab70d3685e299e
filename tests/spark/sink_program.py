"""The stream that `test_sink` kills. Arguments: the broker's address, the topic, a folder, batches."""

import sys
from pathlib import Path

import penstock as ps
from penstock.engine.spark.session import start_session


def main(address: str, topic: str, folder: str, batches: int) -> None:
    """Writes 40 rows a batch, each with its number, until so many batches are stored."""
    session = start_session("sink", None, Path(folder) / "spark", cores=2)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    ps.spark.register(session)
    rows = (
        session.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=40, numPartitions=2, startTimestamp=0)
        .load()
    )
    # Shuffled, so that a batch that is run again has its rows in another order.
    shuffled = rows.selectExpr("value AS n", "value % 7 AS user").repartition(2, "n")
    query = (
        shuffled.writeStream.format("penstock")
        .options(log=address, topic=topic, key="user")
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .start()
    )
    while query.isActive:
        query.awaitTermination(1)
        if (last := query.lastProgress) is not None and last["batchId"] >= batches - 1:
            query.stop()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
