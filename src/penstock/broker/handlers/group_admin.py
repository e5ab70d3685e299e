"""Looking at groups and deleting them: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from typing import Final

from penstock.broker.groups.classic_members import GroupState
from penstock.broker.groups.registry import CLASSIC
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import OPERATIONS_OMITTED
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

NOT_FOUND_FROM: Final = 6
"""Version of DescribeGroups from which on an unknown group is an error."""


def list_groups(call: Call, fields: Fields) -> Fields:
    """Every group, of every kind, with members, former members, or committed offsets."""
    states = {state.lower() for state in fields.get("states_filter") or ()}
    kinds = {kind.lower() for kind in fields.get("types_filter") or ()}
    return {
        "groups": [
            {
                "group_id": one.group_id,
                "protocol_type": one.protocol_type,
                "group_state": one.state,
                "group_type": one.kind,
            }
            for one in call.broker.registry.summaries()
            if (not states or one.state.lower() in states) and (not kinds or one.kind in kinds)
        ]
    }


def describe_groups(call: Call, fields: Fields) -> Fields:
    """Groups of the classic protocol with their members and assignments."""
    return {"groups": [_describe(call, group_id) for group_id in fields["groups"]]}


def _describe(call: Call, group_id: str) -> Fields:
    group = call.broker.groups.get(group_id)
    kind = call.broker.registry.kind(group_id)
    result: Fields = {"group_id": group_id, "authorized_operations": OPERATIONS_OMITTED}
    if kind != CLASSIC:
        result["group_state"] = "Dead"
        if call.version >= NOT_FOUND_FROM:
            result["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
            result["error_message"] = (
                f"expected a group of the classic protocol; found {group_id!r}"
                + (f", a {kind} group" if kind is not None else "")
            )
        return result
    if group is None:
        return result | {"group_state": "Empty"}
    is_stable = group.state is GroupState.STABLE
    return result | {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": one.id,
                "group_instance_id": one.join.instance_id,
                "client_id": one.join.client_id,
                "client_host": one.join.client_host,
                "member_metadata": one.metadata(group.protocol) if is_stable else b"",
                "member_assignment": one.assignment if is_stable else b"",
            }
            for one in group.members.values()
        ],
    }


async def delete_groups(call: Call, fields: Fields) -> Fields:
    """Forgets groups without members, and their offsets."""
    results = []
    for group_id in fields["groups_names"]:
        offsets = call.broker.group_offsets
        code = call.broker.registry.delete(group_id)
        if code is ErrorCode.NONE:
            offsets.forget_group(group_id)
        results.append({"group_id": group_id, "error_code": code})
    call.broker.group_store.save()
    journals = [call.broker.group_offsets.journal, call.broker.group_store.journal]
    await call.broker.flusher.make_durable(journals)
    return {"results": results}


APIS: Final = (
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, describe_groups),
    Api(ApiKey.LIST_GROUPS, 0, 5, list_groups),
    Api(ApiKey.DELETE_GROUPS, 0, 2, delete_groups),
)
