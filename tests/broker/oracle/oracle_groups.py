"""Steps of a scripted session on groups of the classic protocol and on offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oracle import READY_S_MAX, Answer, Ref, Side, Step

from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

ASSIGNMENT = bytes(8)
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\4none" + b"\xff\xff\xff\xff"
"""A consumer's metadata: version 0, one topic, no user data."""
SESSION_MS = 300_000


class GroupSteps:
    """Draws steps on a few groups."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.members: dict[str, list[str]] = {}

    def a_group(self) -> str:
        """A group's name."""
        known = [f"g{self.script.seed}-{n}" for n in range(3)]
        return self.chance.choice([*known, *known, self.script.nobody, ""])

    def commit(self) -> Step:
        """A commit from outside of the group, or with a generation that it doesn't have."""
        topic, version = self.script.a_topic(), self.script.version(8)
        part = {
            "partition_index": self.script.a_partition(topic),
            "committed_offset": self.chance.randrange(100),
            "committed_leader_epoch": self.chance.choice([-1, 0]),
            "committed_metadata": self.chance.choice(["", "m", None, "x" * 5000]),
        }
        generation, member = self.chance.choice([(-1, "")] * 4 + [(3, "ghost"), (0, "")])
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partitions": [part]}
        name = self.a_group()
        if len(part["committed_metadata"] or "") > 1:  # Kafka refuses it, and yet makes the group
            name, generation, member = f"long{self.script.seed}", -1, ""
        fields = {
            "group_id": name,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [named],
            "retention_time": -1,
        }
        return self.script.one_call(8, fields, version)

    def committed(self) -> Step:
        """A group's offsets: of a partition, of none, of all."""
        topic, group, version = self.script.a_topic(), self.a_group(), self.script.version(9)
        named = {
            "name": topic,
            "topic_id": Ref(f"topic {topic}"),
            "partition_indexes": [0, 1, self.script.a_partition(topic)],
        }
        topics = self.chance.choice([[named], [named], None if version >= 2 else [named]])
        wanted = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
        fields = {"group_id": group, "topics": topics, "groups": [wanted], "require_stable": True}
        return self.script.one_call(9, fields, version)

    def delete_offsets(self) -> Step:
        """A group forgets."""
        topic = self.script.a_topic()
        parts = [{"partition_index": self.script.a_partition(topic)}]
        topics = [{"name": topic, "partitions": parts}]
        return self.script.one_call(47, {"group_id": self.a_group(), "topics": topics})

    def join(self) -> Step:
        """A new member: all join again, the leader assigns, all get their part."""
        group = f"g{self.script.seed}-{self.chance.randrange(3)}"
        member = f"member {next(self.script.names)}"
        members = self.members.setdefault(group, [])
        if len(members) >= 4:
            return self.leave()
        known = list(members)
        members.append(member)
        version = self.chance.randint(
            max(self.script.versions[11][0], 0), self.script.versions[11][1]
        )
        return (
            f"join v{version} {group}: {member} to {known}",
            lambda side: rebalance(side, group, version, known, member),
        )

    def leave(self) -> Step:
        """A member goes; the others join again."""
        full = sorted(name for name, members in self.members.items() if members)
        if not full:
            return self.join()
        group = self.chance.choice(full)
        member = self.chance.choice(self.members[group])
        self.members[group].remove(member)
        rest = list(self.members[group])
        leave_version, version = self.script.version(13), self.script.version(11)
        one = {"member_id": Ref(member), "group_instance_id": None, "reason": None}
        fields = {"group_id": group, "member_id": Ref(member), "members": [one]}

        def step(side: Side) -> Answer:
            answer = side.call(ApiKey.LEAVE_GROUP, leave_version, fields)
            return [answer, rebalance(side, group, version, rest, None) if rest else None]

        return f"leave v{leave_version} {group}: {member}", step

    def misbehave(self) -> Step:
        """What a confused member might send."""
        group = self.a_group()
        members = self.members.get(group) or ["ghost"]
        member = self.chance.choice([*members, "ghost"])
        who = {"group_id": group, "member_id": Ref(member) if member != "ghost" else "ghost"}
        match self.chance.randrange(5):
            case 0:
                generation = self.chance.choice([0, 1, 99, -1])
                return self.script.one_call(12, {**who, "generation_id": generation})
            case 1:
                return self.script.one_call(14, {**who, "generation_id": 99, "assignments": []}, 3)
            case 2:
                fields = {
                    **who,
                    "session_timeout": self.chance.choice([1, 10_000_000]),
                    "rebalance_timeout": 1000,
                    "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": b"x"}],
                }
                return self.script.one_call(11, {**fields, "member_id": ""})
            case 3:
                fields = {
                    **who,
                    "member_id": "ghost",
                    "session_timeout": SESSION_MS,
                    "rebalance_timeout": 1000,
                    "protocol_type": self.chance.choice(["consumer", "connect", ""]),
                    "protocols": self.chance.choice([[], [{"name": "other", "metadata": b""}]]),
                }
                return self.script.one_call(11, fields)
            case _:
                one = {"member_id": "ghost", "group_instance_id": None, "reason": None}
                fields = {"group_id": group, "member_id": "ghost", "members": [one]}
                return self.script.one_call(13, fields)

    def describe_groups(self) -> Step:
        """What groups look like from outside."""
        if self.chance.random() < 0.3:
            fields: dict[str, Any] = {"states_filter": [], "types_filter": []}
            version = self.script.version(16)

            def step(side: Side) -> Answer:
                answer = side.call(ApiKey.LIST_GROUPS, version, fields)
                ours = [g for g in answer["groups"] if f"{self.script.seed}-" in g["group_id"][:40]]
                return {**answer, "groups": ours}

            return f"list groups v{version}", step
        version = self.script.version(15)
        fields = {"groups": [self.a_group()], "include_authorized_operations": False}
        return self.script.one_call(15, fields, version)

    def delete_group(self) -> Step:
        """A group goes, if it has no members."""
        return self.script.one_call(42, {"groups_names": [self.a_group()]})


# -- what steps share ------------------------------------------------------------------------------


def rebalance(
    side: Side, group: str, version: int, known: list[str], newcomer: str | None
) -> Answer:
    """All members (and a new one) join, the leader assigns, all sync; what each was told."""
    base = {
        "group_id": group,
        "session_timeout": SESSION_MS,
        "rebalance_timeout": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    answers: list[Any] = []
    waiting = []
    if newcomer is not None:
        member_id = ""
        if version >= 4:
            answer = side.ask(newcomer, 11, version, {**base, "member_id": ""})
            member_id = answer["member_id"]
            side.learn(newcomer, member_id)
            answers.append(side.common(answer, 11))
        side.line(newcomer).send(11, version, {**base, "member_id": member_id})
        waiting.append(newcomer)
        if known:
            rebalancing(side, group)
    for member in known:
        beat = {"group_id": group, "generation_id": 10_000, "member_id": Ref(member)}
        answers.append(side.call(ApiKey.HEARTBEAT, 3, beat, member))
        side.line(member).send(11, version, {**base, "member_id": side.real[member]})
        waiting.append(member)
    joined = {member: side.line(member).receive(11, version) for member in waiting}
    if newcomer is not None:
        side.learn(newcomer, joined[newcomer]["member_id"])
    answers += [role(side.common(joined[member], 11)) for member in waiting]
    leader = next(
        (one for one in waiting if joined[one]["leader"] == joined[one]["member_id"]), waiting[0]
    )
    assignments = [
        {
            "member_id": one["member_id"],
            "assignment": ASSIGNMENT + side.shown[one["member_id"]].encode(),
        }
        for one in joined[leader]["members"]
    ]
    parts = {}
    for member in [leader, *(one for one in waiting if one != leader)]:
        fields = {
            "group_id": group,
            "generation_id": joined[member]["generation_id"],
            "member_id": Ref(member),
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assignments if member == leader else [],
        }
        parts[member] = side.call(ApiKey.SYNC_GROUP, 5, fields, member)
    leads = [joined[one]["leader"] == joined[one]["member_id"] for one in waiting]
    members = side.common({"members": joined[leader]["members"]}, 11)
    return {"told": answers, "parts": parts, "leaders": sum(leads), **members}


def rebalancing(side: Side, group: str, s_max: float = READY_S_MAX) -> None:
    """Waits until a group has taken note of a join: on a busy machine a later one could be first."""
    states = {"PreparingRebalance", "CompletingRebalance"}
    side.until(15, 3, {"groups": [group]}, lambda a: a["groups"][0]["group_state"] in states, s_max)


def role(answer: Answer) -> Answer:
    """A join's answer without who leads: after a leader has left, any member may."""
    return {name: one for name, one in answer.items() if name not in {"leader", "members"}}
