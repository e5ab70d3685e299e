"""Torn, truncated, flipped and lost files between two runs: noticed, told, and never served.

PENSTOCK_DAMAGES=300 PENSTOCK_SEED=7 python -m pytest -s tests/broker/storage/test_damage.py
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from crash_load import Connect, create
from tests.effort import rounds

from penstock.broker import BrokerProcess
from penstock.errors import SetupError
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

DAMAGES = rounds("PENSTOCK_DAMAGES", quick=2, full=6)
SEED = int(os.environ.get("PENSTOCK_SEED", "20261121"))
PARTITIONS = 2
BATCHES = 60
TORN_BYTES = 512
GROUP = "readers"
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass
class Truth:
    """What was acknowledged: per partition, each batch's checksum by its base offset."""

    directory: Path
    is_stopped: bool  # and so has checkpoints for all
    batches: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])
    committed: int = -1


@pytest.fixture(scope="module", params=["stopped", "killed"])
def truth(request: Any, tmp_path_factory: pytest.TempPathFactory, connect_any: Connect) -> Truth:
    """A data directory with several segments, left in order or by SIGKILL."""
    directory = tmp_path_factory.mktemp(request.param) / "data"
    found = Truth(directory, request.param == "stopped")
    chance = random.Random(SEED)
    broker = BrokerProcess(found.directory)
    with broker, connect_any(broker.address) as raw:
        assert create(raw, "t", PARTITIONS, segment_bytes=str(16 << 10)) == 0
        for n in range(BATCHES):
            for partition in range(PARTITIONS):
                batch = batches.build(
                    [(b"%d" % n, chance.randbytes(chance.randrange(1500)))],
                    timestamps_ms=[1000 + n],
                    producer_id=1,
                    producer_epoch=0,
                    base_sequence=n,
                )
                answer = raw.produce("t", batch, partition=partition, acks=-1)
                crc = batches.parse(batch).crc
                found.batches[partition][answer["base_offset"]] = crc
            part = {"partition_index": 0, "committed_offset": n, "committed_metadata": ""}
            commit = [{"name": "t", "partitions": [part]}]
            raw.call(
                ApiKey.OFFSET_COMMIT,
                8,
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                topics=commit,
            )
        found.committed = BATCHES - 1
        if request.param == "killed":
            broker.kill()
    return found


def flip(data: bytearray, chance: random.Random) -> bytearray:
    """One bit of it."""
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def truncate(data: bytearray, chance: random.Random) -> bytearray:
    """Its end is missing."""
    return data[: chance.randrange(len(data) + 1)]


def tear(data: bytearray, chance: random.Random) -> bytearray:
    """A block of it was never written."""
    at = chance.randrange(len(data) + 1) // TORN_BYTES * TORN_BYTES
    end = min(at + TORN_BYTES, len(data))
    data[at:end] = bytes(end - at)
    return data


def litter(data: bytearray, chance: random.Random) -> bytearray:
    """Something else follows it."""
    return data + chance.randbytes(chance.randint(1, 200))


def lose(_: bytearray, __: random.Random) -> None:
    """It is gone."""


DAMAGE: tuple[Callable[[bytearray, random.Random], bytearray | None], ...] = (
    flip,
    flip,
    truncate,
    tear,
    litter,
    lose,
)


def hurt(directory: Path, chance: random.Random) -> tuple[Path, str]:
    """Damages one file; which, and how."""
    files = sorted(one for one in directory.rglob("*") if one.is_file() and one.name != "LOCK")
    while True:
        path = chance.choice(files)
        before = path.read_bytes()
        how = chance.choice(DAMAGE)
        after = how(bytearray(before), chance)
        if after is None:
            path.unlink()
        elif after != before:
            path.write_bytes(after)
        else:
            continue
        return path.relative_to(directory), how.__name__


def batches_in(truth: Truth, path: Path) -> int:
    """How many batches lie in a file of the data directory."""
    if path.suffix != ".log":
        return 0
    bases = [int(one.stem) for one in (truth.directory / path.parent).glob("*.log")]
    base = int(path.stem)
    end = min((one for one in bases if one > base), default=BATCHES)
    return sum(base <= one < end for one in truth.batches[int(path.parent.name)])


def serve_all(raw: Any, truth: Truth) -> tuple[int, set[int]]:
    """Reads everything; each batch must be the one that was written. How many, and the errors."""
    served, codes = 0, set()
    for partition, expected in enumerate(truth.batches):
        offset = 0
        while offset < BATCHES:
            part = raw.fetch("t", offset, partition=partition)
            codes.add(part["error_code"])
            data = part["records"] or b""
            if part["error_code"] or not data:
                offset += 1  # what comes after the damage may still be whole
                continue
            for at, header in batches.iterate(data):
                assert batches.checksum_matches(data, at, header), "served a damaged batch"
                assert expected[header.base_offset] == header.crc, "served another batch"
                served += 1
                offset = header.next_offset
    return served, codes - {0}


def committed(raw: Any) -> int:
    """The group's offset."""
    asked = [{"name": "t", "partition_indexes": [0]}]
    answer = raw.call(ApiKey.OFFSET_FETCH, 7, group_id=GROUP, topics=asked)
    return int(answer["topics"][0]["partitions"][0]["committed_offset"])


@pytest.mark.quick_cases(1)
def test_a_lost_journal_is_reported(truth: Truth, tmp_path: Path) -> None:
    """Committed offsets that are gone as a whole are not taken for a beginning."""
    data, said = tmp_path / "data", tmp_path / "broker.log"
    shutil.copytree(truth.directory, data)
    (data / "groups" / "offsets.journal").unlink()
    with said.open("wb") as log:
        broker = BrokerProcess(data, stderr=log.fileno())
        broker.start()
        broker.kill()
    assert "the offsets that groups have committed are lost" in said.read_text()


@pytest.mark.quick_cases(1)
@pytest.mark.timeout(60 + 5 * DAMAGES)
@pytest.mark.parametrize("round_number", range(DAMAGES))
def test_damage_is_never_served(
    truth: Truth, tmp_path: Path, connect: Connect, round_number: int
) -> None:
    """Whatever happens to a file, the broker serves what was written or says that it can't."""
    chance = random.Random(f"{SEED} {round_number}")
    data, said = tmp_path / "data", tmp_path / "broker.log"
    shutil.copytree(truth.directory, data)
    path, how = hurt(data, chance)
    print(f"PENSTOCK_SEED={SEED}, round {round_number}: {how} {path}")
    with said.open("wb") as log:
        broker = BrokerProcess(data, stderr=log.fileno())
        try:
            broker.start()
        except SetupError:
            assert "error: expected" in said.read_text()  # it says what it needs
            assert path.suffix == ".json"
            assert path.name != "topic.json"
            return
        try:
            with connect(broker.address) as raw:
                served, codes = serve_all(raw, truth)
                offset = committed(raw)
                after = [
                    raw.produce("t", batches.build([(b"k", b"v")]), partition=one, acks=-1)
                    for one in range(PARTITIONS)
                ]
        finally:
            broker.kill()
    output = said.read_text()
    assert "Traceback" not in output, output
    if path.name == "topic.json" and "The topic isn't served" in output:
        assert (served, codes) == (0, {UNKNOWN_TOPIC_OR_PARTITION})
        return
    everything = sum(len(one) for one in truth.batches)
    assert everything - served <= batches_in(truth, path), "others are whole, and must be served"
    if served < everything or offset < truth.committed or codes:
        assert output, f"{everything - served} batches are missing, and nobody was told"
        assert path.suffix in {".log", ".json", ".journal"} or path.name == "start"
    for partition, one in enumerate(after):
        assert one["error_code"] in {0, 56}
        known = BATCHES if truth.is_stopped else 0
        if partition == 0 and path.name != "offsets.journal":
            known = max(known, truth.committed)
        assert one["error_code"] or one["base_offset"] >= known, "gave out an offset again"
