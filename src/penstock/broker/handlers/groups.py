"""Membership of consumer groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from penstock.broker.groups.classic_members import Join, Sync
from penstock.broker.groups.registry import CLASSIC
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.wire.protocol import ApiKey, CoordinatorKind, ErrorCode

__all__ = ["APIS"]

SHARE_KEY_FROM: Final = 6
"""Version of FindCoordinator."""
SHARE_KEY_FORM: Final = re.compile(r".+:[A-Za-z0-9_-]{22}:\d+", re.DOTALL)
BATCH_FROM: Final = 4
"""Version of FindCoordinator from which on it takes many keys."""
MEMBER_ID_REQUIRED_FROM: Final = 4
SKIP_ASSIGNMENT_FROM: Final = 9
PROTOCOL_NAMED_FROM: Final = 5
"""Version of SyncGroup from which on members must say which protocol they believe in."""


def find_coordinator(call: Call, fields: Fields) -> Fields:
    """This broker coordinates all groups, transactions and share groups' partitions."""
    kind = fields.get("key_type", CoordinatorKind.GROUP)
    if call.version < BATCH_FROM:
        return _coordinator(call, kind, fields["key"])
    return {"coordinators": [_coordinator(call, kind, key) for key in fields["coordinator_keys"]]}


def _coordinator(call: Call, kind: int, key: str) -> Fields:
    is_known = kind in {CoordinatorKind.GROUP, CoordinatorKind.TRANSACTION}
    if kind == CoordinatorKind.SHARE and call.version >= SHARE_KEY_FROM:
        is_known = bool(SHARE_KEY_FORM.fullmatch(key))
    if not is_known:
        return {
            "key": key,
            "node_id": -1,
            "port": -1,
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "expected a group (key type 0), a transactional id (1), or, from "
            f"version {SHARE_KEY_FROM} on, GROUP:TOPIC_ID:PARTITION (2); found {kind}: {key!r}",
        }
    host, port = call.address
    return {"key": key, "node_id": NODE_ID, "host": host, "port": port, "error_message": None}


async def join_group(call: Call, fields: Fields) -> Fields:
    """Waits until the group's next generation begins."""
    if fields["group_id"] and not call.broker.registry.claim(fields["group_id"], CLASSIC):
        return {
            "error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "generation_id": -1,
            "member_id": fields["member_id"],
        }
    has_protocols = fields["protocol_type"] and fields["protocols"]
    if fields["member_id"] and not has_protocols and _is_unknown(call, fields["group_id"]):
        return {  # the fault that is reported first
            "error_code": ErrorCode.UNKNOWN_MEMBER_ID,
            "generation_id": -1,
            "member_id": fields["member_id"],
        }
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
        may_skip_assignment=call.version >= SKIP_ASSIGNMENT_FROM,
    )
    call.broker.answer_members(call.broker.mixed_groups.join(call.broker.now_ms(), token, join))
    return await token


def _is_unknown(call: Call, group_id: str) -> bool:
    return bool(group_id) and call.broker.registry.kind(group_id) is None


async def sync_group(call: Call, fields: Fields) -> Fields:
    """Waits until the leader has sent the assignment."""
    if call.version >= PROTOCOL_NAMED_FROM and not (
        fields["protocol_type"] and fields["protocol_name"]
    ):
        return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
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
    call.broker.answer_members(call.broker.mixed_groups.sync(call.broker.now_ms(), token, sync))
    return await token


def heartbeat(call: Call, fields: Fields) -> Fields:
    """Keeps a member alive."""
    code = call.broker.mixed_groups.heartbeat(
        call.broker.now_ms(),
        fields["group_id"],
        fields["generation_id"],
        fields["member_id"],
        fields.get("group_instance_id"),
    )
    return {"error_code": code}


def leave_group(call: Call, fields: Fields) -> Fields:
    """Takes members out of their group."""
    if not fields["group_id"]:
        return {"error_code": ErrorCode.INVALID_GROUP_ID, "members": []}
    wanted = fields.get("members")
    if wanted is None:
        wanted = [{"member_id": fields["member_id"]}]
    results = [
        {
            "member_id": one["member_id"],
            "group_instance_id": one.get("group_instance_id"),
            "error_code": _leave(
                call, fields["group_id"], one["member_id"], one.get("group_instance_id")
            ),
        }
        for one in wanted
    ]
    if "members" not in fields:
        return {"error_code": results[0]["error_code"]}
    return {"members": results}


def _leave(call: Call, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
    broker = call.broker
    code, replies = broker.mixed_groups.leave(broker.now_ms(), group_id, member_id, instance_id)
    broker.answer_members(replies)
    return code


APIS: Final = (
    Api(ApiKey.FIND_COORDINATOR, 0, 6, find_coordinator),
    Api(ApiKey.JOIN_GROUP, 0, 9, join_group),
    Api(ApiKey.HEARTBEAT, 0, 4, heartbeat),
    Api(ApiKey.LEAVE_GROUP, 0, 5, leave_group),
    Api(ApiKey.SYNC_GROUP, 0, 5, sync_group),
)
