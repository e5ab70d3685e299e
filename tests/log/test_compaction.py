from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.log.faults import FailingFiles, PowerLossError

from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import AppendError, DamagedError
from penstock.log.markers import Aborted
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches, columns
from penstock.wire.protocol import ErrorCode

NOW = 1_700_000_000_000
GRACE = 1_000
COMPACT = LogConfig(
    segment_bytes=900,
    retention_ms=-1,
    cleanup_policy="compact",
    delete_retention_ms=GRACE,
)
SMALL_MAP = 24 << 10

Pair = tuple[bytes | None, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None]


def put(log: Partition, *pairs: Pair, now: int = NOW, **kwargs: int | str) -> int:
    """Appends a batch; its base offset."""
    one = batches.build(list(pairs), timestamps_ms=[now] * len(pairs), **kwargs)
    return log.append(one, now).base_offset


def rows(log: Partition) -> list[Row]:
    """Offset, time, key and value of every record that a reader sees (markers left out)."""
    found: list[Row] = []
    offset = log.start_offset
    while data := log.read(offset, 500):
        records = columns.decode(data)
        keys, values = records.keys().to_pylist(), records.values().to_pylist()
        found += zip(
            records.offset.tolist(), records.timestamp_ms.tolist(), keys, values, strict=True
        )
        assert records.next_offset > offset
        offset = records.next_offset
    return found


def headers(log: Partition) -> list[batches.Header]:
    """The header of every batch."""
    return [header for segment in log.segments for _, header in segment.headers(0)]


def opened(files: MemoryFiles, config: LogConfig = COMPACT) -> Partition:
    """The partition as a new process finds it."""
    log = Partition(files, "p", config, NOW)
    log.check()
    return log


def test_latest_value_of_each_key_is_kept() -> None:
    """Of the closed segments only each key's last record stays, with its offset and time."""
    log = opened(MemoryFiles())
    for n in range(200):
        put(log, (b"key%d" % (n % 7), b"value%d" % n), (b"only%d" % n, b""), now=NOW + n)
    log.sync()
    before, closed = rows(log), log.active.base_offset
    assert log.compactor.run(NOW)
    log.check()
    last = {key: offset for offset, _, key, _ in before if offset < closed}
    assert rows(log) == [one for one in before if one[0] >= closed or last[one[2]] == one[0]]
    assert log.compactor.dirty_from == closed
    assert rows(opened(log._files)) == rows(log)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_is_kept(codec: str) -> None:
    """A batch that loses records is packed again as it was; headers and offsets stay."""
    log = opened(MemoryFiles())
    for n in range(40):
        pairs = [(b"k%d" % k, b"%d-%d" % (n, k) * 20) for k in range(1 + n % 5)]
        put(log, (b"only%d" % n, b"v"), *pairs, codec=codec)
    log.sync()
    before = {offset: one for one in rows(log) for offset in one[:1]}
    log.compactor.run(NOW)
    log.check()
    after = rows(log)
    assert len(after) < len(before)
    assert all(before[one[0]] == one for one in after)
    assert all(one.codec == codec for one in headers(log) if one.record_count)
    assert any(0 < one.record_count < one.last_offset_delta + 1 for one in headers(log))


def test_tombstones_have_a_grace_time() -> None:
    """A null value hides earlier ones at once, and goes itself once it was clean for so long."""
    log = opened(MemoryFiles())
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    for n in range(30):
        put(log, (b"c", b"%d" % n * 10))
    log.sync()
    log.compactor.run(NOW)
    assert [one[2:] for one in rows(log)][:2] == [(b"b", b"1"), (b"a", None)]
    log.compactor.run(NOW + GRACE - 1)
    assert (2, NOW, b"a", None) in rows(log)
    log.compactor.run(NOW + GRACE)
    assert b"a" not in [one[2] for one in rows(log)]
    log.check()


def test_records_without_a_key_are_refused() -> None:
    """A compacted log takes no null keys, packed or not; it drops those from before."""
    files = MemoryFiles()
    log = opened(files, replace(COMPACT, cleanup_policy="delete"))
    put(log, (None, b"old"))
    log.config = COMPACT
    for codec in ("none", "lz4"):
        with pytest.raises(AppendError) as caught:
            put(log, (b"k", b"v"), (None, b"v"), codec=codec)
        assert caught.value.code is ErrorCode.INVALID_RECORD
    for _ in range(30):
        put(log, (b"k", b"v" * 50))
    log.sync()
    log.compactor.run(NOW)
    assert None not in [one[2] for one in rows(log)]


def test_when_a_pass_is_due() -> None:
    """The dirty share, the least and the greatest age decide, as Kafka's settings say."""
    log = opened(MemoryFiles())
    for n in range(100):
        put(log, (b"k%d" % n, b"v" * 20), now=NOW)
    assert not log.compactor.is_due(NOW)  # nothing is durable yet
    log.sync()
    assert log.compactor.is_due(NOW)
    log.config = replace(COMPACT, min_compaction_lag_ms=1000)
    assert not log.compactor.is_due(NOW + 999)
    assert log.compactor.is_due(NOW + 1000)
    log.config = COMPACT
    log.compactor.run(NOW)
    assert not log.compactor.is_due(NOW)
    for n in range(30):
        put(log, (b"k%d" % n, b"v" * 20), now=NOW)
    log.sync()
    assert not log.compactor.is_due(NOW)
    log.config = replace(COMPACT, max_compaction_lag_ms=10)
    assert log.compactor.is_due(NOW + 11)
    log.config = replace(COMPACT, min_cleanable_dirty_ratio=0.05)
    assert log.compactor.is_due(NOW)


def test_open_transactions_hold_back_and_aborted_records_go() -> None:
    """Nothing from the last stable offset on is cleaned; aborted records are dropped; markers stay
    until they are of no use.
    """
    log = opened(MemoryFiles())
    put(log, (b"a", b"good"))
    for n in range(20):
        put(
            log,
            (b"a", b"bad" * 20),
            producer_id=7,
            producer_epoch=0,
            base_sequence=n,
            attributes=0x10,
        )
    log.sync()
    assert not log.compactor.cleanable(NOW)
    marker = log.append_marker(7, 0, commit=False, coordinator_epoch=0, now_ms=NOW).base_offset
    for n in range(30):
        put(log, (b"b", b"%d" % n * 20))
    log.sync()
    assert log.aborted(0, marker) == [Aborted(7, 1, marker)]
    log.compactor.run(NOW)
    log.check()
    assert rows(log)[0] == (0, NOW, b"a", b"good")
    kept = {one.base_offset: one.record_count for one in headers(log)}
    assert (kept[20], kept[marker]) == (0, 1)  # the producer's last batch and the marker
    assert not any(kept.get(offset) for offset in range(1, 21))
    put(log, (b"c", b"1"), producer_id=7, producer_epoch=0, base_sequence=20)
    for now in (NOW, NOW + 1, NOW + GRACE):  # readers of older records may still need it
        log.compactor.run(now)
        assert marker in [one.base_offset for one in headers(log)]
    log.compactor.run(NOW + GRACE + 1)
    assert marker not in [one.base_offset for one in headers(log)]


def test_segments_are_joined_as_far_as_they_fit() -> None:
    """Cleaned segments become one where they fit, and none is larger than a segment may be."""
    log = opened(MemoryFiles())
    for n in range(60):
        put(log, (b"%d" % n, bytes(100)))
    for _ in range(30):
        put(log, (b"same", bytes(100)))
    log.sync()
    before = len(log.segments)
    log.compactor.run(NOW)
    log.compactor.run(NOW)
    log.check()
    assert len(log.segments) < before
    assert max(one.size for one in log.segments) <= COMPACT.segment_bytes


def test_damaged_segments_are_passed_over() -> None:
    """A segment with a wrong checksum stays as it is; those before and after it are compacted."""
    files = MemoryFiles()
    log = opened(files)
    for n in range(60):
        put(log, (b"k", b"%d" % n * 20))
    log.sync()
    victim = log.segments[1]
    files.damage(victim.path, 200, 3)
    before = bytes(victim.file.read(0, victim.size))
    assert log.compactor.run(NOW)
    assert log.compactor.uncleanable is None
    assert log.compactor.passed_over() == [victim]
    assert bytes(victim.file.read(0, victim.size)) == before
    whole = [one for one in log.segments[:-1] if one is not victim]
    assert sum(one.size for one in whole) < victim.size
    assert not log.compactor.is_due(NOW)
    assert not [one for one in files.list("p") if "cleaned" in one or "swap" in one]


def table_of(found: list[Row]) -> dict[bytes | None, bytes]:
    """What a reader of all rows ends up with."""
    table = {row[2]: row[3] for row in found}
    return {key: value for key, value in table.items() if value is not None}


def committed(log: Partition) -> tuple[list[Row], bool]:
    """What a reader of committed data gets, and whether something couldn't be read."""
    found: list[Row] = []
    offset, has_holes = log.start_offset, False
    aborted = log.aborted(offset, log.end_offset)
    while offset < log.last_stable_offset:
        try:
            data = bytes(log.read(offset, 1, upto=log.last_stable_offset))
        except DamagedError as damage:
            offset, has_holes = damage.next_offset, True
            continue
        header = batches.parse(data)
        is_aborted = any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
        if not (header.is_control or (header.is_transactional and is_aborted)):
            found += [
                (one.offset, NOW, one.key, one.value) for one in batches.records(data, 0, header)
            ]
        offset = header.next_offset
    return found, has_holes


class Holes:
    """A compacted log of which segments are damaged or lost, until they are restored."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.log = opened(self.files)
        self.now = NOW
        self.saved: dict[str, bytes] = {}

    def append(self) -> None:
        chance, producer = self.chance, self.chance.choice([-1, 1, 2])
        known = {one.producer_id: one for one in self.log.producers.describe()}.get(producer)
        numbers = {}
        if producer > 0:
            numbers = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": known.last_sequence + 1 if known else 0,
                "attributes": 0x10,
            }
        pairs = [
            (b"k%d" % chance.randint(0, 12), None if chance.random() < 0.3 else bytes([n, 1]) * 20)
            for n in range(chance.randint(1, 4))
        ]
        put(self.log, *pairs, now=self.now, **numbers)

    def end(self) -> None:
        for producer in self.log.open_transactions():
            self.log.append_marker(
                producer, 0, commit=self.chance.random() < 0.5, coordinator_epoch=0, now_ms=self.now
            )

    def wait(self) -> None:
        self.now += self.chance.randint(0, 2 * GRACE)

    def compact(self) -> None:
        self.log.sync(checkpoint=True)
        size = self.chance.choice([SMALL_MAP, 1 << 20])
        self.log.compactor.run(self.now, (self.chance.getrandbits(64), 1), map_bytes_max=size)

    def hurt(self) -> None:
        """Some closed segments are damaged or lost while the broker is down: not the log's end."""
        put(self.log, (b"k0", b"end"), now=self.now)
        self.log.close()
        closed = [one for one in self.log.segments[:-1] if one.size and one.path not in self.saved]
        for one in self.chance.sample(closed, min(len(closed), self.chance.randint(1, 2))):
            self.saved[one.path] = self.files.load(one.path) or b""
            match self.chance.choice(["flip", "cut", "lose"]):
                case "flip":
                    self.files.damage(one.path, self.chance.randrange(one.size), 2)
                case "cut":
                    self.files.open(one.path).truncate(self.chance.randrange(one.size))
                case _:
                    self.files.delete(one.path)
        self.log = opened(self.files)

    def restore(self) -> None:
        """The files are put back as they were."""
        self.log.close()
        for path, data in self.saved.items():
            self.files.store(path, data)
        self.saved = {}
        self.log = opened(self.files)


def test_a_transaction_whose_end_is_not_known_hides_nothing() -> None:
    """Its marker lies in a hole, and so does the index that knows of it: it may be aborted."""
    files = MemoryFiles()
    log = opened(files)
    put(log, (b"k", b"good"))
    put(log, (b"k", b"bad"), producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10)
    while len(log.segments) < 2:
        put(log, (b"other", bytes(100)))
    log.append_marker(1, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
    while len(log.segments) < 5:
        put(log, (b"other", bytes(100)))
    log.close()
    hole = log.segments[1]
    whole = files.load(hole.path) or b""
    files.open(hole.path).truncate(10)
    files.delete(hole.index_path)
    log = opened(files)
    assert log.compactor.run(NOW)
    assert log.compactor.removed_bytes
    log.close()
    files.store(hole.path, whole)
    log = opened(files)
    assert table_of(committed(log)[0])[b"k"] == b"good"
    log.compactor.run(NOW)
    assert table_of(committed(log)[0])[b"k"] == b"good"


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_holes_neither_stop_compaction_nor_mislead_it(seed: int) -> None:
    """With segments damaged, lost and restored, passes and restarts, no readable latest value is
    lost; and once all is restored, the log's table is what it would be without any compaction.
    """
    world = Holes(seed)
    truth: dict[int, Row] = {}
    after: list[Row] = []
    steps = ["append"] * 14 + ["end", "end", "wait", "compact", "compact", "hurt", "restore"]
    for _ in range(120):
        step = world.chance.choice(steps)
        before = after
        if step in {"compact", "hurt", "restore"}:
            world.end()
            before, _ = committed(world.log)
        truth.update({row[0]: row for row in before})
        getattr(world, step)()
        after, _ = committed(world.log)
        assert after == sorted(after)
        if step == "compact":
            assert {row[0]: row for row in after}.items() <= truth.items()
            assert table_of(after) == table_of(before)
    world.end()
    world.restore()
    found, has_holes = committed(world.log)
    truth.update({row[0]: row for row in found})
    wanted = table_of([row for _, row in sorted(truth.items())])
    assert not has_holes
    assert table_of(found) == wanted
    for _ in range(3):
        world.compact()
        world.now += 2 * GRACE
    found, _ = committed(world.log)
    assert table_of(found) == wanted


@dataclass
class Batch:
    """What the naive log remembers of a batch."""

    rows: list[Row]
    producer: int
    is_transactional: bool
    horizon: int | None = None
    is_aborted: bool = False


@dataclass
class Machine:
    """A compacted log beside a naive model of it, driven by chance."""

    seed: int
    files: FailingFiles = field(default_factory=FailingFiles)
    model: list[Batch] = field(default_factory=list)
    now: int = NOW

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.log = opened(self.files)
        self.expected: dict[int, Row] = {}

    def append(self) -> None:
        chance, log = self.chance, self.log
        producer = chance.choice([-1, -1, 1, 2, 3])
        known = {one.producer_id: one for one in log.producers.describe()}.get(producer)
        numbers = {}
        is_open = producer > 1
        if producer > 0:
            numbers = {
                "producer_id": producer,
                "producer_epoch": known.epoch if known else 0,
                "base_sequence": known.last_sequence + 1 if known else 0,
                "attributes": 0x10 if is_open else 0,
            }
        pairs = [
            (
                b"k%d" % chance.randint(0, 40),
                None if chance.random() < 0.2 else bytes(chance.randint(0, 60)),
            )
            for _ in range(chance.randint(1, 6))
        ]
        base = put(
            log, *pairs, now=self.now, codec=chance.choice(["none", "none", "zstd"]), **numbers
        )
        written = [(base + n, self.now, *pair) for n, pair in enumerate(pairs)]
        self.model.append(Batch(written, producer, is_open))

    def end(self) -> None:
        is_open = self.log.open_transactions()
        if not is_open:
            return
        producer = self.chance.choice(list(is_open))
        commit = self.chance.random() < 0.5
        epoch = next(one.epoch for one in self.log.producers.describe() if one[0] == producer)
        epoch += self.chance.randint(0, 1)
        self.log.append_marker(producer, epoch, commit=commit, coordinator_epoch=0, now_ms=self.now)
        for one in self.model:
            if one.producer == producer and one.rows and one.rows[0][0] >= is_open[producer]:
                one.is_aborted = not commit

    def wait(self) -> None:
        self.now += self.chance.randint(0, GRACE)

    def sync(self) -> None:
        self.log.sync(checkpoint=True)

    def kill(self) -> None:
        self.log = opened(self.files)

    def reckon(self, ends: list[tuple[int, int]], upto: int) -> None:
        """The naive pass, given base and next offset of each cleaned segment."""
        cleaned_upto = max((end for base, end in ends if base < upto), default=0)
        last: dict[bytes | None, int] = {}
        for one in self.model:
            if not one.is_aborted:
                last.update({row[2]: row[0] for row in one.rows if row[0] < upto})
        for one in self.model:
            if not one.rows or one.rows[0][0] >= cleaned_upto:
                continue
            keeps = one.horizon is None or one.horizon > self.now
            one.rows = [
                row
                for row in one.rows
                if not one.is_aborted
                and (row[0] >= upto or ((row[3] is not None or keeps) and last[row[2]] == row[0]))
            ]
            if one.horizon is None and any(row[3] is None for row in one.rows):
                one.horizon = self.now + GRACE

    def compact(self) -> None:
        ends = [
            (one.base_offset, one.next_offset) for one in self.log.compactor.cleanable(self.now)
        ]
        size = self.chance.choice([SMALL_MAP, 1 << 20])
        if self.log.compactor.run(self.now, (self.chance.getrandbits(64), 1), map_bytes_max=size):
            self.reckon(ends, self.log.compactor.dirty_from)

    def check(self) -> None:
        self.log.check()
        assert rows(self.log) == [row for one in self.model for row in one.rows]


STEPS = ["append"] * 14 + ["end"] * 3 + ["sync", "compact", "compact", "wait", "kill"]


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_compaction_equals_the_naive_one(seed: int) -> None:
    """After any writes, transactions, passes and restarts the log holds exactly what a naive
    compaction keeps; and producers are known even if only the log is left.
    """
    machine = Machine(seed)
    for _ in range(80):
        step = machine.chance.choice(STEPS)
        getattr(machine, step)()
        if step in {"compact", "kill"}:
            machine.check()
    machine.sync()
    before = {one[:3] for one in machine.log.producers.describe()}
    is_open = machine.log.open_transactions()
    for name in machine.files.list("p"):
        if not name.endswith((".log", "cleaner")):
            machine.files.delete(f"p/{name}")
    machine.kill()
    machine.check()
    assert {one[:3] for one in machine.log.producers.describe()} == before
    assert machine.log.open_transactions() == is_open


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_at_any_instant_of_a_pass(seed: int) -> None:
    """Whatever operation of a pass is the last, each record is there as before or as after it, no
    latest value is lost, and the next pass comes to the same end.
    """
    done, left = False, 0
    while not done:
        machine = Machine(seed)
        for _ in range(60):
            getattr(machine, machine.chance.choice(["append", "append", "end", "wait"]))()
        machine.sync()
        before = rows(machine.log)
        ends = [
            (one.base_offset, one.next_offset)
            for one in machine.log.compactor.cleanable(machine.now)
        ]
        machine.files.left = left
        try:
            machine.log.compactor.run(machine.now)
            done = True
        except PowerLossError:
            machine.files.left = -1
            machine.files.crash(random.Random(left))
            machine.kill()
        machine.files.left = -1
        upto = max((end for _, end in ends), default=0)
        machine.reckon(ends, upto)
        wanted = [row for one in machine.model for row in one.rows]
        found = rows(machine.log)
        assert set(wanted) <= set(found) <= set(before)
        assert found == sorted(found)
        machine.log.compactor.run(machine.now)
        machine.check()
        left += 1
    assert left > 8


def test_batches_without_records_are_not_all_that_a_reader_gets() -> None:
    """What stays of a segment only for its offsets' sake is passed over: clients can't use it."""
    log = opened(MemoryFiles())
    for n in range(60):
        put(log, (b"key", b"%100d" % n), producer_id=n % 4, producer_epoch=0, base_sequence=n // 4)
    log.sync()
    assert log.compactor.run(NOW)
    assert any(one.record_count == 0 for one in headers(log))
    for offset in range(log.end_offset):
        first = batches.iterate(log.read(offset, 1))
        assert any(header.record_count for _, header in first), offset
