"""A real Apache Kafka as the oracle: the same scripted session on both, every answer compared.

PENSTOCK_STEPS=2000 PENSTOCK_SEED=7 python -m pytest -s tests/broker/clients/test_differential.py
PENSTOCK_ONLY='ShareSteps|ConsumerSteps|CompactionSteps|create_topic' python -m pytest ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_load import Connect
from oracle import Side, differences
from oracle_explained import reason_of
from oracle_steps import Script, ready
from tests.effort import some_slow
from tests.peers import kafka_peer

from penstock.broker import BrokerProcess

STEPS = int(os.environ.get("PENSTOCK_STEPS", "200"))
SEED = int(os.environ.get("PENSTOCK_SEED", "20261121"))
TRACE = "PENSTOCK_TRACE" in os.environ
SESSIONS = 2
DAY_MS = 24 * 3600 * 1000
ARGUMENTS = (
    "--partitions=2",
    "--cleaner-interval-ms=200",
    f"--retention-interval-ms={DAY_MS}",
)
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "offsets.retention.check.interval.ms": f"{DAY_MS}",
}
"""So that Kafka compacts and assigns at once, as our broker does; and so that neither looks for groups that
nobody uses: by default Kafka does every ten minutes of its own clock, which may be between two answers."""
LINE_CHARACTERS_MAX = int(os.environ.get("PENSTOCK_LINE", "400"))
SHOWN_MAX = int(os.environ.get("PENSTOCK_SHOWN", "40"))


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Kafka."""
    if given := os.environ.get("PENSTOCK_ORACLE"):
        yield given
        return
    kafka = kafka_peer()
    with kafka.KafkaProcess(tmp_path_factory.mktemp("kafka"), settings=SETTINGS) as process:
        yield process.address


@pytest.fixture
def sides(kafka_address: str, tmp_path: Path, connect: Connect) -> Iterator[tuple[Side, Side]]:
    """Our broker and Kafka."""
    with BrokerProcess(tmp_path / "data", arguments=ARGUMENTS) as broker:
        ours, theirs = Side(connect, broker.address, "ours"), Side(connect, kafka_address, "Kafka")
        theirs.first_epoch = 1
        yield ours, theirs
        ours.close()
        theirs.close()


PART = ".responses[0].partition_responses[0]"


@pytest.mark.parametrize(
    ("step", "path", "mine", "its"),
    [
        ("2 v5 {}", ".topics[0].partitions[0].offset", 4, 5),
        ("8 v5 {}", ".topics[0].partitions[0].error_code", 100, 3),
        ("fetch v7 t-0 from 0, isolation 0", ".records", [], [{"base_offset": 0}]),
        ("produce v9 codec t", f"{PART}.error_code", 0, -1),
        ("produce v9 crc t", f"{PART}.error_code", 0, 2),
        ("produce v9 crc t", f"{PART}.log_start_offset", 3, 0),
        ("produce v9 t-0 producer 2 seq 1 epoch 0", f"{PART}.error_code", 45, 46),
        ("61 v0 {}", ".topics[0].partitions[0].active_producers[0].last_timestamp", -1, 1 << 41),
        ("68 settles c7-0", ".assigned", [], [["<topic t>", 0]]),
        ("68 settles c7-0", ".members[0].error_code", 0, 110),
        ("68 settles c7-1", ".members[0].topic_partitions", [], [{"partitions": [0]}]),
        ("76 joins s7-0: m of 1", "[0].member_epoch", -1, 2),
        ("76 joins s7-0: m of 1", "[1].members[0].topic_partitions", [], [{"partitions": [0]}]),
        ("90 v1 {}", ".groups[0].topics[0].partitions[0].start_offset", 3, 5),
        (
            "90 v1 {}",
            ".contradictions[0]",
            "done with all at 75 of 76",
            "done with all at 60 of 76",
        ),
        ("90 v1 {}", ".contradictions", ["done with all at -1 of 0"], []),
        ("share work s7-0", ".told.again[0].responses[0].partitions[0].error_code", 0, 121),
        ("share work s7-0", ".told.acknowledged[0].error_code", 121, 0),
        ("share work s7-0", ".seen.3", [1], [1, 2]),
        ("32 v4 {'min.insync.replicas'}", ".results[0].configs[1].config_source", 5, 1),
        ("32 v4 {'min.insync.replicas'}", ".results[0].configs[1].value", "1", "2"),
        ("mixed modern joins x7-0", ".rest.69 v1.group_epoch", "+3", "+4"),
        ("mixed classic joins x7-0", ".said.1[2].error_code", 27, 22),
        ("mixed last modern is back as classic x7", ".rest.15 v5.members[0].member_id", "a", "b"),
    ],
)
def test_what_is_wrong_is_not_explained(step: str, path: str, mine: object, its: object) -> None:
    """A wrong offset, code or epoch and a missing record differ for no reason."""
    assert reason_of(step, path, mine, its) is None


@pytest.mark.peer
@pytest.mark.timeout(300 + STEPS)
@pytest.mark.parametrize("session", some_slow(range(SESSIONS), quick=[0]))
def test_same_answers(sides: tuple[Side, Side], session: int) -> None:
    """Step by step, both brokers say the same."""
    ours, theirs = sides
    both = {
        key: (max(first, theirs.versions[key][0]), min(last, theirs.versions[key][1]))
        for key, (first, last) in ours.versions.items()
        if key in theirs.versions
    }
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_STEPS={STEPS}, session {session}")
    found: list[str] = []
    for side in sides:
        ready(side)
    run = f"{time.time():.0f}" if "PENSTOCK_ORACLE" in os.environ else ""
    for number, (what, step) in enumerate(Script(SEED + session, both, run).steps(STEPS)):
        if TRACE:
            print(number, what, flush=True)
        began = time.monotonic()
        one = step(ours)
        between = time.monotonic()
        other = step(theirs)
        if TRACE:
            print(f"    {between - began:.3f} s, Kafka {time.monotonic() - between:.3f} s")
        lines: list[Any] = []
        for path, mine, its in differences(one, other):
            values = f"{mine!r}, Kafka {its!r}"
            reason = reason_of(what, path, mine, its)
            if reason is None:
                lines.append(f"    {path}: {values}"[:LINE_CHARACTERS_MAX])
            elif TRACE:
                print(f"    EXPLAINED {path}: {values}: {reason}"[:1000])
        if lines:
            found.append("\n".join([f"{number}: {what}", *lines]))
    if found:  # a failed assertion would cut the list
        pytest.fail("\n".join([f"{len(found)} of {STEPS} answers differ", *found[:SHOWN_MAX]]))
