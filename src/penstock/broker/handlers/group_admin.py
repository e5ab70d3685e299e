"""Looking at groups and deleting them: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import OPERATIONS_OMITTED
from penstock.broker.members import GroupState
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]

CONSUMER: Final = "consumer"


def list_groups(call: Call, fields: Fields) -> Fields:
    """Every group with members or committed offsets."""
    found: dict[str, Fields] = {
        group_id: {"group_id": group_id, "protocol_type": CONSUMER, "group_state": "Empty"}
        for group_id in call.broker.group_offsets.groups()
    }
    for group in call.broker.groups:
        found[group.id] = {
            "group_id": group.id,
            "protocol_type": group.protocol_type or CONSUMER,
            "group_state": group.state.value,
        }
    states = {state.lower() for state in fields.get("states_filter") or ()}
    types = {kind.lower() for kind in fields.get("types_filter") or ()}
    return {
        "groups": [
            one | {"group_type": "classic"}
            for one in found.values()
            if (not states or one["group_state"].lower() in states)
            and (not types or "classic" in types)
        ]
    }


def describe_groups(call: Call, fields: Fields) -> Fields:
    """Groups with their members and assignments."""
    return {"groups": [_describe(call, group_id) for group_id in fields["groups"]]}


def _describe(call: Call, group_id: str) -> Fields:
    group = call.broker.groups.get(group_id)
    result: Fields = {"group_id": group_id, "authorized_operations": OPERATIONS_OMITTED}
    if group is None:
        if call.broker.group_offsets.of(group_id):
            return result | {"group_state": "Empty", "protocol_type": CONSUMER}
        result["group_state"] = "Dead"
        if call.version >= 6:
            result["error_code"] = ErrorCode.group_id_not_found
            result["error_message"] = f"expected a group, found {group_id!r}"
        return result
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
        code = call.broker.groups.delete(group_id)
        if code is ErrorCode.group_id_not_found and offsets.of(group_id):
            code = ErrorCode.none
        if code is ErrorCode.none:
            offsets.forget(group_id, list(offsets.of(group_id)))
        results.append({"group_id": group_id, "error_code": code})
    await call.broker.flusher.make_durable([call.broker.group_offsets.journal])
    return {"results": results}


APIS: Final = (
    Api(15, 0, 6, describe_groups),
    Api(16, 0, 5, list_groups),
    Api(42, 0, 2, delete_groups),
)
