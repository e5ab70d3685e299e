"""Steps of a scripted session on records: they are written, well and badly, and read."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from crc32c import crc32c
from oracle import Answer, Ref, Side, Step

from penstock.wire import batches
from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class RecordSteps:
    """Draws steps on the topics of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.sequences: dict[str, dict[tuple[str, int], int]] = {}

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
        self.script.clock += self.chance.randrange(50)
        times = [
            self.script.base_ms + self.script.clock + self.chance.randrange(-20, 100)
            for _ in range(count)
        ]
        codec = self.chance.choice(CODECS)
        return bytes(batches.build(records, timestamps_ms=times, codec=codec, **more))

    def oddly_timed(self) -> bytearray:
        """Records with and without keys, some of which are too old or too new, or have no time."""
        now_ms, day_ms = self.script.base_ms, 86_400_000
        times = [self.chance.choice([0, 0, 0, -day_ms, day_ms, None]) for _ in range(6)]
        records = [(self.chance.choice([b"k", b"k", None]), b"v") for _ in times]
        times_ms = [-1 if ahead is None else now_ms + ahead for ahead in times]
        return batches.build(records, timestamps_ms=times_ms, codec=self.chance.choice(CODECS))

    def produce_fields(
        self, topic: str, partition: int, data: bytes | None, **more: Any
    ) -> dict[str, Any]:
        """A Produce request."""
        part = {"index": partition, "records": data}
        named = {"name": topic, "topic_id": Ref(f"topic {topic}"), "partition_data": [part]}
        return {"acks": -1, "timeout": 5000, "topic_data": [named], **more}

    def produce(self) -> Step:
        """A batch as it should be."""
        topic = self.script.a_topic()
        fields = self.produce_fields(topic, self.script.a_partition(topic), self.a_batch())
        return self.script.one_call(0, {**fields, "acks": self.chance.choice([-1, 1])})

    def init_producer(self) -> Step:
        """An idempotent producer."""
        name = f"producer {next(self.script.names)}"
        self.sequences[name] = {}
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        version = self.script.version(22)

        def step(side: Side) -> Answer:
            answer = side.ask("main", 22, version, fields)
            side.learn(name, answer["producer_id"])
            return side.common(answer, 22)

        return f"init v{version} {name}", step

    def produce_idempotent(self) -> Step:
        """A batch with a sequence: the next one, a repeated one, one too far, an old epoch."""
        name = self.chance.choice(sorted(self.sequences))
        topic = self.script.a_topic(wrong=0)
        partition = self.script.a_partition(topic, wrong=0)
        known = self.sequences[name]
        following = known.get((topic, partition), 0)
        sequence = self.chance.choice([following] * 4 + [max(following - 1, 0), following + 3, 0])
        epoch = 0
        if sequence == following:
            known[topic, partition] = following + 1
        records = [(b"i", b"%d" % sequence)]
        times = [self.script.base_ms + self.script.clock]

        def step(side: Side) -> Answer:
            batch = batches.build(
                records,
                timestamps_ms=times,
                producer_id=side.real[name],
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            return side.call(
                ApiKey.PRODUCE, version, self.produce_fields(topic, partition, bytes(batch))
            )

        version = self.script.version(0)
        return f"produce v{version} {topic}-{partition} {name} seq {sequence} epoch {epoch}", step

    def produce_badly(self) -> Step:
        """A batch that a broker should refuse."""
        topic = self.script.a_topic(wrong=0)
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
                "times",
                "stamped",
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
                data = batches.build([(None, bytes(2 << 20))], timestamps_ms=[self.script.base_ms])
            case "count":
                data = reseal(data, record_count=77)
            case "future":
                ahead = self.script.base_ms + 10 * 86_400_000
                data = batches.build([(None, b"x")], timestamps_ms=[ahead])
            case "times":
                data = self.oddly_timed()
            case "stamped":
                data = reseal(data, attributes=8)
            case "acks":
                acks = 2
            case "control":
                data = reseal(data, attributes=0x20)
            case "transactional":
                data = reseal(data, attributes=0x10)
            case "garbage":
                data = bytearray(self.chance.randbytes(80))
        partition = self.script.a_partition(topic, wrong=0)
        fields = self.produce_fields(topic, partition, bytes(data), acks=acks)
        version = self.script.version(0)
        return f"produce v{version} {kind} {topic}", lambda side: side.call(
            ApiKey.PRODUCE, version, fields
        )

    def fetch(self) -> Step:
        """Everything from some offset on; also from offsets that aren't there."""
        topic = self.script.a_topic()
        partition, version = self.script.a_partition(topic), self.script.version(1)
        offset = self.chance.choice([0, 0, 1, self.chance.randrange(30), 1000, -1])
        isolation = self.chance.randrange(2)
        return (
            f"fetch v{version} {topic}-{partition} from {offset}, isolation {isolation}",
            lambda side: fetch_all(side, version, topic, partition, offset, isolation),
        )

    def list_offsets(self) -> Step:
        """Offsets by time, and Kafka's marks."""
        topic = self.script.a_topic()
        version = self.script.version(2)
        marks = [-1, -2]
        marks += [-3] if version >= 7 else []
        marks += [-4] if version >= 8 else []
        times = [
            self.script.base_ms + self.chance.randrange(max(self.script.clock, 1) + 100),
            0,
            self.script.base_ms * 2,
            self.chance.choice(marks),
            -9,
        ]
        part = {
            "partition_index": self.script.a_partition(topic),
            "current_leader_epoch": self.chance.choice([-1, -1, 0, 5]),
            "timestamp": self.chance.choice(times),
        }
        fields = {
            "replica_id": -1,
            "isolation_level": self.chance.randrange(2),
            "topics": [{"name": topic, "partitions": [part]}],
            "timeout": 5000,
        }
        return self.script.one_call(2, fields, version)

    def delete_records(self) -> Step:
        """Records go up to an offset."""
        topic = self.script.a_topic()
        offset = self.chance.choice([0, 1, 2, 5, -1, 10_000])
        part = {"partition_index": self.script.a_partition(topic), "offset": offset}
        fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 5000}
        return self.script.one_call(21, fields)

    def leader_epoch(self) -> Step:
        """Where an epoch ends."""
        topic = self.script.a_topic()
        part = {
            "partition": self.script.a_partition(topic),
            "current_leader_epoch": self.chance.choice([-1, 0, 3]),
            "leader_epoch": self.chance.choice([0, 0, 1, -1]),
        }
        fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
        return self.script.one_call(23, fields)

    def describe_producers(self) -> Step:
        """Who writes to a partition."""
        topic = self.script.a_topic()
        indexes = [self.script.a_partition(topic)]
        return self.script.one_call(61, {"topics": [{"name": topic, "partition_indexes": indexes}]})


# -- what steps share ------------------------------------------------------------------------------


def reseal(data: bytearray, **changed: int) -> bytearray:
    """A batch with other header fields and the checksum that fits them."""
    header = batches.parse(data)
    if "attributes" in changed:
        changed["attributes"] |= header.attributes
    return rebuilt(data, header._replace(**changed))


def rebuilt(data: bytearray, header: batches.Header) -> bytearray:
    """The batch's bytes under another header."""
    out = bytearray(data)
    struct.pack_into(">qiibIhiqqqhii", out, 0, *header)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return out


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
        answer = side.call(ApiKey.FETCH, version, fields)
        if answer == "closed" or not answer["responses"]:
            return answer
        got = answer["responses"][0]["partitions"][0]
        records = got["records"] or []
        if not records:
            return {**answer, "records": found}
        found += records
        got["records"] = None
        offset = records[-1]["base_offset"] + records[-1]["last_offset_delta"] + 1
