"""DescribeConfigs and its two ways to alter, beside what a Kafka node says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.patience import PATIENCE_S
from tests.peers import kafka_peer

from penstock.broker.broker_settings import broker_settings
from penstock.broker.groups.settings import GROUP_SETTINGS
from penstock.broker.storage.topic_settings import TOPIC_SETTINGS
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ConfigChange, ErrorCode

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = ConfigChange

# Defaults that say what this broker does where it does something else than Kafka.
OURS = {"index.interval.bytes", "file.delete.delay.ms"}


def describe(raw, kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    """One resource's answer, everything included."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = raw.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[resource],
        include_synonyms=True,
        include_documentation=True,
    )
    return answer["results"][0]


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert answer["error_code"] == 0, answer
    return {one["name"]: one for one in answer["configs"]}


def alter(raw, kind: int, name: str, *changes: tuple[str, int, str | None], dry=False) -> int:
    """One resource's error."""
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = raw.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=dry)[
        "responses"
    ][0]
    assert bool(answer["error_message"]) is bool(answer["error_code"])
    return answer["error_code"]


def test_a_topics_settings_say_where_their_values_come_from(raw, topic):
    """Its own first, then the default under the name of the broker's setting."""
    assert alter(raw, TOPIC, topic, ("max.message.bytes", SET, "5000")) == 0
    found = by_name(describe(raw, TOPIC, topic))
    assert found.keys() == TOPIC_SETTINGS.keys()
    own = found["max.message.bytes"]
    assert (own["value"], own["config_source"], own["read_only"]) == ("5000", 1, False)
    assert own["synonyms"] == [
        {"name": "max.message.bytes", "value": "5000", "source": 1},
        {"name": "message.max.bytes", "value": "1048588", "source": 5},
    ]
    assert found["delete.retention.ms"]["config_source"] == 5
    assert all(one["documentation"] for one in found.values())
    assert set(by_name(describe(raw, TOPIC, topic, ["retention.ms"]))) == {"retention.ms"}


def test_the_brokers_settings_are_kafkas_and_what_is_so_here(raw, broker):
    """All of them, and which of them may be changed; secrets have no value."""
    found = by_name(describe(raw, BROKER, "1"))
    assert found.keys() == broker_settings().keys()
    assert len(found) > 330
    assert found["log.dirs"]["value"] == str(broker.data)
    assert found["log.dirs"]["config_source"] == 4
    assert broker.address in found["listeners"]["value"]
    assert int(found["log.min.free.bytes"]["value"]) > 0
    assert found["ssl.key.password"]["is_sensitive"]
    assert found["ssl.key.password"]["value"] is None
    changeable = {name for name, one in broker_settings().items() if one.is_changeable}
    assert {name for name, one in found.items() if not one["read_only"]} == changeable
    assert by_name(describe(raw, BROKER, "")) == {}


def test_groups_have_settings_and_other_resources_don_t(raw):
    """Loggers, clients' metrics, unknown brokers and types are refused."""
    found = by_name(describe(raw, GROUP, "g"))
    assert found.keys() == GROUP_SETTINGS.keys()
    synonyms = found["consumer.session.timeout.ms"]["synonyms"]
    assert synonyms[-1]["name"] == "group.consumer.session.timeout.ms"
    for kind, name in ((LOGGER, "1"), (METRICS, "m"), (BROKER, "7"), (99, "x"), (GROUP, "")):
        answer = describe(raw, kind, name)
        assert answer["error_code"] == ErrorCode.INVALID_REQUEST, (kind, name)
        assert answer["error_message"]
        assert alter(raw, kind, name, ("a", SET, "b")) == ErrorCode.INVALID_REQUEST
    assert describe(raw, TOPIC, "nope")["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(raw, TOPIC, "nope", ("retention.ms", SET, "x")) == ErrorCode.INVALID_CONFIG
    assert alter(raw, TOPIC, "nope", ("retention.ms", SET, "5")) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "5000"), 0),
        (("retention.ms", DELETE, None), 0),
        (("cleanup.policy", APPEND, "compact"), 0),
        (("cleanup.policy", APPEND, "delete"), 0),
        (("cleanup.policy", SET, "compact, delete"), 0),
        (("compression.type", SET, "producer"), 0),
        (("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("no.such", DELETE, None), 0),
        (("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "-5"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", SET, "shred"), ErrorCode.INVALID_CONFIG),
        (("compression.type", SET, "zstd"), 0),
        (("compression.type", SET, "none"), ErrorCode.INVALID_CONFIG),
        (("compression.gzip.level", SET, "9"), 0),
        (("compression.gzip.level", SET, "0"), ErrorCode.INVALID_CONFIG),
        (("compression.lz4.level", SET, "18"), ErrorCode.INVALID_CONFIG),
        (("compression.zstd.level", SET, "-7"), 0),
        (("min.insync.replicas", SET, "2"), 0),
        (("min.insync.replicas", SET, "0"), ErrorCode.INVALID_CONFIG),
        (("unclean.leader.election.enable", SET, "true"), 0),
        (("flush.messages", SET, "1"), 0),
        (("flush.messages", SET, "0"), ErrorCode.INVALID_CONFIG),
        (("flush.ms", SET, "0"), 0),
        (("preallocate", SET, "true"), 0),
        (("preallocate", SET, "maybe"), ErrorCode.INVALID_CONFIG),
        (("file.delete.delay.ms", SET, "5000"), 0),
        (("file.delete.delay.ms", SET, "-1"), ErrorCode.INVALID_CONFIG),
        (("index.interval.bytes", SET, "0"), 0),
        (("segment.index.bytes", SET, "4"), 0),
        (("segment.index.bytes", SET, "3"), ErrorCode.INVALID_CONFIG),
        (("segment.jitter.ms", SET, "9223372036854775807"), 0),
        (("segment.jitter.ms", SET, "-1"), ErrorCode.INVALID_CONFIG),
        (("leader.replication.throttled.replicas", SET, "0:1,1:1"), 0),
        (("follower.replication.throttled.replicas", SET, "*"), 0),
        (("follower.replication.throttled.replicas", SET, "all"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", 9, "5"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_are_taken_or_refused_as_kafka_does(raw, topic, change, code):
    """And a dry run changes nothing."""
    before = describe(raw, TOPIC, topic)
    assert alter(raw, TOPIC, topic, change, dry=True) == code
    assert describe(raw, TOPIC, topic) == before
    assert alter(raw, TOPIC, topic, change) == code
    if code:
        assert describe(raw, TOPIC, topic) == before


@pytest.mark.parametrize("own", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_compresses_what_it_stores(raw, broker, topic, own):
    """Whatever the producer does; consumers read what was written."""
    assert alter(raw, TOPIC, topic, ("compression.type", SET, own)) == 0
    values = [b"value %d" % n for n in range(300)]
    options = {"bootstrap.servers": broker.address, "linger.ms": 20, "compression.type": "lz4"}
    producer = Producer({**options, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    (stored,) = (broker.data / "topics" / topic / "0").glob("*.log")
    codecs = {header.codec for _, header in batches.iterate(stored.read_bytes())}
    assert codecs == {"none" if own == "uncompressed" else own}
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consumer.consume(len(values), 60)]
    consumer.close()
    assert found == values


def test_lists_are_extended_and_shortened(raw, topic):
    """A part that is there already isn't there twice; nothing twice in a request."""

    def policy() -> str:
        return by_name(describe(raw, TOPIC, topic))["cleanup.policy"]["value"]

    assert alter(raw, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert policy() == "delete,compact"
    assert alter(raw, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert policy() == "compact"
    assert alter(raw, TOPIC, topic, ("cleanup.policy", SUBTRACT, "compact")) == 0
    assert policy() == ""
    assert alter(raw, TOPIC, topic, ("cleanup.policy", SET, "delete")) == 0
    twice = [("retention.ms", SET, "5"), ("retention.ms", SET, "6")]
    assert alter(raw, TOPIC, topic, *twice) == ErrorCode.INVALID_REQUEST
    configs = [{"name": "retention.ms", "value": "77"}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    raw.call(ApiKey.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
    assert policy() == "delete"
    assert by_name(describe(raw, TOPIC, topic))["retention.ms"]["value"] == "77"


def test_an_admin_client_reads_and_changes_settings(address, topic):
    """confluent-kafka's, which is librdkafka's."""
    admin = AdminClient({"bootstrap.servers": address})
    entry = ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(PATIENCE_S)
    for kind, name, count in ((ResourceType.TOPIC, topic, 33), (ResourceType.BROKER, "1", 330)):
        (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
        found = future.result(PATIENCE_S)
        assert len(found) >= count
        if kind is ResourceType.TOPIC:
            assert found["retention.ms"].value == "123456"


TAKEN = {
    "file.delete.delay.ms": "3600000",
    "index.interval.bytes": "100",
    "preallocate": "true",
    "segment.index.bytes": "1000000",
    "segment.jitter.ms": "1000",
}
"""What means little or nothing here, but scripts that make topics say it."""


def test_librdkafka_makes_topics_with_any_of_kafkas_settings(address, broker):
    """What they say is done: here, files of a deleted topic stay."""
    admin = AdminClient({"bootstrap.servers": address})
    (made,) = admin.create_topics([NewTopic("taken", 1, 1, config=TAKEN)]).values()
    made.result(PATIENCE_S)
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "taken")]).values()
    found = future.result(PATIENCE_S)
    assert {name: found[name].value for name in TAKEN} == TAKEN
    producer = Producer({"bootstrap.servers": address})
    producer.produce("taken", b"v")
    assert producer.flush(PATIENCE_S) == 0
    (gone,) = admin.delete_topics(["taken"]).values()
    gone.result(PATIENCE_S)
    logs = list((broker.data / "trash").glob("*/0/*.log"))
    assert sum(one.stat().st_size for one in logs) > 0


def test_kafka_python_makes_topics_with_any_of_kafkas_settings(raw, address):
    """In a process of its own, as importing it warns."""
    script = (
        "import sys, json\n"
        "from kafka.admin import KafkaAdminClient, NewTopic\n"
        "admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])\n"
        "configs = json.loads(sys.argv[2])\n"
        "admin.create_topics([NewTopic('taken-too', 1, 1, topic_configs=configs)])\n"
    )
    command = [sys.executable, "-c", script, address, json.dumps(TAKEN)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    found = by_name(describe(raw, TOPIC, "taken-too", list(TAKEN)))
    assert {name: found[name]["value"] for name in TAKEN} == TAKEN


@pytest.mark.peer
@pytest.mark.slow
def test_kafka_describes_the_same_settings(raw, topic, tmp_path, connect):
    """Names, types, defaults and synonyms; where a default differs, the list above says so."""
    kafka = kafka_peer()
    with kafka.KafkaProcess(tmp_path) as node, connect(node.address) as other:
        wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        other.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=10_000)
        pairs = [
            (by_name(describe(raw, kind, name)), by_name(describe(other, kind, name)))
            for kind, name in ((TOPIC, topic), (BROKER, "1"), (GROUP, "g"))
        ]
    for ours, theirs in pairs:
        assert not theirs.keys() - ours.keys()
        for name in theirs.keys() & ours.keys():
            one, other_one = ours[name], theirs[name]
            for what in ("config_type", "is_sensitive"):
                assert one[what] == other_one[what], (name, what)
            defaults = [
                [s["value"] for s in config["synonyms"] if s["source"] == 5]
                for config in (one, other_one)
            ]
            if defaults[1] and name not in OURS:
                assert defaults[0] == defaults[1], (name, defaults)
