"""Files into topics: each row once, whenever it is killed, and nothing of files that are being written."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.effort import rounds
from tests.patience import wait_until

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.cli.log.ingest import ingest as ingest_command
from penstock.client import Client, Reader, TransactionalProducer
from penstock.client.groups import GroupAdmin
from penstock.client.letters.dead_letters import DeadLetters, Where
from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.files import ingesting, reading
from penstock.files.reached import Reached

PROGRAM = Path(__file__).with_name("ingest_program.py")
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "20261122"))
_topics = (f"files-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("ingest") / "data") as one:
        yield one


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return next(_topics)


def lines(start: int, stop: int) -> bytes:
    return b"".join(b'{"n":%d}\n' % n for n in range(start, stop))


def stored(address: str, topic: str) -> list[Any]:
    """The committed values, in order."""
    with Client(address) as client, Reader(address) as reader:
        end = client.offsets(topic)[0]
        chunks = list(reader.read(topic, 0, 0, end))
    return [orjson.loads(text) for one in chunks for text in one.values().to_pylist()]


def numbers(address: str, topic: str) -> list[int]:
    return [row["n"] for row in stored(address, topic)]


def test_files_are_read_once(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """Of every format, in the order of their names; a second run reads what is new."""
    (tmp_path / "a.jsonl").write_bytes(lines(0, 100))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(100, 200)))
    (tmp_path / "c.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(200, 300)))
    pq.write_table(pa.table({"n": range(300, 400)}), tmp_path / "d.parquet")
    run = {"to": topic, "log": broker.address, "schema": "n BIGINT NOT NULL", "settle": 0}
    done = ps.ingest(tmp_path, **run)
    assert (done.files, done.records, done.dead) == (4, 400, 0)
    assert numbers(broker.address, topic) == list(range(400))
    (tmp_path / "e.jsonl").write_bytes(lines(400, 410))
    assert ps.ingest(tmp_path / "*", **run).records == 10
    assert ps.ingest(tmp_path / "*", **run).records == 0
    assert numbers(broker.address, topic) == list(range(410))


def test_what_is_no_row_is_a_dead_letter(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """With its file, its line and the reason; `penstock dlq` can repair it and send it on."""
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1}\nno\n{"n":"x"}\n{"n":2}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(0, 100))[:-20])
    (tmp_path / "c.what").write_bytes(b"")
    done = ps.ingest(tmp_path, to=topic, log=broker.address, schema="n BIGINT NOT NULL", settle=0)
    assert (done.files, done.dead) == (1, 4)
    with DeadLetters(broker.address, f"{topic}.dead-letters") as dead:
        first, second, third, fourth = dead.letters(Where())
        assert (first.value, first.origin, first.origin_offset) == (b"no", topic, 2)
        assert (second.value, second.origin_offset) == (b'{"n":"x"}', 3)
        assert "BIGINT" in second.reason
        headers = dict(second.headers)
        assert headers.get("penstock.file", str(tmp_path / "a.jsonl").encode()).endswith(b"a.jsonl")
        assert "its end too early" in third.reason
        assert "expected a name that ends in" in fourth.reason
        dead.repair({second.id: b'{"n":7}'})
        dead.replay(Where(ids=frozenset({second.id})))
    assert numbers(broker.address, topic)[-1] == 7
    again = ps.ingest(tmp_path, to=topic, log=broker.address, schema="n BIGINT", settle=0)
    assert (again.records, again.dead) == (0, 0)


def test_files_that_are_being_written_are_left(
    broker: BrokerProcess, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those changed lately, with a warning, and those whose names say so; renamed, they are read."""
    run = {"to": topic, "log": broker.address, "settle": "1 hour"}
    old = time.time() - 7_200
    for name in ("a.jsonl", "b.jsonl.tmp", ".c.jsonl", "_d.jsonl", "e.jsonl"):
        (tmp_path / name).write_bytes(lines(ord(name.strip("._")[0]), ord(name.strip("._")[0]) + 1))
        if name != "e.jsonl":
            os.utime(tmp_path / name, (old, old))
    assert ps.ingest(tmp_path, **run).files == 1
    assert "1 files that match have changed in the last 3600 seconds" in caplog.text
    (tmp_path / "b.jsonl.tmp").rename(tmp_path / "b.jsonl")
    assert ps.ingest(tmp_path, **run).files == 1
    assert numbers(broker.address, topic) == [ord("a"), ord("b")]


def test_a_file_that_changes_is_reported_of(
    broker: BrokerProcess, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It isn't read again; another file under its name is."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(0, 5))
    run = {"to": topic, "log": broker.address, "settle": 0}
    assert ps.ingest(path, **run).records == 5
    with path.open("ab") as file:
        file.write(lines(5, 9))
    done = ps.ingest(path, **run)
    assert (done.records, done.changed) == (0, 1)
    assert "has changed after it was read" in caplog.text
    other = tmp_path / "b.tmp"
    other.write_bytes(lines(20, 22))
    other.rename(path)
    assert ps.ingest(path, **run).records == 2
    assert numbers(broker.address, topic) == [0, 1, 2, 3, 4, 20, 21]


def test_a_file_that_takes_the_name_and_the_inode_of_a_deleted_one_is_read(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """File systems give a free inode to the next file; the time of its creation tells them apart."""
    path = tmp_path / "a.jsonl"
    run = {"to": topic, "log": broker.address, "settle": 0}
    inodes = set()
    for turn in range(6):
        path.unlink(missing_ok=True)
        path.write_bytes(lines(turn * 10, turn * 10 + 1 + turn))
        inodes.add(path.stat().st_ino)
        assert ps.ingest(path, **run).records == turn + 1
    if len(inodes) == 6:
        pytest.skip(f"no inode is used again in {tmp_path}")


def test_keys_say_the_partition(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """As for any producer; without a schema, too."""
    with Client(broker.address) as client:
        client.create_topic(topic, 3)
    rows = [{"user": f'u{n % 5}"' if n % 2 else n % 5} for n in range(40)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    ps.ingest(tmp_path, to=topic, log=broker.address, key="user", settle=0)
    found = []
    with Client(broker.address) as client, Reader(broker.address) as reader:
        for partition, end in client.offsets(topic).items():
            for one in reader.read(topic, partition, 0, end):
                pairs = zip(one.keys().to_pylist(), one.values().to_pylist(), strict=True)
                found += [(partition, key, orjson.loads(value)["user"]) for key, value in pairs]
    assert len(found) == 40
    assert all(key == str(user).encode() for _, key, user in found)
    assert len({(partition, key) for partition, key, _ in found}) == len({k for _, k, _ in found})


def test_it_watches(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """Files that appear are taken until it is told to stop; another one of its name fences it."""
    looks = itertools.count()

    def until(done: Any) -> bool:
        n = next(looks)
        (tmp_path / f"{n}.jsonl").write_bytes(lines(n, n + 1))
        return done.records >= 3

    run = {"to": topic, "log": broker.address, "settle": 0, "watch": True}
    done = ps.ingest(tmp_path, until=until, **run)
    assert numbers(broker.address, topic) == list(range(done.records))

    def usurped(_: Any) -> bool:
        n = next(looks)
        (tmp_path / f"{n}.jsonl").write_bytes(lines(n, n + 1))
        with TransactionalProducer(broker.address, f"penstock.ingest.{topic}") as other:
            other.start()
        return False

    with pytest.raises(FencedError):
        ps.ingest(tmp_path, until=usurped, **run)


def test_long_lines_and_old_records_stay(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """A topic that is created here takes any line that is read, and keeps it."""
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1,"s":"' + b"x" * (3 << 20) + b'"}\n')
    assert ps.ingest(tmp_path, to=topic, log=broker.address, settle=0).records == 1
    with GroupAdmin(broker.address) as admin:
        assert admin.topic_settings(topic)["retention.ms"] == "-1"


def test_the_command_does_the_same(
    broker: BrokerProcess, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`penstock ingest`, which tells what it has done."""
    (tmp_path / "a.csv").write_text("n,s\n1,x\n2,y\nz,z\n")
    words = [str(tmp_path), "--topic", topic, "--broker", broker.address, "--settle", "0 seconds"]
    options = ["--schema", "n INT, s STRING", "--key", "s"]
    ingest_command.main([*words, *options], standalone_mode=False)
    output = capsys.readouterr()
    assert f"sent 2 rows of 1 files to {topic}; 1 dead letters" in output.out + output.err
    assert stored(broker.address, topic) == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"format": "xml"}, "expected format among json, csv, parquet; found 'xml'"),
        ({"schema": "n INT", "key": "m"}, "expected a key among n; found 'm'"),
        ({}, "expected files that match 'nothing'; found none"),
    ],
)
def test_arguments_are_checked(wrong: dict[str, Any], message: str) -> None:
    """Before anything is asked of a broker."""
    with pytest.raises(UserError, match=message):
        ps.ingest("nothing", to="t", **wrong)


def test_every_row_is_there_once_wherever_it_stops(
    broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at any request to the broker, again and again, before or after that did its work."""
    monkeypatch.setattr(ingesting, "STEP_BYTES", 300)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 200)
    content = lines(0, 60) + b"bad\n" + lines(60, 120)
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(120, 200)))
    chance = random.Random(SEED)
    for name in ("send", "commit"):
        original = getattr(TransactionalProducer, name)

        def dying(self: Any, *args: Any, original: Any = original, **more: Any) -> None:
            early, late = chance.random() < 0.2, chance.random() < 0.2
            if early:
                raise KeyboardInterrupt
            original(self, *args, **more)
            if late:
                raise KeyboardInterrupt

        monkeypatch.setattr(TransactionalProducer, name, dying)
    deaths = 0
    while True:
        try:
            ps.ingest(tmp_path, to=topic, log=broker.address, settle=0)
            break
        except KeyboardInterrupt:
            deaths += 1
    assert deaths > 3, f"seed {SEED}"
    assert numbers(broker.address, topic) == list(range(200)), f"seed {SEED}"
    with Client(broker.address) as client, Reader(broker.address) as reader:
        end = client.offsets(f"{topic}.dead-letters")[0]
        letters = [n for one in reader.read(f"{topic}.dead-letters", 0, 0, end) for n in [len(one)]]
    assert sum(letters) == 1


@pytest.mark.slow
def test_it_survives_sigkill(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """A process that is killed at any moment, and begun again: each row is there once."""
    chance = random.Random(SEED)
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(20):
        data = lines(n * 500, n * 500 + 500)
        (folder / f"{n:02}.jsonl").write_bytes(data if n % 2 else gzip.compress(data))
        if n % 2 == 0:
            (folder / f"{n:02}.jsonl").rename(folder / f"{n:02}.jsonl.gz")
    command = [sys.executable, str(PROGRAM), broker.address, str(folder), topic]
    log = tmp_path / "stderr"
    progress = 0
    for _ in range(rounds("PENSTOCK_KILLS", quick=1, full=4)):
        with log.open("ab") as errors:
            process = subprocess.Popen(command, stderr=errors)
        wait_until(
            lambda process=process, progress=progress: (
                process.poll() is not None or _ends(broker.address, topic) > progress
            ),
            lambda: log.read_text()[-2_000:],
        )
        try:
            process.wait(chance.random() * 0.3)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        progress = _ends(broker.address, topic)
    with log.open("ab") as errors:
        subprocess.run(command, stderr=errors, check=True)
    assert numbers(broker.address, topic) == list(range(10_000)), f"seed {SEED}"


def _ends(address: str, topic: str) -> int:
    with Client(address) as client:
        return sum(client.offsets(topic).values()) if topic in client.topics() else 0


def test_numbers_in_names_count_by_their_values(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """The hours 0, 1, 2, …, 10 of a day are read in that order, also where a folder has the number."""
    for hour in (10, 0, 2, 1):
        (tmp_path / f"2026-01-01-{hour}.jsonl").write_bytes(lines(hour, hour + 1))
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "a.jsonl").write_bytes(lines(9, 10))
    ps.ingest(tmp_path / "**" / "*.jsonl", to=topic, log=broker.address, settle=0)
    assert numbers(broker.address, topic) == [9, 0, 1, 2, 10]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_key_that_no_row_has_is_refused(
    broker: BrokerProcess, topic: str, tmp_path: Path, name: str
) -> None:
    """Before anything is sent, so that it can be corrected; later rows without one are counted."""
    if name == "a.jsonl":
        (tmp_path / name).write_text('{"user": "ann", "n": 1}\n{"user": "bob"}\n')
    elif name == "a.csv":
        (tmp_path / name).write_text("user,n\nann,1\nbob,2\n")
    else:
        pq.write_table(pa.table({"user": ["ann", "bob"]}), tmp_path / name)
    run: dict[str, Any] = {"to": topic, "log": broker.address, "settle": 0}
    with pytest.raises(UserError, match=r"found .*user.* in .*a\.\w+\. Correct the key"):
        ps.ingest(tmp_path, key="usr", **run)
    assert stored(broker.address, topic) == []
    assert ps.ingest(tmp_path, key="user", **run).records == 2
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n{"user": null}\n')
    done = ps.ingest(tmp_path, key="user", **run)
    assert (done.records, done.unkeyed) == (2, 2)


@pytest.mark.parametrize(
    ("time", "schema", "warnings"),
    [
        (ps.event_time("ts", unit="ms"), None, 1),
        (ps.event_time("ts", unit="ms"), "ts BIGINT NOT NULL", 1),
        (ps.event_time("to_timestamp(ts / 1000)"), "ts BIGINT", 1),
        (ps.event_time("@ts", unit="s"), None, 1),
        (ps.event_time("to_timestamp(ts / 1000)"), None, 0),
    ],
)
def test_the_time_of_files_may_be_numbers_or_an_expression(
    time: Any, schema: str | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With the unit's name; an expression needs the columns' types, and without them says so."""
    reached = Reached(time, None if schema is None else Schema.parse(schema))
    for name, hours in {"a": ("?", 1, 3), "b": (2,), "c": (4,)}.items():
        rows = [{"ts": h if h == "?" else h * 3_600_000, "@ts": h} for h in hours]
        reached.take(Path(name), pa.array(map(orjson.dumps, rows), pa.binary()))
    assert reached.behind == warnings
    late = [one for one in caplog.messages if "found that it begins at 1970-01-01T" in one]
    assert len(late) == warnings
    assert len([one for one in caplog.messages if "is an expression" in one]) == 1 - warnings


@pytest.mark.slow
def test_a_file_that_begins_before_the_watermark_is_named(
    broker: BrokerProcess, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a pipeline has it: the newest time of earlier files, less the lateness."""
    days = {"a": (1, 3), "b": (2, 4), "c": (2, 2), "d": (3, 9), "e": (8, 8)}
    for name, hours in days.items():
        rows = [orjson.dumps({"at": f"2026-01-01T0{hour}:00:00Z"}) for hour in hours]
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join([b'{"at": "?"}', *rows]))
    time = ps.event_time("at", lateness="1 hour")
    done = ps.ingest(tmp_path, to=topic, log=broker.address, settle=0, time=time)
    assert done.behind == 1
    [warning] = [one for one in caplog.messages if "Its rows are late" in one]
    assert "c.jsonl to begin at 2026-01-01T03:00:00Z or later" in warning
    assert "found that it begins at 2026-01-01T02:00:00Z" in warning
