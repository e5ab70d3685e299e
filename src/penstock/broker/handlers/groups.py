"""Membership of consumer groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.broker.members import Join, Sync
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
MEMBER_ID_REQUIRED_FROM: Final = 4


def find_coordinator(call: Call, fields: Fields) -> Fields:
    """This broker coordinates all groups; nobody coordinates transactions."""
    host, port = call.address
    node: Fields = {"node_id": NODE_ID, "host": host, "port": port, "error_message": None}
    if fields.get("key_type", GROUP_KEY) != GROUP_KEY:
        node = {
            "node_id": -1,
            "port": -1,
            "error_code": ErrorCode.transactional_id_authorization_failed
            if fields["key_type"] == TRANSACTION_KEY
            else ErrorCode.invalid_request,
            "error_message": "expected a consumer group: this broker has no transactions",
        }
    if call.version >= 4:
        return {"coordinators": [node | {"key": key} for key in fields["coordinator_keys"]]}
    return node


async def join_group(call: Call, fields: Fields) -> Fields:
    """Waits until the group's next generation begins."""
    token: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
    session_ms: int = fields["session_timeout"]
    rebalance_ms: int = fields.get("rebalance_timeout") or session_ms
    join = Join(
        group_id=fields["group_id"],
        member_id=fields["member_id"],
        instance_id=fields.get("group_instance_id"),
        client_id=call.client_id,
        client_host=call.client_host,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
        protocol_type=fields["protocol_type"],
        protocols=tuple((one["name"], one["metadata"]) for one in fields["protocols"]),
        requires_member_id=call.version >= MEMBER_ID_REQUIRED_FROM,
    )
    call.broker.answer_members(call.broker.groups.join(call.broker.now_ms(), token, join))
    return await token


async def sync_group(call: Call, fields: Fields) -> Fields:
    """Waits until the leader has sent the assignment."""
    token: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
    sync = Sync(
        group_id=fields["group_id"],
        generation=fields["generation_id"],
        member_id=fields["member_id"],
        instance_id=fields.get("group_instance_id"),
        assignments={one["member_id"]: one["assignment"] for one in fields["assignments"]},
        protocol_type=fields.get("protocol_type"),
        protocol_name=fields.get("protocol_name"),
    )
    call.broker.answer_members(call.broker.groups.sync(call.broker.now_ms(), token, sync))
    return await token


def heartbeat(call: Call, fields: Fields) -> Fields:
    """Keeps a member alive."""
    code = call.broker.groups.heartbeat(
        call.broker.now_ms(),
        fields["group_id"],
        fields["generation_id"],
        fields["member_id"],
        fields.get("group_instance_id"),
    )
    return {"error_code": code}


def leave_group(call: Call, fields: Fields) -> Fields:
    """Takes members out of their group."""
    wanted = fields.get("members")
    if wanted is None:
        wanted = [{"member_id": fields["member_id"]}]
    results = []
    for one in wanted:
        instance_id = one.get("group_instance_id")
        code, replies = call.broker.groups.leave(
            call.broker.now_ms(), fields["group_id"], one["member_id"], instance_id
        )
        call.broker.answer_members(replies)
        results.append(
            {
                "member_id": one["member_id"],
                "group_instance_id": instance_id,
                "error_code": code,
            }
        )
    if "members" not in fields:
        return {"error_code": results[0]["error_code"]}
    return {"members": results}


APIS: Final = (
    Api(10, 0, 6, find_coordinator),
    Api(11, 0, 9, join_group),
    Api(12, 0, 4, heartbeat),
    Api(13, 0, 5, leave_group),
    Api(14, 0, 5, sync_group),
)
