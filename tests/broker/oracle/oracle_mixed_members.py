"""What members of groups of both protocols do in a scripted session: see `oracle_mixed`."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from oracle import Answer, Ref, Side
from oracle_groups import rebalancing

from penstock.broker.groups.consumer_protocol import Assignment, read_assignment
from penstock.wire.protocol import ApiKey, ErrorCode

JOIN = ApiKey.JOIN_GROUP
HEARTBEAT = ApiKey.HEARTBEAT
LEAVE = ApiKey.LEAVE_GROUP
SYNC = ApiKey.SYNC_GROUP
BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
TOPICS = {"a": 4, "b": 3}
ROUNDS_MAX = 12
PATIENCE_MS = 300_000
SHORT_SESSION_MS = 6_000
"""The least that Kafka allows by default."""
NOTICED_S_MAX = 1.0
"""A join that changes nothing begins no rebalance: there is nothing to wait for."""
ANSWER_S_MAX = 5.0
"""Who has joined when all have is answered at once."""
REBALANCING = {22, 25, 27}
"""Codes that tell a classic member to join again."""
NEEDS_ID = ErrorCode.MEMBER_ID_REQUIRED
GONE, GONE_FOR_A_WHILE = -1, -2
EPOCHS = {"member_epoch", "group_epoch", "assignment_epoch", "generation_id"}


@dataclass
class One:
    """A member, as the script knows it."""

    name: str
    is_classic: bool
    topics: list[str]
    instance: str | None = None


@dataclass
class Crowd:
    """A group, as the script knows it.

    Attributes:
        is_cooperative: whether classic members say what they own, and keep it while they join.
        is_modern: whether it is a consumer group at present.
        is_new: whether the next member's epoch is its first.
    """

    id: str
    is_cooperative: bool
    members: list[One] = field(default_factory=list)
    away: list[One] = field(default_factory=list)
    is_modern: bool = False
    is_new: bool = True

    @property
    def protocol(self) -> str:
        """What classic members call their way to assign."""
        return "cooperative-sticky" if self.is_cooperative else "range"

    def look(self) -> Crowd:
        """The group as it is now: a step is carried out when the script is already elsewhere."""
        members = [One(one.name, one.is_classic, one.topics, one.instance) for one in self.members]
        return Crowd(self.id, self.is_cooperative, members, [], self.is_modern, is_new=self.is_new)


def base_beat(crowd: Crowd, one: One) -> dict[str, Any]:
    """A heartbeat of the newer protocol that says nothing."""
    return {
        "group_id": crowd.id,
        "member_id": Ref(f"id {one.name}"),
        "instance_id": one.instance,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "server_assignor": None,
        "topic_partitions": None,
    }


def topic_name(crowd: Crowd, short: str) -> str:
    """A topic's whole name."""
    return f"mixed-{crowd.id[1:-2]}-{short}"


def common_form(side: Side, crowd: Crowd, key: int, answer: Any) -> Answer:
    """An answer in its common form, epochs as distances from the group's first."""
    first = side.real.get(f"first {crowd.id}", 0)

    def relative(value: Any) -> Any:
        match value:
            case dict():
                return {
                    name: f"+{one - first}"
                    if name in EPOCHS and isinstance(one, int) and one > 0
                    else relative(one)
                    for name, one in value.items()
                }
            case list():
                return [relative(one) for one in value]
        return value

    return side.common(relative(answer), key)


def remember(side: Side, crowd: Crowd, one: One, member_id: str, epoch: int) -> None:
    """A member's id and epoch."""
    if crowd.is_new and len(crowd.members) == 1:
        side.real.setdefault(f"fresh {one.name}", epoch)
        side.real[f"first {crowd.id}"] = side.real[f"fresh {one.name}"]
    side.learn(f"id {one.name}", member_id)
    side.real[f"at {one.name}"] = epoch


def beat(
    side: Side,
    crowd: Crowd,
    one: One,
    version: int,
    *,
    is_first: bool = False,
    epoch: int | None = None,
) -> Answer:
    """A modern member's heartbeat; what it was told."""
    if is_first:
        side.learn(f"id {one.name}", one.name)
        side.real.pop(f"has {one.name}", None)
        epoch = 0
    fields = {
        **base_beat(crowd, one),
        "member_epoch": Ref(f"at {one.name}") if epoch is None else epoch,
        "rebalance_timeout": PATIENCE_MS,
        "subscribed_topic_names": [topic_name(crowd, short) for short in one.topics],
        "server_assignor": "range",
        "topic_partitions": side.real.get(f"has {one.name}", []),
    }
    answer = side.ask("main", BEAT, version, fields)
    if answer and not answer["error_code"] and (epoch is None or epoch == 0):
        remember(side, crowd, one, one.name, answer["member_epoch"])
        if answer["assignment"] is not None:
            side.real[f"has {one.name}"] = answer["assignment"]["topic_partitions"]
    return common_form(side, crowd, BEAT, answer)


def subscription(topics: list[str], owned: list[tuple[str, int]]) -> bytes:
    """A classic consumer's metadata, version 1."""
    names = b"".join(struct.pack(">h", len(one)) + one.encode() for one in topics)
    has = Assignment(frozenset(owned)).to_bytes()[2:-4]
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + has


def join_fields(side: Side, crowd: Crowd, one: One) -> dict[str, Any]:
    """A classic member's JoinGroup."""
    owned = side.real.get(f"has {one.name}", []) if crowd.is_cooperative else []
    topics = [topic_name(crowd, short) for short in one.topics]
    return {
        "group_id": crowd.id,
        "session_timeout": PATIENCE_MS,
        "rebalance_timeout": PATIENCE_MS,
        "member_id": side.real.get(f"id {one.name}", ""),
        "group_instance_id": one.instance,
        "protocol_type": "consumer",
        "protocols": [{"name": crowd.protocol, "metadata": subscription(topics, owned)}],
        "reason": None,
    }


def dial(side: Side, one: One) -> None:
    """A classic member has a connection of its own, with its name for a client id."""
    side.line(one.name).client_id = one.name.encode()
    side.line(one.name).socket.settimeout(ANSWER_S_MAX)


def prepare(side: Side, crowd: Crowd, one: One, version: int) -> Answer:
    """A classic member is about to join: it has, or asks for, an id."""
    dial(side, one)
    side.real[f"again {one.name}"] = True
    if one.instance is not None:
        return None
    if crowd.is_modern:
        side.learn(f"id {one.name}", f"{one.name}-chosen")  # else it would be a UUID to Kafka
        return None
    answer = side.ask(one.name, JOIN, version, join_fields(side, crowd, one))
    if answer and answer["error_code"] == NEEDS_ID:
        side.learn(f"id {one.name}", answer["member_id"])
        asked = {"groups": [crowd.id], "include_authorized_operations": False}
        # Kafka gives the id before it has stored the group, and describes it as dead until then.
        side.until(15, 5, asked, lambda found: found["groups"][0]["group_state"] != "Dead")
    return common_form(side, crowd, JOIN, answer)


def leave(side: Side, crowd: Crowd, one: One, version: int, *, by_instance: bool) -> Answer:
    """A classic member leaves, or is taken out by its instance id."""
    member = {
        "member_id": "" if by_instance else Ref(f"id {one.name}"),
        "group_instance_id": one.instance,
        "reason": None,
    }
    fields = {"group_id": crowd.id, "members": [member]}
    return common_form(side, crowd, LEAVE, side.ask("main", LEAVE, version, fields))


def fall_silent(side: Side, crowd: Crowd, one: One, versions: dict[int, int]) -> Answer:
    """A classic member asks for a short session and says no more; what it was told at last."""
    fields = {**join_fields(side, crowd, one), "session_timeout": SHORT_SESSION_MS}
    last = take(side, crowd, one, side.ask(one.name, JOIN, versions[JOIN], fields))
    asked = {"group_ids": [crowd.id], "include_authorized_operations": False}
    member_id = side.real[f"id {one.name}"]

    def is_gone(found: Any) -> bool:
        return all(each["member_id"] != member_id for each in found["groups"][0]["members"])

    side.until(69, 1, asked, is_gone)
    return last


def alive(side: Side, crowd: Crowd, one: One, version: int) -> int:
    """The code of a classic member's heartbeat."""
    fields = {
        "group_id": crowd.id,
        "generation_id": Ref(f"at {one.name}"),
        "member_id": Ref(f"id {one.name}"),
        "group_instance_id": one.instance,
    }
    answer = side.ask(one.name, HEARTBEAT, version, fields)
    return int(answer["error_code"])


def deal(crowd: Crowd, owned: dict[str, list[tuple[str, int]]]) -> dict[str, list[tuple[str, int]]]:
    """What a leader gives: in turn, but nothing that another one has."""
    members = [one for one in crowd.members if one.name in owned]
    dealt: dict[str, list[tuple[str, int]]] = {name: [] for name in owned}
    for short, count in TOPICS.items():
        wanting = [one for one in members if short in one.topics]
        for number in range(count if wanting else 0):
            part = topic_name(crowd, short), number
            name = wanting[number % len(wanting)].name
            if all(part not in has for other, has in owned.items() if other != name):
                dealt[name].append(part)
    return dealt


def sync(
    side: Side, crowd: Crowd, one: One, version: int, assignments: list[dict[str, Any]]
) -> Answer:
    """A classic member gets its assignment; gives up what isn't in it."""
    fields = {
        "group_id": crowd.id,
        "generation_id": Ref(f"at {one.name}"),
        "member_id": Ref(f"id {one.name}"),
        "group_instance_id": one.instance,
        "protocol_type": "consumer",
        "protocol_name": crowd.protocol,
        "assignments": assignments,
    }
    answer = side.ask(one.name, SYNC, version, fields)
    if not answer or answer["error_code"]:
        side.real[f"again {one.name}"] = bool(answer) and answer["error_code"] in REBALANCING
        return common_form(side, crowd, SYNC, answer)
    has = sorted(read_assignment(answer["assignment"]).parts)
    before = side.real.get(f"has {one.name}", [])
    is_less = any(part not in has for part in before)
    side.real[f"again {one.name}"] = crowd.is_cooperative and not crowd.is_modern and is_less
    side.real[f"has {one.name}"] = has
    return {"error_code": 0, "assignment": has}


def take(side: Side, crowd: Crowd, one: One, answer: Any) -> Answer:
    """A JoinGroup's answer."""
    if answer and not answer["error_code"]:
        remember(side, crowd, one, answer["member_id"], answer["generation_id"])
        side.real[f"again {one.name}"] = False
    elif answer and answer["error_code"] == 25:
        side.real[f"id {one.name}"] = ""
    found = common_form(side, crowd, JOIN, answer)
    if isinstance(found, dict):
        for which in ("leader", "members"):  # whoever joined first leads, by Kafka's hash tables
            found.pop(which, None)
    return found


def answer_of(side: Side, one: One, version: int) -> Any:
    """What a JoinGroup was answered; None: nothing, though all have joined."""
    try:
        return side.line(one.name).receive(JOIN, version)
    except (TimeoutError, ConnectionError):
        side.hang_up(one.name)
        return None


def join_together(
    side: Side, crowd: Crowd, behind: list[One], versions: dict[int, int]
) -> list[Answer]:
    """Members of a classic group join: none is answered before all have."""
    joined = {one.name: answer_of(side, one, versions[JOIN]) for one in behind}
    silent: list[Answer] = [[one.name, "silent"] for one in behind if joined[one.name] is None]
    if silent:
        return silent
    said = [[one.name, "join", take(side, crowd, one, joined[one.name])] for one in behind]
    leads = [one for one in behind if joined[one.name]["members"]]
    owned = {
        one.name: side.real.get(f"has {one.name}", []) if crowd.is_cooperative else []
        for one in behind
    }
    dealt = deal(crowd, owned)
    assignments = [
        {
            "member_id": side.real[f"id {one.name}"],
            "assignment": Assignment(frozenset(dealt[one.name])).to_bytes(),
        }
        for one in behind
    ]
    ordered = leads + [one for one in behind if one not in leads]
    synced = {}
    for one in ordered:
        given = assignments if one in leads else []
        synced[one.name] = sync(side, crowd, one, versions[SYNC], given)
    return [*said, *([one.name, "sync", synced[one.name]] for one in behind)]


def round_of_classic(side: Side, crowd: Crowd, versions: dict[int, int]) -> list[Answer]:
    """Classic members send heartbeats, and join where they are told to."""
    said: list[Answer] = []
    behind: list[One] = []
    classic = [one for one in crowd.members if one.is_classic]
    has_waited = False
    classic.sort(key=lambda one: (not side.real.get(f"again {one.name}"), one.name))
    for one in classic:
        dial(side, one)
        must_join = side.real.get(f"again {one.name}")
        if behind and not must_join and not has_waited:
            has_waited = True
            rebalancing(side, crowd.id, NOTICED_S_MAX)
        code = 27 if must_join else alive(side, crowd, one, versions[HEARTBEAT])
        if code and not must_join:
            said.append([one.name, "alive", code])
        if code not in REBALANCING:
            continue
        if code == 25:
            side.real[f"id {one.name}"] = f"{one.name}-again" if crowd.is_modern else ""
            side.real[f"has {one.name}"] = []
        fields = join_fields(side, crowd, one)
        if crowd.is_modern:
            answer = side.ask(one.name, JOIN, versions[JOIN], fields)
            said.append([one.name, "join", take(side, crowd, one, answer)])
            if answer and not answer["error_code"]:
                said.append([one.name, "sync", sync(side, crowd, one, versions[SYNC], [])])
        else:
            side.line(one.name).send(JOIN, versions[JOIN], fields)
            behind.append(one)
    if behind:
        said += join_together(side, crowd, sorted(behind, key=lambda one: one.name), versions)
    return said


def rest(side: Side, crowd: Crowd, versions: dict[int, int]) -> dict[str, Answer]:
    """All act as clients do until nothing changes; what they were told, who has what."""
    said: list[Answer] = []
    for _ in range(ROUNDS_MAX):
        before = [
            [side.real.get(f"{what} {one.name}") for what in ("at", "has", "again")]
            for one in crowd.members
        ]
        modern = [one for one in crowd.members if not one.is_classic]
        said += [[one.name, "beat", beat(side, crowd, one, 1)] for one in modern]
        heard = round_of_classic(side, crowd, versions)
        said += heard
        after = [
            [side.real.get(f"{what} {one.name}") for what in ("at", "has", "again")]
            for one in crowd.members
        ]
        if (before == after and not heard) or any(one[1] == "silent" for one in heard):
            break
    return {
        "said": {str(n): one for n, one in enumerate(said)},
        "rest": look(side, crowd, whole=True),
    }


def look(side: Side, crowd: Crowd, *, whole: bool = False) -> dict[str, Answer]:
    """The group from outside: its state, and with `whole` all that is told of it."""
    found: dict[str, Any] = {}
    if whole:  # Kafka doesn't always list a group whose first member has got an id and no more
        listed = side.ask("main", 16, 5, {"states_filter": [], "types_filter": []})["groups"]
        found["listed"] = [one for one in listed if one["group_id"] == crowd.id]
    for key, version, field_name in ((15, 5, "groups"), (15, 6, "groups"), (69, 1, "group_ids")):
        fields = {field_name: [crowd.id], "include_authorized_operations": False}
        answer = side.ask("main", key, version, fields)
        (group,) = answer["groups"]
        if not whole:
            group = {name: one for name, one in group.items() if name.endswith(("state", "code"))}
        found[f"{key} v{version}"] = common_form(side, crowd, key, group)
    return found
