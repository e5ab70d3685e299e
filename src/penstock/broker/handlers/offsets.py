"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Final

from penstock.broker.group_offsets import METADATA_CHARACTERS_MAX, Committed, Key
from penstock.broker.handlers.base import Api, Call, Fields, topic_of
from penstock.broker.members import GroupState
from penstock.log.errors import StorageError
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]


async def offset_commit(call: Call, fields: Fields) -> Fields:
    """Stores offsets; answers when they are durable."""
    broker = call.broker
    group_id = fields["group_id"]
    generation = fields.get("generation_id_or_member_epoch", -1)
    fault = broker.groups.commit_fault(
        broker.now_ms(),
        group_id,
        generation,
        fields.get("member_id", ""),
        fields.get("group_instance_id"),
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
            if not code and topic is None and wanted.get("topic_id") is not None:
                code = ErrorCode.unknown_topic_id
            elif not code and (topic is None or topic.partition(index) is None):
                code = ErrorCode.unknown_topic_or_partition
            elif not code and len(metadata) > METADATA_CHARACTERS_MAX:
                code = ErrorCode.offset_metadata_too_large
            if not code and topic is not None:
                epoch = one.get("committed_leader_epoch", -1)
                accepted[topic.name, index] = Committed(
                    one["committed_offset"], epoch, metadata, now_ms
                )
            parts.append({"partition_index": index, "error_code": code})
        topics.append({**wanted, "partitions": parts})
    try:
        broker.group_offsets.commit(group_id, accepted, now_ms)
        await broker.flusher.make_durable([broker.group_offsets.journal])
        failed = broker.group_offsets.journal.failure is not None
    except StorageError:
        failed = True
    if failed:
        for one in (part for topic in topics for part in topic["partitions"]):
            one["error_code"] = one["error_code"] or ErrorCode.kafka_storage_error
    return {"topics": topics}


def offset_fetch(call: Call, fields: Fields) -> Fields:
    """The offsets that groups have committed; -1 where there is none."""
    if call.version >= 8:
        return {
            "groups": [
                {
                    "group_id": one["group_id"],
                    "topics": _fetch(call, one["group_id"], one["topics"]),
                }
                for one in fields["groups"]
            ]
        }
    return {"topics": _fetch(call, fields["group_id"], fields["topics"])}


def _fetch(call: Call, group_id: str, wanted: list[Fields] | None) -> list[Fields]:
    committed = call.broker.group_offsets.of(group_id)
    if wanted is None:
        by_topic: dict[str, list[int]] = {}
        for topic_name, index in committed:
            by_topic.setdefault(topic_name, []).append(index)
        wanted = [{"name": name, "partition_indexes": found} for name, found in by_topic.items()]
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
            if found is not None:
                part["committed_offset"] = found.offset
                part["committed_leader_epoch"] = found.leader_epoch
                part["metadata"] = found.metadata
            elif topic is None and one.get("topic_id") is not None:
                part["error_code"] = ErrorCode.unknown_topic_id
            parts.append(part)
        topic_id = topic.id if topic is not None else one.get("topic_id")
        topics.append({"name": name, "topic_id": topic_id, "partitions": parts})
    return topics


async def offset_delete(call: Call, fields: Fields) -> Fields:
    """Forgets offsets of topics that the group doesn't read at present."""
    broker, group_id = call.broker, fields["group_id"]
    group = broker.groups.get(group_id)
    if group is None and not broker.group_offsets.of(group_id):
        return {"error_code": ErrorCode.group_id_not_found}
    is_active = group is not None and group.state is not GroupState.EMPTY
    if is_active and group is not None and group.protocol_type != "consumer":
        return {"error_code": ErrorCode.non_empty_group}
    read = _subscribed(call, group_id) if is_active else set()
    topics = []
    for one in fields["topics"]:
        name, parts = one["name"], []
        indexes = [part["partition_index"] for part in one["partitions"]]
        code: int = 0
        if name in read:
            code = ErrorCode.group_subscribed_to_topic
        else:
            broker.group_offsets.forget(group_id, [(name, index) for index in indexes])
        parts = [{"partition_index": index, "error_code": code} for index in indexes]
        topics.append({"name": name, "partitions": parts})
    await broker.flusher.make_durable([broker.group_offsets.journal])
    return {"topics": topics}


def _subscribed(call: Call, group_id: str) -> set[str]:
    """Topics that members of the group read: in their metadata (version, count, names)."""
    group = call.broker.groups.get(group_id)
    names: set[str] = set()
    for member in group.members.values() if group is not None else ():
        data = member.metadata(group.protocol if group else None)
        count, at = int.from_bytes(data[2:6], "big", signed=True), 6
        for _ in range(count):
            size = int.from_bytes(data[at : at + 2], "big")
            if at + 2 + size > len(data):
                break
            names.add(data[at + 2 : at + 2 + size].decode(errors="replace"))
            at += 2 + size
    return names


APIS: Final = (
    Api(8, 2, 10, offset_commit),
    Api(9, 1, 10, offset_fetch),
    Api(47, 0, 0, offset_delete),
)
