"""The data directory of the embedded broker: what clients have written, read by the current release."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from tests.compat.cases import FILES, Case, Facts
from tests.patience import wait_until

from penstock.broker import BrokerProcess
from penstock.client import Client, Producer, Reader
from penstock.client.access import AccessAdmin, Rule, RuleFilter
from penstock.client.groups import GroupAdmin
from penstock.client.share import ShareClient, ShareMember
from penstock.client.topic_admin import TopicAdmin
from penstock.client.transactions import TransactionalProducer

START_MS: Final = 1_767_225_600_000
KEPT: Final = {"retention.ms": "-1"}
SMALL: Final = KEPT | {"segment.bytes": "4000", "segment.index.bytes": "1000"}
COMPACTED: Final = SMALL | {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(10 * 365 * 86_400_000),
}
TIERED: Final = SMALL | {"remote.storage.enable": "true", "local.retention.bytes": "0"}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ROWS: Final = 40
KEYS: Final = 7
TXN_TIMEOUT_MS: Final = 900_000
QUIET: Final = ("--retention-interval-ms", "86400000")
"""The fixture is older than what brokers keep of groups and producers by default."""
RULES: Final = ("--authorize", "--super-user", "User:ANONYMOUS")
RULE: Final = Rule(2, "plain", 3, "User:ann", "*", 3, 3)  # ann may read the topic
EVERY_RULE: Final = RuleFilter(1, None, 1, None, None, 1, 1)
ACCEPT, RELEASE, REJECT = 1, 2, 3

Row = tuple[int, int, bytes | None, bytes | None, int]
"""Of a topic: partition, offset, key, value, timestamp."""


def broker(folder: Path, *more: str) -> BrokerProcess:
    """A broker of a case's directory."""
    tier = folder / FILES / "tier"
    tier.mkdir(exist_ok=True)
    arguments = ("--tier", f"file://{tier}", "--tier-interval-ms", "100", *QUIET, *RULES, *more)
    return BrokerProcess(folder / FILES / "log", arguments=arguments)


def values(topic: str, first: int, count: int) -> tuple[pa.Array[Any], pa.Array[Any], Any]:
    """Keys, values and times of a topic's records; each fifth of the compacted topic's deletes its key."""
    numbers = range(first, first + count)
    keys = pa.array([b"%d" % (n % KEYS) for n in numbers], pa.binary())
    gone = topic == "compacted"
    texts = [None if gone and n % 5 == 4 else f"{topic}-{n}-{n * n}".encode() * 4 for n in numbers]
    return keys, pa.array(texts, pa.binary()), np.arange(first, first + count) * 1_000 + START_MS


def write(folder: Path, *, kills: bool) -> Facts:
    """Fills the topics, and stops the broker, or kills it."""
    with (
        broker(folder, "--cleaner-interval-ms", "100") as running,
        Client(running.address) as client,
    ):
        address = running.address
        _fill(address, client)
        _compact(address, client)
        facts = _transact(address, client) | _groups(address, client)
        _administer(address, client)
        wait_until(lambda: _is_tiered(folder), "the tier to have segments")
        facts["rows"] = {topic: len(rows(address, topic)) for topic in sorted(client.topics())}
        facts["ends"] = {topic: sorted(client.offsets(topic).items()) for topic in client.topics()}
        if kills:
            running.kill()
    (folder / FILES / "log" / ".lock").unlink(missing_ok=True)
    return facts


def _is_tiered(folder: Path) -> bool:
    local = [p for p in (folder / FILES / "log").rglob("*.log") if "tiered" in str(p)]
    return len(local) == 1 and any((folder / FILES / "tier").rglob("*"))


def _fill(address: str, client: Client) -> None:
    client.create_topic("plain", 2, KEPT | {"segment.bytes": "20000"})
    client.create_topic("compacted", 1, COMPACTED)
    client.create_topic("tiered", 1, TIERED)
    client.create_topic("deleted", 1, KEPT)
    client.create_topic("again", 2, KEPT)
    client.create_topic("transactional", 1, SMALL)
    client.create_topic("jobs", 1, KEPT)
    for at, codec in enumerate(CODECS):
        with Producer(address, compression=codec) as producer:
            for partition in (0, 1):
                keys, texts, times = values("plain", at * ROWS, ROWS)
                headers = [[("codec", codec.encode()), ("empty", b"")]] * ROWS
                producer.send("plain", partition, keys, texts, times, headers=headers)
    with Producer(address) as producer:
        for at in range(10):
            for topic in ("compacted", "tiered"):
                producer.send(topic, 0, *values(topic, at * ROWS, ROWS))
        for topic in ("deleted", "again", "jobs"):
            producer.send(topic, 0, *values(topic, 0, ROWS))
    client.delete_topic("deleted")
    client.delete_topic("again")
    client.create_topic("again", 1, KEPT)


def _compact(address: str, client: Client) -> None:
    wait_until(lambda: len(rows(address, "compacted")) < 5 * ROWS, "compaction")
    with Producer(address) as producer:  # a part that isn't compacted
        producer.send("compacted", 0, *values("compacted", 10 * ROWS, ROWS))


def _transact(address: str, client: Client) -> Facts:
    with TransactionalProducer(address, "committed") as one:
        one.start()
        for at in range(3):
            one.send("transactional", 0, *values("committed", at * ROWS, ROWS))
            one.commit_offsets("transactions", {("plain", 0): at + 1}, "in a transaction")
            one.commit()
        committed = one.identity
    with TransactionalProducer(address, "aborted") as one:
        one.start()
        one.send("transactional", 0, *values("aborted", 0, ROWS))
        one.commit_offsets("transactions", {("plain", 0): 99})
        one.abort()
    ongoing = TransactionalProducer(address, "ongoing", timeout_ms=TXN_TIMEOUT_MS)
    ongoing.start()
    ongoing.send("transactional", 0, *values("ongoing", 0, ROWS))
    with TransactionalProducer(address, "committed") as one:
        one.start()
        one.send("transactional", 0, *values("committed", 3 * ROWS, ROWS))
        one.commit()
        committed = one.identity
    with Producer(address) as producer:
        identity = client.init_producer_id()
        keys, texts, times = values("plain", 5 * ROWS, ROWS)
        known = {"producer_id": identity[0], "producer_epoch": identity[1]}
        producer.send("plain", 0, keys, texts, times, **known)
        producer.send("plain", 0, *values("plain", 6 * ROWS, ROWS), **known, base_sequence=ROWS)
    return {"committed": committed, "ongoing": ongoing.identity, "idempotent": identity}


def _groups(address: str, client: Client) -> Facts:
    client.commit("plain group", {("plain", 0): 17, ("plain", 1): 23}, "by hand")
    with GroupAdmin(address) as admin:
        client.commit("gone", {("plain", 0): 1})
        admin.delete_group("gone")
    _consume(address, "classic")
    _consume(address, "consumer")
    with ShareClient(address) as shares:
        shares.configure(32, "workers", {"share.auto.offset.reset": "earliest"})
    with ShareMember(address, group="workers", topic="jobs") as member:
        got: list[Any] = []
        wait_until(lambda: got.extend(member.fetch(10, 0.5)) or len(got) >= 10, "jobs")
        for one, kind in zip(got, [ACCEPT] * 5 + [REJECT] * 2 + [RELEASE] * 99, strict=False):
            member.settle(one, kind)
    return {}


def _consume(address: str, protocol: str) -> None:
    """Reads a topic as a member of a group, as any client does."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["plain"])
    left = ROWS
    while left:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message
        left -= 1
    consumer.commit(asynchronous=False)
    consumer.close()


def _administer(address: str, client: Client) -> None:
    with TopicAdmin(address) as admin:
        client.create_topic("trimmed", 1, KEPT)
        with Producer(address) as producer:
            producer.send("trimmed", 0, *values("trimmed", 0, ROWS))
        admin.trim("trimmed", {0: 11})
        client.create_topic("grown", 1, KEPT)
        admin.grow("grown", 3)
        admin.change_configs("grown", {"max.message.bytes": "123456"})
    with AccessAdmin(address) as access:
        access.put_user("ann", "secret")
        access.add_rules([RULE])
        access.set_quotas((("user", "ann"),), {"producer_byte_rate": 1_000_000.0})


def rows(address: str, topic: str, *, uncommitted: bool = False) -> list[Row]:
    """All records of a topic that can be read."""
    found: list[Row] = []
    with Client(address) as client, Reader(address, uncommitted=uncommitted) as reader:
        first = client.offsets(topic, "earliest")
        ends = client.offsets(topic, "latest")
        for partition, end in sorted(ends.items()):
            for part in reader.read(topic, partition, first[partition], end):
                found += _rows(partition, part)
    return found


def _rows(partition: int, part: Any) -> Iterator[Row]:
    """A part's records."""
    for at, offset in enumerate(part.offset.tolist()):
        key = _bytes(part, part.key_start[at], part.key_length[at])
        value = _bytes(part, part.value_start[at], part.value_length[at])
        yield partition, offset, key, value, int(part.timestamp_ms[at])


def _bytes(part: Any, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(memoryview(part.buffer)[start : start + length])


# -- the current release ------------------------------------------------------------------------------------


def check(folder: Path, facts: Facts) -> None:
    """Reads everything, and continues to write."""
    with broker(folder) as running, Client(running.address) as client:
        address = running.address
        assert set(client.topics()) >= facts["rows"].keys()
        assert "deleted" not in client.topics()
        _check_transactions(address, client, facts)
        for topic, count in facts["rows"].items():
            if topic != "transactional":
                assert len(rows(address, topic)) == count, topic
        _check_records(address, client)
        _check_groups(address, client)
        _check_administered(address)
        _check_producers(address, facts)
    with broker(folder) as running:  # what was added is there, after what was
        assert len(rows(running.address, "tiered")) == 11 * ROWS
        assert rows(running.address, "plain")[0][1] == 0


def _sent(topic: str, count: int) -> list[tuple[bytes | None, bytes | None, int]]:
    keys, texts, times = values(topic, 0, count)
    return list(zip(keys.to_pylist(), texts.to_pylist(), times.tolist(), strict=True))


def _check_records(address: str, client: Client) -> None:
    plain = rows(address, "plain")
    for partition, count in ((0, 7 * ROWS), (1, 5 * ROWS)):
        assert [row[2:] for row in plain if row[0] == partition] == _sent("plain", count)
    assert [row[2:] for row in rows(address, "tiered")] == _sent("tiered", 10 * ROWS)
    assert [row[2:] for row in rows(address, "trimmed")] == _sent("trimmed", ROWS)[11:]
    assert rows(address, "again") == []
    newest = {key: value for key, value, _ in _sent("compacted", 11 * ROWS)}
    assert {row[2]: row[3] for row in rows(address, "compacted")} == newest
    with Producer(address, compression="zstd") as producer:
        for topic, first in (("tiered", 10), ("compacted", 11)):
            producer.send(topic, 0, *values(topic, first * ROWS, ROWS))
    assert [row[2:] for row in rows(address, "tiered")] == _sent("tiered", 11 * ROWS)


def _check_transactions(address: str, client: Client, facts: Facts) -> None:
    """Those that were open are aborted, as their time is over; a writer starts above its last epoch."""
    with TransactionalProducer(address, "ongoing", timeout_ms=TXN_TIMEOUT_MS) as one:
        one.start()
        assert tuple(one.identity) > tuple(facts["ongoing"])
    found = [row[2:] for row in rows(address, "transactional")]
    assert found == _sent("committed", 4 * ROWS)
    every = rows(address, "transactional", uncommitted=True)
    assert len(every) == 6 * ROWS
    with TransactionalProducer(address, "committed") as one:
        one.start()
        assert tuple(one.identity) > tuple(facts["committed"])
        one.send("transactional", 0, *values("committed", 4 * ROWS, ROWS))
        one.commit()
    assert [row[2:] for row in rows(address, "transactional")] == _sent("committed", 5 * ROWS)


def _check_groups(address: str, client: Client) -> None:
    with GroupAdmin(address) as admin:
        found = admin.committed_entries("plain group")
        assert found == {("plain", 0): (17, "by hand"), ("plain", 1): (23, "by hand")}
        assert admin.committed_entries("transactions") == {("plain", 0): (3, "in a transaction")}
    assert "gone" not in client.groups()
    for group in ("classic", "consumer"):
        assert sum(client.committed(group).values()) == ROWS, group
    with ShareMember(address, group="workers", topic="jobs") as member:
        got: list[Any] = []
        wait_until(lambda: got.extend(member.fetch(ROWS, 0.5)) or len(got) >= ROWS - 7, "jobs")
        assert sorted(one.record.offset for one in got) == list(range(7, ROWS))
        assert {one.attempt for one in got if one.record.offset < 10} == {2}


def _check_administered(address: str) -> None:
    with TopicAdmin(address) as admin:
        configs = {one.name: one.value for one in admin.configs("grown")}
        assert (configs["max.message.bytes"], configs["retention.ms"]) == ("123456", "-1")
        assert {one.name: one.value for one in admin.configs("compacted")}[
            "cleanup.policy"
        ] == "compact"
    with Client(address) as client:
        assert client.partitions("grown") == [0, 1, 2]
    with AccessAdmin(address) as access:
        assert set(access.users()) == {"ann"}
        assert access.rules(EVERY_RULE) == [RULE]
        assert access.quotas() == {(("user", "ann"),): {"producer_byte_rate": 1_000_000.0}}


def _check_producers(address: str, facts: Facts) -> None:
    """What an idempotent producer sends again isn't stored again."""
    before = len(rows(address, "plain"))
    producer_id, epoch = facts["idempotent"]
    known = {"producer_id": producer_id, "producer_epoch": epoch}
    with Producer(address) as producer:
        producer.send("plain", 0, *values("plain", 6 * ROWS, ROWS), **known, base_sequence=ROWS)
        assert len(rows(address, "plain")) == before
        producer.send("plain", 0, *values("plain", 7 * ROWS, ROWS), **known, base_sequence=2 * ROWS)
    assert len(rows(address, "plain")) == before + ROWS


LOGS: Final = (
    Case("log-stopped", functools.partial(write, kills=False), check),
    Case("log-killed", functools.partial(write, kills=True), check, is_slow=True),
)
