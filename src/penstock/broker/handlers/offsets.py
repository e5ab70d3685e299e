"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Final

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.offsets import METADATA_CHARACTERS_MAX, Committed, Key
from penstock.broker.groups.registry import CLASSIC, CONSUMER
from penstock.broker.handlers.base import Api, Call, Fields, topic_of
from penstock.broker.storage.flusher import made_durable
from penstock.broker.storage.topics import Hosted
from penstock.log.errors import StorageError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS", "end_below", "known_parts"]


async def offset_commit(call: Call, fields: Fields) -> Fields:
    """Stores offsets; answers when they are durable."""
    broker = call.broker
    group_id = fields["group_id"]
    fault = broker.registry.commit_fault(
        broker.now_ms(),
        group_id,
        fields.get("generation_id_or_member_epoch", -1),
        fields.get("member_id", ""),
        fields.get("group_instance_id"),
        known_parts(call, fields["topics"]),
        call.version,
    )
    now_ms = broker.clock_ms()
    accepted: dict[Key, Committed] = {}
    topics = []
    for wanted in fields["topics"]:
        topic = topic_of(call, wanted)
        parts = []
        for one in wanted["partitions"]:
            index, metadata = one["partition_index"], one["committed_metadata"] or ""
            code: int = fault or 0
            if topic is None and wanted.get("topic_id") is not None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif topic is None or topic.partition(index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not code and len(metadata) > METADATA_CHARACTERS_MAX:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not code and topic is not None:
                epoch, offset = one.get("committed_leader_epoch", -1), one["committed_offset"]
                accepted[topic.name, index] = Committed(
                    offset, epoch, metadata, now_ms, end_below(topic.partition(index), offset)
                )
            parts.append({"partition_index": index, "error_code": code})
        topics.append({**wanted, "partitions": parts})
    try:
        broker.group_offsets.commit(group_id, accepted, now_ms)
        failed = not await made_durable(broker.flusher.make_durable, [broker.group_offsets.journal])
    except StorageError:
        failed = True
    if failed:  # clients look for the coordinator again and retry, as they do with Kafka
        for one in (part for topic in topics for part in topic["partitions"]):
            one["error_code"] = one["error_code"] or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {"topics": topics}


def end_below(place: Hosted | None, offset: int) -> int:
    """The log's end if an offset that a client commits lies beyond it; else -1."""
    end = -1 if place is None else place.log.end_offset
    return end if offset > end else -1


def known_parts(call: Call, topics: list[Fields]) -> list[Part]:
    """The partitions that are named, of topics that there are."""
    found = [(topic_of(call, one), one["partitions"]) for one in topics]
    return [
        (topic.id, part["partition_index"])
        for topic, parts in found
        if topic is not None
        for part in parts
    ]


def offset_fetch(call: Call, fields: Fields) -> Fields:
    """The offsets that groups have committed; -1 where there is none."""
    if call.version >= 8:
        return {"groups": [_fetch_group(call, one, fields) for one in fields["groups"]]}
    return {"topics": _fetch(call, fields["group_id"], fields["topics"], fields)}


def _fetch_group(call: Call, wanted: Fields, request: Fields) -> Fields:
    group_id = wanted["group_id"]
    fault = call.broker.registry.fetch_fault(
        group_id, wanted.get("member_epoch", -1), wanted.get("member_id")
    )
    if fault is not None:
        return {"group_id": group_id, "error_code": fault, "topics": []}
    return {"group_id": group_id, "topics": _fetch(call, group_id, wanted["topics"], request)}


def _fetch(call: Call, group_id: str, wanted: list[Fields] | None, request: Fields) -> list[Fields]:
    offsets, is_strict = call.broker.group_offsets, request.get("require_stable", False)
    committed = offsets.of(group_id)
    if wanted is None:
        by_topic: dict[str, list[int]] = {}
        for topic_name, index in committed:
            by_topic.setdefault(topic_name, []).append(index)
        wanted = [
            {"name": name, "partition_indexes": sorted(found)} for name, found in by_topic.items()
        ]
    topics = []
    for one in wanted:
        topic = topic_of(call, one)
        name = topic.name if topic is not None else one.get("name", "")
        parts: list[Fields] = []
        for index in one["partition_indexes"]:
            found = committed.get((name, index))
            part: Fields = {
                "partition_index": index,
                "committed_offset": -1,
                "committed_leader_epoch": -1,
                "metadata": "",
            }
            if is_strict and not offsets.is_stable(group_id, (name, index)):
                part["error_code"] = ErrorCode.UNSTABLE_OFFSET_COMMIT
            elif found is not None:
                part["committed_offset"] = found.offset
                part["committed_leader_epoch"] = found.leader_epoch
                part["metadata"] = found.metadata
            elif topic is None and one.get("topic_id") is not None:
                part["error_code"] = ErrorCode.UNKNOWN_TOPIC_ID
            parts.append(part)
        topic_id = topic.id if topic is not None else one.get("topic_id")
        topics.append({"name": name, "topic_id": topic_id, "partitions": parts})
    return topics


async def offset_delete(call: Call, fields: Fields) -> Fields:
    """Forgets offsets of topics that the group doesn't read at present."""
    broker, group_id = call.broker, fields["group_id"]
    if not group_id:
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    kind = broker.registry.kind(group_id)
    if kind not in {CLASSIC, CONSUMER}:
        return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND}
    group = broker.groups.get(group_id)
    if group is not None and group.members and group.protocol_type != "consumer":
        return {"error_code": ErrorCode.NON_EMPTY_GROUP}
    read = broker.registry.subscribed(group_id)
    topics = []
    for one in fields["topics"]:
        name = one["name"]
        parts: list[Fields] = []
        indexes = [part["partition_index"] for part in one["partitions"]]
        topic = broker.topics.get(name)
        for index in indexes:
            code: int = 0
            if topic is None or topic.partition(index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif read is None or name in read:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                broker.group_offsets.forget(group_id, [(name, index)])
            parts.append({"partition_index": index, "error_code": code})
        topics.append({"name": name, "partitions": parts})
    if not await made_durable(broker.flusher.make_durable, [broker.group_offsets.journal]):
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return {"topics": topics}


APIS: Final = (
    Api(ApiKey.OFFSET_COMMIT, 2, 10, offset_commit),
    Api(ApiKey.OFFSET_FETCH, 1, 10, offset_fetch),
    Api(ApiKey.OFFSET_DELETE, 0, 0, offset_delete),
)
