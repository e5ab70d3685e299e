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
from typing import Any

from oracle import SETTLE_S, Answer, Ref, Side, Step, know
from oracle_compaction import CompactionSteps
from oracle_consumer import ConsumerSteps
from oracle_groups import GroupSteps
from oracle_mixed import MixedSteps
from oracle_records import RecordSteps
from oracle_share import ShareSteps
from oracle_transactions import TransactionSteps

from penstock.wire.protocol import ApiKey

ONLY = re.compile(os.environ.get("PENSTOCK_ONLY", "."))
"""Which kinds of steps are drawn: a class, or single methods; all by default."""


class Script:
    """Draws steps."""

    def __init__(self, seed: int, versions: dict[int, tuple[int, int]], run: str = "") -> None:
        self.chance = random.Random(seed)
        self.seed = f"{seed}-{run}" if run else str(seed)
        self.versions = versions
        self.topics: dict[str, int] = {}
        self.names = itertools.count()
        self.nobody = f"nobody-{self.seed}"
        self.stray = "stray" + self.seed.replace("-", "")  # what is refused may yet make a group
        self.base_ms = int(time.time() * 1000) - 1_000_000
        self.clock = 0
        self.records = RecordSteps(self)
        self.groups = GroupSteps(self)
        self.transactions = TransactionSteps(self)
        self.compaction = CompactionSteps(self)
        self.consumers = ConsumerSteps(self)
        self.shares = ShareSteps(self)
        self.mixed = MixedSteps(self)

    # -- drawing -----------------------------------------------------------------------------------

    def steps(self, count: int) -> Iterator[Step]:
        """So many steps."""
        yield self.create_topic(fair=True)
        yield self.create_topic(fair=True)
        yield self.records.init_producer()
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
            (14, self.records.produce),
            (6, self.records.produce_idempotent),
            (6, self.records.produce_badly),
            (10, self.records.fetch),
            (10, self.records.list_offsets),
            (6, self.groups.commit),
            (6, self.groups.committed),
            (2, self.groups.delete_offsets),
            (5, self.groups.join),
            (2, self.groups.leave),
            (4, self.groups.misbehave),
            (3, self.groups.describe_groups),
            (1, self.groups.delete_group),
            (2, self.records.delete_records),
            (3, self.describe_configs),
            (4, self.alter_configs),
            (2, self.records.leader_epoch),
            (2, self.records.describe_producers),
            (4, self.metadata),
            (1, self.use_first),
            (2, self.update_features),
            (3, self.garbage),
            (1, self.records.init_producer),
            (1, self.compaction.draw),
        ]
        if 68 in self.versions:
            kinds += [(16, self.consumers.draw), (12, self.mixed.draw)]
        if 78 in self.versions:
            kinds.append((12, self.shares.draw))
        if 24 in self.versions:
            kinds += [
                (3, self.transactions.init_txn),
                (10, self.transactions.produce_in_txn),
                (6, self.transactions.end_txn),
                (2, self.transactions.txn_misuse),
                (3, self.transactions.describe_txn),
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
                    {"message.timestamp.before.max.ms": "7200000"},
                    {"max.message.bytes": "3000"},
                    {"segment.bytes": "many"},
                    {"no.such.setting": "1"},
                    {"retention.ms": "-2"},
                    {"min.insync.replicas": "2"},
                    {"min.insync.replicas": "2147483647", "flush.messages": "1"},
                    {"min.insync.replicas": "0"},
                    {"flush.messages": "3", "flush.ms": "0"},
                    {"flush.messages": "0"},
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
            answer = side.call(ApiKey.DELETE_TOPICS, version, fields)
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
            names = names or sorted(self.topics)[:1]  # none is all, Kafka's own among them
        fields: dict[str, Any] = {
            "topics": [{"name": one} for one in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": self.chance.random() < 0.2,
        }
        if version >= 12 and self.chance.random() < 0.5:
            fields["topics"] = [{"name": None, "topic_id": Ref(f"topic {one}")} for one in names]
        return self.one_call(3, fields, version)

    def use_first(self) -> Step:
        """A topic that is made because somebody asks for it."""
        name, version = f"u{self.seed}-{next(self.names)}", self.version(3)
        fields = {"topics": [{"name": name}], "allow_auto_topic_creation": True}

        def step(side: Side) -> Answer:
            answer = side.call(ApiKey.METADATA, version, fields)
            self.topics[name] = know(side, name)
            return [answer, side.call(ApiKey.METADATA, version, fields)]

        return f"first use v{version} {name}", step

    # -- settings ----------------------------------------------------------------------------------

    def update_features(self) -> Step:
        """Features at the levels that they have, or that there aren't; nothing is lowered."""
        pick, version = self.chance.choice, self.version(57)
        known = [("share.version", 1), ("group.version", 1), ("transaction.version", 2)]
        wrong = [("share.version", 9), ("group.version", -1), ("nope", 1), ("nope", 0), ("", 1)]
        updates = [
            {
                "feature": name,
                "max_version_level": level,
                "allow_downgrade": pick([True, False]),
                "upgrade_type": pick([1, 1, 1, 2, 3, 0, 4]),
            }
            for name, level in (pick(known * 2 + wrong) for _ in range(pick([0, 1, 1, 2])))
        ]
        fields = {"timeout": 5000, "feature_updates": updates, "validate_only": pick([True, False])}
        return self.one_call(57, fields, version)

    def describe_configs(self) -> Step:
        """A topic's settings."""
        keys = ["retention.ms", "cleanup.policy", "max.message.bytes", "segment.bytes"]
        keys += [
            "min.insync.replicas",
            "unclean.leader.election.enable",
            "flush.messages",
            "flush.ms",
        ]
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
                ("message.timestamp.before.max.ms", "7200000"),
                ("segment.ms", "100000"),
                ("segment.bytes", "2000000"),
                ("cleanup.policy", "nothing"),
                ("cleanup.policy", "compact"),
                ("cleanup.policy", "delete"),
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "0"),
                ("min.insync.replicas", "2147483648"),
                ("unclean.leader.election.enable", "true"),
                ("flush.messages", "2"),
                ("flush.messages", "-1"),
                ("flush.ms", "10"),
                ("flush.ms", "-1"),
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
            return (
                f"{key} v99",
                lambda side: side.call(ApiKey.API_VERSIONS, 0, {}) and closes(side, key),
            )
        # counts far beyond the frame: neither side may take them at their word
        body = self.chance.choice([b"", b"\0", b"\1", b"\0\0\0"]) + b"\x7f\xff\xff\xff"
        flexible = key == 3 and version >= 9
        version = version if key == 3 else 0
        return f"{key} garbage {body.hex()}", lambda side: closes(
            side, key, version, body, flexible
        )


# -- what steps share ------------------------------------------------------------------------------


def shorten(fields: dict[str, Any]) -> str:
    """A request for people."""
    return re.sub(r"b'[^']{40,}'", "b'...'", repr(fields))[:400]


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
