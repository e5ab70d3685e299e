"""Consumer groups in the protocol of KIP-848: ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.consumer_members import Beat, ConsumerMember, by_topic
from penstock.broker.groups.registry import CONSUMER
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import OPERATIONS_OMITTED
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's marks of members in a description, by the protocol that they speak."""


def consumer_group_heartbeat(call: Call, fields: Fields) -> Fields:
    """A member joins, lives, reports, or leaves."""
    broker, group_id, owned = call.broker, fields["group_id"], fields["topic_partitions"]
    if group_id and fields["member_epoch"] == 0 and not broker.registry.claim(group_id, CONSUMER):
        return {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"expected a consumer group; found that {group_id!r} is another kind "
            "of group and has members; stop them first, or choose another group id",
        }
    beat = Beat(
        group_id=group_id,
        member_id=fields["member_id"],
        epoch=fields["member_epoch"],
        instance_id=fields["instance_id"],
        rack_id=fields["rack_id"],
        rebalance_ms=fields["rebalance_timeout"],
        names=_tuple(fields["subscribed_topic_names"]),
        regex=fields.get("subscribed_topic_regex"),
        assignor=fields["server_assignor"],
        owned=None if owned is None else _parts(owned),
        client_id=call.client_id,
        client_host=call.client_host,
        version=call.version,
    )
    answer, replies = broker.mixed_groups.beat(broker.now_ms(), beat)
    broker.answer_members(replies)
    return answer


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _parts(topics: list[Fields]) -> frozenset[Part]:
    return frozenset((one["topic_id"], number) for one in topics for number in one["partitions"])


def consumer_group_describe(call: Call, fields: Fields) -> Fields:
    """Groups with their members, what these have, and what they are to have."""
    return {"groups": [_describe(call, group_id) for group_id in fields["group_ids"]]}


def _describe(call: Call, group_id: str) -> Fields:
    group = call.broker.consumer_groups.get(group_id)
    result: Fields = {"group_id": group_id, "authorized_operations": OPERATIONS_OMITTED}
    if group is None:
        return result | {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID,
            "error_message": f"expected a consumer group; found {group_id!r}",
            "group_state": "",
        }
    return result | {
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": call.broker.consumer_groups.preferred_assignor(group),
        "members": [_describe_member(call, one) for one in group.members.values()],
    }


def _describe_member(call: Call, member: ConsumerMember) -> Fields:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.names),
        "subscribed_topic_regex": member.regex,
        "assignment": {"topic_partitions": _named(call, member.assigned)},
        "target_assignment": {"topic_partitions": _named(call, member.target)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _named(call: Call, parts: Collection[Part]) -> list[Fields]:
    """Partitions with their topics' names; those of deleted topics are left out."""
    found = []
    for one in by_topic(parts):
        topic = call.broker.topics.by_id(one["topic_id"].bytes)
        if topic is not None:
            found.append(one | {"topic_name": topic.name})
    return found


APIS: Final = (
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_heartbeat),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_group_describe),
)
