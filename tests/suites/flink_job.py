"""Flink jobs for `flink.py`, which starts this in Flink's own environment: one line of JSON per job on
standard input, one line that begins with `RESULT` per job on standard output.

No job has a Python function in it, so that all of a record's way is Flink's own code.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))
from cache import jars, java

RESULT = "RESULT "
TRANSACTION_MS_MAX = (
    120_000  # longer than a job takes to come back, shorter than the broker's limit
)
PARALLELISM = 2


def environment(job: dict[str, Any]) -> Any:
    """An execution environment on a cluster inside this process's JVM."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    settings = {
        "parallelism.default": str(PARALLELISM),
        "taskmanager.memory.managed.size": "64m",
        "rest.address": "127.0.0.1",
        "rest.bind-port": "0",
        "restart-strategy.type": "none",
    }
    if restarts := job.get("restarts"):
        settings["restart-strategy.type"] = "fixed-delay"
        settings["restart-strategy.fixed-delay.attempts"] = str(restarts)
        settings["restart-strategy.fixed-delay.delay"] = "500ms"
    if folder := job.get("checkpoints"):
        settings |= {
            "execution.checkpointing.interval": f"{job['interval_ms']}ms",
            "execution.checkpointing.dir": Path(folder).as_uri(),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.num-retained": "3",
        }
    if checkpoint := job.get("restore"):
        settings["execution.state-recovery.path"] = Path(checkpoint).as_uri()
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    made = StreamExecutionEnvironment.get_execution_environment(configuration)
    made.add_jars(*(jar.as_uri() for jar in jars("flink")))
    return made


def offsets(where: list[Any], topic: str) -> Any:
    """An offsets initializer.

    Args:
        where: `["earliest"]`, `["latest"]`, `["committed", STRATEGY]`, `["timestamp", MS]` or
            `["offsets", {PARTITION: OFFSET}]`.
        topic: whose partitions these are.
    """
    from pyflink.datastream.connectors.kafka import (
        KafkaOffsetResetStrategy,
        KafkaOffsetsInitializer,
        KafkaTopicPartition,
    )

    kind, *more = where
    if kind == "committed":
        strategy = KafkaOffsetResetStrategy[more[0]]
        return KafkaOffsetsInitializer.committed_offsets(strategy)
    if kind == "timestamp":
        return KafkaOffsetsInitializer.timestamp(more[0])
    if kind == "offsets":
        places = {KafkaTopicPartition(topic, int(one)): at for one, at in more[0].items()}
        return KafkaOffsetsInitializer.offsets(places)
    return getattr(KafkaOffsetsInitializer, kind)()


def source(job: dict[str, Any]) -> Any:
    """Flink's Kafka source of text."""
    from pyflink.common.serialization import SimpleStringSchema
    from pyflink.datastream.connectors.kafka import KafkaSource

    builder = (
        KafkaSource.builder()
        .set_bootstrap_servers(job["bootstrap"])
        .set_group_id(job["group"])
        .set_starting_offsets(offsets(job["start"], job["topic"]))
        .set_value_only_deserializer(SimpleStringSchema())
        .set_property("isolation.level", job.get("isolation", "read_uncommitted"))
        .set_property("partition.discovery.interval.ms", "1000")
    )
    if job.get("pattern"):
        builder.set_topic_pattern(job["topic"])
    else:
        builder.set_topics(job["topic"])
    if job.get("stop"):
        builder.set_bounded(offsets(job["stop"], job["topic"]))
    return builder.build()


def sink(job: dict[str, Any]) -> Any:
    """Flink's Kafka sink of text, exactly once."""
    from pyflink.common.serialization import SimpleStringSchema
    from pyflink.datastream.connectors.base import DeliveryGuarantee
    from pyflink.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
    from pyflink.java_gateway import get_gateway

    records = KafkaRecordSerializationSchema.builder().set_topic(job["into"])
    builder = (
        KafkaSink.builder()
        .set_bootstrap_servers(job["bootstrap"])
        .set_record_serializer(records.set_value_serialization_schema(SimpleStringSchema()).build())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(job["prefix"])
        .set_property("transaction.timeout.ms", str(TRANSACTION_MS_MAX))
    )
    naming = get_gateway().jvm.org.apache.flink.connector.kafka.sink.TransactionNamingStrategy
    builder._j_builder.setTransactionNamingStrategy(getattr(naming, job["naming"]))
    return builder.build()


def carry_out(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job; one that reads tells the values that it has read."""
    from pyflink.common import WatermarkStrategy

    made = environment(job)
    rows = made.from_source(source(job), WatermarkStrategy.no_watermarks(), "kafka")
    if "into" in job:
        rows.sink_to(sink(job))
        made.execute("copy")
        return {"done": True}
    values = []
    with rows.execute_and_collect() as found:
        for value in found:
            values.append(value)
            if len(values) == job.get("count"):
                break
    return {"values": values}


def main() -> None:
    """Runs the jobs that are asked for."""
    launcher = java()
    assert launcher is not None  # the caller asked `cache.problem`
    os.environ.setdefault("JAVA_HOME", str(launcher.resolve().parent.parent))
    for line in sys.stdin:
        try:
            result = carry_out(json.loads(line))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
