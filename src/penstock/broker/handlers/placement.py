"""Where partitions lie, asked by tools for clusters: with one broker, everything is here and stays.

DescribeTopicPartitions, DescribeLogDirs, ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments, ListConfigResources.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields, missing
from penstock.broker.handlers.cluster import NODE_ID, described
from penstock.broker.storage.topics import Hosted, Topic
from penstock.wire.protocol import ApiKey, ConfigResource, ErrorCode

__all__ = ["APIS"]

PARTITIONS_PER_ANSWER_MAX: Final = 2000
"""Partitions in one answer, Kafka's max.request.partition.size.limit; the cursor says where to go
on."""


def describe_topic_partitions(call: Call, fields: Fields) -> Fields:
    """Topics by name (none: all), some partitions at a time, from a cursor on."""
    cursor = fields["cursor"]
    names = {one["name"] for one in fields["topics"]}
    if not names:
        names = {*call.broker.topics.names(), *call.broker.topics.refused}
    begin = (cursor["topic_name"], max(cursor["partition_index"], 0)) if cursor else ("", 0)
    left = min(max(fields["response_partition_limit"], 1), PARTITIONS_PER_ANSWER_MAX)
    topics: list[Fields] = []
    for name in sorted(one for one in names if one >= begin[0]):
        topic = call.broker.topics.get(name)
        if topic is None:
            topics.append({"name": name, "error_code": missing(call, name)[0]})
            continue
        first = begin[1] if name == begin[0] else 0
        if left == 0:
            following = {"topic_name": name, "partition_index": first}
            return {"topics": topics, "next_cursor": following}
        some = topic.partitions[first : first + left]
        left -= len(some)
        topics.append(_topic(topic, some))
        if first + len(some) < len(topic.partitions):
            following = {"topic_name": name, "partition_index": first + len(some)}
            return {"topics": topics, "next_cursor": following}
    return {"topics": topics, "next_cursor": None}


def _topic(topic: Topic, partitions: list[Hosted]) -> Fields:
    fields = described(topic, partitions)
    for one in fields["partitions"]:
        one |= {"eligible_leader_replicas": [], "last_known_elr": []}
    return fields


def _chosen(call: Call, wanted: list[Fields] | None, names: str) -> Iterator[tuple[str, list[int]]]:
    """Topics with the numbers of their partitions: those asked for, or all (null)."""
    if wanted is None:
        for topic in call.broker.topics:
            yield topic.name, list(range(len(topic.partitions)))
        return
    for one in wanted:
        yield one[names], one["partitions"]


def describe_log_dirs(call: Call, fields: Fields) -> Fields:
    """The one data directory: how full it is, and what each partition takes."""
    topics = []
    for name, indexes in _chosen(call, fields["topics"], "topic"):
        topic = call.broker.topics.get(name)
        found = [topic.partition(index) for index in indexes] if topic is not None else []
        sizes = [
            {"partition_index": one.index, "partition_size": one.log.size, "offset_lag": 0}
            for one in found
            if one is not None
        ]
        if sizes:
            topics.append({"name": name, "partitions": sizes})
    data = call.broker.config.data
    room = shutil.disk_usage(data)
    result = {
        "log_dir": str(data.resolve()),
        "topics": topics,
        "total_bytes": room.total,
        "usable_bytes": room.free,
    }
    return {"results": [result]}


def elect_leaders(call: Call, fields: Fields) -> Fields:
    """No election is ever needed: each partition has the leader that it can have."""
    results = []
    for name, indexes in _chosen(call, fields["topic_partitions"], "topic"):
        topic = call.broker.topics.get(name)
        parts: list[Fields] = []
        for index in indexes:
            is_here = topic is not None and topic.partition(index) is not None
            code = ErrorCode.ELECTION_NOT_NEEDED
            if not is_here:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif fields["topic_partitions"] is None:
                continue  # asked for all, Kafka lists only those that were elected
            parts.append({"partition_id": index, "error_code": code, "error_message": None})
        if parts:
            results.append({"topic": name, "partition_result": parts})
    return {"replica_election_results": results}


def alter_partition_reassignments(call: Call, fields: Fields) -> Fields:
    """Partitions may be put where they are; null cancels a move, and there is none."""
    responses = []
    for one in fields["topics"]:
        topic = call.broker.topics.get(one["name"])
        parts = []
        for wanted in one["partitions"]:
            index, replicas = wanted["partition_index"], wanted["replicas"]
            code, message = ErrorCode.NONE, None
            if topic is None or topic.partition(index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif replicas is None:
                code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            elif list(replicas) != [NODE_ID]:
                code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
                message = f"expected replicas [{NODE_ID}] (one broker); found {replicas[:10]}"
            parts.append({"partition_index": index, "error_code": code, "error_message": message})
        responses.append({"name": one["name"], "partitions": parts})
    return {"responses": responses}


def list_partition_reassignments(_: Call, __: Fields) -> Fields:
    """Nothing moves."""
    return {"topics": []}


def list_config_resources(call: Call, fields: Fields) -> Fields:
    """What has settings: topics and the broker. Version 0 asks for client metrics: there are none."""
    kinds = fields.get("resource_types")
    if kinds is None:
        return {"config_resources": []}
    found: list[Fields] = []
    if not kinds or ConfigResource.TOPIC in kinds:
        found += [
            {"resource_name": topic.name, "resource_type": ConfigResource.TOPIC}
            for topic in call.broker.topics
        ]
    if not kinds or ConfigResource.BROKER in kinds:
        found.append({"resource_name": str(NODE_ID), "resource_type": ConfigResource.BROKER})
    return {"config_resources": found}


APIS: Final = (
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, describe_log_dirs),
    Api(ApiKey.ELECT_LEADERS, 0, 2, elect_leaders),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, alter_partition_reassignments),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_partition_reassignments),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, list_config_resources),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, describe_topic_partitions),
)
