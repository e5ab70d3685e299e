"""Steps of a scripted session on share groups (KIP-932)."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oracle import Answer, Ref, Side, Step, know

from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ConfigResource

if TYPE_CHECKING:
    from oracle_steps import Script

HEARTBEAT = ApiKey.SHARE_GROUP_HEARTBEAT
DESCRIBE = ApiKey.SHARE_GROUP_DESCRIBE
FETCH = ApiKey.SHARE_FETCH
ACKNOWLEDGE = ApiKey.SHARE_ACKNOWLEDGE
DESCRIBE_OFFSETS = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
ALTER_OFFSETS = ApiKey.ALTER_SHARE_GROUP_OFFSETS
DELETE_OFFSETS = ApiKey.DELETE_SHARE_GROUP_OFFSETS
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = ConfigResource.GROUP
LEAVE = -1
WAIT_MS = 200
"""How long a fetch waits for records."""
FIRST_S_MAX = 20.0
"""Kafka makes a group's partitions ready when they are first asked for."""
MEMBERS_MAX = 3
TOPICS = 2
ROUNDS_MAX = 8
"""A record is delivered five times at most; then there is nothing more."""


@dataclass
class ShareGroup:
    """A group as the script knows it."""

    id: str
    topic: str
    members: list[str] = field(default_factory=list)
    is_configured: bool = False
    has_released: bool = False
    has_records: bool = False


class ShareSteps:
    """Draws steps on a few groups, each of which reads one partition of its own topic."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.groups = [
            ShareGroup(f"s{script.seed}-{n}", f"q{script.seed}-{n}") for n in range(TOPICS)
        ]

    def draw(self) -> Step:
        """A step."""
        group = self.chance.choice(self.groups)
        if not group.is_configured:
            group.is_configured = True
            return self.begin(group)
        kinds = [
            (3, self.join),
            (2, self.beat),
            (1, self.leave),
            (3, self.misbehave),
            (6, self.work),
            (2, self.misuse),
            (3, self.describe),
            (3, self.offsets),
            (1, self.alter),
            (1, self.delete),
        ]
        (kind,) = self.chance.choices([one for _, one in kinds], [w for w, _ in kinds])
        return kind(group)

    def begin(self, group: ShareGroup) -> Step:
        """A topic, and a group that is to read it from its start."""
        version, member = self.script.version(19), self.member_id()

        def step(side: Side) -> Answer:
            wanted = {"name": group.topic, "num_partitions": 1, "replication_factor": 1}
            topics = [{**wanted, "configs": []}]
            made = {"topics": topics, "timeout": 10_000, "validate_only": False}
            side.ask("main", 19, version, made)
            know(side, group.topic)
            one = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
            resource = {"resource_type": GROUP, "resource_name": group.id, "configs": [one]}
            answer = side.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                {"resources": [resource], "validate_only": False},
            )
            asked = {"resource_type": GROUP, "resource_name": group.id}
            fields = {"resources": [{**asked, "configuration_keys": [one["name"]]}]}
            side.until(32, 4, fields, is_earliest)
            return [answer, visited(side, group, member)]

        return f"share {group.id} of {group.topic}", step

    # -- members -----------------------------------------------------------------------------------

    def member_id(self) -> str:
        """A new member's id, as Kafka's clients write it."""
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))

    def join(self, group: ShareGroup) -> Step:
        """A member joins; then the others learn of it."""
        if len(group.members) >= MEMBERS_MAX:
            return self.leave(group)
        member = self.member_id()
        group.members.append(member)
        known = list(group.members)
        fields = {
            **quiet(group, member),
            "member_epoch": 0,
            "subscribed_topic_names": [group.topic],
        }

        def step(side: Side) -> Answer:
            return [beat(side, member, fields), settled(side, group, known)]

        return f"{HEARTBEAT} joins {group.id}: {member} of {len(known)}", step

    def beat(self, group: ShareGroup) -> Step:
        """All are alive."""
        known = list(group.members)
        return f"{HEARTBEAT} settles {group.id}", lambda side: settled(side, group, known)

    def leave(self, group: ShareGroup) -> Step:
        """A member leaves; the others learn of it."""
        if not group.members:
            return self.join(group)
        member = self.chance.choice(group.members)
        group.members.remove(member)
        known = list(group.members)
        fields = {**quiet(group, member), "member_epoch": LEAVE}

        def step(side: Side) -> Answer:
            return [side.call(HEARTBEAT, 1, fields), settled(side, group, known)]

        return f"{HEARTBEAT} leaves {group.id}: {member}", step

    def misbehave(self, group: ShareGroup) -> Step:
        """What a confused member might send."""
        member = self.chance.choice(group.members or ["ghost"])
        own, ghost = quiet(group, member), quiet(group, "ghost")
        hello = {**ghost, "member_epoch": 0, "group_id": self.script.stray}
        wrong: list[dict[str, Any]] = [
            {**own, "member_epoch": 1000},
            {**own, "member_epoch": -2},
            {**ghost, "member_epoch": 3},
            {**ghost, "member_epoch": LEAVE},
            {**own, "member_epoch": 2, "group_id": self.script.nobody},
            {**own, "member_epoch": LEAVE, "group_id": self.script.nobody},
            {**hello, "group_id": "", "subscribed_topic_names": [group.topic]},
            {**hello, "member_id": "", "subscribed_topic_names": [group.topic]},
            {**hello, "subscribed_topic_names": None},
            {**hello, "subscribed_topic_names": []},
            {**hello, "rack_id": "", "subscribed_topic_names": [group.topic]},
        ]
        return self.script.one_call(HEARTBEAT, self.chance.choice(wrong))

    # -- records -----------------------------------------------------------------------------------

    def work(self, group: ShareGroup) -> Step:
        """Records are written; a member takes them, says of each what became of it, and comes back
        for what it gave back, until there is nothing more; then its session ends.
        """
        written = [self.script.records.a_batch() for _ in range(self.chance.randint(1, 4))]
        member, version = self.member_id(), self.script.version(FETCH)
        acknowledge = self.script.version(ACKNOWLEDGE)
        kinds = self.chance.choices([ACCEPT, RELEASE, REJECT], [6, 3, 1], k=200)
        most = self.chance.choice([1, 5, 500])
        mode = self.chance.randrange(2) if version >= 2 else 0
        by_fetch, ends_early = self.chance.random() < 0.3, self.chance.random() < 0.3
        misuses, keeps = self.chance.random() < 0.5, self.chance.random() < 0.5
        if group.has_released and not mode:
            most = 500  # Kafka hands out released records of several batches as if they were one
        group.has_released, group.has_records = ends_early, True

        def step(side: Side) -> Answer:
            for one in written:
                named = {"name": group.topic, "partition_data": [{"index": 0, "records": one}]}
                fields = {"acks": -1, "timeout": 5000, "topic_data": [named]}
                side.call(ApiKey.PRODUCE, 9, fields)
            worker = Worker(side, group, member, version, acknowledge, most, mode)
            worker.keeps = keeps
            return worker.work(kinds, by_fetch=by_fetch, ends_early=ends_early, misuses=misuses)

        what = f"v{version} v{acknowledge} most {most} mode {mode}"
        return f"share work {group.id} {what} {by_fetch} {ends_early} {misuses} {keeps}", step

    def misuse(self, group: ShareGroup) -> Step:
        """Sessions that there aren't, ids that make no sense."""
        member = self.member_id()
        epoch = self.chance.choice([-1, 1, 5])
        if self.chance.random() < 0.5:
            version = self.script.version(ACKNOWLEDGE)
            fields = ack_fields(group, member, max(0, epoch), [(0, 0, [ACCEPT])])
            wrong = [fields, {**fields, "group_id": None}, {**fields, "member_id": None}]
            return self.script.one_call(ACKNOWLEDGE, self.chance.choice(wrong), version)
        version = self.script.version(FETCH)
        fields = fetch_fields(group, member, epoch, 10, 0, wait_ms=0)
        wrong = [fields, {**fields, "group_id": None}, {**fields, "member_id": None}]
        return self.script.one_call(FETCH, self.chance.choice(wrong), version)

    # -- the group ---------------------------------------------------------------------------------

    def describe(self, group: ShareGroup) -> Step:
        """Groups from outside."""
        name = self.chance.choice(
            [group.id, group.id, self.script.nobody, self.script.groups.a_group()]
        )
        fields = {"group_ids": [name], "include_authorized_operations": False}
        return self.script.one_call(DESCRIBE, fields)

    def offsets(self, group: ShareGroup) -> Step:
        """Where a group stands."""
        name = self.chance.choice([group.id] * 4 + [self.script.nobody])
        topics = self.chance.choice(
            [
                None,
                [{"topic_name": group.topic, "partitions": [0]}],
                [{"topic_name": "missing", "partitions": [0]}],
            ]
        )
        what, describe = self.script.one_call(
            DESCRIBE_OFFSETS, {"groups": [{"group_id": name, "topics": topics}]}
        )

        def step(side: Side) -> Answer:
            answer = describe(side)
            return {**answer, "contradictions": contradictions(side, group.topic, answer)}

        return what, step

    def alter(self, group: ShareGroup) -> Step:
        """A group is put elsewhere, if it has no members."""
        name = self.chance.choice([group.id] * 4 + [self.script.stray])
        topic = self.chance.choice([group.topic] * 4 + ["missing"])
        offset = 1 if group.has_records else 0  # not one that isn't there
        parts = [{"partition_index": self.chance.choice([0, 0, 0, 7]), "start_offset": offset}]
        if name == self.script.stray:  # Kafka refuses the topic, and yet makes the group
            topic = "missing"
        fields = {"group_id": name, "topics": [{"topic_name": topic, "partitions": parts}]}
        return self.script.one_call(ALTER_OFFSETS, fields)

    def delete(self, group: ShareGroup) -> Step:
        """A group forgets a topic, if it has no members."""
        name = self.chance.choice([group.id] * 4 + [self.script.nobody])
        topic = self.chance.choice([group.topic] * 2 + ["missing"])
        fields = {"group_id": name, "topics": [{"topic_name": topic}]}
        what, delete = self.script.one_call(DELETE_OFFSETS, fields)
        member, forgets = self.member_id(), name == group.id and topic == group.topic
        if group.members or not forgets:
            return what, delete
        return what, lambda side: [delete(side), visited(side, group, member)]


def contradictions(side: Side, topic: str, answer: Answer) -> list[str]:
    """Where a group is said to be done with all, and not to stand at the log's end."""
    part = {"partition_index": 0, "timestamp": -1}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
    (found,) = side.ask("main", 2, 5, asked)["topics"]
    end = found["partitions"][0]["offset"]
    return [
        f"done with all at {one['start_offset']} of {end}"
        for group in answer["groups"]
        for described in group["topics"]
        for one in described["partitions"]
        if one.get("lag") == 0 and one["start_offset"] != end
    ]


class Worker:
    """A member's session on one side."""

    def __init__(
        self,
        side: Side,
        group: ShareGroup,
        member: str,
        fetch_version: int,
        ack_version: int,
        most: int,
        mode: int,
    ) -> None:
        self.side, self.group, self.member = side, group, member
        self.fetch_version, self.ack_version = fetch_version, ack_version
        self.most, self.mode = most, mode
        self.epoch = 0
        self.keeps = False
        """Whether it says nothing of its last records when it ends early."""

    def fetch(self, acks: list[Any] | None = None, **more: Any) -> tuple[Answer, list[Any], bytes]:
        """One request; its answer in the common form, what was acquired, the records."""
        fields = fetch_fields(self.group, self.member, self.epoch, self.most, self.mode, acks)
        answer = self.side.ask(self.line, FETCH, self.fetch_version, {**fields, **more})
        self.epoch += 1
        acquired: list[Any] = []
        data = b""
        if answer and answer["responses"]:
            part = answer["responses"][0]["partitions"][0]
            data = part["records"] or b""
            acquired = [
                (offset, one["delivery_count"])
                for one in part["acquired_records"]
                for offset in range(one["first_offset"], one["last_offset"] + 1)
            ]
            part["records"], part["acquired_records"] = None, []
        return self.side.common(answer, FETCH), acquired, data

    @property
    def line(self) -> str:
        """A session belongs to its connection."""
        return f"share {self.member}"

    def acknowledge(self, acks: list[Any], **more: Any) -> Answer:
        """Says what became of records."""
        fields = ack_fields(self.group, self.member, self.epoch, acks)
        self.epoch += 1
        filled = {**fields, **more}
        return self.side.common(
            self.side.ask(self.line, ACKNOWLEDGE, self.ack_version, filled), ACKNOWLEDGE
        )

    def work(self, kinds: list[int], *, by_fetch: bool, ends_early: bool, misuses: bool) -> Answer:
        """Fetches and acknowledges until there is nothing more."""
        answers: list[Any] = []
        seen: dict[int, list[int]] = {}
        records: dict[int, Any] = {}
        pending: list[Any] = []
        rounds = 0
        deadline = time.monotonic() + FIRST_S_MAX
        while rounds < ROUNDS_MAX * 20 and time.monotonic() < deadline:
            answer, acquired, data = self.fetch(pending if by_fetch else None)
            settles = bool(pending) and by_fetch
            if settles:
                answers.append(answer)
            elif answer == "closed" or answer["error_code"]:
                answers.append(answer)
                break
            pending = []
            if not acquired and not rounds:
                continue  # not ready yet
            rounds += 1
            for offset, count in acquired:
                seen.setdefault(offset, []).append(count)
            note(records, data, acquired)
            if not acquired and not settles:  # what was just released may come a moment later
                break
            pending = [
                (offset, offset, [kinds[(offset + count) % len(kinds)]])
                for offset, count in acquired
            ]
            if self.ack_version >= 2 and misuses and not by_fetch:
                renewals = [(first, last, [RENEW]) for first, last, _ in pending]
                answers.append({"renew": self.acknowledge(renewals, is_renew_ack=True)})
            if ends_early:
                break
            if not by_fetch:
                answers.append(self.acknowledge(pending))
                if misuses:
                    answers.append({"again": self.acknowledge(pending[:1])})
        if misuses:
            wrong = [(1_000_000, 1_000_000, [ACCEPT])]
            answers.append({"unknown": self.acknowledge(wrong)})
            answers.append({"backwards": self.acknowledge([(5, 3, [ACCEPT])])})
            answers.append({"odd": self.acknowledge([(0, 0, [9])])})
            answers.append({"two": self.acknowledge([(0, 5, [ACCEPT, RELEASE])])})
            self.epoch, kept = self.epoch + 3, self.epoch
            answers.append({"epoch": self.acknowledge([])})
            self.epoch = kept
        self.epoch = -1
        answers.append({"end": self.acknowledge(pending if ends_early and not self.keeps else [])})
        self.side.hang_up(self.line)
        # how many requests it takes is up to the broker
        return {"told": by_kind(answers), "seen": seen, "records": sorted(records.items())}


def by_kind(answers: list[Any]) -> dict[str, list[Any]]:
    """The different answers to each kind of request."""
    found: dict[str, dict[str, Any]] = {}
    for one in answers:
        ((kind, answer),) = one.items() if isinstance(one, dict) and len(one) == 1 else (("", one),)
        found.setdefault(kind or "acknowledged", {})[repr(answer)] = answer
    return {kind: [some[one] for one in sorted(some)] for kind, some in found.items()}


def note(records: dict[int, Any], data: bytes, acquired: list[Any]) -> None:
    """What the acquired records are."""
    offsets = {offset for offset, _ in acquired}
    for at, header in batches.iterate(data):
        for one in batches.records(data, at, header):
            if one.offset in offsets:
                records[one.offset] = (one.timestamp_ms, one.key, one.value)


def is_earliest(found: Any) -> bool:
    """Whether a group's setting is there."""
    return bool(found["results"][0]["configs"][0]["value"] == "earliest")


def visited(side: Side, group: ShareGroup, member: str) -> Answer:
    """A member comes, so that Kafka makes the partition's state, and leaves again."""
    hello = {**quiet(group, member), "subscribed_topic_names": [group.topic], "member_epoch": 0}

    def has_partition(found: Any) -> bool:
        hello["member_epoch"] = found["member_epoch"]
        return bool(found["assignment"]["topic_partitions"])

    side.until(HEARTBEAT, 1, hello, has_partition)
    return side.call(HEARTBEAT, 1, {**quiet(group, member), "member_epoch": LEAVE})


def quiet(group: ShareGroup, member: str) -> dict[str, Any]:
    """A heartbeat of a member to whom nothing has happened."""
    return {
        "group_id": group.id,
        "member_id": member,
        "member_epoch": Ref(f"epoch {member}"),
        "rack_id": None,
        "subscribed_topic_names": None,
    }


def beat(side: Side, member: str, fields: dict[str, Any]) -> Answer:
    """A heartbeat; the side remembers the member's epoch and partitions."""
    answer = side.ask("main", HEARTBEAT, 1, fields)
    if answer and not answer["error_code"]:
        side.real[f"epoch {member}"] = answer["member_epoch"]
        if answer.get("assignment") is not None:
            side.real[f"parts {member}"] = answer["assignment"]["topic_partitions"]
    return side.common(answer, HEARTBEAT)


def settled(side: Side, group: ShareGroup, members: list[str]) -> Answer:
    """All members' partitions once nothing changes any more."""

    def state() -> list[Any]:
        return [[side.real.get(f"{what} {one}") for what in ("epoch", "parts")] for one in members]

    codes: list[Any] = []
    for _ in range(ROUNDS_MAX):
        before = state()
        codes = [beat(side, one, quiet(group, one))["error_code"] for one in members]
        if state() == before:
            break
    parts = [side.real.get(f"parts {one}") for one in members]
    epochs = [side.real.get(f"epoch {one}") for one in members]
    return {
        "epochs": epochs,
        "codes": codes,
        **side.common({"members": [{"topic_partitions": one} for one in parts]}, HEARTBEAT),
    }


def topics_of(group: ShareGroup, acks: list[Any] | None) -> list[dict[str, Any]]:
    """A request's only partition, with acknowledgements."""
    given = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
        for first, last, types in acks or ()
    ]
    part = {"partition_index": 0, "partition_max_bytes": 0, "acknowledgement_batches": given}
    return [{"topic_id": Ref(f"topic {group.topic}"), "partitions": [part]}]


def fetch_fields(
    group: ShareGroup,
    member: str,
    epoch: int,
    most: int,
    mode: int,
    acks: list[Any] | None = None,
    wait_ms: int = WAIT_MS,
) -> dict[str, Any]:
    """A ShareFetch."""
    return {
        "group_id": group.id,
        "member_id": member,
        "share_session_epoch": epoch,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": most,
        "batch_size": most,
        "share_acquire_mode": mode,
        "is_renew_ack": False,
        "topics": topics_of(group, acks) if epoch == 0 or acks else [],
        "forgotten_topics_data": [],
    }


def ack_fields(group: ShareGroup, member: str, epoch: int, acks: list[Any]) -> dict[str, Any]:
    """A ShareAcknowledge."""
    return {
        "group_id": group.id,
        "member_id": member,
        "share_session_epoch": epoch,
        "is_renew_ack": False,
        "topics": topics_of(group, acks) if acks else [],
    }
