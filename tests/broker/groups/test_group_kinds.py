"""Groups of several kinds under one roof, over the protocol."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import BrokerProcess
from penstock.wire.protocol import ApiKey, ConfigResource, ErrorCode

JOIN = ApiKey.JOIN_GROUP
LEAVE = ApiKey.LEAVE_GROUP
SYNC = ApiKey.SYNC_GROUP
HEARTBEAT = ApiKey.HEARTBEAT
LIST = ApiKey.LIST_GROUPS
DESCRIBE = ApiKey.DESCRIBE_GROUPS
DELETE = ApiKey.DELETE_GROUPS
COMMIT = ApiKey.OFFSET_COMMIT
FETCH = ApiKey.OFFSET_FETCH
FORGET = ApiKey.OFFSET_DELETE
BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
DESCRIBE_MODERN = ApiKey.CONSUMER_GROUP_DESCRIBE
FIND = ApiKey.FIND_COORDINATOR
VERSIONS = ApiKey.API_VERSIONS
DESCRIBE_CONFIGS = ApiKey.DESCRIBE_CONFIGS
ALTER_CONFIGS = ApiKey.INCREMENTAL_ALTER_CONFIGS
METADATA = ApiKey.METADATA
GROUP_RESOURCE = ConfigResource.GROUP
Raw = Any


@pytest.fixture
def group() -> str:
    """A group id of the test's own."""
    return f"group-{uuid.uuid4()}"


def topic_id(raw: Raw, topic: str) -> uuid.UUID:
    """A topic's id."""
    found: uuid.UUID = raw.call(METADATA, 12, topics=[{"name": topic}])["topics"][0]["topic_id"]
    return found


def beat(raw: Raw, group: str, member: str, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """A heartbeat of the newer protocol."""
    if epoch == 0:
        more = {"rebalance_timeout": 1000, "topic_partitions": []} | more
    answer: dict[str, Any] = raw.call(
        BEAT, 1, group_id=group, member_id=member, member_epoch=epoch, **more
    )
    return answer


def one_part(topic: str, number: int) -> bytes:
    """An array of one topic with one partition."""
    return struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">ii", 1, number)


def join_classic(raw: Raw, group: str, topic: str = "t", member: str = "") -> dict[str, Any]:
    """One classic member; it leads where it is alone, and has partition 0. It gave up what it had."""
    metadata = struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)
    wanted = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    answer: dict[str, Any] = raw.call(JOIN, 3, member_id=member, **wanted)
    if not answer["error_code"]:
        given = b"\0\0" + one_part(topic, 0) + b"\xff\xff\xff\xff"
        assignments = [
            {"member_id": one["member_id"], "assignment": given} for one in answer["members"]
        ]
        synced = raw.call(
            SYNC,
            3,
            group_id=group,
            generation_id=answer["generation_id"],
            member_id=answer["member_id"],
            assignments=assignments,
        )
        assert synced["error_code"] == 0
        answer["assignment"] = synced["assignment"]
    return answer


def commit(raw: Raw, version: int, group: str, topic: dict[str, Any], **more: Any) -> int:
    """Commits an offset; the error code."""
    part = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    topics = [topic | {"partitions": [part]}]
    answer = raw.call(COMMIT, version, group_id=group, topics=topics, **more)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def listed(raw: Raw, group: str, **filters: Any) -> list[tuple[str, str, str]]:
    """How a group is listed: kind, protocol type, state."""
    return [
        (one["group_type"], one["protocol_type"], one["group_state"])
        for one in raw.call(LIST, 5, **filters)["groups"]
        if one["group_id"] == group
    ]


def test_features_are_advertised(raw: Raw) -> None:
    """Clients learn that they may use the newer protocol."""
    answer = raw.call(VERSIONS, 4, client_software_name="test", client_software_version="1")
    found = {
        one["name"]: (one["min_version_level"], one["max_version_level"])
        for one in answer["finalized_features"]
    }
    assert found["group.version"] == (1, 1)
    assert answer["finalized_features_epoch"] >= 0
    assert BEAT in {one["api_key"] for one in answer["api_keys"]}


def test_member_of_a_consumer_group(raw: Raw, topic: str, group: str) -> None:
    """A member gets its partitions, commits and asks for offsets with its epoch, and is described."""
    answer = beat(raw, group, "m", subscribed_topic_names=[topic])
    assert answer["error_code"] == 0
    assert answer["heartbeat_interval"] == 5000
    known = topic_id(raw, topic)
    assert answer["assignment"]["topic_partitions"] == [{"topic_id": known, "partitions": [0, 1]}]
    who = {"member_id": "m", "generation_id_or_member_epoch": answer["member_epoch"]}
    assert commit(raw, 9, group, {"name": topic}, **who) == 0
    assert commit(raw, 10, group, {"topic_id": known}, **who) == 0
    assert commit(raw, 10, group, {"topic_id": uuid.uuid4()}, **who) == ErrorCode.UNKNOWN_TOPIC_ID
    assert commit(raw, 8, group, {"name": topic}, **who) == ErrorCode.UNSUPPORTED_VERSION
    stale = who | {"generation_id_or_member_epoch": 7}
    assert commit(raw, 9, group, {"name": topic}, **stale) == ErrorCode.STALE_MEMBER_EPOCH
    asked = {"group_id": group, "topics": [{"topic_id": known, "partition_indexes": [0]}]}
    for epoch, code in ((1, 0), (7, ErrorCode.STALE_MEMBER_EPOCH)):
        wanted = asked | {"member_id": "m", "member_epoch": epoch}
        found = raw.call(FETCH, 10, groups=[wanted])["groups"][0]
        assert found["error_code"] == code
        if not code:
            assert found["topics"][0]["partitions"][0]["committed_offset"] == 5
    described = raw.call(DESCRIBE_MODERN, 1, group_ids=[group, "none"])["groups"]
    assert described[0]["group_state"] == "Stable"
    assert described[0]["members"][0]["target_assignment"]["topic_partitions"][0] == {
        "topic_id": known,
        "topic_name": topic,
        "partitions": [0, 1],
    }
    assert described[1]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert raw.call(DESCRIBE, 6, groups=[group])["groups"][0]["error_code"] == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert raw.call(DESCRIBE, 5, groups=[group])["groups"][0]["group_state"] == "Dead"
    assert beat(raw, group, "m", -1)["error_code"] == 0


def test_lists(raw: Raw, topic: str, group: str) -> None:
    """Groups are listed with kind and state, and filtered by both, whatever the case."""
    commit(raw, 8, group, {"name": topic}, generation_id_or_member_epoch=-1)
    assert listed(raw, group) == [("classic", "", "Empty")]
    assert raw.call(DESCRIBE, 6, groups=[group])["groups"][0]["group_state"] == "Empty"
    beat(raw, group, "m", subscribed_topic_names=[topic])
    assert listed(raw, group) == [("consumer", "consumer", "Stable")]
    assert listed(raw, group, types_filter=["Consumer"], states_filter=["stable"])
    assert not listed(raw, group, types_filter=["classic"])
    assert not listed(raw, group, states_filter=["Empty"])
    beat(raw, group, "m", -1)
    assert listed(raw, group) == [("consumer", "consumer", "Empty")]


def test_group_changes_its_kind_when_it_is_empty(raw: Raw, topic: str, group: str) -> None:
    """A group without members is of whatever kind the next member is; the offsets stay."""
    first = join_classic(raw, group)
    commit(
        raw,
        8,
        group,
        {"name": topic},
        member_id=first["member_id"],
        generation_id_or_member_epoch=first["generation_id"],
    )
    raw.call(LEAVE, 5, group_id=group, members=[{"member_id": first["member_id"]}])
    assert beat(raw, group, "m", subscribed_topic_names=[topic])["error_code"] == 0
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    found = raw.call(FETCH, 8, groups=[asked])["groups"][0]["topics"][0]
    assert found["partitions"][0]["committed_offset"] == 5
    beat(raw, group, "m", -1)
    assert join_classic(raw, group)["error_code"] == 0
    assert [one[0] for one in listed(raw, group)] == ["classic"]


def heartbeat(raw: Raw, group: str, member: str, generation: int) -> int:
    """A heartbeat of the classic protocol."""
    wanted = {"group_id": group, "member_id": member, "generation_id": generation}
    return int(raw.call(HEARTBEAT, 4, **wanted)["error_code"])


def test_members_of_both_protocols(raw: Raw, topic: str, group: str) -> None:
    """A member of the newer protocol makes a classic group one of its own kind; the classic member
    stays, is told its partitions, and commits; with the newer one gone the group is classic again.
    """
    first = join_classic(raw, group, topic)
    old, generation = first["member_id"], first["generation_id"]
    mine = beat(raw, group, "m", subscribed_topic_names=[topic])["assignment"]["topic_partitions"]
    assert [one["partitions"] for one in mine] == [[1]]
    assert listed(raw, group) == [("consumer", "consumer", "Reconciling")]
    assert heartbeat(raw, group, old, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    again = join_classic(raw, group, topic, old)
    assert again["error_code"] == 0
    assert again["generation_id"] > generation
    assert again["assignment"] == b"\0\0" + one_part(topic, 0) + b"\xff\xff\xff\xff"
    who = {"member_id": old, "generation_id_or_member_epoch": again["generation_id"]}
    assert commit(raw, 8, group, {"name": topic}, **who) == 0
    stale = who | {"generation_id_or_member_epoch": generation}
    assert commit(raw, 8, group, {"name": topic}, **stale) == ErrorCode.ILLEGAL_GENERATION
    members = raw.call(DESCRIBE_MODERN, 1, group_ids=[group])["groups"][0]["members"]
    assert {one["member_id"]: one["member_type"] for one in members} == {old: 0, "m": 1}
    beat(raw, group, "m", -1)
    assert [one[0] for one in listed(raw, group)] == ["classic"]
    generation = again["generation_id"]
    assert heartbeat(raw, group, old, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join_classic(raw, group, topic, old)["generation_id"] > generation
    assert listed(raw, group) == [("classic", "consumer", "Stable")]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_instances_that_are_not_there_are_reported(
    raw: Raw, topic: str, group: str, is_mixed: bool
) -> None:
    """A member that names an instance of nobody's is unknown, in groups of either kind, as at Kafka; and
    SyncGroup must name the protocol from version 5 on.
    """
    joined = join_classic(raw, group, topic)
    if is_mixed:
        beat(raw, group, "m", subscribed_topic_names=[topic])
        joined = join_classic(raw, group, topic, joined["member_id"])
    who = {
        "group_id": group,
        "member_id": joined["member_id"],
        "generation_id": joined["generation_id"],
    }
    named = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    ghost = {**who, "group_instance_id": "ghost"}
    assert raw.call(HEARTBEAT, 4, **who)["error_code"] == 0
    assert raw.call(HEARTBEAT, 4, **ghost)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert raw.call(SYNC, 5, **who, **named)["error_code"] == 0
    assert raw.call(SYNC, 5, **ghost, **named)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    unnamed = raw.call(SYNC, 5, **who, assignments=[])
    assert unnamed["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    again = {
        "group_id": group,
        "member_id": "other",
        "group_instance_id": "ghost",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0" + bytes(8)}],
    }
    assert raw.call(JOIN, 9, **again)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_consumers_are_mixed(raw: Raw, topic: str, group: str) -> None:
    """Groups of another type, or whose members say what no consumer says, stay what they are."""
    for kind, metadata in (("connect", b""), ("consumer", b"\0\0\0\0\0\7")):
        protocol = {"name": "p", "metadata": metadata}
        wanted = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": ""}
        wanted |= {"protocol_type": kind, "protocols": [protocol], "group_id": group + kind}
        joined = raw.call(JOIN, 3, **wanted)
        refused = beat(raw, group + kind, "m", subscribed_topic_names=[topic])
        assert refused["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        assert "consumers" in refused["error_message"]
        assert [one[0] for one in listed(raw, group + kind)] == ["classic"]
        left = [{"member_id": joined["member_id"]}]
        raw.call(LEAVE, 5, group_id=group + kind, members=left)
    beat(raw, group, "m", subscribed_topic_names=[topic])
    for kind, metadata in (("connect", b"?"), ("consumer", b"?")):
        protocol = {"name": "p", "metadata": metadata}
        wanted |= {"protocol_type": kind, "protocols": [protocol], "group_id": group}
        assert raw.call(JOIN, 3, **wanted)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leaving_in_batches(raw: Raw, topic: str, group: str) -> None:
    """An administrator takes members out, by member or instance id, in groups of both kinds."""
    beat(raw, group, "a", subscribed_topic_names=[topic])
    beat(raw, group, "b", subscribed_topic_names=[topic], instance_id="i")
    wanted = [
        {"member_id": "a"},
        {"member_id": "", "group_instance_id": "i"},
        {"member_id": "nobody"},
    ]
    left = raw.call(LEAVE, 5, group_id=group, members=wanted)["members"]
    assert [one["error_code"] for one in left] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert listed(raw, group) == [("consumer", "consumer", "Empty")]


def test_deletion(raw: Raw, topic: str, group: str) -> None:
    """Groups with members and topics that are read are kept; the rest can be forgotten."""
    beat(raw, group, "m", subscribed_topic_names=[topic])
    who = {"member_id": "m", "generation_id_or_member_epoch": 1}
    commit(raw, 9, group, {"name": topic}, **who)

    def forget() -> int:
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        answer = raw.call(FORGET, 0, group_id=group, topics=topics)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    def delete() -> int:
        return int(raw.call(DELETE, 2, groups_names=[group])["results"][0]["error_code"])

    assert forget() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete() == ErrorCode.NON_EMPTY_GROUP
    beat(raw, group, "m", -1)
    assert forget() == 0
    assert delete() == 0
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert not listed(raw, group)


def test_faults_are_named_as_in_kafka(raw: Raw, topic: str, group: str) -> None:
    """Groups without a name, without members, or with an unreadable subscription."""
    assert raw.call(SYNC, 4, group_id="")["error_code"] == ErrorCode.INVALID_GROUP_ID
    assert raw.call(HEARTBEAT, 4, group_id="")["error_code"] == ErrorCode.INVALID_GROUP_ID
    left = raw.call(LEAVE, 5, group_id="", members=[{"member_id": "m"}])
    assert (left["error_code"], left["members"]) == (ErrorCode.INVALID_GROUP_ID, [])
    assert raw.call(FORGET, 0, group_id="")["error_code"] == ErrorCode.INVALID_GROUP_ID
    ghost = {"member_id": "ghost", "generation_id_or_member_epoch": 3}
    assert commit(raw, 8, group, {"name": topic}, **ghost) == ErrorCode.ILLEGAL_GENERATION
    assert commit(raw, 9, group, {"name": topic}, **ghost) == ErrorCode.GROUP_ID_NOT_FOUND
    commit(raw, 8, group, {"name": topic}, generation_id_or_member_epoch=-1)
    assert commit(raw, 8, group, {"name": topic}, **ghost) == ErrorCode.UNKNOWN_MEMBER_ID
    forgotten = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    assert raw.call(FORGET, 0, group_id=group, topics=forgotten)["error_code"] == 0
    assert listed(raw, group)  # a group outlives its offsets for a while
    joining = {"group_id": "none", "session_timeout": 10_000, "protocol_type": "consumer"}
    answer = raw.call(JOIN, 3, member_id="unknown", protocols=[], **joining)
    assert answer["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    joining["group_id"] = group
    answer = raw.call(JOIN, 3, member_id="unknown", protocols=[], **joining)
    assert answer["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("version", "kind", "key", "code"),
    [
        (3, 0, "g", 0),
        (6, 0, "g", 0),
        (6, 1, "txn", 0),
        (6, 2, "g:AAAAAAAAAAAAAAAAAAAAAA:0", 0),
        (6, 2, "g", ErrorCode.INVALID_REQUEST),
        (5, 2, "g:AAAAAAAAAAAAAAAAAAAAAA:0", ErrorCode.INVALID_REQUEST),
        (6, 9, "g", ErrorCode.INVALID_REQUEST),
    ],
)
def test_coordinators(raw: Raw, version: int, kind: int, key: str, code: int) -> None:
    """This broker coordinates everything that has a coordinator."""
    if version < 4:
        found = raw.call(FIND, version, key=key, key_type=kind)
    else:
        answer = raw.call(FIND, version, key_type=kind, coordinator_keys=[key, key])
        assert len(answer["coordinators"]) == 2
        found = answer["coordinators"][0]
    assert found["error_code"] == code
    assert found["node_id"] == (-1 if code else 1)


def test_group_settings(raw: Raw, topic: str, group: str) -> None:
    """A group's settings are changed, described, in force at once, and checked."""

    def alter(name: str, value: str | None, operation: int = 0) -> int:
        config = {"name": name, "value": value, "config_operation": operation}
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
        answer = raw.call(ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        return int(answer["responses"][0]["error_code"])

    assert alter("consumer.heartbeat.interval.ms", "1000") == 0
    assert beat(raw, group, "m", subscribed_topic_names=[topic])["heartbeat_interval"] == 1000
    wanted = {
        "resource_type": GROUP_RESOURCE,
        "resource_name": group,
        "configuration_keys": None,
    }
    described = raw.call(DESCRIBE_CONFIGS, 4, resources=[wanted])["results"][0]["configs"]
    found = {one["name"]: (one["value"], one["config_source"]) for one in described}
    assert found["consumer.heartbeat.interval.ms"] == ("1000", 8)
    assert found["consumer.session.timeout.ms"] == ("45000", 5)
    assert alter("consumer.session.timeout.ms", "5000") == ErrorCode.INVALID_CONFIG
    assert alter("no.such", "1") == ErrorCode.INVALID_CONFIG
    assert alter("consumer.heartbeat.interval.ms", None, 1) == 0
    assert beat(raw, group, "m", 1)["heartbeat_interval"] == 5000


def test_groups_outlive_the_broker(
    own_broker: BrokerProcess, connect: Callable[[str], Raw]
) -> None:
    """A broker that is killed comes back with its groups: the same generation, the same epoch."""
    own_broker.start()
    with connect(own_broker.address) as raw:
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 2, "replication_factor": 1}],
            timeout=9,
        )
        classic = join_classic(raw, "old")
        modern = beat(raw, "new", "m", subscribed_topic_names=["t"])
    own_broker.kill()
    own_broker.start()
    with connect(own_broker.address) as raw:
        alive = raw.call(
            HEARTBEAT,
            4,
            group_id="old",
            generation_id=classic["generation_id"],
            member_id=classic["member_id"],
        )
        assert alive["error_code"] == 0
        again = beat(raw, "new", "m", modern["member_epoch"], topic_partitions=[])
        assert again["error_code"] == 0
        assert again["member_epoch"] == modern["member_epoch"]
        assert listed(raw, "old") == [("classic", "consumer", "Stable")]
        assert listed(raw, "new") == [("consumer", "consumer", "Stable")]
