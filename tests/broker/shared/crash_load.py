"""What clients do while their broker is killed over and over, and what they may expect afterwards.

Each worker is a thread with a connection of its own. When the connection breaks it connects again
and goes on as a proper client would: a producer repeats what was not acknowledged, a transactional
one asks for a new epoch. `verify` compares what a worker was told with what is in the log, as
librdkafka reads it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from tests.patience import PATIENCE_S, wait_until

from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

Connect = Callable[[str], Any]
Records = list[tuple[int, bytes, bytes | None]]
"""Offset, key and value of each record of a partition, in order."""

PRODUCE = ApiKey.PRODUCE
FETCH = ApiKey.FETCH
COMMIT = ApiKey.OFFSET_COMMIT
FETCH_OFFSETS = ApiKey.OFFSET_FETCH
CREATE = ApiKey.CREATE_TOPICS
INIT = ApiKey.INIT_PRODUCER_ID
ADD_PARTITIONS = ApiKey.ADD_PARTITIONS_TO_TXN
ADD_OFFSETS = ApiKey.ADD_OFFSETS_TO_TXN
END_TXN = ApiKey.END_TXN
TXN_OFFSETS = ApiKey.TXN_OFFSET_COMMIT
CONCURRENT_TRANSACTIONS = ErrorCode.CONCURRENT_TRANSACTIONS
IN_FLIGHT_MAX = 5
RETRY_S = 0.02
READ_S_MAX = PATIENCE_S


def create(raw: Any, topic: str, partitions: int = 1, **configs: str) -> int:
    """Creates a topic; the error code."""
    settings = {"retention_ms": "-1", **configs}  # the records' times are long ago
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {"name": name.replace("_", "."), "value": value} for name, value in settings.items()
        ],
    }
    return int(raw.call(CREATE, 5, topics=[wanted], timeout=5000)["topics"][0]["error_code"])


def read_all(address: str, topic: str, partition: int, isolation: str) -> Records:
    """Every record of a partition, by librdkafka, which checks the checksums."""
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "verify",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, partition, 0)])
    found: Records = []
    deadline = time.monotonic() + READ_S_MAX
    try:
        while time.monotonic() < deadline:
            for message in reader.consume(10_000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    return found
                found.append((message.offset(), message.key() or b"", message.value()))
    finally:
        reader.close()
    raise TimeoutError(f"expected the end of {topic}-{partition} within {READ_S_MAX:g} s")


class Worker(threading.Thread):
    """One client that outlives its broker."""

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.connect = connect
        self.address = address
        self.chance = random.Random(f"{type(self).__name__} {seed}")
        self.number = seed
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Works until told to stop; a broken connection is part of it."""
        try:
            while not self.stopped.is_set():
                try:
                    with self.connect(self.address) as raw:
                        self.resume(raw)
                        while not self.stopped.is_set():
                            self.step(raw)
                        self.settle(raw)
                except OSError:
                    time.sleep(RETRY_S)
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        """Waits for the end; raises what went wrong."""
        self.stopped.set()
        self.join(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive()

    def resume(self, raw: Any) -> None:
        """What comes first on a new connection."""

    def step(self, raw: Any) -> None:
        """One piece of work."""
        raise NotImplementedError

    def settle(self, raw: Any) -> None:
        """What comes last."""

    def verify(self) -> str:
        """Asserts what was promised; says how much that was."""
        raise NotImplementedError


def produce_request(topic: str, partition: int, batch: bytes, acks: int = -1) -> dict[str, Any]:
    """A Produce request's fields."""
    part = {"index": partition, "records": batch}
    data = [{"name": topic, "partition_data": [part]}]
    return {"acks": acks, "timeout": 5000, "topic_data": data}


def produced(answer: dict[str, Any]) -> dict[str, Any]:
    """The one partition of a Produce answer."""
    found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return found


class Idempotent(Worker):
    """Up to five batches in flight with acks=all; after a crash all that is unacknowledged again."""

    topic = "idempotent"

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed)
        with connect(address) as raw:
            self.producer_id = raw.call(INIT, 4, transactional_id=None)["producer_id"]
        self.next_sequence = 0
        self.pending: deque[tuple[int, bytes]] = deque()
        self.acknowledged: dict[int, int] = {}

    def key(self, sequence: int) -> bytes:
        """A record's key."""
        return b"%d/%d" % (self.number, sequence)

    def resume(self, raw: Any) -> None:
        """Repeats what was not acknowledged, in order."""
        for _, batch in self.pending:
            raw.send(PRODUCE, 9, produce_request(self.topic, 0, batch))

    def step(self, raw: Any) -> None:
        """Fills up what may be in flight and takes one answer."""
        while len(self.pending) < IN_FLIGHT_MAX:
            count = self.chance.randint(1, 4)
            records = [
                (self.key(self.next_sequence + n), bytes(self.chance.randrange(300)))
                for n in range(count)
            ]
            batch = batches.build(
                records,
                timestamps_ms=[1000] * count,
                producer_id=self.producer_id,
                producer_epoch=0,
                base_sequence=self.next_sequence,
            )
            self.pending.append((self.next_sequence, bytes(batch)))
            self.next_sequence += count
            raw.send(PRODUCE, 9, produce_request(self.topic, 0, self.pending[-1][1]))
        self.take(raw)

    def take(self, raw: Any) -> None:
        """One answer."""
        answer = produced(raw.receive(PRODUCE, 9))
        assert answer["error_code"] == 0, answer
        self.acknowledged[self.pending.popleft()[0]] = answer["base_offset"]

    def settle(self, raw: Any) -> None:
        """Waits for the rest."""
        while self.pending:
            self.take(raw)

    def verify(self) -> str:
        """Each record once, in order, where it was said to be."""
        found = [
            (offset, key)
            for offset, key, _ in read_all(self.address, self.topic, 0, "read_uncommitted")
            if key.startswith(b"%d/" % self.number)
        ]
        assert [key for _, key in found] == [self.key(n) for n in range(self.next_sequence)]
        for sequence, offset in self.acknowledged.items():
            assert found[sequence][0] == offset
        return f"{len(found)} records of idempotent producer {self.number}"


class Plain(Worker):
    """Batches without a producer id: acknowledged ones are there, where they were said to be."""

    def __init__(self, connect: Connect, address: str, seed: int, acks: int) -> None:
        super().__init__(connect, address, seed)
        self.acks = acks
        self.topic = f"plain.{acks}"
        self.count = 0
        self.acknowledged: dict[int, bytes] = {}

    def step(self, raw: Any) -> None:
        """One batch of one record, synchronously."""
        key = b"%d" % self.count
        self.count += 1
        batch = batches.build([(key, bytes(self.chance.randrange(300)))], timestamps_ms=[1000])
        raw.send(PRODUCE, 9, produce_request(self.topic, 0, bytes(batch), self.acks))
        answer = produced(raw.receive(PRODUCE, 9))
        assert answer["error_code"] == 0, answer
        self.acknowledged[answer["base_offset"]] = key

    def verify(self) -> str:
        """Nothing acknowledged is missing or elsewhere."""
        found = {
            offset: key
            for offset, key, _ in read_all(self.address, self.topic, 0, "read_committed")
        }
        for offset, key in self.acknowledged.items():
            assert found.get(offset) == key, (offset, key, found.get(offset))
        return f"{len(self.acknowledged)} batches with acks={self.acks}"


class Tiered(Plain):
    """Likewise, in a topic of which the local disk keeps next to nothing; reads old offsets too."""

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed, acks=-1)
        self.topic = "tiered"
        self.reread = 0

    def step(self, raw: Any) -> None:
        """One batch; now and then what was acknowledged long ago."""
        super().step(raw)
        if self.acknowledged and self.chance.random() < 0.1:
            offset = self.chance.choice(list(self.acknowledged))
            part = raw.fetch(self.topic, offset, max_wait=0, max_bytes=1)
            assert part["error_code"] == 0, (part["error_code"], offset)
            data = part["records"] or b""  # none, where bringing them took too long
            for at, header in batches.iterate(data):
                assert batches.checksum_matches(data, at, header)
                assert header.base_offset == offset
                self.reread += 1

    def verify(self) -> str:
        """Nothing acknowledged is missing or elsewhere, and most of it lies in the store."""
        verdict = super().verify()
        middle = max(self.acknowledged) // 2
        wait_until(lambda: self.first_local() > middle, f"what is before {middle} in the store")
        local = self.first_local()
        return f"{verdict}, tiered up to {local}, {self.reread} read again"

    def first_local(self) -> int:
        """The first offset on the local disk."""
        with self.connect(self.address) as raw:
            part = {"partition_index": 0, "timestamp": -4, "current_leader_epoch": -1}
            wanted = [{"name": self.topic, "partitions": [part]}]
            answer = raw.call(
                ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=0, topics=wanted
            )
        return int(answer["topics"][0]["partitions"][0]["offset"])


class Follower(Worker):
    """Reads what the others write: what was read once is read again, the same."""

    topic = "idempotent"

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed)
        self.offset = 0
        self.seen: dict[int, int] = {}

    def resume(self, raw: Any) -> None:
        """Goes back a little."""
        self.offset = self.chance.randint(max(self.offset - 200, 0), self.offset)

    def step(self, raw: Any) -> None:
        """One fetch."""
        part = raw.fetch(self.topic, self.offset, max_wait=50, max_bytes=50_000)
        assert part["error_code"] == 0, (part["error_code"], self.offset)
        data = part["records"] or b""
        for at, header in batches.iterate(data):
            assert batches.checksum_matches(data, at, header)
            assert self.seen.setdefault(header.base_offset, header.crc) == header.crc
            self.offset = header.next_offset

    def verify(self) -> str:
        """All was compared on the way."""
        return f"{len(self.seen)} batches read"


class Committer(Worker):
    """A group's committed offset, which only rises."""

    topic = "idempotent"

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed)
        self.group = f"group-{seed}"
        self.asked = self.acknowledged = -1

    def resume(self, raw: Any) -> None:
        """Looks at what is committed."""
        asked = [{"name": self.topic, "partition_indexes": [0]}]
        answer = raw.call(FETCH_OFFSETS, 7, group_id=self.group, topics=asked)
        (part,) = answer["topics"][0]["partitions"]
        assert part["error_code"] == 0, part
        assert self.acknowledged <= part["committed_offset"] <= self.asked
        self.acknowledged = part["committed_offset"]

    def step(self, raw: Any) -> None:
        """Commits a later offset."""
        self.asked += self.chance.randint(1, 9)
        part = {"partition_index": 0, "committed_offset": self.asked, "committed_metadata": "m"}
        topics = [{"name": self.topic, "partitions": [part]}]
        answer = raw.call(
            COMMIT, 8, group_id=self.group, generation_id_or_member_epoch=-1, topics=topics
        )
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0
        self.acknowledged = self.asked

    def verify(self) -> str:
        """The last acknowledged commit stands."""
        with self.connect(self.address) as raw:
            self.resume(raw)
        return f"commits up to {self.acknowledged}"


class Transactional(Worker):
    """Transactions over two partitions and a group's offset, committed or aborted by chance."""

    topic = "transactional"
    abort_share = 0.4

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed)
        self.name = f"txn-{seed}"
        self.count = 0
        self.sizes: dict[int, int] = {}
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.identity: dict[str, int] = {}
        self.sequences = [0, 0]

    def insist(self, raw: Any, key: int, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Repeats a request while the coordinator is busy with the transaction before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer: dict[str, Any] = raw.call(key, version, **fields)
            if answer["error_code"] != CONCURRENT_TRANSACTIONS:
                assert answer["error_code"] == 0, (key, answer)
                return answer
            assert time.monotonic() < deadline, "expected the coordinator to be done"
            time.sleep(RETRY_S)

    def resume(self, raw: Any) -> None:
        """A new epoch, which ends what the old one left open."""
        wanted = {"transactional_id": self.name, "transaction_timeout": 60_000}
        answer = self.insist(raw, INIT, 4, wanted)
        self.identity = {name: answer[name] for name in ("producer_id", "producer_epoch")}
        self.sequences = [0, 0]

    def settle(self, raw: Any) -> None:
        """Leaves nothing open."""
        self.resume(raw)

    def step(self, raw: Any) -> None:
        """One transaction."""
        number, commits = self.count, self.chance.random() >= self.abort_share
        self.count += 1
        self.sizes[number] = size = self.chance.randint(1, 4)
        if not commits:
            self.aborted.add(number)  # whatever happens, no reader may see it
        own = {"transactional_id": self.name, **self.identity}
        old = {f"v3_and_below_{name}": value for name, value in own.items()}
        parts = [{"name": self.topic, "partitions": [0, 1]}]
        answer = raw.call(ADD_PARTITIONS, 3, **old, v3_and_below_topics=parts)
        codes = {
            part["partition_error_code"]
            for topic in answer["results_by_topic_v3_and_below"]
            for part in topic["results_by_partition"]
        }
        if CONCURRENT_TRANSACTIONS in codes:
            time.sleep(RETRY_S)
            return
        assert codes == {0}, answer
        for _ in range(size):
            for partition in (0, 1):
                self.append(raw, partition, number)
        self.insist(raw, ADD_OFFSETS, 3, {**own, "group_id": self.name})
        part = {"partition_index": 0, "committed_offset": number, "committed_metadata": ""}
        topics = [{"name": self.topic, "partitions": [part]}]
        answer = raw.call(TXN_OFFSETS, 3, **own, group_id=self.name, topics=topics)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer
        self.insist(raw, END_TXN, 3, {**own, "committed": commits})
        if commits:
            self.committed.add(number)

    def append(self, raw: Any, partition: int, number: int) -> None:
        """One record of the transaction."""
        batch = batches.build(
            [(b"%d/%d" % (self.number, number), bytes(self.chance.randrange(200)))],
            timestamps_ms=[1000],
            base_sequence=self.sequences[partition],
            attributes=0x10,
            **self.identity,
        )
        self.sequences[partition] += 1
        fields = produce_request(self.topic, partition, bytes(batch))
        answer = produced(raw.call(PRODUCE, 9, **fields, transactional_id=self.name))
        assert answer["error_code"] == 0, answer

    def verify(self) -> str:
        """Whole transactions or nothing of them, in order; the offset is of the last one."""
        seen: list[dict[int, int]] = []
        for partition in (0, 1):
            counts: dict[int, int] = {}
            for _, key, _ in read_all(self.address, self.topic, partition, "read_committed"):
                worker, _, number = key.partition(b"/")
                if int(worker) == self.number:
                    counts[int(number)] = counts.get(int(number), 0) + 1
            assert list(counts) == sorted(counts)
            seen.append(counts)
        assert seen[0] == seen[1]
        assert all(self.sizes[number] == count for number, count in seen[0].items())
        assert self.committed <= set(seen[0])
        assert not self.aborted & set(seen[0])
        with self.connect(self.address) as raw:
            asked = [{"name": self.topic, "partition_indexes": [0]}]
            answer = raw.call(FETCH_OFFSETS, 7, group_id=self.name, topics=asked)
        offset = answer["topics"][0]["partitions"][0]["committed_offset"]
        assert offset == max(seen[0], default=-1)
        return f"{len(self.committed)} transactions committed, {len(self.aborted)} aborted"


class Keyed(Worker):
    """A compacted topic: the latest acknowledged value of each key stays."""

    topic = "compacted"
    keys = 40

    def __init__(self, connect: Connect, address: str, seed: int) -> None:
        super().__init__(connect, address, seed)
        self.count = 0
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.unsure: dict[bytes, list[bytes | None]] = {}

    def step(self, raw: Any) -> None:
        """One value, or a tombstone now and then."""
        self.count += 1
        key = b"k%d" % self.chance.randrange(self.keys)
        value = None if self.chance.random() < 0.05 else b"%d" % self.count + bytes(200)
        self.unsure.setdefault(key, []).append(value)
        batch = batches.build([(key, value)], timestamps_ms=[int(time.time() * 1000)])
        raw.send(PRODUCE, 9, produce_request(self.topic, 0, bytes(batch)))
        answer = produced(raw.receive(PRODUCE, 9))
        assert answer["error_code"] == 0, answer
        self.last[key] = answer["base_offset"], value
        self.unsure[key] = []

    def verify(self) -> str:
        """The table that a reader builds has each key's last acknowledged value, or a later one."""
        records = read_all(self.address, self.topic, 0, "read_committed")
        offsets = [offset for offset, _, _ in records]
        assert offsets == sorted(set(offsets))
        table = {key: (offset, value) for offset, key, value in records}
        for key, (offset, value) in self.last.items():
            allowed = [value, *self.unsure[key]]
            found = table.get(key)
            if found is None:
                assert None in allowed, key
                continue
            assert found[1] in allowed, (key, found[1])
            assert found[0] == offset or found[1] != value or len(allowed) > 1
        return f"{self.count} writes to {len(self.last)} keys, {len(records)} records left"
