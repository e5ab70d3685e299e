"""Authorization of every request type, over a broker whose user ann may do little."""

from __future__ import annotations

import dataclasses
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.broker.handlers import API_TABLE
from penstock.broker.rules.table import RULES
from penstock.broker.security.acls import Acl, PatternType, Permission
from penstock.broker.security.authorizer import Authorizer
from penstock.broker.security.model import Operation, ResourceType
from penstock.broker.security.users import Users
from penstock.wire.messages import request_codec, response_codec
from penstock.wire.protocol import ApiKey

TOPIC, GROUP, CLUSTER, TXN = 29, 30, 31, 53
"""Kafka's error codes of what is not authorized."""
SERVED_BY_HAND = {0, 1}


class Session:
    """A connection that has logged in."""

    def __init__(self, address: str, user: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        assert self.call(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")["error_code"] == 0
        answer = self.call(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=f"\0{user}\0{user}".encode())
        assert answer["error_code"] == 0, answer

    def call(self, key: int, version: int, **fields: Any) -> dict[str, Any]:
        """One request and its answer."""
        codec = request_codec(key, version)
        head = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if codec.flexible else b"")
        body = head + bytes(codec.encode(fields))
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        data = self._exactly(int.from_bytes(self._exactly(4), "big"))
        answer = response_codec(key, version)
        return answer.decode(data[5 if answer.flexible and key != 18 else 4 :])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data


@dataclasses.dataclass
class Place:
    """A broker with authorization, and sessions of its users."""

    process: BrokerProcess
    ann: Session
    boss: Session
    secret: uuid.UUID


def acl(kind: ResourceType, name: str, operation: Operation, **changes: Any) -> Acl:
    """A rule for ann."""
    pattern = changes.pop("pattern", PatternType.LITERAL)
    permission = changes.pop("permission", Permission.ALLOW)
    return Acl(kind, name, pattern, "User:ann", "*", operation, permission)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Ann may read and write what begins with `open`, and read the group `mine`."""
    data = tmp_path_factory.mktemp("access")
    users = Users(data)
    for name in ("ann", "boss"):
        users.add(name, name)
    prefixed = PatternType.PREFIXED
    Authorizer(data).add(
        [
            acl(ResourceType.TOPIC, "open", Operation.READ, pattern=prefixed),
            acl(ResourceType.TOPIC, "open", Operation.WRITE, pattern=prefixed),
            acl(ResourceType.TOPIC, "open-not", Operation.ALL, permission=Permission.DENY),
            acl(ResourceType.GROUP, "mine", Operation.READ, pattern=prefixed),
        ]
    )
    arguments = ["--super-user", "User:boss", "--log-level", "error"]
    with BrokerProcess(data, listen="SASL_PLAINTEXT://127.0.0.1:0", arguments=arguments) as process:
        boss, ann = (Session(process.address, name) for name in ("boss", "ann"))
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1}
            for name in ("open-a", "open-not", "secret")
        ]
        made = boss.call(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1000)["topics"]
        yield Place(process, ann, boss, next(t["topic_id"] for t in made if t["name"] == "secret"))
        ann.socket.close()
        boss.socket.close()


def test_every_request_type_has_a_rule() -> None:
    """Whatever the broker serves has its authorization decided."""
    missing = set(API_TABLE) - set(RULES) - SERVED_BY_HAND
    assert not missing, "declare in penstock.broker.security what these need to be allowed"


PARTITION = {"partition_index": 0, "committed_offset": 1, "offset": 0, "timestamp": -1}
PARTITION |= {"partition": 0, "leader_epoch": 0}
ONE = {"name": "secret", "topic": "secret", "topic_name": "secret", "partitions": [PARTITION]}
INDEXES = {"name": "secret", "partition_indexes": [0], "partitions": [0]}
ACL = {"resource_type": 2, "resource_name": "x", "resource_pattern_type": 3, "principal": "User:a"}
ACL |= {"host": "*", "operation": 3, "permission_type": 3}
FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
TRANSACTION = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
OFFSETS = {"group_id": "g", "topics": [INDEXES]}
REFUSED: dict[int, tuple[int, dict[str, Any], int]] = {
    2: (5, {"topics": [ONE]}, TOPIC),
    3: (9, {"topics": [{"name": "secret"}]}, TOPIC),
    8: (8, {"group_id": "mine", "topics": [ONE]}, TOPIC),
    9: (8, {"groups": [OFFSETS]}, GROUP),
    10: (4, {"key_type": 0, "coordinator_keys": ["g"]}, GROUP),
    11: (5, {"group_id": "g", "protocol_type": "consumer"}, GROUP),
    12: (3, {"group_id": "g"}, GROUP),
    13: (3, {"group_id": "g"}, GROUP),
    14: (3, {"group_id": "g"}, GROUP),
    15: (5, {"groups": ["g"]}, GROUP),
    19: (5, {"topics": [{"name": "x", "num_partitions": 1, "replication_factor": 1}]}, TOPIC),
    20: (5, {"topic_names": ["secret"]}, TOPIC),
    21: (2, {"topics": [ONE]}, TOPIC),
    22: (4, {"transactional_id": "t"}, TXN),
    23: (4, {"topics": [ONE]}, TOPIC),
    24: (3, {"v3_and_below_transactional_id": "t", "v3_and_below_topics": [INDEXES]}, TXN),
    25: (3, TRANSACTION | {"group_id": "g"}, TXN),
    26: (3, TRANSACTION, TXN),
    27: (1, {"markers": [{"producer_id": 1, "topics": [INDEXES]}]}, CLUSTER),
    28: (3, TRANSACTION | {"group_id": "g", "topics": [ONE]}, TXN),
    29: (3, FILTER, CLUSTER),
    30: (3, {"creations": [ACL]}, CLUSTER),
    31: (3, {"filters": [FILTER | {"principal_filter": "User:zoe"}]}, CLUSTER),
    32: (4, {"resources": [{"resource_type": 2, "resource_name": "secret"}]}, TOPIC),
    33: (2, {"resources": [{"resource_type": 4, "resource_name": "1"}]}, CLUSTER),
    35: (4, {"topics": None}, CLUSTER),
    37: (3, {"topics": [{"name": "secret", "count": 2}]}, TOPIC),
    42: (2, {"groups_names": ["g"]}, GROUP),
    43: (2, {"topic_partitions": None}, CLUSTER),
    44: (1, {"resources": [{"resource_type": 32, "resource_name": "g"}]}, GROUP),
    45: (0, {"topics": []}, CLUSTER),
    46: (0, {"topics": None}, CLUSTER),
    47: (0, {"group_id": "mine", "topics": [ONE]}, GROUP),
    48: (1, {"components": []}, CLUSTER),
    49: (1, {"entries": [{"entity": [{"entity_type": "user", "entity_name": "x"}]}]}, CLUSTER),
    50: (0, {"users": None}, CLUSTER),
    51: (0, {"deletions": [{"name": "ann", "mechanism": 1}]}, CLUSTER),
    57: (1, {"feature_updates": []}, CLUSTER),
    61: (0, {"topics": [INDEXES]}, TOPIC),
    65: (0, {"transactional_ids": ["t"]}, TXN),
    68: (0, {"group_id": "mine", "subscribed_topic_names": ["secret"]}, TOPIC),
    69: (0, {"group_ids": ["g"]}, GROUP),
    74: (1, {"resource_types": []}, CLUSTER),
    75: (0, {"topics": [{"name": "secret"}]}, TOPIC),
    76: (1, {"group_id": "g", "subscribed_topic_names": []}, GROUP),
    77: (1, {"group_ids": ["g"]}, GROUP),
    78: (1, {"group_id": "g", "topics": []}, GROUP),
    79: (1, {"group_id": "g", "topics": []}, GROUP),
    90: (0, {"groups": [{"group_id": "g", "topics": [INDEXES | {"topic_name": "secret"}]}]}, GROUP),
    91: (0, {"group_id": "mine", "topics": [ONE]}, TOPIC),
    92: (0, {"group_id": "g", "topics": [ONE]}, GROUP),
}
"""A request of each type that ann may not make, and the error it gets."""
OPEN_TO_ALL = {16, 17, 18, 36, 60, 66, 71, 72}
"""Types that are answered with what may be seen, or tell nothing."""


def codes(answer: Any) -> set[int]:
    """All error codes in an answer."""
    found: set[int] = set()
    if isinstance(answer, list):
        for one in answer:
            found |= codes(one)
    elif isinstance(answer, dict):
        for key, value in answer.items():
            if key.endswith("error_code"):
                found.add(int(value))
            else:
                found |= codes(value)
    return found


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("key", sorted(set(API_TABLE) - OPEN_TO_ALL))
def test_refusals(place: Place, key: int) -> None:
    """Each request type is refused with Kafka's error, and changes nothing."""
    version, fields, code = REFUSED[key]
    answer = place.ann.call(key, version, **fields)
    assert codes(answer) - {0} == {code}, answer


@pytest.mark.parametrize("key", sorted(set(API_TABLE) - OPEN_TO_ALL))
def test_super_users_are_not_refused(place: Place, key: int) -> None:
    """The same requests of a super user reach their handlers."""
    if key in {20, 51}:
        pytest.skip("would take away what other tests use")
    version, fields, _ = REFUSED[key]
    if key == 22 and 26 not in API_TABLE:
        pytest.skip("there are no transactions")
    if key in {11, 14}:
        pytest.skip("would wait for other members")
    answer = place.boss.call(key, version, **fields)
    assert not codes(answer) & {TOPIC, GROUP, CLUSTER, TXN}, answer


def produce(session: Session, topic: str, batch: bytearray) -> int:
    """Produces a batch; the error code."""
    part = {"index": 0, "records": bytes(batch)}
    data = [{"name": topic, "partition_data": [part]}]
    answer = session.call(ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)
    return answer["responses"][0]["partition_responses"][0]["error_code"]


def fetch(session: Session, topic: str) -> int:
    """Fetches from a topic; the error code."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    part |= {"current_leader_epoch": -1, "log_start_offset": -1}
    topics = [{"topic": topic, "partitions": [part]}]
    answer = session.call(
        ApiKey.FETCH, 11, max_wait=0, max_bytes=1000, session_epoch=-1, topics=topics
    )
    return answer["responses"][0]["partitions"][0]["error_code"]


def test_records(place: Place, make_batch: Callable[..., bytearray]) -> None:
    """Produce and Fetch serve what is allowed; a topic that may not be used looks the same whether
    it is there or not; a change of the rules counts for open connections.
    """
    for topic, code in (("open-a", 0), ("open-not", TOPIC), ("secret", TOPIC), ("none", TOPIC)):
        assert produce(place.ann, topic, make_batch()) == code
        assert fetch(place.ann, topic) == code
    rule = {"resource_type": 2, "resource_name": "secret", "resource_pattern_type": 3}
    rule |= {"principal": "User:ann", "host": "*", "permission_type": 3}
    both = [rule | {"operation": operation} for operation in (Operation.READ, Operation.WRITE)]
    assert codes(place.boss.call(ApiKey.CREATE_ACLS, 3, creations=both)) == {0}
    assert produce(place.ann, "secret", make_batch()) == 0
    assert fetch(place.ann, "secret") == 0
    only = FILTER | {"resource_name_filter": "secret"}
    removed = place.boss.call(ApiKey.DELETE_ACLS, 3, filters=[only])["filter_results"][0][
        "matching_acls"
    ]
    assert len(removed) == 2
    assert produce(place.ann, "secret", make_batch()) == TOPIC
    assert fetch(place.ann, "secret") == TOPIC


def test_metadata_shows_what_may_be_seen(place: Place) -> None:
    """A list of all topics has the visible ones alone; asking for another makes nothing."""
    names = {one["name"] for one in place.ann.call(ApiKey.METADATA, 9, topics=None)["topics"]}
    assert names == {"open-a"}
    wanted = [{"name": name} for name in ("open-a", "secret", "open-new")]
    answer = place.ann.call(ApiKey.METADATA, 9, topics=wanted, allow_auto_topic_creation=True)
    found = {one["name"]: one["error_code"] for one in answer["topics"]}
    assert found == {"open-a": 0, "secret": TOPIC, "open-new": TOPIC}
    by_id = [{"name": None, "topic_id": place.secret}]
    answer = place.ann.call(ApiKey.METADATA, 12, topics=by_id)["topics"][0]
    assert (answer["error_code"], answer["name"]) == (TOPIC, None)
    assert "open-new" not in {
        one["name"] for one in place.boss.call(ApiKey.METADATA, 9, topics=None)["topics"]
    }


def test_allowed_operations_are_reported(place: Place) -> None:
    """Whoever asks is told what he may do with topics, groups and the cluster."""
    asked = {"topics": [{"name": "open-a"}], "include_topic_authorized_operations": True}
    asked["include_cluster_authorized_operations"] = True
    answer = place.ann.call(ApiKey.METADATA, 9, **asked)
    bits = {1 << one for one in (Operation.READ, Operation.WRITE, Operation.DESCRIBE)}
    assert answer["topics"][0]["topic_authorized_operations"] == sum(bits)
    assert answer["cluster_authorized_operations"] == 0
    answer = place.boss.call(ApiKey.METADATA, 9, **asked)
    assert answer["topics"][0]["topic_authorized_operations"] == 0b110111111000
    group = place.ann.call(
        ApiKey.DESCRIBE_GROUPS, 5, groups=["mine"], include_authorized_operations=True
    )
    assert group["groups"][0]["authorized_operations"] == 1 << 3 | 1 << 8


def test_parts_are_refused_and_the_rest_is_done(place: Place) -> None:
    """A request about several things does what is allowed."""
    topics = [{"name": name, "partitions": [PARTITION]} for name in ("secret", "open-a")]
    answer = place.ann.call(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id="mine-too",
        topics=topics,
        generation_id_or_member_epoch=-1,
    )
    found = {one["name"]: one["partitions"][0]["error_code"] for one in answer["topics"]}
    assert found == {"secret": TOPIC, "open-a": 0}
    groups = [{"group_id": name, "topics": None} for name in ("mine-too", "g")]
    answer = place.ann.call(ApiKey.OFFSET_FETCH, 8, groups=groups)["groups"]
    assert {one["group_id"]: one["error_code"] for one in answer} == {"mine-too": 0, "g": GROUP}
    listed = {one["group_id"] for one in place.ann.call(ApiKey.LIST_GROUPS, 4)["groups"]}
    assert listed <= {"mine", "mine-too"}
    assert place.ann.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)["error_code"] == 0


def test_rules_are_administered(place: Place) -> None:
    """Kafka's requests list, add and remove rules; nonsense has its error."""
    wrong = ACL | {"resource_type": 6}
    odd = ACL | {"operation": 77}
    results = place.boss.call(ApiKey.CREATE_ACLS, 3, creations=[ACL, wrong, odd])["results"]
    assert [one["error_code"] for one in results] == [0, 42, 42]
    answer = place.boss.call(ApiKey.DESCRIBE_ACLS, 3, **(FILTER | {"principal_filter": "User:a"}))
    assert [one["resource_name"] for one in answer["resources"]] == ["x"]
    only = FILTER | {"principal_filter": "User:a"}
    results = place.boss.call(ApiKey.DELETE_ACLS, 3, filters=[only, FILTER | {"operation": 99}])[
        "filter_results"
    ]
    assert [len(one["matching_acls"]) for one in results] == [1, 0]
    assert [one["error_code"] for one in results] == [0, 42]


def test_without_rules_nothing_is_refused(address: str) -> None:
    """Where authorization is off, rules can't be entered over the protocol, as with Kafka."""
    host, _, port = address.rpartition(":")
    session = Session.__new__(Session)
    session.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    with session.socket:
        assert (
            session.call(ApiKey.CREATE_ACLS, 3, creations=[ACL])["results"][0]["error_code"] == 54
        )
        assert session.call(ApiKey.DESCRIBE_ACLS, 3, **FILTER)["error_code"] == 54
        answer = session.call(
            ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1
        )
        assert answer["cluster_authorized_operations"] == 0b1111110100000
