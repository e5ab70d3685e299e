"""What tools for clusters ask: all is on the one broker."""

from __future__ import annotations

from typing import Any

from penstock.broker import BrokerProcess
from penstock.wire.protocol import ApiKey, ErrorCode

Raw = Any
ELECTION_NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
NO_REASSIGNMENT = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
INVALID_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_partitions_come_in_pages(raw: Raw, topic: str) -> None:
    """Topics are described some partitions at a time; the cursor leads through all of them."""
    found = []
    cursor: Any = None
    for _ in range(9):
        asked = {"topics": [{"name": topic}, {"name": "~nowhere"}], "response_partition_limit": 1}
        answer = raw.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **asked, cursor=cursor)
        found += [
            (
                one["name"],
                one["error_code"],
                [part["partition_index"] for part in one["partitions"]],
            )
            for one in answer["topics"]
        ]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert found == [(topic, 0, [0]), (topic, 0, [1]), ("~nowhere", UNKNOWN_TOPIC, [])]


def test_log_dirs_tell_sizes(raw: Raw, topic: str, broker: BrokerProcess, make_batch: Any) -> None:
    """The data directory is told with each partition's size, and how full its disk is."""
    batch = make_batch(3)
    raw.produce(topic, batch, partition=1)
    asked = [{"topic": topic, "partitions": [0, 1, 7]}]
    (result,) = raw.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=asked)["results"]
    (listed,) = result["topics"]
    sizes = {one["partition_index"]: one["partition_size"] for one in listed["partitions"]}
    assert sizes == {0: 0, 1: len(batch)}
    assert result["log_dir"] == str(broker.data.resolve())
    assert 0 < result["usable_bytes"] <= result["total_bytes"]
    (everything,) = raw.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)["results"]
    assert topic in {one["name"] for one in everything["topics"]}


def test_nothing_moves(raw: Raw, topic: str) -> None:
    """Elections aren't needed, and partitions may only be put where they are."""
    asked = [{"topic": topic, "partitions": [0, 9]}]
    (elected,) = raw.call(ApiKey.ELECT_LEADERS, 2, topic_partitions=asked)[
        "replica_election_results"
    ]
    codes = [one["error_code"] for one in elected["partition_result"]]
    assert codes == [ELECTION_NOT_NEEDED, UNKNOWN_TOPIC]
    wanted = [[1], [2], None]
    parts = [{"partition_index": 0, "replicas": one} for one in wanted]
    (moved,) = raw.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=[{"name": topic, "partitions": parts}]
    )["responses"]
    codes = [one["error_code"] for one in moved["partitions"]]
    assert codes == [0, INVALID_ASSIGNMENT, NO_REASSIGNMENT]
    assert raw.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)["topics"] == []


def test_config_resources_are_listed(raw: Raw, topic: str) -> None:
    """Topics and the broker have settings."""
    found = raw.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[])["config_resources"]
    assert {"resource_name": topic, "resource_type": 2} in found
    assert {"resource_name": "1", "resource_type": 4} in found
    only = raw.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[4])["config_resources"]
    assert [one["resource_type"] for one in only] == [4]
