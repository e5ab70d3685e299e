"""The steps of a scripted session, chosen by chance: each is carried out on both sides.

A step is a function of a side that gives an answer in its common form. `Script` draws the steps; it
knows the session's state (topics, groups, transactions), which is the same on both sides as long as
they agree.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from oracle import Answer, Ref, Side
from oracle_compaction import CompactionSteps
from oracle_consumer import ConsumerSteps
from oracle_share import ShareSteps

from penstock.wire import batches

Step = tuple[str, Callable[[Side], Answer]]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ONLY = re.compile(os.environ.get("PENSTOCK_ONLY", "."))
"""Which kinds of steps are drawn: a class, or single methods; all by default."""
ASSIGNMENT = bytes(8)
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\4none" + b"\xff\xff\xff\xff"
"""A consumer's metadata: version 0, one topic, no user data."""
SESSION_MS = 300_000
SETTLE_S = 0.1
"""Kafka's coordinators learn of a topic later than those who ask for metadata."""


@dataclass
class Txn:
    """A transactional producer."""

    name: str
    epoch: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    is_open: bool = False


class Script:
    """Draws steps."""

    def __init__(self, seed: int, versions: dict[int, tuple[int, int]], run: str = "") -> None:
        self.chance = random.Random(seed)
        self.seed = f"{seed}-{run}" if run else str(seed)
        self.versions = versions
        self.topics: dict[str, int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.groups: dict[str, list[str]] = {}
        self.generation: dict[str, int] = {}
        self.txns: dict[str, Txn] = {}
        self.sequences: dict[str, dict[tuple[str, int], int]] = {}
        self.names = itertools.count()
        self.nobody = f"nobody-{self.seed}"
        self.stray = "stray" + self.seed.replace("-", "")  # what is refused may yet make a group
        self.base_ms = int(time.time() * 1000) - 1_000_000
        self.clock = 0
        self.compaction = CompactionSteps(self)
        self.consumers = ConsumerSteps(self)
        self.shares = ShareSteps(self)

    # -- drawing -----------------------------------------------------------------------------------

    def steps(self, count: int) -> Iterator[Step]:
        """So many steps."""
        yield self.create_topic(fair=True)
        yield self.create_topic(fair=True)
        yield self.init_producer()
        kinds = [(weight, one) for weight, one in self.kinds() if ONLY.search(one.__qualname__)]
        for _ in range(count):
            (kind,) = self.chance.choices([one for _, one in kinds], [w for w, _ in kinds])
            yield kind()

    def kinds(self) -> list[tuple[int, Callable[[], Step]]]:
        """All kinds of steps, with weights."""
        kinds: list[tuple[int, Callable[[], Step]]] = [
            (3, self.create_topic),
            (1, self.delete_topic),
            (1, self.create_partitions),
            (14, self.produce),
            (6, self.produce_idempotent),
            (6, self.produce_badly),
            (10, self.fetch),
            (10, self.list_offsets),
            (6, self.commit),
            (6, self.committed),
            (2, self.delete_offsets),
            (5, self.join),
            (2, self.leave),
            (4, self.misbehave),
            (3, self.describe_groups),
            (1, self.delete_group),
            (2, self.delete_records),
            (3, self.describe_configs),
            (4, self.alter_configs),
            (2, self.leader_epoch),
            (2, self.describe_producers),
            (4, self.metadata),
            (3, self.garbage),
            (1, self.init_producer),
            (1, self.compaction.draw),
        ]
        if 68 in self.versions:
            kinds.append((16, self.consumers.draw))
        if 78 in self.versions:
            kinds.append((12, self.shares.draw))
        if 24 in self.versions:
            kinds += [
                (3, self.init_txn),
                (10, self.produce_in_txn),
                (6, self.end_txn),
                (2, self.txn_misuse),
                (3, self.describe_txn),
            ]
        return kinds

    def version(self, key: int) -> int:
        """A version that both sides serve."""
        return self.chance.randint(*self.versions[key])

    def a_topic(self, *, wrong: float = 0.08) -> str:
        """A topic's name, sometimes of one that isn't there."""
        if not self.topics or self.chance.random() < wrong:
            return "missing"
        return self.chance.choice(sorted(self.topics))

    def a_partition(self, topic: str, *, wrong: float = 0.08) -> int:
        """A partition's number, sometimes of none."""
        if self.chance.random() < wrong:
            return self.chance.choice([-1, 99])
        return self.chance.randrange(self.topics.get(topic, 1))

    def one_call(self, key: int, fields: dict[str, Any], version: int | None = None) -> Step:
        """A step that is one request."""
        number = self.version(key) if version is None else version
        return f"{key} v{number} {shorten(fields)}", lambda side: side.call(key, number, fields)

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, *, fair: bool = False) -> Step:
        """A topic, with odd counts, names and settings now and then."""
        pick = self.chance.choice
        name = f"t{self.seed}-{next(self.names)}"
        count, factor, configs = self.chance.randint(1, 4), 1, {}
        if not fair:
            name = pick([name] * 6 + ["", "a b", "x" * 250, "..", self.a_topic()])
            count = pick([count] * 6 + [0, -1, -2])
            factor = pick([1] * 8 + [-1, 0, 3])
            configs = pick(
                [{}] * 4
                + [
                    {"retention.ms": "-1"},
                    {"message.timestamp.type": "LogAppendTime"},
                    {"max.message.bytes": "3000"},
                    {"segment.bytes": "many"},
                    {"no.such.setting": "1"},
                    {"retention.ms": "-2"},
                ]
            )
        wanted = {
            "name": name,
            "num_partitions": count,
            "replication_factor": factor,
            "configs": [{"name": one, "value": value} for one, value in configs.items()],
        }
        dry = not fair and self.chance.random() < 0.15
        fields = {"topics": [wanted], "timeout": 10_000, "validate_only": dry}
        version = self.version(19)

        def step(side: Side) -> Answer:
            answer = side.ask("main", 19, version, fields)
            if answer and not answer["topics"][0]["error_code"] and not dry:
                self.topics[name] = know(side, name)
            if answer:
                answer["topics"][0].pop("configs", None)  # all settings: compared elsewhere
            return side.common(answer, 19)

        return f"create v{version} {shorten(fields)}", step

    def delete_topic(self) -> Step:
        """A topic goes, by name or by id."""
        if len(self.topics) < 3:
            return self.create_topic(fair=True)
        name, version = self.a_topic(), self.version(20)
        by_id = version >= 6 and self.chance.random() < 0.5
        one = {"name": None, "topic_id": Ref(f"topic {name}")} if by_id else {"name": name}
        fields = {"topics": [one], "topic_names": [name], "timeout": 10_000}
        self.topics.pop(name, None)

        def step(side: Side) -> Answer:
            answer = side.call(20, version, fields)
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            side.until(3, 8, asked, lambda found: found["topics"][0]["error_code"] == 3)
            time.sleep(SETTLE_S)
            return answer

        return f"delete v{version} {shorten(fields)}", step

    def create_partitions(self) -> Step:
        """A topic grows, or doesn't."""
        name = self.a_topic()
        count = self.topics.get(name, 1) + self.chance.choice([1, 1, 2, 0, -1])
        wanted = {"name": name, "count": count, "assignments": None}
        fields = {"topics": [wanted], "timeout": 10_000, "validate_only": False}
        version = self.version(37)

        def step(side: Side) -> Answer:
            answer = side.ask("main", 37, version, fields)
            if answer and not answer["results"][0]["error_code"]:
                self.topics[name] = know(side, name, count)
            return side.common(answer, 37)

        return f"grow v{version} {shorten(fields)}", step

    def metadata(self) -> Step:
        """What topics there are."""
        names = sorted({self.a_topic(wrong=0.2) for _ in range(2)})
        version = self.version(3)
        if version < 4:
            names = [one for one in names if one != "missing"]  # asking would make it
        fields: dict[str, Any] = {
            "topics": [{"name": one} for one in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": self.chance.random() < 0.2,
        }
        if version >= 12 and self.chance.random() < 0.5:
            fields["topics"] = [{"name": None, "topic_id": Ref(f"topic {one}")} for one in names]
        return self.one_call(3, fields, version)

    # -- records -----------------------------------------------------------------------------------

    def a_batch(self, **more: Any) -> bytes:
        """A batch of a few records in any compression; times mostly rise."""
        count = self.chance.choice([1, 1, 2, 5, 20])
        records = []
        for _ in range(count):
            key = self.chance.choice([None, b"", b"k%d" % self.chance.randrange(5)])
            value = self.chance.choice(
                [None, b"", self.chance.randbytes(self.chance.randrange(80))]
            )
            records.append((key, value))
        self.clock += self.chance.randrange(50)
        times = [self.base_ms + self.clock + self.chance.randrange(-20, 100) for _ in range(count)]
        codec = self.chance.choice(CODECS)
        return bytes(batches.build(records, timestamps_ms=times, codec=codec, **more))

    def produce_fields(
        self, topic: str, partition: int, data: bytes | None, **more: Any
    ) -> dict[str, Any]:
        """A Produce request."""
        part = {"index": partition, "records": data}
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partition_data": [part]}
        return {"acks": -1, "timeout": 5000, "topic_data": [named], **more}

    def produce(self) -> Step:
        """A batch as it should be."""
        topic = self.a_topic()
        fields = self.produce_fields(topic, self.a_partition(topic), self.a_batch())
        return self.one_call(0, {**fields, "acks": self.chance.choice([-1, 1])})

    def init_producer(self) -> Step:
        """An idempotent producer."""
        name = f"producer {next(self.names)}"
        self.sequences[name] = {}
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        version = self.version(22)

        def step(side: Side) -> Answer:
            answer = side.ask("main", 22, version, fields)
            side.learn(name, answer["producer_id"])
            return side.common(answer, 22)

        return f"init v{version} {name}", step

    def produce_idempotent(self) -> Step:
        """A batch with a sequence: the next one, a repeated one, one too far, an old epoch."""
        name = self.chance.choice(sorted(self.sequences))
        topic = self.a_topic(wrong=0)
        partition = self.a_partition(topic, wrong=0)
        known = self.sequences[name]
        following = known.get((topic, partition), 0)
        sequence = self.chance.choice([following] * 4 + [max(following - 1, 0), following + 3, 0])
        epoch = 0
        if sequence == following:
            known[topic, partition] = following + 1
        records = [(b"i", b"%d" % sequence)]
        times = [self.base_ms + self.clock]

        def step(side: Side) -> Answer:
            batch = batches.build(
                records,
                timestamps_ms=times,
                producer_id=side.real[name],
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            return side.call(0, version, self.produce_fields(topic, partition, bytes(batch)))

        version = self.version(0)
        return f"produce v{version} {topic}-{partition} {name} seq {sequence} epoch {epoch}", step

    def produce_badly(self) -> Step:
        """A batch that a broker should refuse."""
        topic = self.a_topic(wrong=0)
        data = bytearray(self.a_batch())
        kind = self.chance.choice(
            [
                "crc",
                "cut",
                "empty",
                "magic",
                "codec",
                "twice",
                "large",
                "count",
                "future",
                "acks",
                "control",
                "transactional",
                "garbage",
            ]
        )
        acks = -1
        match kind:
            case "crc":
                data[-1] ^= 1
            case "cut":
                data = data[:-1]
            case "empty":
                data = bytearray()
            case "magic":
                data[16] = 1
            case "codec":
                data = reseal(data, attributes=7)
            case "twice":
                data = bytearray(bytes(data) * 2)
            case "large":
                data = batches.build([(None, bytes(2 << 20))], timestamps_ms=[self.base_ms])
            case "count":
                data = reseal(data, record_count=77)
            case "future":
                ahead = self.base_ms + 10 * 86_400_000
                data = batches.build([(None, b"x")], timestamps_ms=[ahead])
            case "acks":
                acks = 2
            case "control":
                data = reseal(data, attributes=0x20)
            case "transactional":
                data = reseal(data, attributes=0x10)
            case "garbage":
                data = bytearray(self.chance.randbytes(80))
        partition = self.a_partition(topic, wrong=0)
        fields = self.produce_fields(topic, partition, bytes(data), acks=acks)
        version = self.version(0)
        return f"produce v{version} {kind} {topic}", lambda side: side.call(0, version, fields)

    def fetch(self) -> Step:
        """Everything from some offset on; also from offsets that aren't there."""
        topic = self.a_topic()
        partition, version = self.a_partition(topic), self.version(1)
        offset = self.chance.choice([0, 0, 1, self.chance.randrange(30), 1000, -1])
        isolation = self.chance.randrange(2)
        return (
            f"fetch v{version} {topic}-{partition} from {offset}, isolation {isolation}",
            lambda side: fetch_all(side, version, topic, partition, offset, isolation),
        )

    def list_offsets(self) -> Step:
        """Offsets by time, and Kafka's marks."""
        topic = self.a_topic()
        version = self.version(2)
        marks = [-1, -2]
        marks += [-3] if version >= 7 else []
        marks += [-4] if version >= 8 else []
        times = [
            self.base_ms + self.chance.randrange(max(self.clock, 1) + 100),
            0,
            self.base_ms * 2,
            self.chance.choice(marks),
            -9,
        ]
        part = {
            "partition_index": self.a_partition(topic),
            "current_leader_epoch": self.chance.choice([-1, -1, 0, 5]),
            "timestamp": self.chance.choice(times),
        }
        fields = {
            "replica_id": -1,
            "isolation_level": self.chance.randrange(2),
            "topics": [{"name": topic, "partitions": [part]}],
            "timeout": 5000,
        }
        return self.one_call(2, fields, version)

    def delete_records(self) -> Step:
        """Records go up to an offset."""
        topic = self.a_topic()
        offset = self.chance.choice([0, 1, 2, 5, -1, 10_000])
        part = {"partition_index": self.a_partition(topic), "offset": offset}
        fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 5000}
        return self.one_call(21, fields)

    def leader_epoch(self) -> Step:
        """Where an epoch ends."""
        topic = self.a_topic()
        part = {
            "partition": self.a_partition(topic),
            "current_leader_epoch": self.chance.choice([-1, 0, 3]),
            "leader_epoch": self.chance.choice([0, 0, 1, -1]),
        }
        fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
        return self.one_call(23, fields)

    def describe_producers(self) -> Step:
        """Who writes to a partition."""
        topic = self.a_topic()
        indexes = [self.a_partition(topic)]
        return self.one_call(61, {"topics": [{"name": topic, "partition_indexes": indexes}]})

    # -- offsets -----------------------------------------------------------------------------------

    def a_group(self) -> str:
        """A group's name."""
        known = [f"g{self.seed}-{n}" for n in range(3)]
        return self.chance.choice([*known, *known, self.nobody, ""])

    def commit(self) -> Step:
        """A commit from outside of the group, or with a generation that it doesn't have."""
        topic, version = self.a_topic(), self.version(8)
        part = {
            "partition_index": self.a_partition(topic),
            "committed_offset": self.chance.randrange(100),
            "committed_leader_epoch": self.chance.choice([-1, 0]),
            "committed_metadata": self.chance.choice(["", "m", None, "x" * 5000]),
        }
        generation, member = self.chance.choice([(-1, "")] * 4 + [(3, "ghost"), (0, "")])
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partitions": [part]}
        name = self.a_group()
        if len(part["committed_metadata"] or "") > 1:  # Kafka refuses it, and yet makes the group
            name, generation, member = f"long{self.seed}", -1, ""
        fields = {
            "group_id": name,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [named],
            "retention_time": -1,
        }
        return self.one_call(8, fields, version)

    def committed(self) -> Step:
        """A group's offsets: of a partition, of none, of all."""
        topic, group, version = self.a_topic(), self.a_group(), self.version(9)
        named = {
            "name": topic,
            "topic_id": Ref(f"topic {topic}"),
            "partition_indexes": [0, 1, self.a_partition(topic)],
        }
        topics = self.chance.choice([[named], [named], None if version >= 2 else [named]])
        wanted = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
        fields = {"group_id": group, "topics": topics, "groups": [wanted], "require_stable": True}
        return self.one_call(9, fields, version)

    def delete_offsets(self) -> Step:
        """A group forgets."""
        topic = self.a_topic()
        parts = [{"partition_index": self.a_partition(topic)}]
        topics = [{"name": topic, "partitions": parts}]
        return self.one_call(47, {"group_id": self.a_group(), "topics": topics})

    # -- groups ------------------------------------------------------------------------------------

    def join(self) -> Step:
        """A new member: all join again, the leader assigns, all get their part."""
        group = f"g{self.seed}-{self.chance.randrange(3)}"
        member = f"member {next(self.names)}"
        members = self.groups.setdefault(group, [])
        if len(members) >= 4:
            return self.leave()
        known = list(members)
        members.append(member)
        version = self.chance.randint(max(self.versions[11][0], 0), self.versions[11][1])
        return (
            f"join v{version} {group}: {member} to {known}",
            lambda side: rebalance(side, group, version, known, member),
        )

    def leave(self) -> Step:
        """A member goes; the others join again."""
        full = sorted(name for name, members in self.groups.items() if members)
        if not full:
            return self.join()
        group = self.chance.choice(full)
        member = self.chance.choice(self.groups[group])
        self.groups[group].remove(member)
        rest = list(self.groups[group])
        leave_version, version = self.version(13), self.version(11)
        one = {"member_id": Ref(member), "group_instance_id": None, "reason": None}
        fields = {"group_id": group, "member_id": Ref(member), "members": [one]}

        def step(side: Side) -> Answer:
            answer = side.call(13, leave_version, fields)
            return [answer, rebalance(side, group, version, rest, None) if rest else None]

        return f"leave v{leave_version} {group}: {member}", step

    def misbehave(self) -> Step:
        """What a confused member might send."""
        group = self.a_group()
        members = self.groups.get(group) or ["ghost"]
        member = self.chance.choice([*members, "ghost"])
        who = {"group_id": group, "member_id": Ref(member) if member != "ghost" else "ghost"}
        match self.chance.randrange(5):
            case 0:
                generation = self.chance.choice([0, 1, 99, -1])
                return self.one_call(12, {**who, "generation_id": generation})
            case 1:
                return self.one_call(14, {**who, "generation_id": 99, "assignments": []}, 3)
            case 2:
                fields = {
                    **who,
                    "session_timeout": self.chance.choice([1, 10_000_000]),
                    "rebalance_timeout": 1000,
                    "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": b"x"}],
                }
                return self.one_call(11, {**fields, "member_id": ""})
            case 3:
                fields = {
                    **who,
                    "member_id": "ghost",
                    "session_timeout": SESSION_MS,
                    "rebalance_timeout": 1000,
                    "protocol_type": self.chance.choice(["consumer", "connect", ""]),
                    "protocols": self.chance.choice([[], [{"name": "other", "metadata": b""}]]),
                }
                return self.one_call(11, fields)
            case _:
                one = {"member_id": "ghost", "group_instance_id": None, "reason": None}
                fields = {"group_id": group, "member_id": "ghost", "members": [one]}
                return self.one_call(13, fields)

    def describe_groups(self) -> Step:
        """What groups look like from outside."""
        if self.chance.random() < 0.3:
            fields: dict[str, Any] = {"states_filter": [], "types_filter": []}
            version = self.version(16)

            def step(side: Side) -> Answer:
                answer = side.call(16, version, fields)
                ours = [g for g in answer["groups"] if f"{self.seed}-" in g["group_id"][:40]]
                return {**answer, "groups": ours}

            return f"list groups v{version}", step
        version = self.version(15)
        fields = {"groups": [self.a_group()], "include_authorized_operations": False}
        return self.one_call(15, fields, version)

    def delete_group(self) -> Step:
        """A group goes, if it has no members."""
        return self.one_call(42, {"groups_names": [self.a_group()]})

    # -- settings ----------------------------------------------------------------------------------

    def describe_configs(self) -> Step:
        """A topic's settings."""
        keys = ["retention.ms", "cleanup.policy", "max.message.bytes", "segment.bytes"]
        resource = {
            "resource_type": self.chance.choice([2, 2, 2, 2, 99]),
            "resource_name": self.a_topic(),
            "configuration_keys": [*keys, "message.timestamp.type", "no.such.setting"],
        }
        return self.one_call(
            32, {"resources": [resource], "include_synonyms": self.chance.random() < 0.5}
        )

    def alter_configs(self) -> Step:
        """A setting set, unset, appended to; a wrong one."""
        name, value = self.chance.choice(
            [
                ("retention.ms", "86400000"),
                ("retention.ms", "x"),
                ("retention.ms", "-1"),
                ("max.message.bytes", "100000"),
                ("max.message.bytes", "-5"),
                ("message.timestamp.type", "LogAppendTime"),
                ("message.timestamp.type", "CreateTime"),
                ("message.timestamp.type", "Sometimes"),
                ("segment.ms", "100000"),
                ("segment.bytes", "2000000"),
                ("cleanup.policy", "nothing"),
                ("cleanup.policy", "compact"),
                ("cleanup.policy", "delete"),
                ("no.such.setting", "1"),
                ("", ""),
            ]
        )
        operation = self.chance.choice([0, 0, 0, 1, 2, 3])
        one = {
            "name": name,
            "config_operation": operation,
            "value": None if operation == 1 else value,
        }
        resource = {"resource_type": 2, "resource_name": self.a_topic(), "configs": [one]}
        dry = self.chance.random() < 0.2
        return self.one_call(44, {"resources": [resource], "validate_only": dry})

    # -- what no client sends ----------------------------------------------------------------------

    def garbage(self) -> Step:
        """A body of any bytes for a request that exists, or a version that doesn't."""
        key = self.chance.choice([2, 3, 8, 9, 10, 12, 19, 22, 32])
        version = self.chance.choice([self.version(key), 99])
        if version == 99:
            return f"{key} v99", lambda side: side.call(18, 0, {}) and closes(side, key)
        # counts far beyond the frame: neither side may take them at their word
        body = self.chance.choice([b"", b"\0", b"\1", b"\0\0\0"]) + b"\x7f\xff\xff\xff"
        flexible = key == 3 and version >= 9
        version = version if key == 3 else 0
        return f"{key} garbage {body.hex()}", lambda side: closes(
            side, key, version, body, flexible
        )

    # -- transactions ------------------------------------------------------------------------------

    def init_txn(self) -> Step:
        """A transactional producer starts (again)."""
        name = f"x{self.seed}-{self.chance.randrange(3)}"
        txn = self.txns[name] = Txn(name)
        version = min(self.version(22), 4)
        fields = {"transactional_id": name, "transaction_timeout": 600_000}

        def step(side: Side) -> Answer:
            answer = side.until(22, version, fields, lambda found: found["error_code"] != 51)
            side.learn(f"txn {name}", answer["producer_id"])
            txn.epoch = answer["producer_epoch"]
            settle_all(side, self.topics)
            return side.common(answer, 22)

        return f"init v{version} {name}", step

    def a_txn(self) -> Txn | None:
        """A transactional producer that has started."""
        return self.txns[self.chance.choice(sorted(self.txns))] if self.txns else None

    def produce_in_txn(self) -> Step:
        """Records and offsets in a transaction."""
        txn = self.a_txn()
        if txn is None:
            return self.init_txn()
        topic = self.a_topic(wrong=0)
        partition = self.a_partition(topic, wrong=0)
        sequence = txn.sequences.get((topic, partition), 0)
        txn.sequences[topic, partition] = sequence + 1
        txn.is_open = True
        add, times = min(self.version(24), 3), [self.base_ms + self.clock]
        with_offsets = self.chance.random() < 0.3
        group = f"g{self.seed}-txn"
        offset = self.chance.randrange(50)
        name, produce_version = txn.name, min(self.version(0), 11)

        def step(side: Side) -> Answer:
            own = {"producer_id": Ref(f"txn {name}"), "producer_epoch": txn.epoch}
            own["transactional_id"] = name
            old = {f"v3_and_below_{one}": value for one, value in own.items()}
            parts = [{"name": topic, "partitions": [partition]}]
            fields = {**old, "v3_and_below_topics": parts}
            answers = [side.common(side.until(24, add, fields, added), 24)]
            batch = batches.build(
                [(b"x", b"%d" % sequence)],
                timestamps_ms=times,
                producer_id=side.real[f"txn {name}"],
                producer_epoch=txn.epoch,
                base_sequence=sequence,
                attributes=0x10,
            )
            sent = self.produce_fields(topic, partition, bytes(batch), transactional_id=name)
            answers.append(side.call(0, produce_version, sent))
            if with_offsets:
                answers.append(side.call(25, 3, {**own, "group_id": group}))
                one = {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": "",
                }
                topics = [{"name": topic, "partitions": [one]}]
                answers.append(side.call(28, 3, {**own, "group_id": group, "topics": topics}))
            return answers

        what = f"txn {name} {topic}-{partition} seq {sequence}, offsets {with_offsets}"
        return what, step

    def end_txn(self) -> Step:
        """Commit or abort; then every reader may go on."""
        txn = self.a_txn()
        if txn is None:
            return self.init_txn()
        commits = self.chance.random() < 0.6
        version, name = min(self.version(26), 4), txn.name
        txn.is_open = False

        def step(side: Side) -> Answer:
            fields = {
                "transactional_id": name,
                "producer_id": Ref(f"txn {name}"),
                "producer_epoch": txn.epoch,
                "committed": commits,
            }
            answer = side.until(26, version, fields, lambda found: found["error_code"] != 51)
            side.until(65, 0, {"transactional_ids": [name]}, ended)
            return side.common(answer, 26)

        return f"end v{version} {name} commits {commits}", step

    def txn_misuse(self) -> Step:
        """The wrong epoch, the wrong id, the wrong producer."""
        name = self.chance.choice([*sorted(self.txns), "stranger"])
        own = {
            "transactional_id": name,
            "producer_id": self.chance.choice([Ref(f"txn {name}"), 123_456]),
            "producer_epoch": self.chance.choice([-1, 30_000]),
        }
        old = {f"v3_and_below_{one}": value for one, value in own.items()}
        topics = [{"name": self.a_topic(), "partitions": [0]}]
        match self.chance.randrange(3):
            case 0:
                return self.one_call(24, {**old, "v3_and_below_topics": topics}, 3)
            case 1:
                return self.one_call(25, {**own, "group_id": "g"}, 3)
            case _:
                return self.one_call(26, {**own, "committed": True}, 3)

    def describe_txn(self) -> Step:
        """A transaction from outside."""
        name = self.chance.choice([*sorted(self.txns), "stranger"])
        return self.one_call(65, {"transactional_ids": [name]}, 0)


# -- what steps share ------------------------------------------------------------------------------


def shorten(fields: dict[str, Any]) -> str:
    """A request for people."""
    return re.sub(r"b'[^']{40,}'", "b'...'", repr(fields))[:400]


def reseal(data: bytearray, **changed: int) -> bytearray:
    """A batch with other header fields and the checksum that fits them."""
    header = batches.parse(data)
    if "attributes" in changed:
        changed["attributes"] |= header.attributes
    return rebuilt(data, header._replace(**changed))


def rebuilt(data: bytearray, header: batches.Header) -> bytearray:
    """The batch's bytes under another header."""
    import struct

    from crc32c import crc32c

    out = bytearray(data)
    struct.pack_into(">qiibIhiqqqhii", out, 0, *header)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return out


def ready(side: Side) -> None:
    """Waits until the coordinators are there: Kafka makes their topics on first use."""
    for kind, name in ((0, "g"), (1, "x")) if 24 in side.versions else ((0, "g"),):
        fields = {"key": name, "key_type": kind}
        side.until(10, 3, fields, lambda found: found["error_code"] == 0)
    asked = {"group_id": "g", "topics": None}
    side.until(9, 7, asked, lambda found: found["error_code"] == 0)
    side.ask("main", 42, 0, {"groups_names": [""]})  # of an earlier session
    if 24 in side.versions:
        fields = {"transactional_id": "ready", "transaction_timeout": 60_000}
        side.until(22, 4, fields, lambda found: found["error_code"] == 0)


def know(side: Side, name: str, count: int | None = None) -> int:
    """Waits until the topic (with so many partitions) is led; learns its id; its partitions."""
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

    def done(found: Any) -> bool:
        (topic,) = found["topics"]
        parts = topic["partitions"]
        led = all(one["leader_id"] >= 0 and not one["error_code"] for one in parts)
        return not topic["error_code"] and led and (count is None or len(parts) == count)

    (topic,) = side.until(3, 10, fields, done)["topics"]
    side.learn(f"topic {name}", topic["topic_id"])
    time.sleep(SETTLE_S)
    return len(topic["partitions"])


def fetch_all(
    side: Side, version: int, topic: str, partition: int, offset: int, isolation: int
) -> Answer:
    """Fetches until the end: all batches, and what else the last answer says."""
    found: list[Any] = []
    while True:
        part = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        fields = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "isolation_level": isolation,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "topic_id": Ref(f"topic {topic}"), "partitions": [part]}],
        }
        answer = side.call(1, version, fields)
        if answer == "closed" or not answer["responses"]:
            return answer
        got = answer["responses"][0]["partitions"][0]
        records = got["records"] or []
        if not records:
            return {**answer, "records": found}
        found += records
        got["records"] = None
        offset = records[-1]["base_offset"] + records[-1]["last_offset_delta"] + 1


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
    told: list[Any] = []
    waiting = []
    if newcomer is not None:
        member_id = ""
        if version >= 4:
            answer = side.ask(newcomer, 11, version, {**base, "member_id": ""})
            member_id = answer["member_id"]
            side.learn(newcomer, member_id)
            told.append(side.common(answer, 11))
        side.line(newcomer).send(11, version, {**base, "member_id": member_id})
        waiting.append(newcomer)
        time.sleep(0.05)
    for member in known:
        beat = {"group_id": group, "generation_id": 10_000, "member_id": Ref(member)}
        told.append(side.call(12, 3, beat, member))
        side.line(member).send(11, version, {**base, "member_id": side.real[member]})
        waiting.append(member)
    joined = {member: side.line(member).receive(11, version) for member in waiting}
    if newcomer is not None:
        side.learn(newcomer, joined[newcomer]["member_id"])
    told += [role(side.common(joined[member], 11)) for member in waiting]
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
        parts[member] = side.call(14, 5, fields, member)
    leads = [joined[one]["leader"] == joined[one]["member_id"] for one in waiting]
    members = side.common({"members": joined[leader]["members"]}, 11)
    return {"told": told, "parts": parts, "leaders": sum(leads), **members}


def role(answer: Answer) -> Answer:
    """A join's answer without who leads: after a leader has left, any member may."""
    return {name: one for name, one in answer.items() if name not in {"leader", "members"}}


def closes(
    side: Side, key: int, version: int = 99, body: bytes = b"", flexible: bool = False
) -> Answer:
    """Whether the broker closes the connection."""
    if version == 99:
        line = side.line("main")
        try:
            line.socket.sendall(line.frame(key, version, body, flexible=flexible))
            line.exactly(4)
        except ConnectionError:
            side.hang_up("main")
            return "closed"
        return "answered"
    return side.frame(key, version, body, flexible=flexible)


def added(found: Any) -> bool:
    """Whether partitions were added, or refused for good."""
    return all(
        part["partition_error_code"] != 51
        for topic in found["results_by_topic_v3_and_below"]
        for part in topic["results_by_partition"]
    )


def ended(found: Any) -> bool:
    """Whether a transaction's markers are written."""
    (one,) = found["transaction_states"]
    return one["transaction_state"] not in {"PrepareCommit", "PrepareAbort", "PrepareEpochFence"}


def settle_all(side: Side, topics: dict[str, int]) -> None:
    """Waits a moment: an open transaction that was aborted by a new start writes its markers."""
    time.sleep(0.05)
