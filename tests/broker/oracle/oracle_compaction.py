"""Steps of a scripted session on compacted topics.

When a broker cleans is its own affair. So a step writes in a state in which nothing is cleaned,
permits it, and waits until each broker has done it: below the active segment, no key is there twice.
Then what a consumer sees is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oracle import Answer, Side, Step

from penstock.wire import batches
from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

SEGMENT_BYTES = 1 << 20
"""Kafka's smallest segments."""
FILLER_BYTES = 600_000
"""Two records of that size don't fit into one segment."""
PARTITIONS = 1
CLEAN_S_MAX = 120.0
"""Our first pass may have to compile its loops, once on a machine."""
TIMES_MAX = 3
"""How often one topic is written to and compacted."""
WRITE, CLEAN = "1.0", "0.01"
"""The dirty ratio: nothing is cleaned, anything is."""


class CompactionSteps:
    """Draws steps on a few compacted topics."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.topics: dict[str, int] = {}

    def draw(self) -> Step:
        """Records are written to a topic, a new one or one that was compacted before, and compacted."""
        known = [name for name, times in self.topics.items() if times < TIMES_MAX]
        name = self.chance.choice([*known, *known, ""])
        is_new = not name
        if is_new:
            name = f"k{self.script.seed}-{next(self.script.names)}"
        self.topics[name] = self.topics.get(name, 0) + 1
        grace_ms = self.chance.choice(["1", "86400000"])
        written = [self.batch(*self.records()) for _ in range(self.chance.randint(3, 12))]
        twice = self.batch([(b"twice", b"1"), (b"twice", b"2"), (b"twice", b"3")])
        fillers = [self.batch([(b"filler", self.chance.randbytes(FILLER_BYTES))]) for _ in range(2)]
        sent = [twice, *written, *fillers]

        def step(side: Side) -> Answer:
            answers = []
            if is_new:
                answers.append(make(side, name, grace_ms))
            answers.append(configure(side, name, WRITE))
            for one in sent:
                part = {"index": 0, "records": one}
                named = {"name": name, "partition_data": [part]}
                fields = {"acks": -1, "timeout": 5000, "topic_data": [named]}
                answers.append(side.call(ApiKey.PRODUCE, 9, fields))
            answers.append(configure(side, name, CLEAN))
            answers.append(cleaned(side, name))
            return answers

        return f"compact {name} ({self.topics[name]}), grace {grace_ms} ms", step

    def records(self) -> tuple[list[tuple[bytes, bytes | None]], dict[str, Any]]:
        """Records with few keys, some of them tombstones; how they are packed."""
        found: list[tuple[bytes, bytes | None]] = []
        for _ in range(self.chance.randint(1, 12)):
            key = b"k%d" % self.chance.randrange(8)
            value = self.chance.randbytes(self.chance.randrange(30))
            found.append((key, self.chance.choice([value, value, value, None, b""])))
        return found, {"codec": self.chance.choice(["none", "gzip", "snappy", "lz4", "zstd"])}

    def batch(
        self, records: list[tuple[bytes, bytes | None]], how: dict[str, Any] | None = None
    ) -> bytes:
        """A batch; times rise."""
        self.script.clock += 10
        times = [self.script.base_ms + self.script.clock + i for i in range(len(records))]
        return bytes(batches.build(records, timestamps_ms=times, **(how or {})))


def make(side: Side, name: str, grace_ms: str) -> Answer:
    """The topic."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": WRITE,
        "delete.retention.ms": grace_ms,
    }
    wanted = {
        "name": name,
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "configs": [{"name": one, "value": value} for one, value in configs.items()],
    }
    answer = side.ask(
        "main", 19, 5, {"topics": [wanted], "timeout": 10_000, "validate_only": False}
    )
    answer["topics"][0].pop("configs", None)
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

    def is_led(found: Any) -> bool:
        (topic,) = found["topics"]
        return not topic["error_code"] and topic["partitions"][0]["leader_id"] >= 0

    side.until(3, 8, asked, is_led)
    return side.common(answer, 19)


def configure(side: Side, name: str, ratio: str) -> Answer:
    """Permits compaction, or not; waits until that is so."""
    one = {"name": "min.cleanable.dirty.ratio", "config_operation": 0, "value": ratio}
    resource = {"resource_type": 2, "resource_name": name, "configs": [one]}
    answer = side.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    )
    wanted = {"resource_type": 2, "resource_name": name}
    fields = {"resources": [{**wanted, "configuration_keys": [one["name"]]}]}
    side.until(32, 4, fields, lambda found: found["results"][0]["configs"][0]["value"] == ratio)
    return answer


def cleaned(side: Side, name: str) -> Answer:
    """All that a consumer sees once the log below the active segment is compacted."""
    seen: list[batches.Record] = []

    def is_clean(answer: Any) -> bool:
        keys = [one.key for one in seen[:-1]]
        return answer is not None and len(set(keys)) == len(keys)

    def read(_: Any) -> bool:
        seen[:] = consume(side, name)
        return is_clean(seen)

    marks = {"partition_index": 0, "current_leader_epoch": -1}
    fields = {"replica_id": -1, "isolation_level": 0}
    ends = [{"name": name, "partitions": [{**marks, "timestamp": -1}]}]
    starts = [{"name": name, "partitions": [{**marks, "timestamp": -2}]}]
    side.until(2, 5, {**fields, "topics": ends}, read, CLEAN_S_MAX)
    return {
        "is_clean": is_clean(seen),
        "seen": [
            (one.offset, one.timestamp_ms, one.key, (one.value or b"")[:40], one.value is None)
            for one in seen
        ],
        "end": side.call(ApiKey.LIST_OFFSETS, 5, {**fields, "topics": ends}),
        "start": side.call(ApiKey.LIST_OFFSETS, 5, {**fields, "topics": starts}),
    }


def consume(side: Side, name: str) -> list[batches.Record]:
    """All records."""
    found: list[batches.Record] = []
    offset = 0
    while True:
        part = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": 4 << 20,
        }
        fields = {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 4 << 20,
            "session_epoch": -1,
            "topics": [{"topic": name, "partitions": [part]}],
        }
        answer = side.ask("main", 1, 11, fields)
        data = answer["responses"][0]["partitions"][0]["records"] if answer else None
        if not data:
            return found
        for at, header in batches.iterate(data):
            offset = header.next_offset
            found += batches.records(data, at, header)
