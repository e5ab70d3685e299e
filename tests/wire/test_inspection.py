"""What is found in a batch's records, by either loop."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.errors import CorruptError
from penstock.wire import batches, inspection
from penstock.wire.batches import HEADER_BYTES
from penstock.wire.inspection import Fault, Inspected, Wanted, inspect

NOW = 1_700_000_000_000
HOUR = 3_600_000
SPAN = Wanted(NOW - HOUR, NOW + HOUR)
TIMES = st.sampled_from([-1, -2, 0, NOW - HOUR - 1, NOW - HOUR, NOW, NOW + HOUR, NOW + HOUR + 1])
RECORDS = st.lists(
    st.tuples(st.sampled_from([None, b"", b"key", bytes(200)]), TIMES), min_size=1, max_size=30
)


@pytest.fixture(autouse=True)
def loops() -> Iterator[None]:
    """Leaves the loops as they were."""
    before = inspection._Loops.compiled, inspection._Loops.is_wanted
    yield
    inspection._Loops.compiled, inspection._Loops.is_wanted = before


def both(batch: bytearray, wanted: Wanted) -> Inspected | None:
    """What both loops find; None where they say that the batch is damaged."""
    found = []
    for use in (lambda: None, inspection.load_loop):
        inspection._Loops.compiled = None
        use()
        try:
            found.append(inspect(batch, batches.parse(batch), wanted))
        except CorruptError:
            found.append(None)
    assert found[0] == found[1]
    return found[0]


def reference(records: list[tuple[bytes | None, int]], wanted: Wanted) -> Inspected:
    """What is to be found, record by record."""
    found: list[Fault] = []
    seen = [time if wanted.time_ms is None else wanted.time_ms for _, time in records]
    for index, ((key, _), time) in enumerate(zip(records, seen, strict=True)):
        if wanted.keys and key is None:
            found.append(Fault(index, None))
        elif time != -1 and not wanted.earliest_ms <= time <= wanted.latest_ms:
            found.append(Fault(index, time))
    late = sum(one.timestamp_ms is not None for one in found)
    return Inspected(max(-1, *seen), len(found), late, found)


@settings(max_examples=examples(400), deadline=None)
@given(
    RECORDS, st.booleans(), st.sampled_from([None, NOW, 0, -1]), st.sampled_from(["none", "zstd"])
)
def test_both_loops_find_the_records_at_fault(
    records: list[tuple[bytes | None, int]], keys: bool, time_ms: int | None, codec: str
) -> None:
    """Each record without a key or out of range is told, with its index and its time."""
    wanted = SPAN._replace(keys=keys, time_ms=time_ms)
    batch = batches.build(
        [(key, b"value") for key, _ in records],
        timestamps_ms=[time for _, time in records],
        codec=codec,
    )
    assert both(batch, wanted) == reference(records, wanted)


def test_damaged_records_are_reported_alike() -> None:
    """Records that are changed or cut anywhere: both loops find the same, or that they are damaged."""
    chance = random.Random(11)
    whole = batches.build(
        [(b"key %d" % n if n % 3 else None, bytes(n)) for n in range(9)],
        timestamps_ms=[NOW + n for n in range(9)],
    )
    damaged = 0
    for _ in range(2000):
        batch = whole[: chance.choice([len(whole), chance.randrange(HEADER_BYTES, len(whole))])]
        for _ in range(chance.randrange(4)):
            at = chance.randrange(HEADER_BYTES, len(whole))
            batch[at : at + 1] = bytes([chance.choice([0, 1, 2, 127, 128, 255])])
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">i", batch, 57, chance.choice([9, 9, 8, 10, 0, -1, 2**31 - 1]))
        damaged += both(batch, SPAN._replace(keys=True)) is None
    assert 100 < damaged < 2000


def test_only_so_many_records_are_reported() -> None:
    """All are counted, but the first are told alone: an answer stays bounded."""
    count = inspection.FAULTS_MAX + 5
    found = both(batches.build([(None, b"")] * count), SPAN._replace(keys=True))
    assert found is not None
    assert (found.fault_count, len(found.faults)) == (count, inspection.FAULTS_MAX)
    assert found.faults[-1].batch_index == inspection.FAULTS_MAX - 1


def test_the_loop_is_loaded_once_it_is_wanted() -> None:
    """Nobody is asked to load it for nothing, or twice."""
    inspection._Loops.compiled, inspection._Loops.is_wanted = None, False
    assert not inspection.is_loop_wanted()
    inspection.want_loop()
    assert inspection.is_loop_wanted()
    inspection.load_loop()
    assert not inspection.is_loop_wanted()
