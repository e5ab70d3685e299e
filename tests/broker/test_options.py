"""What a broker can be told: `penstock broker` and `python -m penstock.broker` take the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest
from share_worker import ACCEPT, GROUP, Worker, configure

from penstock.broker import BrokerProcess
from penstock.broker.__main__ import parse_arguments
from penstock.broker.config import BrokerConfig
from penstock.broker.listeners import TlsFiles
from penstock.broker.options import OPTIONS, config_of
from penstock.cli.log.broker import broker as command
from penstock.errors import UserError
from penstock.wire import batches
from penstock.wire.protocol import ApiKey

LOCK, BEAT = "group.share.record.lock.duration.ms", "group.consumer.heartbeat.interval.ms"
GIVEN = {
    "--listen": ["PLAINTEXT://127.0.0.1:0", "SASL_SSL://127.0.0.1:0"],
    "--advertise": ["a.example:1,b.example:2"],
    "--data": ["elsewhere"],
    "--allow-remote": [],
    "--lock-wait-s": ["2.5"],
    "--partitions": ["3"],
    "--no-auto-create": [],
    "--flush-interval-ms": ["7"],
    "--checkpoint-interval-ms": ["77"],
    "--retention-interval-ms": ["8"],
    "--cleaner-interval-ms": ["9"],
    "--min-free-bytes": ["10"],
    "--rebalance-delay-ms": ["11"],
    "--session-ms-min": ["12"],
    "--migration-policy": ["upgrade"],
    "--group-default": [f"{LOCK}=5000", f"{BEAT}=600"],
    "--tier": ["file:///tier"],
    "--tier-cache-mb": ["2"],
    "--tier-interval-ms": ["13"],
    "--iceberg-catalog": ["sqlite:////c.db"],
    "--iceberg-warehouse": ["file:///w"],
    "--iceberg-interval-ms": ["14"],
    "--tls-cert": ["c.pem"],
    "--tls-key": ["k.pem"],
    "--tls-client-ca": ["ca.pem"],
    "--sasl-mechanisms": ["PLAIN,SCRAM-SHA-256"],
    "--session-lifetime-s": ["15"],
    "--authorize": [],
    "--super-user": ["User:ann", "User:bob"],
    "--allow-if-no-acl": [],
    "--connections-per-address": ["16"],
    "--metrics": ["127.0.0.1:0"],
    "--log-format": ["json"],
    "--log-level": ["info"],
}
"""Another value than the default for each option."""
WANTED = BrokerConfig(
    data=Path("elsewhere"),
    listen="PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
    advertise="a.example:1,b.example:2",
    allow_remote=True,
    default_partitions=3,
    auto_create_topics=False,
    rebalance_delay_ms=11,
    session_ms_min=12,
    migration_policy="upgrade",
    group_defaults={LOCK: "5000", BEAT: "600"},
    flush_interval_ms=7,
    checkpoint_interval_ms=77,
    retention_interval_ms=8,
    cleaner_interval_ms=9,
    lock_wait_s=2.5,
    tier="file:///tier",
    tier_cache_bytes=2 << 20,
    tier_interval_ms=13,
    iceberg_catalog="sqlite:////c.db",
    iceberg_warehouse="file:///w",
    iceberg_interval_ms=14,
    tls=TlsFiles(Path("c.pem"), Path("k.pem"), Path("ca.pem")),
    mechanisms=("PLAIN", "SCRAM-SHA-256"),
    session_lifetime_s=15.0,
    authorize=True,
    super_users=("User:ann", "User:bob"),
    allow_if_no_acl=True,
    connections_per_address=16,
    metrics="127.0.0.1:0",
    min_free_bytes=10,
)


def words(given: dict[str, list[str]]) -> list[str]:
    """The command line."""
    return [
        word
        for flag, values in given.items()
        for word in ([w for value in values for w in (flag, value)] if values else [flag])
    ]


def by_module(arguments: list[str]) -> dict[str, Any]:
    """What `python -m penstock.broker` understands."""
    found = parse_arguments(arguments)
    del found["die_with_parent"]  # what `BrokerProcess` says, and nobody else
    return found


def by_command(arguments: list[str]) -> dict[str, Any]:
    """What `penstock broker` understands, but for the registry that it may serve next to the broker."""
    params = dict(command.make_context("broker", arguments).params)
    del params["registry"]
    return params


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["defaults", "all"])
def test_both_command_lines_agree(given: dict[str, list[str]]) -> None:
    """They take the same options, and understand the same by them."""
    found, other = by_module(words(given)), by_command(words(given))
    assert found == other
    assert config_of(found) == (WANTED if given else BrokerConfig(data=Path("penstock-log")))
    assert set(found) == {one.name for one in OPTIONS}


def test_everything_can_be_set() -> None:
    """Each of the broker's settings has an option that was tried above."""
    assert {one.flag for one in OPTIONS} == GIVEN.keys()
    plain = BrokerConfig(data=Path("penstock-log"))
    for field in dataclasses.fields(BrokerConfig):
        assert getattr(WANTED, field.name) != getattr(plain, field.name), field.name


@pytest.mark.parametrize(
    "arguments",
    [
        ["--partitions", "0"],
        ["--partitions", "many"],
        ["--lock-wait-s", "-1"],
        ["--lock-wait-s", "nan"],
        ["--migration-policy", "sideways"],
        ["--group-default", LOCK],
        ["--part", "2"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_both_refuse_the_same(arguments: list[str]) -> None:
    """Also what argparse alone would take for an abbreviation."""
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    with pytest.raises(click.UsageError):
        by_command(arguments)


@pytest.mark.parametrize(
    "default",
    [
        {"share.record.lock.duration.ms": "5000"},
        {"group.share.auto.offset.reset": "earliest"},
        {LOCK: "1"},
        {LOCK: "soon"},
        {"group.consumer.session.timeout.ms": "6000", BEAT: "6000"},
    ],
    ids=str,
)
def test_defaults_of_groups_are_checked(default: dict[str, str]) -> None:
    """Only what Kafka's brokers have for all groups, in the range that groups may have."""
    with pytest.raises(UserError, match="expected"):
        BrokerConfig(data=Path("d"), group_defaults=default)


def test_defaults_of_groups_are_in_force(own_broker: BrokerProcess, connect: Any) -> None:
    """Groups have them unless they are told otherwise, and settings say where that comes from."""
    wanted = {
        "group.consumer.heartbeat.interval.ms": "700",
        "group.consumer.session.timeout.ms": "8000",
        "group.share.delivery.count.limit": "2",
        "group.share.heartbeat.interval.ms": "600",
        "group.share.partition.max.record.locks": "100",
        "group.share.record.lock.duration.ms": "7000",
        "group.share.session.timeout.ms": "9000",
    }
    defaults = [word for pair in wanted.items() for word in ("--group-default", "=".join(pair))]
    with (
        BrokerProcess(own_broker.data, arguments=defaults) as process,
        connect(process.address) as raw,
    ):
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        )
        configure(raw, 2, "t", retention_ms="-1")
        configure(raw, GROUP, "told", share_record_lock_duration_ms="9000")
        raw.produce("t", batches.build([(None, b"%d" % i) for i in range(150)]))
        for group, lock_ms in (("g", 7000), ("told", 9000)):
            configure(raw, GROUP, group, share_auto_offset_reset="earliest")
            one = Worker(raw, group, "t")
            assert one.beat()["heartbeat_interval"] == 600
            one.send_fetch(most=500)
            answer = raw.receive(78, 2)
            assert answer["acquisition_lock_timeout"] == lock_ms
            acquired = answer["responses"][0]["partitions"][0]["acquired_records"]
            assert [(run["first_offset"], run["last_offset"]) for run in acquired] == [(0, 99)]
            assert one.acknowledge(0, 99, ACCEPT) == 0
        hello = {"rebalance_timeout": 5000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
        joined = raw.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="c", member_id="m", member_epoch=0, **hello
        )
        assert joined["heartbeat_interval"] == 700
        for name, value in wanted.items():
            own = name.removeprefix("group.")
            for group in ("g", "told"):
                is_own = group == "told" and own == "share.record.lock.duration.ms"
                [found] = described(raw, GROUP, group, own)
                assert found["value"] == ("9000" if is_own else value)
                assert found["config_source"] == (8 if is_own else 4)
                sources = [(other["name"], other["source"]) for other in found["synonyms"]]
                assert sources == [*([(own, 8)] if is_own else []), (name, 4), (name, 5)]
            [found] = described(raw, 4, "1", name)
            assert (found["value"], found["config_source"]) == (value, 4)


def described(raw: Any, kind: int, resource: str, name: str) -> list[dict[str, Any]]:
    """One setting of a resource."""
    wanted = {"resource_type": kind, "resource_name": resource, "configuration_keys": [name]}
    answer = raw.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[wanted], include_synonyms=True)
    found: list[dict[str, Any]] = answer["results"][0]["configs"]
    return found
