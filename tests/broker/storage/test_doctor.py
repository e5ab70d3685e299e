"""The examination of data directories: sound ones, damaged ones, garbage."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.effort import rounds

from penstock.broker.doctor import Level, Report, examine, repair
from penstock.broker.process import BrokerProcess
from penstock.cli import main
from penstock.errors import SetupError
from penstock.log.disk.files import LocalFiles
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.protocol import ApiKey

ROUNDS = rounds("PENSTOCK_DOCTOR_ROUNDS", quick=30, full=150)
NOW_MS = 1_767_225_600_000


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, connect_any) -> Path:
    """A directory that a broker left in order: segments, commits, producers, a deleted topic."""
    data = tmp_path_factory.mktemp("doctor") / "data"
    with BrokerProcess(data) as broker, connect_any(broker.address) as raw:
        configs = {"segment.bytes": "2000", "retention.ms": "-1"}
        wanted = {
            "name": "t",
            "num_partitions": 2,
            "replication_factor": 1,
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        raw.call(
            ApiKey.CREATE_TOPICS, 5, topics=[wanted, {**wanted, "name": "empty"}], timeout=1000
        )
        for number in range(40):
            batch = batches.build(
                [(b"k", bytes(200))],
                timestamps_ms=[NOW_MS],
                producer_id=7,
                producer_epoch=0,
                base_sequence=number // 2,
            )
            assert not raw.produce("t", batch, partition=number % 2, acks=-1)["error_code"]
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        raw.call(
            ApiKey.OFFSET_COMMIT,
            7,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "t", "partitions": [part | {"committed_leader_epoch": -1}]}],
        )
        found = examine(data)
        assert any("serves this directory" in one.text for one in found.findings)
        with pytest.raises(SetupError, match="is served"):
            repair(found)
    return data


@pytest.fixture
def data(healthy, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(healthy, tmp_path / "data"))


def levels(report: Report) -> set[Level]:
    return {one.level for one in report.findings}


def test_a_sound_directory_is_said_to_be_sound(data):
    """With what it holds; nothing is changed."""
    before = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
    report = examine(data)
    assert report.is_sound
    assert Level.WARNING not in levels(report), report.findings
    empty, topic = report.topics
    assert (empty.records, topic.records, topic.partitions) == (0, 40, 2)
    assert topic.segments == 6
    assert {file: file.read_bytes() for file in data.rglob("*") if file.is_file()} == before


def test_no_directory_is_an_error(tmp_path):
    """Neither is one that no broker has served."""
    with pytest.raises(SetupError, match="check its name"):
        examine(tmp_path / "nothing")
    with pytest.raises(SetupError, match=r"expected a broker's data"):
        examine(tmp_path)


def test_a_torn_end_is_a_warning_that_repair_cuts_off(data):
    """It was never said to be durable."""
    last = max((data / "topics/t/0").glob("*.log"))
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(b"\0" * 100)
    report = examine(data)
    assert report.is_sound
    assert levels(report) == {Level.WARNING}
    assert "100 torn bytes" in report.findings[0].text
    assert len(repair(report)) == 1
    assert last.stat().st_size == size
    assert not examine(data).findings


def test_a_flipped_bit_in_what_was_durable_is_damage(data):
    """In any segment, the last one included."""
    for number in (0, -1):
        segment = sorted((data / "topics/t/1").glob("*.log"))[number]
        content = bytearray(segment.read_bytes())
        content[100] ^= 4
        segment.write_bytes(content)
        report = examine(data)
        assert not report.is_sound
        assert any("checksum" in one.text for one in report.findings)
        content[100] ^= 4
        segment.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "level", "text"),
    [
        ("topics/t/0/00000000000000000000.log", Level.DAMAGE, "none before"),
        ("topics/t/0", Level.DAMAGE, "begin empty"),
        ("topics/empty/0/00000000000000000000.log", Level.DAMAGE, "lost if there were any"),
        ("topics/t/topic.json", Level.DAMAGE, "isn't served"),
        ("topics/empty/topic.json", Level.WARNING, "cut short"),
        ("cluster.json", Level.NOTE, "new one"),
        ("groups/offsets.journal", Level.DAMAGE, "have committed are lost"),
    ],
)
def test_what_is_missing_is_found(data, name, level, text):
    """And what that means is said."""
    path = data / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    found = [one for one in examine(data).findings if text in one.text]
    assert [one.level for one in found] == [level]


def test_an_index_without_its_segment_is_damage(data):
    """It tells what is lost, so repair leaves it; that of deleted records is a leftover."""
    last = max((data / "topics/t/0").glob("*.log"))
    last.unlink()
    report = examine(data)
    (found,) = [one for one in report.findings if one.path.endswith(".index")]
    assert found.level is Level.DAMAGE
    assert f"offsets {int(last.stem)} to 19 are lost" in found.text
    repair(report)
    index = last.with_suffix(".index")
    whole = index.read_bytes()
    index.write_bytes(whole[:-1])
    assert "the index itself is damaged" in "".join(one.text for one in examine(data).findings)
    index.write_bytes(whole)
    log = Partition(LocalFiles(data), "topics/t/0", LogConfig(), NOW_MS)
    log.delete_records(20, NOW_MS)
    log.close()
    (data / "topics/t/0/00000000000000000000.index").write_bytes(
        (data / "topics/t/1/00000000000000000000.index").read_bytes()
    )
    assert levels(examine(data)) == {Level.NOTE}


def test_leftovers_are_cleared_away(data):
    """Files that were being replaced, indexes of nothing, trash; a damaged index is made anew."""
    (data / "cluster.json.tmp").write_bytes(b"x")
    (data / "groups/offsets.journal.tmp").write_bytes(b"x")
    (data / "topics/t/0/producers.tmp").write_bytes(b"x")
    (data / "topics/t/0/99999999999999999999.index").write_bytes(b"x")
    (data / "topics/t/0/00000000000000000000.index").write_bytes(b"x")
    (data / "topics/t/1/00000000000000000000.log.lost").write_bytes(b"x")
    (data / "trash/old").mkdir(parents=True)
    (data / "trash/old/file").write_bytes(b"x")
    report = examine(data)
    assert report.is_sound
    assert len(repair(report)) == 6
    (left,) = examine(data).findings
    assert left.path.endswith(".lost")


def test_garbage_never_ends_the_examination(healthy, data):
    """Flipped, cut, swapped and foreign bytes anywhere: a report comes, and a repair of it."""
    seed = int(os.environ.get("PENSTOCK_SEED", "20261121"))
    chance = random.Random(seed)
    files = [file for file in data.rglob("*") if file.is_file() and file.name != "LOCK"]
    for turn in range(ROUNDS):
        victim = chance.choice(files)
        content = victim.read_bytes() if victim.exists() else b""
        damaged = bytearray(content)
        match chance.randrange(5):
            case 0 if damaged:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[chance.randrange(len(damaged) + 1) :]
            case 2:
                damaged = bytearray(chance.randbytes(chance.randrange(200)))
            case 3 if len(damaged) > 20:
                at = chance.randrange(len(damaged) - 8)
                damaged[at : at + 8] = chance.choice(
                    [b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7]
                )
            case _:
                damaged += chance.choice(files).read_bytes()[: chance.randrange(3000)]
        try:
            victim.write_bytes(damaged)
            report = examine(data)
            is_log_damaged = victim.suffix == ".log" and not damaged.startswith(content)
            assert not is_log_damaged or not report.is_sound, victim
            json.dumps([one.text for one in report.findings])
            if chance.random() < 0.2:
                repair(report)
                # Without an index that vouches for it, an end that was cut between batches is sound.
                shutil.rmtree(data)
                shutil.copytree(healthy, data)
        except Exception as error:
            raise AssertionError(f"seed {seed}, turn {turn}, {victim}") from error
        victim.write_bytes(content)


def test_the_command_explains_and_its_exit_code_tells(data, capfd):
    """0 for sound, 1 for damaged; JSON for scripts."""

    def doctor(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["doctor", str(data), *arguments], prog_name="penstock")
        return int(done.value.code or 0), capfd.readouterr().out

    code, out = doctor()
    assert (code, "sound" in out) == (0, True)
    (data / "topics/t/topic.json").write_bytes(b"{}")
    code, out = doctor("--format", "json")
    report = json.loads(out)
    assert (code, report["is_sound"]) == (1, False)
    assert report["findings"][0]["level"] == "damage"


def test_a_hole_that_compaction_passes_over_is_reported(data):
    """As long as it is there, tombstones behind it stay."""
    log = Partition(
        LocalFiles(data),
        "topics/t/0",
        LogConfig(cleanup_policy="compact", segment_bytes=1000),
        NOW_MS,
    )
    for n in range(60):
        log.append(batches.build([(b"k", b"%d" % n * 20)], timestamps_ms=[NOW_MS]), NOW_MS)
    log.close()
    hole = log.segments[2].path
    content = bytearray((data / hole).read_bytes())
    content[100] ^= 1
    (data / hole).write_bytes(content)
    log = Partition(LocalFiles(data), "topics/t/0", log.config, NOW_MS)
    assert log.compactor.run(NOW_MS)
    log.close()
    found = [one for one in examine(data).findings if one.path.endswith("cleaner")]
    assert [one.level for one in found] == [Level.WARNING]
    assert f"at offset {int(hole[-24:-4])}" in found[0].text


def test_a_damaged_list_of_remote_segments_is_reported(data):
    """Without it nobody knows what of the log lies in object storage."""
    (data / "topics" / "t" / "0" / "tier").write_bytes(b"12345678 {}")
    report = examine(data)
    assert not report.is_sound
    assert any("newest manifest in the object storage" in one.text for one in report.findings)
