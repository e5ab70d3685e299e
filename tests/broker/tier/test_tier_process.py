"""The broker with a tier, as its clients see it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.effort import rounds
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

from penstock.broker import BrokerProcess
from penstock.broker.doctor import Level, examine
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

SMALL = {
    "segment.bytes": "2000",
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "retention.ms": "-1",
}
KILLS = rounds("PENSTOCK_TIER_KILLS", quick=1, full=3)
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
INVALID_CONFIG = ErrorCode.INVALID_CONFIG


def create(raw: Any, topic: str, partitions: int = 1, **settings: str) -> int:
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": name, "value": value} for name, value in settings.items()],
    }
    code: int = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)["topics"][0][
        "error_code"
    ]
    return code


def fill(raw: Any, topic: str, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        one = batches.build([(b"%d" % n, bytes(300))], timestamps_ms=[1_700_000_000_000 + n])
        assert raw.produce(topic, one, acks=-1)["error_code"] == 0


def read_all(
    raw: Any, topic: str, offset: int, end: int, patience_s: float = PATIENCE_S
) -> list[int]:
    """The keys from an offset on, through fetches; retries what a client would."""
    found: list[int] = []
    deadline = time.monotonic() + patience_s
    while offset < end:
        part = raw.fetch(topic, offset, max_wait=100, max_bytes=3000)
        assert part["error_code"] in {0, STORAGE_ERROR}
        for at, header in batches.iterate(part["records"] or b""):
            body = bytes(part["records"][at : at + header.size])
            assert batches.checksum_matches(body, 0, header)
            if header.base_offset >= offset:
                assert header.base_offset == offset
                found.append(header.base_timestamp - 1_700_000_000_000)
                offset = header.next_offset
        assert time.monotonic() < deadline, (offset, end, part)
    return found


def offset_for(raw: Any, topic: str, timestamp: int) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    wanted = [{"name": topic, "partitions": [part]}]
    answer = raw.call(ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=0, topics=wanted)
    found = answer["topics"][0]["partitions"][0]
    assert found["error_code"] == 0
    return found["offset"], found["timestamp"]


def settle(broker: BrokerProcess, raw: Any, topic: str, beyond: int) -> None:
    """Waits until all that is closed is in the store alone: nothing moves any more."""
    local = broker.data / "topics" / topic / "0"

    def is_settled() -> bool:
        start, pending = (offset_for(raw, topic, what)[0] for what in (-4, -6))
        return beyond < start == pending and len(list(local.glob("*.log"))) == 1

    wait_until(is_settled, f"all before {beyond} or later to be in the store alone")


def files_in(store: Path) -> list[str]:
    # Folders that go meanwhile are passed over, which `rglob` doesn't.
    return sorted(name for _, _, names in os.walk(store) for name in names)


def segments_in(store: Path) -> list[str]:
    return [name for name in files_in(store) if name.endswith(".log")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tiered(tmp_path: Path, store: Path) -> Iterator[BrokerProcess]:
    """A broker with a directory as its tier."""
    arguments = ["--tier", store.as_uri(), "--tier-interval-ms", "50"]
    process = BrokerProcess(tmp_path / "data", arguments=arguments).start()
    yield process
    process.kill()


def test_old_offsets_are_served_from_the_tier(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """What was dropped locally is read, looked up by time and listed as if it weren't; also after
    a SIGKILL.
    """
    with connect(tiered.address) as raw:
        assert create(raw, "t", **SMALL) == 0
        fill(raw, "t", 60)
        settle(tiered, raw, "t", 40)
        assert segments_in(store)
        assert offset_for(raw, "t", -2)[0] == 0
        assert offset_for(raw, "t", -5)[0] == offset_for(raw, "t", -4)[0] - 1
        assert offset_for(raw, "t", -6)[0] == offset_for(raw, "t", -4)[0]
        assert read_all(raw, "t", 0, 60) == list(range(60))
        for n in (0, 7, 30, 59):
            at = 1_700_000_000_000 + n
            assert offset_for(raw, "t", at) == (n, at)
    tiered.kill()
    tiered.start()
    with connect(tiered.address) as raw:
        assert read_all(raw, "t", 13, 60) == list(range(13, 60))
        fill(raw, "t", 10, first=60)
        assert read_all(raw, "t", 0, 70) == list(range(70))


@pytest.mark.slow
def test_local_segments_that_are_damaged_or_lost_come_back_from_the_store(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """Clients see nothing of it but a retriable error while the store is away, doctor warns, and the
    local files are what they were.
    """
    with connect(tiered.address) as raw:
        create(raw, "t", **{**SMALL, "local.retention.bytes": "-1"})
        fill(raw, "t", 60)
        wait_until(lambda: offset_for(raw, "t", -6)[0] > 40, "40 records to be in the store")
    tiered.stop()
    local = tiered.data / "topics/t/0"
    files = sorted(local.glob("*.log"))[1:5]
    before = {one: one.read_bytes() for one in files}
    flipped, cut, lost, forgotten = files
    data = bytearray(before[flipped])
    data[100] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(before[cut][:200])
    lost.unlink()
    forgotten.unlink()
    forgotten.with_suffix(".index").unlink()
    report = examine(tiered.data)
    assert report.is_sound
    warnings = " ".join(one.text for one in report.findings if one.level is Level.WARNING)
    assert f"The store has offsets {int(lost.stem)} to" in warnings
    (cluster,) = store.iterdir()
    cluster.rename(store.with_name("away"))
    cluster.write_bytes(b"")  # nothing can be put there, either
    tiered.start()
    with connect(tiered.address) as raw:
        wait_until(
            lambda: raw.fetch("t", int(flipped.stem))["error_code"] == STORAGE_ERROR,
            "a retriable error while the store is away",
        )
        cluster.unlink()
        store.with_name("away").rename(cluster)
        assert read_all(raw, "t", 0, 60) == list(range(60))
        assert offset_for(raw, "t", 1_700_000_000_000 + int(lost.stem))[0] == int(lost.stem)
        wait_until(
            lambda: all(one.exists() and one.read_bytes() == before[one] for one in files),
            "the files to come back",
        )
        assert read_all(raw, "t", 0, 60) == list(range(60))
    tiered.stop()
    assert not examine(tiered.data).findings


@pytest.mark.slow
def test_a_vanished_store_gives_a_retriable_error_and_recovers(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """Without its store the broker serves what is local and other connections; then all again."""
    with connect(tiered.address) as raw, connect(tiered.address) as other:
        create(raw, "t", **SMALL)
        fill(raw, "t", 40)
        settle(tiered, raw, "t", 20)
        store.rename(store.with_name("away"))
        assert raw.fetch("t", 0)["error_code"] == STORAGE_ERROR
        raw.send_fetch("t", 0, max_wait=3000)
        fill(other, "t", 20, first=40)
        assert offset_for(other, "t", -1)[0] == 60
        assert other.fetch("t", 59)["error_code"] == 0
        assert raw.receive(1, 11)["responses"][0]["partitions"][0]["error_code"] == STORAGE_ERROR
        store.with_name("away").rename(store)
        assert read_all(raw, "t", 0, 60) == list(range(60))
        settle(tiered, raw, "t", 45)


@pytest.mark.slow
def test_a_changed_object_is_never_served(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """A flipped bit in the store is found by its chunk's checksum."""
    with connect(tiered.address) as raw:
        create(raw, "t", **SMALL)
        fill(raw, "t", 40)
        settle(tiered, raw, "t", 20)
        first = min(store.rglob("*.log"), key=lambda one: one.name)
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 4
        first.write_bytes(data)
        assert raw.fetch("t", 0)["error_code"] == STORAGE_ERROR
        data[len(data) // 2] ^= 4
        first.write_bytes(data)
        assert read_all(raw, "t", 0, 40) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        *[pytest.param(one, marks=pytest.mark.slow) for one in ("truncated", "empty", "flipped")],
        "missing",
    ],
)
def test_a_lost_manifest_is_reported_and_restored_from_the_store(
    damage: str, tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """Until the store gives its copy back, what is local is served and taken, old offsets get a
    retriable error, and nothing is deleted anywhere.
    """
    with connect(tiered.address) as raw:
        create(raw, "t", **SMALL)
        fill(raw, "t", 40)
        settle(tiered, raw, "t", 20)
        local = offset_for(raw, "t", -4)[0]
    tiered.kill()
    before = segments_in(store)
    store.rename(store.with_name("away"))
    path = tiered.data / "topics" / "t" / "0" / "tier"
    data = path.read_bytes()
    match damage:
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        case _:
            path.unlink()
    store.mkdir()
    tiered.start()
    with connect(tiered.address) as raw:
        assert read_all(raw, "t", local, 40) == list(range(local, 40))
        assert raw.fetch("t", 0)["error_code"] == STORAGE_ERROR
        assert raw.fetch("t", local - 1)["error_code"] == STORAGE_ERROR
        assert offset_for(raw, "t", -2)[0] == 0
        fill(raw, "t", 30, first=40)
        assert read_all(raw, "t", local, 70) == list(range(local, 70))
        store.rmdir()
        store.with_name("away").rename(store)
        wait_until(lambda: raw.fetch("t", 0)["error_code"] == 0)
        assert read_all(raw, "t", 0, 70) == list(range(70))
        assert before == segments_in(store)[: len(before)]
        settle(tiered, raw, "t", 50)
    tiered.kill()
    tiered.start()
    with connect(tiered.address) as raw:
        assert read_all(raw, "t", 0, 70) == list(range(70))


@pytest.mark.slow
def test_a_partition_of_which_nothing_is_left_keeps_no_broker_from_starting(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """It is refused until the store says what it holds; then it is served from there."""
    with connect(tiered.address) as raw:
        for topic in ("t", "other"):
            create(raw, topic, **SMALL)
            fill(raw, topic, 40)
            settle(tiered, raw, topic, 20)
    tiered.kill()
    store.rename(store.with_name("away"))
    store.mkdir()
    for one in (tiered.data / "topics/t/0").iterdir():
        one.unlink()
    (tiered.data / "topics/t/0/tier").write_bytes(b"12345678 {}")
    tiered.start()
    with connect(tiered.address) as raw:
        local = offset_for(raw, "other", -4)[0]
        assert read_all(raw, "other", local, 40) == list(range(local, 40))
        for offset in (0, 20, 1000):
            assert raw.fetch("t", offset)["error_code"] == STORAGE_ERROR
        refused = raw.produce("t", batches.build([(b"k", b"v")]), acks=-1)
        assert refused["error_code"] == STORAGE_ERROR
        asked = [{"partition_index": 0, "offset": 20}]
        deleted = raw.call(
            ApiKey.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": asked}], timeout_ms=1000
        )
        assert deleted["topics"][0]["partitions"][0]["error_code"] == STORAGE_ERROR
        asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
        wanted = [{"topic": "t", "partitions": asked}]
        ends = raw.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=wanted)
        assert ends["topics"][0]["partitions"][0]["error_code"] == STORAGE_ERROR
        shutil.rmtree(store)  # the other topic's list may have been put there meanwhile
        store.with_name("away").rename(store)
        wait_until(lambda: raw.fetch("t", 0)["error_code"] == 0)
        tiered_upto = offset_for(raw, "t", -1)[0]
        assert tiered_upto > 20
        assert read_all(raw, "t", 0, tiered_upto) == list(range(tiered_upto))
        fill(raw, "t", 5)
        assert offset_for(raw, "t", -1)[0] == tiered_upto + 5


@pytest.mark.slow
def test_deleting_removes_what_is_in_the_store(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """DeleteRecords and the deletion of a topic reach the store; so does retention."""
    with connect(tiered.address) as raw:
        create(raw, "t", **SMALL)
        fill(raw, "t", 40)
        settle(tiered, raw, "t", 20)
        before = len(segments_in(store))
        part = {"partition_index": 0, "offset": 15}
        raw.call(
            ApiKey.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": [part]}], timeout_ms=1000
        )
        wait_until(lambda: len(segments_in(store)) < before)
        assert int(segments_in(store)[0][:20]) <= 15
        assert raw.fetch("t", 14)["error_code"] == 1
        assert read_all(raw, "t", 15, 40) == list(range(15, 40))
        raw.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout_ms=1000)
        wait_until(lambda: not files_in(store))
        assert create(raw, "t", **SMALL) == 0


@pytest.mark.slow
def test_a_topic_deleted_without_its_store_is_removed_there_later(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """A deletion outlives an absent store and a SIGKILL."""
    with connect(tiered.address) as raw:
        create(raw, "t", **SMALL)
        fill(raw, "t", 40)
        settle(tiered, raw, "t", 20)
        store.rename(store.with_name("away"))
        raw.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout_ms=1000)
        create(raw, "t", **SMALL)
        fill(raw, "t", 5)
    tiered.kill()
    store.with_name("away").rename(store)
    tiered.start()
    wait_until(lambda: not segments_in(store))
    with connect(tiered.address) as raw:
        assert read_all(raw, "t", 0, 5) == list(range(5))


@pytest.mark.slow
def test_settings_that_contradict_each_other_are_refused(
    tiered: BrokerProcess, raw: Any, connect: Callable[[str], Any]
) -> None:
    """Tiering needs a tier, plain retention, and a local retention within the whole one."""
    assert create(raw, "no-tier-here", **SMALL) == INVALID_CONFIG
    with connect(tiered.address) as own:
        assert create(own, "a", **SMALL | {"cleanup.policy": "compact"}) == INVALID_CONFIG
        lasting = {"local.retention.ms": "2000", "retention.ms": "1000"}
        assert create(own, "a", **SMALL | lasting) == INVALID_CONFIG
        assert create(own, "a", **SMALL) == 0

        def alter(**values: str) -> int:
            configs = [
                {"name": name, "config_operation": 0, "value": value}
                for name, value in values.items()
            ]
            wanted = {"resource_type": 2, "resource_name": "a", "configs": configs}
            answer = own.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[wanted], validate_only=False
            )
            code: int = answer["responses"][0]["error_code"]
            return code

        assert alter(**{"remote.storage.enable": "false"}) == INVALID_CONFIG
        fill(own, "a", 40)
        settle(tiered, own, "a", 20)
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        assert alter(**off) == 0
        wait_until(lambda: offset_for(own, "a", -2)[0] > 20)
        wait_until(lambda: offset_for(own, "a", -5)[0] == -1)
        assert read_all(own, "a", offset_for(own, "a", -2)[0], 40)


def test_credentials_in_a_uri_are_refused(tmp_path: Path) -> None:
    """They belong into the environment; the message doesn't repeat them."""
    from penstock.broker.tier.objects import ArrowObjects
    from penstock.errors import SetupError

    for uri in ("s3://AKIA:hush@bucket/p", "s3://bucket/p?secret_key=hush", "plain/path"):
        with pytest.raises(SetupError) as caught:
            ArrowObjects(uri)
        assert "hush" not in str(caught.value)


class S3:
    """An S3 server with a bucket, `history`."""

    def __init__(self) -> None:
        self.port = 0
        self.start()
        boto3 = pytest.importorskip("boto3")
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")
        self.client.create_bucket(Bucket="history")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serves, at the port of before."""
        moto = pytest.importorskip("moto.server")
        self.server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()
        _, self.port = self.server.get_host_and_port()

    def objects(self) -> list[str]:
        """The names of all objects."""
        listed = self.client.list_objects_v2(Bucket="history").get("Contents", [])
        return [one["Key"] for one in listed if not one["Key"].endswith("/")]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An S3 server; its address and credentials are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    found = S3()
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    yield found
    found.server.stop()


def test_s3(tmp_path: Path, s3: S3, connect: Callable[[str], Any]) -> None:
    """The same against an S3 server; the credentials stay in the environment."""
    arguments = ["--tier", "s3://history/some/prefix", "--tier-interval-ms", "50"]
    process = BrokerProcess(tmp_path / "data", arguments=arguments)
    with process as broker, connect(broker.address) as raw:
        create(raw, "t", **SMALL)
        fill(raw, "t", 30)
        settle(broker, raw, "t", 20)
        assert s3.objects()
        assert all(one.startswith("some/prefix/") for one in s3.objects())
        assert read_all(raw, "t", 0, 30) == list(range(30))
        raw.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout_ms=1000)
        wait_until(lambda: not s3.objects())
    kept = (tmp_path / "data" / "cluster.json").read_text()
    assert "secret" not in kept
    assert json.loads(kept)["id"]


@pytest.mark.slow
def test_s3_goes_away_and_comes_back(tmp_path: Path, s3: S3, connect: Callable[[str], Any]) -> None:
    """Segments wait and stay local, old offsets get a retriable error soon, the failures are logged
    and in the metrics; once the store is back everything is copied, and nothing is lost.
    """
    metrics = f"127.0.0.1:{free_port()}"
    arguments = ["--tier", "s3://history/p", "--tier-interval-ms", "50", "--metrics", metrics]

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(one.split()[1]) for one in lines if one.startswith(f"{name} "))

    with (tmp_path / "broker.log").open("ab") as log:
        process = BrokerProcess(tmp_path / "data", arguments=arguments, stderr=log.fileno())
        with process as broker, connect(broker.address) as raw:
            create(raw, "t", **SMALL)
            fill(raw, "t", 30)
            settle(broker, raw, "t", 20)
            s3.server.stop()
            fill(raw, "t", 30, first=30)
            local = offset_for(raw, "t", -4)[0]
            wait_until(lambda: raw.fetch("t", 0)["error_code"] == STORAGE_ERROR)
            s3.server._server.server_close()  # it was silent, now it refuses connections
            wait_until(lambda: metric("penstock_tier_failures_total") > 0)
            wait_until(lambda: raw.fetch("t", 0)["error_code"] == STORAGE_ERROR)
            assert metric("penstock_tier_uncopied_bytes") > 0
            assert offset_for(raw, "t", -4)[0] == local
            assert read_all(raw, "t", local, 60) == list(range(local, 60))
            s3.start()
            settle(broker, raw, "t", 45)
            assert read_all(raw, "t", 0, 60) == list(range(60))
            wait_until(lambda: metric("penstock_tier_uncopied_bytes") == 0)
    assert "tiering failed, next attempt" in (tmp_path / "broker.log").read_text()


def test_kills_while_tiering_lose_and_double_nothing(
    tiered: BrokerProcess, store: Path, connect: Callable[[str], Any]
) -> None:
    """SIGKILL at random moments of copying, trimming and dropping: every acknowledged record is
    there once, in order, and the store holds no segment twice.
    """
    chance = random.Random(7)
    acknowledged = 0
    for _ in range(KILLS):
        with connect(tiered.address) as raw:
            if not acknowledged:
                create(raw, "t", **SMALL)
            count = chance.randint(5, 25)
            fill(raw, "t", count, first=acknowledged)
            acknowledged += count
            time.sleep(chance.random() * 0.15)
        tiered.kill()
        tiered.start()
    with connect(tiered.address) as raw:
        assert read_all(raw, "t", 0, acknowledged) == list(range(acknowledged))
        wait_until(lambda: offset_for(raw, "t", -6)[0] == offset_for(raw, "t", -4)[0])

        def bases() -> list[str]:
            return [one[:20] for one in segments_in(store)]

        wait_until(lambda: len(set(bases())) == len(bases()))
        wait_until(lambda: sum(one.startswith("manifest-") for one in files_in(store)) == 1)


def bytes_of(folder: Path) -> int:
    """The size of the segments there; one may be dropped between being listed and being looked at."""
    size = 0
    for one in folder.rglob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            size += one.stat().st_size
    return size


@pytest.mark.slow
def test_a_clients_transactions_are_the_same_from_the_tier(tiered: BrokerProcess) -> None:
    """An ordinary consumer, with sessions and either isolation level, sees no difference."""
    kafka = pytest.importorskip("confluent_kafka")
    admin = pytest.importorskip("confluent_kafka.admin")
    address = {"bootstrap.servers": tiered.address}
    settings = SMALL | {"segment.bytes": "50000"}
    topic = admin.NewTopic("t", 3, 1, config=settings)
    client = admin.AdminClient(address)
    client.create_topics([topic])["t"].result()
    producer = kafka.Producer(address | {"transactional.id": "x"})
    producer.init_transactions()
    everything, committed = set(range(3000)), set[int]()
    for first in range(0, 3000, 250):
        producer.begin_transaction()
        for n in range(first, first + 250):
            producer.produce("t", value=b"%06d" % n + bytes(300), partition=n % 3)
        producer.flush()
        if first % 1000 == 250:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            committed.update(range(first, first + 250))
    local = tiered.data / "topics" / "t"
    wait_until(lambda: bytes_of(local) < 400_000)
    for level, expected in (("read_committed", committed), ("read_uncommitted", everything)):
        group = {"group.id": level, "isolation.level": level, "auto.offset.reset": "earliest"}
        consumer = kafka.Consumer(address | group)
        consumer.subscribe(["t"])
        found: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(expected) and time.monotonic() < deadline:
            messages = consumer.consume(1000, 0.5)
            assert not any(one.error() for one in messages)
            found += [int(one.value()[:6]) for one in messages]
        consumer.close()
        assert len(found) == len(expected)
        assert set(found) == expected
