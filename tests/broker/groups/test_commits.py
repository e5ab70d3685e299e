"""Who may commit offsets: members, and anyone where a group has none; codes as a Kafka node has them."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.wire.protocol import ApiKey, ErrorCode

COMMIT = ApiKey.OFFSET_COMMIT
JOIN = ApiKey.JOIN_GROUP
LEAVE = ApiKey.LEAVE_GROUP
SYNC = ApiKey.SYNC_GROUP
BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
INIT = ApiKey.INIT_PRODUCER_ID
ADD_OFFSETS = ApiKey.ADD_OFFSETS_TO_TXN
END = ApiKey.END_TXN
STAGE = ApiKey.TXN_OFFSET_COMMIT
PART = {
    "partition_index": 0,
    "committed_offset": 3,
    "committed_leader_epoch": -1,
    "committed_metadata": "",
}
OWN = "own"
"""Stands for the member's id, and for its epoch or generation."""
Codes = tuple[int, int, int]
"""Of OffsetCommit in version 8 and 9, and of TxnOffsetCommit."""

OK = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND
OLD = ErrorCode.UNSUPPORTED_VERSION
STALE = ErrorCode.STALE_MEMBER_EPOCH
BUSY = ErrorCode.REBALANCE_IN_PROGRESS


def unknown(raw: Any, group: str, topic: str) -> None:
    """There is no such group."""


def offsets_only(raw: Any, group: str, topic: str) -> None:
    """A group that has committed offsets, and never had members."""
    assert commit(raw, 8, group, topic, -1, "") == 0


def completing(raw: Any, group: str, topic: str) -> tuple[str, int]:
    """A classic member that doesn't have its assignment yet."""
    wanted = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": struct.pack(">hii", 0, 0, 0)}],
    }
    answer = raw.call(JOIN, 3, member_id="", **wanted)
    assert answer["error_code"] == 0, answer
    return answer["member_id"], answer["generation_id"]


def classic(raw: Any, group: str, topic: str) -> tuple[str, int]:
    """A classic member."""
    member, generation = completing(raw, group, topic)
    given = [{"member_id": member, "assignment": struct.pack(">hii", 0, 0, 0)}]
    who = {"group_id": group, "generation_id": generation, "member_id": member}
    assert raw.call(SYNC, 3, **who, assignments=given)["error_code"] == 0
    return member, generation


def left_by_classic(raw: Any, group: str, topic: str) -> tuple[str, int]:
    """A group that a classic member has left."""
    member, generation = classic(raw, group, topic)
    assert raw.call(LEAVE, 2, group_id=group, member_id=member)["error_code"] == 0
    return member, generation


def modern(raw: Any, group: str, topic: str) -> tuple[str, int]:
    """A member of KIP-848."""
    member = str(uuid.uuid4())
    hello = {"rebalance_timeout": 5000, "topic_partitions": [], "subscribed_topic_names": [topic]}
    answer = raw.call(BEAT, 1, group_id=group, member_id=member, member_epoch=0, **hello)
    assert answer["error_code"] == 0, answer
    return member, answer["member_epoch"]


def left_by_modern(raw: Any, group: str, topic: str) -> tuple[str, int]:
    """A group that a member of KIP-848 has left."""
    member, epoch = modern(raw, group, topic)
    answer = raw.call(BEAT, 1, group_id=group, member_id=member, member_epoch=-1)
    assert answer["error_code"] == 0
    return member, epoch


def commit(raw: Any, version: int, group: str, topic: str, epoch: int, member: str) -> int:
    """Commits an offset; the error code."""
    who = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": member}
    answer = raw.call(COMMIT, version, **who, topics=[{"name": topic, "partitions": [PART]}])
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def stage(raw: Any, group: str, topic: str, epoch: int, member: str) -> int:
    """Commits an offset within a transaction, which is aborted; the error code."""
    name = str(uuid.uuid4())
    fresh = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    own = raw.call(INIT, 4, transactional_id=name, **fresh)
    who = {key: own[key] for key in ("producer_id", "producer_epoch")} | {"transactional_id": name}
    assert raw.call(ADD_OFFSETS, 3, **who, group_id=group)["error_code"] == 0
    said = {"group_id": group, "generation_id": epoch, "member_id": member}
    topics = [{"name": topic, "partitions": [PART]}]
    answer = raw.call(STAGE, 3, **who, **said, topics=topics)
    assert raw.call(END, 3, **who, committed=False)["error_code"] == 0
    return int(answer["topics"][0]["partitions"][0]["error_code"])


@pytest.mark.parametrize(
    ("situation", "epoch", "member", "codes"),
    [
        (unknown, -1, "", (OK, OK, OK)),
        (unknown, -1, "m", (OK, OK, OK)),
        (unknown, 5, "m", (ILLEGAL, NO_GROUP, ILLEGAL)),
        (offsets_only, -1, "", (OK, OK, OK)),
        (offsets_only, -1, "m", (OK, OK, OK)),
        (offsets_only, 5, "m", (UNKNOWN, UNKNOWN, UNKNOWN)),
        (completing, -1, "", (UNKNOWN, UNKNOWN, OK)),
        (completing, -1, "m", (UNKNOWN, UNKNOWN, UNKNOWN)),
        (completing, OWN, OWN, (BUSY, BUSY, OK)),
        (classic, -1, "m", (UNKNOWN, UNKNOWN, UNKNOWN)),
        (classic, -1, OWN, (ILLEGAL, ILLEGAL, ILLEGAL)),
        (classic, OWN, OWN, (OK, OK, OK)),
        (left_by_classic, -1, "", (OK, OK, OK)),
        (left_by_classic, -1, "m", (OK, OK, OK)),
        (left_by_classic, -1, OWN, (OK, OK, OK)),
        (left_by_classic, OWN, OWN, (UNKNOWN, UNKNOWN, UNKNOWN)),
        (modern, -1, "m", (UNKNOWN, UNKNOWN, UNKNOWN)),
        (modern, -1, OWN, (OLD, STALE, ILLEGAL)),
        (modern, 5, OWN, (OLD, STALE, ILLEGAL)),
        (modern, OWN, OWN, (OLD, OK, OK)),
        (left_by_modern, -1, "m", (OK, OK, OK)),
        (left_by_modern, OWN, OWN, (UNKNOWN, UNKNOWN, UNKNOWN)),
    ],
)
def test_who_may_commit(
    raw: Any, topic: str, situation: Any, epoch: int | str, member: str, codes: Codes
) -> None:
    """Members of the present generation, and anyone (also one that calls itself a member of none)
    where there are no members.
    """
    found = []
    for version in (8, 9, 0):
        group = f"group-{uuid.uuid4()}"
        who = situation(raw, group, topic) or ("", -1)
        own_epoch = who[1] if epoch == OWN else int(epoch)
        own_id = who[0] if member == OWN else member
        if version:
            found.append(commit(raw, version, group, topic, own_epoch, own_id))
        else:
            found.append(stage(raw, group, topic, own_epoch, own_id))
    assert tuple(found) == codes


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_assigns_itself_partitions_commits(
    address: str, topic: str, protocol: str
) -> None:
    """`assign` instead of `subscribe`: the consumer is no member, whatever its protocol."""
    settings = {"group.id": f"assigned-{topic}-{protocol}", "group.protocol": protocol}
    where = [TopicPartition(topic, 0, 7)]
    one = Consumer({"bootstrap.servers": address, "enable.auto.commit": False, **settings})
    one.assign(where)
    one.commit(offsets=where, asynchronous=False)
    assert [part.offset for part in one.committed(where)] == [7]
    one.close()
