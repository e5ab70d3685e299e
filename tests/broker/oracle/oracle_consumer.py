"""Steps of a scripted session on consumer groups of the newer protocol (KIP-848)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oracle import Answer, Ref, Side, Step

from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
DESCRIBE = ApiKey.CONSUMER_GROUP_DESCRIBE
ROUNDS_MAX = 20
"""A group comes to rest in fewer rounds of heartbeats."""
REBALANCE_MS = 300_000
MEMBERS_MAX = 4
LEAVE, LEAVE_FOR_A_WHILE = -1, -2


@dataclass
class Member:
    """A member, as the script knows it; its epoch and partitions are a side's own."""

    id: str
    group: str
    topics: list[str]
    instance: str | None = None
    assignor: str | None = None


class ConsumerSteps:
    """Draws steps on a few groups."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.members: dict[str, list[Member]] = {}
        self.away: list[Member] = []

    def group(self) -> str:
        """One of the groups."""
        return f"c{self.script.seed}-{self.chance.randrange(2)}"

    def subscription(self) -> list[str]:
        """Topics to subscribe to."""
        return sorted({self.script.a_topic(wrong=0.05) for _ in range(2)})

    def draw(self) -> Step:
        """A step."""
        kinds = [
            (5, self.join),
            (5, self.settle),
            (2, self.leave),
            (3, self.subscribe),
            (4, self.misbehave),
            (4, self.describe),
            (4, self.commit),
            (3, self.committed),
            (1, self.delete),
            (1, self.join_classic),
        ]
        (kind,) = self.chance.choices([one for _, one in kinds], [w for w, _ in kinds])
        return kind()

    # -- members -----------------------------------------------------------------------------------

    def join(self) -> Step:
        """A member joins; then all come to rest."""
        group = self.group()
        members = self.members.setdefault(group, [])
        if len(members) >= MEMBERS_MAX:
            return self.leave()
        back = next((one for one in self.away if one.group == group), None)
        member_id = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        if back is not None:
            self.away.remove(back)
            member = Member(member_id, group, back.topics, back.instance, back.assignor)
        else:
            instance = self.chance.choice([None, None, f"i{next(self.script.names)}"])
            # one assignor per group: of two with as many votes, each broker has its own favourite
            assignor = self.chance.choice([None, "range" if group.endswith("1") else "uniform"])
            member = Member(member_id, group, self.subscription(), instance, assignor)
        members.append(member)
        known = list(members)
        fields = self.hello(member)
        version = self.script.version(HEARTBEAT)

        def step(side: Side) -> Answer:
            return [beat(side, version, member, fields), settled(side, known)]

        what = f"{group}: {member.id} ({member.instance}) of {len(known)}"
        return f"{HEARTBEAT} v{version} joins {what} {member.topics}", step

    def hello(self, member: Member) -> dict[str, Any]:
        """A member's first request."""
        return {
            **quiet(member),
            "member_epoch": 0,
            "rebalance_timeout": REBALANCE_MS,
            "subscribed_topic_names": member.topics,
            "server_assignor": member.assignor,
            "topic_partitions": [],
        }

    def a_member(self) -> Member | None:
        """A member of some group."""
        return self.chance.choice([one for some in self.members.values() for one in some] or [None])

    def leave(self) -> Step:
        """A member leaves, for good or for a while; then the others come to rest."""
        member = self.a_member()
        if member is None:
            return self.join()
        epoch = LEAVE
        if member.instance is not None and self.chance.random() < 0.5:
            epoch = LEAVE_FOR_A_WHILE
            self.away.append(member)
        self.members[member.group].remove(member)
        rest = list(self.members[member.group])
        fields = {**quiet(member), "member_epoch": epoch}
        version = self.script.version(HEARTBEAT)

        def step(side: Side) -> Answer:
            return [side.call(HEARTBEAT, version, fields), settled(side, rest)]

        return f"{HEARTBEAT} v{version} leaves {member.group}: {member.id} {epoch}", step

    def subscribe(self) -> Step:
        """A member wants other topics; then all come to rest."""
        member = self.a_member()
        if member is None:
            return self.join()
        member.topics = self.subscription()
        fields = {**quiet(member), "subscribed_topic_names": member.topics}
        known, version = list(self.members[member.group]), self.script.version(HEARTBEAT)

        def step(side: Side) -> Answer:
            return [beat(side, version, member, fields), settled(side, known)]

        what = f"{member.group}: {member.id} {member.topics}"
        return f"{HEARTBEAT} v{version} subscribes {what}", step

    def settle(self) -> Step:
        """All members send heartbeats until nothing changes."""
        group = self.group()
        known = list(self.members.get(group, []))
        return f"{HEARTBEAT} settles {group}", lambda side: settled(side, known)

    def misbehave(self) -> Step:
        """What a confused member might send."""
        member = self.a_member() or Member("ghost", self.group(), ["missing"])
        hello, own = self.hello(member), quiet(member)
        ghost = {**own, "member_id": "ghost", "instance_id": None}
        wrong: list[dict[str, Any]] = [
            {**own, "member_epoch": 1000},
            {**own, "member_epoch": Ref(f"before {member.id}")},
            {**own, "member_epoch": -3},
            {**ghost, "member_epoch": 3},
            {**ghost, "member_epoch": LEAVE},
            {**ghost, "member_epoch": LEAVE_FOR_A_WHILE},
            {**own, "member_epoch": 2, "group_id": self.script.nobody},
            {**own, "member_epoch": LEAVE, "group_id": self.script.nobody},
            {**hello, "group_id": ""},
            {**hello, "group_id": self.script.stray, "member_id": ""},
            {**hello, "group_id": self.script.stray, "rebalance_timeout": -1},
            {**hello, "group_id": self.script.stray, "topic_partitions": None},
            {**hello, "group_id": self.script.stray, "subscribed_topic_names": None},
            {**hello, "group_id": self.script.stray, "server_assignor": "mine"},
            {**hello, "group_id": self.script.stray, "instance_id": ""},
            {**hello, "group_id": self.script.stray, "rack_id": ""},
            {**hello, "group_id": self.script.stray, "subscribed_topic_regex": "("},
            {**hello, "member_id": "other", "instance_id": member.instance or "no-ones"},
        ]
        fields = self.chance.choice(wrong[:-1] if member.instance is None else wrong)
        version = self.script.versions[HEARTBEAT][1]
        return self.script.one_call(HEARTBEAT, fields, version)

    def join_classic(self) -> Step:
        """A group with members of this protocol is asked what only the older one knows."""
        group = self.group()
        match self.chance.randrange(3):
            case 0:
                return self.script.one_call(15, {"groups": [group]})
            case 1:
                fields = {"group_id": group, "generation_id": 1, "member_id": "ghost"}
                return self.script.one_call(12, fields)
            case _:
                fields = {"group_id": group, "generation_id": 1, "member_id": "ghost"}
                return self.script.one_call(14, {**fields, "assignments": []}, 3)

    # -- the group ---------------------------------------------------------------------------------

    def describe(self) -> Step:
        """Groups from outside."""
        group = self.chance.choice(
            [self.group(), self.group(), self.script.nobody, self.script.groups.a_group()]
        )
        fields = {"group_ids": [group], "include_authorized_operations": False}
        return self.script.one_call(DESCRIBE, fields)

    def delete(self) -> Step:
        """A group goes, if it has no members."""
        group = self.group()
        return self.script.one_call(42, {"groups_names": [group]})

    def epoch(self, member: Member | None) -> Any:
        """A member's epoch, or a wrong one."""
        if member is None:
            return self.chance.choice([-1, 0, 1, 1000])
        right, before = Ref(f"epoch {member.id}"), Ref(f"before {member.id}")
        return self.chance.choice([right, right, right, before, -1, 1000])

    def commit(self) -> Step:
        """A commit of a member, or of nobody."""
        member, topic = self.a_member(), self.script.a_topic()
        version = self.script.version(8)
        part = {
            "partition_index": self.script.a_partition(topic),
            "committed_offset": self.chance.randrange(100),
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partitions": [part]}
        fields = {
            "group_id": member.group if member else self.group(),
            "generation_id_or_member_epoch": self.epoch(member),
            "member_id": self.chance.choice(
                [member.id, member.id, "ghost", ""] if member else [""]
            ),
            "topics": [named],
            "retention_time": -1,
        }
        return self.script.one_call(8, fields, version)

    def committed(self) -> Step:
        """A member asks for offsets."""
        member, topic = self.a_member(), self.script.a_topic()
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partition_indexes": [0, 1]}
        group = member.group if member else self.group()
        member_id = self.chance.choice([member.id, "ghost", None] if member else [None])
        wanted = {
            "group_id": group,
            "topics": self.chance.choice([[named], None]),
            "member_id": member_id,  # without one, an epoch is UNKNOWN_SERVER_ERROR to Kafka
            "member_epoch": -1 if member_id is None else self.epoch(member),
        }
        version = self.chance.randint(9, self.script.versions[9][1])
        return self.script.one_call(9, {"groups": [wanted], "require_stable": False}, version)


# -- what steps share ------------------------------------------------------------------------------


def quiet(member: Member) -> dict[str, Any]:
    """A heartbeat of a member to whom nothing has happened."""
    return {
        "group_id": member.group,
        "member_id": member.id,
        "member_epoch": Ref(f"epoch {member.id}"),
        "instance_id": member.instance,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "server_assignor": None,
        "topic_partitions": None,
    }


def beat(side: Side, version: int, member: Member, fields: dict[str, Any]) -> Answer:
    """A heartbeat; the side remembers the member's epoch and partitions."""
    answer = side.ask("main", HEARTBEAT, version, fields)
    if answer and not answer["error_code"]:
        side.real[f"epoch {member.id}"] = answer["member_epoch"]
        side.real[f"before {member.id}"] = answer["member_epoch"] - 1
        if answer.get("assignment") is not None:
            side.real[f"parts {member.id}"] = answer["assignment"]["topic_partitions"]
    return side.common(answer, HEARTBEAT)


def settled(side: Side, members: list[Member]) -> Answer:
    """All members' epochs and partitions once nothing changes any more."""

    def state() -> list[Any]:
        return [
            [side.real.get(f"{what} {one.id}") for what in ("epoch", "parts")] for one in members
        ]

    codes: list[int] = []
    for _ in range(ROUNDS_MAX):
        before = state()
        codes = []
        for one in members:
            owned = {"topic_partitions": side.real.get(f"parts {one.id}", [])}
            # all that a client says after it has changed something
            fields = {**quiet(one), "rebalance_timeout": REBALANCE_MS, **owned}
            answer = beat(side, 1, one, {**fields, "subscribed_topic_names": one.topics})
            codes.append(answer["error_code"])
        if state() == before:
            break
    assigned = [
        [one["topic_id"], number]
        for _, parts in state()
        for one in parts or ()
        for number in one["partitions"]
    ]
    return side.common(
        {
            "assigned": sorted(side.common(assigned, HEARTBEAT, "assigned"), key=repr),
            "members": [
                {"id": one.id, "member_epoch": epoch, "topic_partitions": parts, "error_code": code}
                for one, (epoch, parts), code in zip(members, state(), codes, strict=True)
            ],
        },
        HEARTBEAT,
    )
