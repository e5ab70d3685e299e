"""The broker's settings that are changed while it runs: told as Kafka tells them, carried out, kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.patience import PATIENCE_S
from tests.peers import kafka_peer

from penstock.broker import BrokerProcess
from penstock.broker.broker_settings import TOPIC_DEFAULTS, broker_settings
from penstock.broker.doctor import Level, examine
from penstock.broker.dynamic_settings import DynamicSettings, is_carried_out, validate_dynamic
from penstock.broker.storage.topic_settings import SettingError
from penstock.errors import SetupError
from penstock.log.disk.memory import MemoryFiles
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ConfigChange, ErrorCode

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = ConfigChange
INVALID = int(ErrorCode.INVALID_REQUEST)
Connect = Callable[[str], Any]


def describe(raw: Any, kind: int, name: str, *keys: str) -> dict[str, tuple[Any, ...]]:
    """By name: value, source, whether it is read-only, synonyms."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [*keys] or None}
    answer = raw.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True)[
        "results"
    ][0]
    assert answer["error_code"] == 0, answer
    return {
        one["name"]: (
            one["value"],
            one["config_source"],
            one["read_only"],
            [(two["name"], two["value"], two["source"]) for two in one["synonyms"]],
        )
        for one in answer["configs"]
    }


def alter(raw: Any, name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> int:
    """Changes settings of the broker, or (no name) of all; the error."""
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in changes]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
    answer = raw.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=dry)[
        "responses"
    ][0]
    assert bool(answer["error_message"]) is bool(answer["error_code"])
    return int(answer["error_code"])


def create(raw: Any, name: str, **configs: str) -> dict[str, Any]:
    """Makes a topic; the answer."""
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": given}
    (made,) = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=10_000)["topics"]
    assert made["error_code"] == 0
    return dict(made)


@pytest.fixture
def raw(own_broker: BrokerProcess, connect: Connect) -> Iterator[Any]:
    """A connection to a broker of the test's own."""
    own_broker.start()
    with connect(own_broker.address) as connection:
        yield connection


def session(raw: Any, settle_s: float = 0) -> list[Any]:
    """What is answered to a sequence of changes, in a form that two brokers can be compared in.

    Args:
        raw: a connection.
        settle_s: after how long a change is seen: Kafka's brokers learn of it from the controller.
    """
    create(raw, "plain")
    create(raw, "own", max_message_bytes="500000", retention_ms="-1")
    found: list[Any] = []

    def look(*names: str) -> None:
        topics_names = [TOPIC_DEFAULTS[one] for one in names if one in TOPIC_DEFAULTS]
        if topics_names:
            found.extend(describe(raw, TOPIC, topic, *topics_names) for topic in ("plain", "own"))
        described = describe(raw, BROKER, "1", *names)
        found.append({name: (one[0], one[1], one[3]) for name, one in described.items()})
        found.append(describe(raw, BROKER, "", *names))

    def change(name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> None:
        found.append((name, changes, alter(raw, name, *changes, dry=dry)))
        time.sleep(settle_s)

    for name, value in (
        ("message.max.bytes", "2000000"),
        ("log.retention.ms", "1000000"),
        ("log.roll.ms", "777777"),
        ("compression.type", "zstd"),
        ("log.cleaner.min.cleanable.ratio", "0.25"),
        ("log.message.timestamp.type", "LogAppendTime"),
        ("log.preallocate", "true"),
        ("unclean.leader.election.enable", "true"),
    ):
        change("", (name, SET, value), dry=True)
        look(name)
        change("", (name, SET, value))
        look(name)
    change("1", ("message.max.bytes", SET, "3000000"))
    look("message.max.bytes")
    change("1", ("message.max.bytes", DELETE, None), ("log.retention.bytes", SET, "10"))
    look("message.max.bytes", "log.retention.bytes")
    change("", ("message.max.bytes", DELETE, None), ("log.retention.ms", DELETE, None))
    look("message.max.bytes", "log.retention.ms")
    change("", ("log.cleanup.policy", APPEND, "compact"))
    look("log.cleanup.policy")
    change("", ("log.cleanup.policy", SUBTRACT, "delete"))
    look("log.cleanup.policy")
    for names, name, value in (
        (("", "1"), "num.partitions", "7"),
        (("", "1"), "log.retention.hours", "1"),
        (("", "1"), "message.max.bytes", "x"),
        (("", "1"), "message.max.bytes", "-5"),
        (("", "1"), "message.max.bytes", None),
        (("", "1"), "log.message.timestamp.type", "x"),
        (("", "1"), "ssl.keystore.password", "x"),
        (("", "1"), "max.connections", "-1"),
        (("",), "listeners", "PLAINTEXT://:1"),
        (("7", "abc"), "message.max.bytes", "5"),
        (("", "1"), "background.threads", "11"),
        (("", "1"), "log.cleaner.io.buffer.size", "1000000"),
        (("", "1"), "max.connections", "100"),
        (("", "1"), "max.connections.per.ip.overrides", "127.0.0.9:50"),
    ):
        for who in names:
            change(who, (name, SET, value))
    change("1", ("message.max.bytes", SET, "1"), ("message.max.bytes", SET, "2"))
    change("1", ("background.threads", APPEND, "1"))
    look("background.threads")
    return found


def test_defaults_of_topics_hold_where_they_have_none_of_their_own(raw: Any) -> None:
    """Of this broker first, then of all; the topic's own before both. At once, and told by the answer
    to whoever makes a topic.
    """
    create(raw, "plain")
    create(raw, "own", max_message_bytes="900")
    assert alter(raw, "", ("message.max.bytes", SET, "600")) == 0
    batch = batches.build([(None, bytes(700))])
    codes = [raw.produce(name, batch)["error_code"] for name in ("plain", "own")]
    assert codes == [ErrorCode.MESSAGE_TOO_LARGE, 0]
    assert describe(raw, TOPIC, "plain", "max.message.bytes")["max.message.bytes"] == (
        "600",
        3,
        False,
        [("message.max.bytes", "600", 3), ("message.max.bytes", "1048588", 5)],
    )
    assert alter(raw, "1", ("message.max.bytes", SET, "800")) == 0
    assert raw.produce("plain", batch)["error_code"] == 0
    made = create(raw, "new")
    (setting,) = [one for one in made["configs"] if one["name"] == "max.message.bytes"]
    assert (setting["value"], setting["config_source"]) == ("800", 2)


def test_what_was_set_outlives_the_broker(
    own_broker: BrokerProcess, raw: Any, connect: Connect
) -> None:
    """And a dry run sets nothing."""
    create(raw, "t")
    assert alter(raw, "", ("log.retention.ms", SET, "5000"), dry=True) == 0
    assert describe(raw, BROKER, "") == {}
    assert alter(raw, "", ("log.retention.ms", SET, "5000")) == 0
    own_broker.kill()
    with connect(own_broker.start().address) as again:
        assert describe(again, TOPIC, "t", "retention.ms")["retention.ms"][:2] == ("5000", 3)
        assert set(describe(again, BROKER, "")) == {"log.retention.ms"}


@pytest.mark.slow
def test_connections_are_limited(own_broker: BrokerProcess, raw: Any, connect: Connect) -> None:
    """All of them, those of an address, those of single ones. Who is there stays."""
    limits = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")

    def others(count: int) -> int:
        """How many of so many connections more are served."""
        served, host = 0, own_broker.address
        opened = [connect(host) for _ in range(count)]
        for one in opened:
            try:
                one.call(ApiKey.API_VERSIONS, 0)
                served += 1
            except OSError:
                pass
        for one in opened:
            one.socket.close()
        return served

    raw.call(ApiKey.API_VERSIONS, 0)
    for name, value, expected in zip(limits, ("3", "2", "127.0.0.1:4"), (2, 1, 3), strict=True):
        assert others(5) == 5
        assert alter(raw, "", (name, SET, value)) == 0
        # Those of before may not be known to be gone yet.
        while (served := others(5)) < expected:
            pass
        assert served == expected
        assert alter(raw, "", (name, DELETE, None)) == 0
    assert alter(raw, "", (limits[2], SET, "localhost:4")) == INVALID


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("library", ["confluent-kafka", "kafka-python"])
def test_admin_clients_change_settings_of_brokers(
    library: str, own_broker: BrokerProcess, raw: Any
) -> None:
    """As scripts do, for a while: to move less, to keep more."""
    address = own_broker.address
    if library == "confluent-kafka":
        admin = AdminClient({"bootstrap.servers": address})
        entry = ConfigEntry(
            "log.retention.ms", "123456", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        future.result(PATIENCE_S)
        (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        found = future.result(PATIENCE_S)["log.retention.ms"]
        assert (found.value, found.is_read_only) == ("123456", False)
        entry = ConfigEntry("num.partitions", "5", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        with pytest.raises(KafkaException, match="while the broker runs"):
            future.result(PATIENCE_S)
        return
    script = (
        "import sys\n"
        "from kafka.admin import KafkaAdminClient, ConfigResource, ConfigResourceType\n"
        "admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])\n"
        "configs = {'log.retention.ms': '123456'}\n"
        "admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, '1', configs=configs)])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, address], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert describe(raw, BROKER, "1", "log.retention.ms")["log.retention.ms"][:2] == ("123456", 2)


def test_both_ways_to_alter(raw: Any) -> None:
    """AlterConfigs replaces all that was set."""
    assert alter(raw, "1", ("log.retention.ms", SET, "5"), ("log.roll.ms", SET, "5")) == 0
    configs = [{"name": "log.segment.bytes", "value": "5000"}]
    resource = {"resource_type": BROKER, "resource_name": "1", "configs": configs}
    answer = raw.call(ApiKey.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
    assert answer["responses"][0]["error_code"] == 0
    found = describe(raw, BROKER, "1")
    assert {name for name, one in found.items() if one[1] == 2} == {"log.segment.bytes"}


@pytest.mark.slow
def test_what_is_set_at_the_start_stays(raw: Any) -> None:
    """Who gets in isn't changed by a client; to set what is so is no error, for tools do that."""
    same = ("num.io.threads", SET, broker_settings()["num.io.threads"].default)
    assert alter(raw, "1", same) == 0
    assert alter(raw, "1", ("num.partitions", SET, "1")) == 0
    for name in ("listeners", "sasl.enabled.mechanisms", "ssl.keystore.location", "log.dirs"):
        assert alter(raw, "1", (name, SET, "x")) == INVALID
        assert describe(raw, BROKER, "1", name)[name][2] is True
    assert alter(raw, "1", ("no.such", SET, "5")) == ErrorCode.INVALID_CONFIG
    assert alter(raw, "1", ("log.retention.ms", SET, "5" * 20_000)) == INVALID


def test_every_setting_that_can_be_changed_takes_its_default() -> None:
    """And what is told not to be carried out isn't."""
    for name, setting in broker_settings().items():
        if setting.is_changeable and setting.default is not None:
            validate_dynamic(name, setting.default)
    assert is_carried_out("log.segment.bytes")
    assert not is_carried_out("min.insync.replicas")
    assert not is_carried_out("background.threads")
    with pytest.raises(SettingError, match="number"):
        validate_dynamic("background.threads", "many")
    with pytest.raises(SettingError, match="true or false"):
        validate_dynamic("follower.fetch.last.tiered.offset.enable", "many")


def test_followers_are_notified_now_and_of_each_change() -> None:
    """The document is there from the first start on."""
    files, notified = MemoryFiles(), []
    dynamic = DynamicSettings(files)
    assert files.load("settings.json") is not None
    dynamic.follow(lambda: notified.append(dynamic.topic_defaults()))
    dynamic.replace({"log.roll.ms": "7"}, cluster=True)
    dynamic.replace({"log.roll.ms": "8"}, cluster=False)
    assert notified == [{}, {"segment.ms": "7"}, {"segment.ms": "8"}]
    again = DynamicSettings(files)
    assert [tuple(one) for one in again.sources("log.roll.ms")] == [("8", 2), ("7", 3)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("content", [None, b"", b'{"cluster": {}, "broker": {"log.dirs": "x"}}'])
def test_lost_and_damaged_settings_are_reported(
    own_broker: BrokerProcess, raw: Any, content: bytes | None
) -> None:
    """By the broker and by the doctor."""
    create(raw, "t")
    own_broker.stop()
    file = own_broker.data / "settings.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
        with pytest.raises(SetupError):
            own_broker.start()
    (found,) = [one for one in examine(own_broker.data).findings if one.level is Level.DAMAGE]
    assert found.path == "settings.json"


@pytest.mark.peer
@pytest.mark.slow
def test_kafka_says_the_same(raw: Any, tmp_path: Any, connect: Connect) -> None:
    """Of a sequence of changes, field by field. (Not of log.roll.jitter.ms: Kafka tells that it was set,
    and 0 as the topic's value.)
    """
    ours = session(raw)
    kafka = kafka_peer()
    with kafka.KafkaProcess(tmp_path / "kafka") as node, connect(node.address) as other:
        theirs = session(other, 0.3)
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        assert mine == its
