"""The rules of requests about groups, their offsets, and share groups (see `rules`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock.broker.handlers.base import Fields, topic_of
from penstock.broker.rules.base import DENIED, Answer, Asked, Rule, denial, split, whole
from penstock.broker.rules.topics import Parts
from penstock.broker.security.model import Operation, ResourceType
from penstock.wire.protocol import ApiKey, CoordinatorKind, ErrorCode

__all__ = ["RULES", "with_group"]

NO_GROUP: Final = DENIED[ResourceType.GROUP]
NO_TOPIC: Final = DENIED[ResourceType.TOPIC]
_INDEXES: Final = Parts(asked="partition_indexes")
_UNKNOWN: Final[Fields] = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def refuse_parts(parts: Parts, entries: Iterable[Fields], code: ErrorCode) -> Fields:
    """An answer that says no for each partition of a request."""
    return {parts.topics: [parts.refuse(one, code) for one in entries]}


def with_group(group_operation: Operation, parts: Parts, *, per_partition: bool) -> Rule:
    """An operation on the group, and READ on each topic.

    Args:
        group_operation: which.
        parts: how the request and its answer are laid out.
        per_partition: whether a refusal for the group is reported for each partition.
    """

    def rule(asked: Asked, fields: Fields) -> Answer:
        if not asked.may_group(group_operation, fields["group_id"]):
            if per_partition:
                return refuse_parts(parts, fields["topics"], NO_GROUP)
            return denial(ResourceType.GROUP)
        allowed, refused = split(asked, Operation.READ, fields["topics"], parts.name)
        if not refused:
            return asked.proceed(fields)

        def finish(answer: Fields) -> Fields:
            denied = [parts.refuse(one) for one in refused]
            return answer | {parts.topics: [*answer.get(parts.topics, ()), *denied]}

        return asked.proceed(fields | {"topics": allowed}, finish)

    return rule


def each_group(operation: Operation, key: str, result_key: str, *, hide: bool = False) -> Rule:
    """An operation on each group of a request.

    Args:
        operation: which.
        key: the groups' ids in the request.
        result_key: the groups in the answer.
        hide: refuse groups whose members have topics that may not be seen.
    """

    def rule(asked: Asked, fields: Fields) -> Answer:
        allowed: list[str] = []
        refused: list[str] = []
        for name in fields[key]:
            (allowed if asked.may_group(operation, name) else refused).append(name)

        def finish(answer: Fields) -> Fields:
            shown = answer[result_key]
            if hide:
                shown = [one if _may_see(asked, one) else _hidden(one) for one in shown]
            denied = [denial(ResourceType.GROUP, group_id=name) for name in refused]
            return answer | {result_key: [*shown, *denied]}

        return asked.proceed(fields | {key: allowed}, finish)

    return rule


def _may_see(asked: Asked, group: Fields) -> bool:
    names: set[str] = set()
    for member in group.get("members", ()):
        names |= set(member.get("subscribed_topic_names") or ())
        for key in ("assignment", "target_assignment"):
            parts = (member.get(key) or {}).get("topic_partitions", ())
            names |= {one["topic_name"] for one in parts}
    return all(asked.may_topic(Operation.DESCRIBE, name) for name in names)


def _hidden(group: Fields) -> Fields:
    message = "The group has described topic(s) that the client is not authorized to describe."
    denied = denial(ResourceType.TOPIC, group_id=group["group_id"], error_message=message)
    return denied | {"members": []}


def list_groups(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on the cluster shows all, on a group that one."""
    if asked.may_cluster(Operation.DESCRIBE):
        return asked.proceed(fields)

    def finish(answer: Fields) -> Fields:
        groups = answer["groups"]
        shown = [one for one in groups if asked.may_group(Operation.DESCRIBE, one["group_id"])]
        return answer | {"groups": shown}

    return asked.proceed(fields, finish)


def find_coordinator(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on the group or the transactional id that is looked for."""
    kind = fields.get("key_type", CoordinatorKind.GROUP)
    resource = (
        ResourceType.TRANSACTIONAL_ID if kind == CoordinatorKind.TRANSACTION else ResourceType.GROUP
    )
    refusal: Fields = {"node_id": -1, "host": "", "port": -1, "error_code": DENIED[resource]}

    def may(key: str) -> bool:
        if kind not in {CoordinatorKind.GROUP, CoordinatorKind.TRANSACTION}:
            return asked.may_cluster(Operation.CLUSTER_ACTION)
        return asked.may(Operation.DESCRIBE, resource, key)

    if kind not in {CoordinatorKind.GROUP, CoordinatorKind.TRANSACTION}:
        refusal["error_code"] = DENIED[ResourceType.CLUSTER]
    if "coordinator_keys" not in fields:
        return asked.proceed(fields) if may(fields["key"]) else refusal
    allowed = [key for key in fields["coordinator_keys"] if may(key)]
    refused = [key for key in fields["coordinator_keys"] if key not in allowed]

    def finish(answer: Fields) -> Fields:
        denied = [refusal | {"key": key} for key in refused]
        return answer | {"coordinators": [*answer["coordinators"], *denied]}

    return asked.proceed(fields | {"coordinator_keys": allowed}, finish)


def offset_fetch(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on the groups and the topics; of all topics, those that may be seen."""
    if "groups" not in fields:
        if not asked.may_group(Operation.DESCRIBE, fields["group_id"]):
            if asked.call.version >= 2:
                return denial(ResourceType.GROUP)
            return {"topics": [_INDEXES.refuse(one, NO_GROUP) for one in fields["topics"]]}
        left, refused = _wanted(asked, fields)
        return asked.proceed(left, lambda answer: _visible(asked, fields, answer, refused))
    allowed: list[Fields] = []
    denied: list[Fields] = []
    refusals: dict[str, tuple[Fields, list[Fields]]] = {}
    for group in fields["groups"]:
        if asked.may_group(Operation.DESCRIBE, group["group_id"]):
            left, refused = _wanted(asked, group)
            allowed.append(left)
            refusals[group["group_id"]] = (group, refused)
        else:
            denied.append(denial(ResourceType.GROUP, group_id=group["group_id"]))

    def finish(answer: Fields) -> Fields:
        shown = []
        for one in answer["groups"]:
            group, refused = refusals[one["group_id"]]
            shown.append(_visible(asked, group, one, refused))
        return answer | {"groups": [*shown, *denied]}

    return asked.proceed(fields | {"groups": allowed}, finish)


def _wanted(asked: Asked, group: Fields) -> tuple[Fields, list[Fields]]:
    if group["topics"] is None:
        return group, []
    allowed, refused = split(asked, Operation.DESCRIBE, group["topics"])
    return group | {"topics": allowed}, refused


def _visible(asked: Asked, group: Fields, answer: Fields, refused: list[Fields]) -> Fields:
    topics = answer.get("topics", ())
    if group["topics"] is None:
        topics = [one for one in topics if asked.may_topic(Operation.DESCRIBE, _name(asked, one))]
    denied = [_INDEXES.refuse(one, **_UNKNOWN) for one in refused]
    return answer | {"topics": [*topics, *denied]}


def _name(asked: Asked, entry: Fields, key: str = "name") -> str:
    topic = topic_of(asked.call, entry, name=key)
    return topic.name if topic is not None else entry.get(key) or ""


def heartbeat(asked: Asked, fields: Fields) -> Answer:
    """READ on the group, DESCRIBE on each topic that the member subscribes to by name."""
    if not asked.may_group(Operation.READ, fields["group_id"]):
        return denial(ResourceType.GROUP)
    names = fields.get("subscribed_topic_names") or ()
    if all(asked.may_topic(Operation.DESCRIBE, name) for name in names):
        return asked.proceed(fields)
    return denial(ResourceType.TOPIC)


def share_records(asked: Asked, fields: Fields) -> Answer:
    """READ on the group and on each topic, also where an earlier request has named it."""
    if not asked.may_group(Operation.READ, fields["group_id"]):
        return denial(ResourceType.GROUP)
    allowed, refused = split(asked, Operation.READ, fields["topics"] or ())
    parts = Parts(topics="responses")

    def finish(answer: Fields) -> Fields:
        given = []
        for one in answer.get("responses", ()):
            if asked.may_topic(Operation.READ, _name(asked, one)):
                given.append(one)
            else:
                given.append(parts.refuse(one))
        given += [parts.refuse(one) for one in refused]
        return answer | {"responses": given}

    return asked.proceed(fields | {"topics": allowed}, finish)


def describe_share_offsets(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on the groups and the topics."""
    parts = Parts(name="topic_name")
    allowed: list[Fields] = []
    denied: list[Fields] = []
    refusals: dict[str, list[Fields]] = {}
    for group in fields["groups"]:
        name = group["group_id"]
        if not asked.may_group(Operation.DESCRIBE, name):
            denied.append(denial(ResourceType.GROUP, group_id=name))
            continue
        entries = group["topics"]
        if entries is not None:
            entries, refusals[name] = split(asked, Operation.DESCRIBE, entries, "topic_name")
        allowed.append(group | {"topics": entries})

    def finish(answer: Fields) -> Fields:
        shown = []
        for group in answer["groups"]:
            topics = [
                one
                for one in group.get("topics", ())
                if asked.may_topic(Operation.DESCRIBE, one["topic_name"])
            ]
            topics += [parts.refuse(one) for one in refusals.get(group["group_id"], ())]
            shown.append(group | {"topics": topics})
        return answer | {"groups": [*shown, *denied]}

    return asked.proceed(fields | {"groups": allowed}, finish)


def delete_share_offsets(asked: Asked, fields: Fields) -> Answer:
    """DELETE on the group, READ on the topics."""
    if not asked.may_group(Operation.DELETE, fields["group_id"]):
        return denial(ResourceType.GROUP)
    allowed, refused = split(asked, Operation.READ, fields["topics"], "topic_name")

    def finish(answer: Fields) -> Fields:
        denied: list[dict[str, Any]] = [
            denial(ResourceType.TOPIC, topic_name=one["topic_name"]) for one in refused
        ]
        return answer | {"responses": [*answer.get("responses", ()), *denied]}

    return asked.proceed(fields | {"topics": allowed}, finish)


_member: Final = whole(Operation.READ, ResourceType.GROUP, "group_id")

RULES: Final[dict[ApiKey, Rule]] = {
    ApiKey.OFFSET_COMMIT: with_group(Operation.READ, Parts(), per_partition=True),
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: _member,
    ApiKey.HEARTBEAT: _member,
    ApiKey.LEAVE_GROUP: _member,
    ApiKey.SYNC_GROUP: _member,
    ApiKey.DESCRIBE_GROUPS: each_group(Operation.DESCRIBE, "groups", "groups"),
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: each_group(Operation.DELETE, "groups_names", "results"),
    ApiKey.OFFSET_DELETE: with_group(Operation.DELETE, Parts(), per_partition=False),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: each_group(
        Operation.DESCRIBE, "group_ids", "groups", hide=True
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: each_group(Operation.DESCRIBE, "group_ids", "groups", hide=True),
    ApiKey.SHARE_FETCH: share_records,
    ApiKey.SHARE_ACKNOWLEDGE: share_records,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: with_group(
        Operation.READ, Parts(name="topic_name", topics="responses"), per_partition=False
    ),  # AlterShareGroupOffsets
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_offsets,
}
