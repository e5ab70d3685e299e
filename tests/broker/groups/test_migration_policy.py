"""Which way a group of consumers may change its protocol: `--migration-policy`, beside a Kafka node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_load import Connect
from oracle import Answer, Side, differences, know
from oracle_mixed_members import (
    GONE,
    HEARTBEAT,
    JOIN,
    SYNC,
    Crowd,
    One,
    beat,
    look,
    prepare,
    rest,
)
from tests.effort import some_slow
from tests.peers import kafka_peer

from penstock.broker import BrokerProcess
from penstock.wire.protocol import ErrorCode

POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
VERSIONS = {JOIN: 9, SYNC: 5, HEARTBEAT: 4}
GROUP_ID_NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
TOPIC = "mixed-7-a"


@pytest.fixture
def ours(tmp_path: Path, connect: Connect, policy: str) -> Iterator[Side]:
    """Our broker."""
    arguments = [f"--migration-policy={policy}"]
    with BrokerProcess(tmp_path / "ours", arguments=arguments) as broker:
        side = Side(connect, broker.address, "ours")
        yield side
        side.close()


@pytest.fixture
def theirs(tmp_path: Path, connect: Connect, policy: str) -> Iterator[Side]:
    """A real Kafka."""
    kafka = kafka_peer()
    settings = {
        "group.consumer.migration.policy": policy,
        "group.consumer.assignment.interval.ms": "0",
    }
    with kafka.KafkaProcess(tmp_path / "kafka", settings=settings) as process:
        side = Side(connect, process.address, "Kafka")
        side.until(10, 3, {"key": "g", "key_type": 0}, lambda found: not found["error_code"])
        side.until(9, 7, {"group_id": "g", "topics": None}, lambda found: not found["error_code"])
        yield side
        side.close()


def upgrade(side: Side) -> dict[str, Answer]:
    """A member of the newer protocol wants to join a classic one; then to have its group."""
    classic, modern = One("m0", True, ["a"]), One("m1", False, ["a"])
    crowd = Crowd("x7-0", is_cooperative=False, members=[classic])
    prepare(side, crowd, classic, VERSIONS[JOIN])
    rest(side, crowd, VERSIONS)
    crowd.members, crowd.is_new = [classic, modern], False
    hello = beat(side, crowd, modern, 1, is_first=True)
    return {"hello": hello["error_code"], **states(look(side, crowd, whole=True))}


def downgrade(side: Side) -> dict[str, Answer]:
    """A classic member joins one of the newer protocol, which then leaves."""
    classic, modern = One("m2", True, ["a"]), One("m3", False, ["a"])
    crowd = Crowd("x7-1", is_cooperative=False, members=[modern], is_modern=True)
    hello = beat(side, crowd, modern, 1, is_first=True)
    crowd.members, crowd.is_new = [modern, classic], False
    prepare(side, crowd, classic, VERSIONS[JOIN])
    found = rest(side, crowd, VERSIONS)
    crowd.members = [classic]
    bye = beat(side, crowd, modern, 1, epoch=GONE)
    codes = [one[2]["error_code"] for one in found["said"].values() if one[1] != "alive"]
    answers = {"hello": hello["error_code"], "codes": codes, "bye": bye["error_code"]}
    return {**answers, **states(look(side, crowd, whole=True))}


def states(found: dict[str, Any]) -> dict[str, Answer]:
    """Of which kind a group is, and how it is described."""
    kinds = [one["group_type"] for one in found["listed"]]
    codes = {key: one.get("error_code") for key, one in found.items() if key != "listed"}
    return {"kinds": kinds, **codes}


def both(side: Side) -> dict[str, dict[str, Answer]]:
    """What becomes of either."""
    wanted = {"name": TOPIC, "num_partitions": 3, "replication_factor": 1, "configs": []}
    side.ask("main", 19, 5, {"topics": [wanted], "timeout": 10_000})
    know(side, TOPIC)
    return {"upgrade": upgrade(side), "downgrade": downgrade(side)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_groups_change_their_protocol_where_they_may(ours: Side, policy: str) -> None:
    """A forbidden upgrade refuses the newcomer; a forbidden downgrade leaves the group what it was; where
    both are forbidden, no group has members of both protocols.
    """
    found = both(ours)
    may_upgrade = policy in {"bidirectional", "upgrade"}
    may_downgrade = policy in {"bidirectional", "downgrade"}
    assert found["upgrade"]["hello"] == (0 if may_upgrade else GROUP_ID_NOT_FOUND)
    assert found["upgrade"]["kinds"] == ["consumer" if may_upgrade else "classic"]
    assert found["downgrade"]["kinds"] == ["classic" if may_downgrade else "consumer"]
    assert set(found["downgrade"]["codes"]) == ({0, 23} if policy == "disabled" else {0})
    described = ours.ask(
        "main",
        32,
        4,
        {
            "resources": [
                {
                    "resource_type": 4,
                    "resource_name": "1",
                    "configuration_keys": ["group.consumer.migration.policy"],
                }
            ]
        },
    )
    assert described["results"][0]["configs"][0]["value"] == policy


@pytest.mark.peer
@pytest.mark.parametrize("policy", some_slow(POLICIES, quick=["bidirectional"]))
def test_kafka_does_the_same(ours: Side, theirs: Side) -> None:
    """With each policy both brokers answer and describe alike."""
    assert differences(both(ours), both(theirs)) == []
