"""Dead letters: read, repaired, replayed once, dropped."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.effort import rounds
from tests.engine.record import samples

from penstock.broker.process import BrokerProcess
from penstock.cli import main
from penstock.client import Client, Producer, Reader
from penstock.client.letters import ledger as entries
from penstock.client.letters.dead_letters import PRODUCER_MEMORY_MS, DeadLetters, Where
from penstock.client.letters.ledger import Ledger, State
from penstock.client.letters.repairing import parse_assignment, repaired_value
from penstock.engine.record.version import TimeEntry
from penstock.engine.store import Store, open_files
from penstock.errors import CorruptError, UserError
from penstock.wire.columns import header
from penstock.wire.headers import header_values, raw_headers

KILLS = rounds("PENSTOCK_REPLAY_KILLS", quick=1, full=3)
NOW_MS = 1_767_225_600_000
_names = (f"orders-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A broker for this module."""
    with BrokerProcess(tmp_path_factory.mktemp("dead")) as broker:
        yield broker.address


@pytest.fixture
def origin(address):
    """A topic of two partitions, with a dead-letter topic beside it."""
    name = next(_names)
    with Client(address) as client:
        client.create_topic(name, 2, {"retention.ms": "-1"})
        client.create_topic(f"{name}.dead-letters", 2, {"retention.ms": "-1"})
    return name


def fill(address: str, origin: str, count: int, size: int = 10) -> None:
    """Dead letters, in turn from both partitions; every third has another reason."""
    with Producer(address) as producer:
        for partition in (0, 1):
            ids = list(range(partition, count, 2))
            producer.send(
                f"{origin}.dead-letters",
                partition,
                pa.array([b"k%d" % i for i in ids], pa.binary()),
                pa.array([b'{"n": %d, "pad": "%s"}' % (i, b"x" * size) for i in ids], pa.binary()),
                np.full(len(ids), NOW_MS, np.int64) + ids,
                headers=[
                    [
                        ("trace", b"t%d" % i),
                        ("penstock.reason", b"late" if i % 3 == 0 else b"no such field: user"),
                        ("penstock.topic", origin.encode()),
                        ("penstock.partition", b"%d" % partition),
                        ("penstock.offset", b"%d" % (1000 + i)),
                    ]
                    for i in ids
                ],
            )


def arrived(address: str, topic: str) -> Counter[str]:
    """How often each letter is in a topic."""
    found: Counter[str] = Counter()
    with Client(address) as client, Reader(address) as reader:
        for partition, end in client.offsets(topic, "latest").items():
            for records in reader.read(topic, partition, 0, end):
                names = header_values(records, "penstock.replayed").to_pylist()
                found.update(name.decode() for name in names)
    return found


def expected(origin: str, count: int) -> Counter[str]:
    """Every letter once."""
    return Counter(f"{origin}.dead-letters/{i % 2}/{i // 2}" for i in range(count))


def test_letters_are_counted_by_reason_origin_and_state(address, origin):
    """And filtered by any of them."""
    fill(address, origin, 30)
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        counts = {(one.reason, one.origin): one.letters for one in dead.summary()}
        assert counts == {
            ("late", f"{origin}/0"): 5,
            ("late", f"{origin}/1"): 5,
            ("no such field: user", f"{origin}/0"): 10,
            ("no such field: user", f"{origin}/1"): 10,
        }
        assert sum(one.letters for one in dead.summary(Where(reason="*field*"))) == 20
        assert sum(one.letters for one in dead.summary(Where(partition=1))) == 15
        assert sum(one.letters for one in dead.summary(Where(since_ms=NOW_MS + 20))) == 10
        assert not dead.summary(Where(origin="elsewhere"))
        (letter,) = dead.letters(Where(ids=frozenset({(1, 3)})))
        assert (letter.origin_partition, letter.origin_offset, letter.key) == (1, 1007, b"k7")


def test_a_repaired_letter_is_replayed_as_repaired_and_once(address, origin):
    """With its key, timestamp, partition and the sender's own headers."""
    fill(address, origin, 4)
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        assert dead.repair({(1, 1): b'{"n": "repaired"}'}) == 1
        assert dead.replay(Where(ids=frozenset({(1, 1), (0, 0)}))) == 2
        assert dead.replay(Where(ids=frozenset({(1, 1), (0, 0)}))) == 0
        assert dead.repair({(1, 1): b"too late"}) == 0
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        assert dead.ledger().state((1, 1)) is State.REPLAYED
        assert dead.drop(Where(), "not worth it") == 2
        assert dead.replay(Where()) == 0
        assert {one.note for one in dead.letters(Where(states=frozenset({State.DROPPED})))} == {
            "not worth it"
        }
    with Reader(address) as reader:
        (records,) = reader.read(origin, 1, 0, 1)
    assert records.values().to_pylist() == [b'{"n": "repaired"}']
    assert records.keys().to_pylist() == [b"k3"]
    assert records.timestamp_ms.tolist() == [NOW_MS + 3]
    assert header(records, 0) == [
        ("trace", b"t3"),
        ("penstock.replayed", f"{origin}.dead-letters/1/1".encode()),
    ]


def test_two_who_replay_at_once_replay_each_letter_once(address, origin):
    """Who wrote its plan down first has the letter."""
    fill(address, origin, 100)
    topic = f"{origin}.dead-letters"
    with DeadLetters(address, topic) as one, DeadLetters(address, topic) as two:
        waiting = list(one.letters())
        assert one._replay(waiting[:60], None) + two._replay(waiting[40:], None) == 100
    assert arrived(address, origin) == expected(origin, 100)


class Crash(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("stop_at", range(6))
def test_a_replay_that_ends_anywhere_is_finished_by_the_next(address, origin, stop_at, monkeypatch):
    """Before or after any of its writes; and what was stored is not stored again."""
    fill(address, origin, 50)
    sends = itertools.count()
    real = Producer.send

    def send(self, topic, *rest, **more):
        turn = next(sends)
        if 2 * turn == stop_at:
            raise Crash
        following = real(self, topic, *rest, **more)
        if 2 * turn + 1 == stop_at:
            raise Crash
        return following

    topic = f"{origin}.dead-letters"
    with monkeypatch.context() as patch, DeadLetters(address, topic) as dead:
        patch.setattr(Producer, "send", send)
        with pytest.raises(Crash):
            dead.replay(Where())
    with DeadLetters(address, topic) as dead:
        dead.replay(Where())
        dead.ledger().check()
        assert not dead.ledger().unfinished
    assert arrived(address, origin) == expected(origin, 50)


def test_an_old_plan_is_settled_by_what_arrived(address, origin, monkeypatch):
    """Its producer may be forgotten: what is in the target counts, the rest is sent afresh."""
    fill(address, origin, 50)
    topic = f"{origin}.dead-letters"
    real = Producer.send

    def send(self, topic, partition, *rest, **more):
        if topic == origin and partition == 1:
            raise Crash
        return real(self, topic, partition, *rest, **more)

    def long_ago() -> int:
        return time.time_ns() // 1_000_000 - PRODUCER_MEMORY_MS - 1000

    with monkeypatch.context() as patch, DeadLetters(address, topic, clock_ms=long_ago) as dead:
        patch.setattr(Producer, "send", send)
        with pytest.raises(Crash):
            dead.replay(Where())
    with DeadLetters(address, topic) as dead:
        assert dead.replay(Where()) == 50
    assert arrived(address, origin) == expected(origin, 50)


@pytest.mark.slow
def test_killed_at_any_moment_it_replays_each_letter_once(address, origin):
    """SIGKILL to the process that replays, and to the one that goes on."""
    fill(address, origin, 4000, size=300)
    topic = f"{origin}.dead-letters"
    code = (
        "import sys\nfrom penstock.client.letters.dead_letters import DeadLetters, Where\n"
        "with DeadLetters(*sys.argv[1:]) as dead:\n"
        "    list(dead.letters(Where(reason='none')))\n"
        "    print('ready', flush=True)\n    print(dead.replay(Where()), flush=True)\n"
    )
    chance = random.Random(7)
    for turn in range(KILLS + 1):
        process = subprocess.Popen(
            [sys.executable, "-c", code, address, topic], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if turn < KILLS:
            time.sleep(chance.uniform(0.0, 0.12))
            os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
        process.wait()
        process.stdout.close()
    assert process.returncode == 0
    assert arrived(address, origin) == expected(origin, 4000)


def test_a_letter_of_unknown_origin_needs_a_target(address, origin):
    """And goes to it, by its key."""
    with Producer(address) as producer:
        values = pa.array([b"v"] * 3, pa.binary())
        producer.send(f"{origin}.dead-letters", 0, None, values, np.full(3, NOW_MS, np.int64))
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        with pytest.raises(UserError, match="--to-topic"):
            dead.replay(Where())
        assert dead.replay(Where(), to_topic=origin) == 3


def fill_rows(address: str, origin: str, count: int) -> None:
    """Dead letters of rows that were no records, one of them late, as a pipeline writes them."""
    late = (
        b"late: its event time is 2026-01-01T09:00Z, the watermark was already 2026-01-01T10:00Z, "
    )
    with Producer(address) as producer:
        producer.send(
            f"{origin}.dead-letters",
            0,
            pa.array([b'{"user":%d}' % i for i in range(count)], pa.binary()),
            pa.array([b'{"user":%d,"n":1}' % i for i in range(count)], pa.binary()),
            np.full(count, NOW_MS, np.int64),
            headers=[
                [
                    ("penstock.reason", late if i == 0 else b"CAST(user AS BIGINT): fails"),
                    ("penstock.topic", b"aggregate for totals"),
                    ("penstock.partition", b"0"),
                    ("penstock.offset", b"-1"),
                    ("penstock.identity", b"%032x" % i),
                    ("penstock.node", b"Select (shop.py, line 7)"),
                ]
                for i in range(count)
            ],
        )


def test_letters_that_were_no_records_are_not_replayed(address, origin, caplog):
    """No topic has them: they stay open, and the message says what to do; others are sent."""
    fill_rows(address, origin, 3)
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        for where in (Where(), Where(ids=frozenset({(0, 1)}))):
            with pytest.raises(UserError, match="of rows that the pipeline made, such as 0/"):
                dead.replay(where)
        fill(address, origin, 4)
        assert dead.replay(Where()) == 4
        assert "found 3 of rows that the pipeline made" in caplog.text
        assert {one.state for one in dead.letters() if not one.was_record} == {State.OPEN}
        assert dead.replay(Where(), to_topic=origin) == 3
    assert len(arrived(address, origin)) == 7


def test_what_letters_of_rows_are_is_shown(address, origin):
    """Their node and key; a replay counts neither them nor those of them that are late."""
    fill_rows(address, origin, 2)
    topic = f"{origin}.dead-letters"

    def said(*command: str) -> str:
        done = CliRunner().invoke(main, ["dlq", "--broker", address, *command])
        assert done.exit_code == 0, done.output
        return done.output

    text = said("show", topic, "0/1")
    assert "0/1  open  from aggregate for totals, shard 0: a row, no record, 2026" in text
    assert "node: Select (shop.py, line 7)" in text
    assert 'key: {"user":1}' in text
    shown = orjson.loads(said("show", topic, "0/1", "--format", "json"))
    assert (shown["was_record"], shown["node"]) == (False, "Select (shop.py, line 7)")
    fill(address, origin, 3)
    tried = said("replay", topic, "--all", "--dry-run")
    assert "3 letters would be sent" in tried
    assert "late again" not in tried
    assert "2 letters of rows" in tried


def test_an_ordinary_topic_is_refused(address, origin):
    """By every command: its records would all be letters. A topic of letters may have any name."""
    with Producer(address) as producer:
        values, times = pa.array([b"v"] * 3, pa.binary()), np.full(3, NOW_MS, np.int64)
        producer.send(origin, 0, None, values, times)
        for command in (["show"], ["list"], ["replay", "--all"]):
            done = CliRunner().invoke(
                main, ["dlq", "--broker", address, command[0], origin, *command[1:]]
            )
            assert done.exit_code == 1
            assert f"expected a topic of dead letters; found {origin!r}" in done.stderr
        with Client(address) as client:
            client.create_topic(f"{origin}-odd", 1)
        headers = [[("penstock.reason", b"late")]] * 3
        producer.send(f"{origin}-odd", 0, None, values, times, headers=headers)
    with DeadLetters(address, f"{origin}-odd") as dead:
        assert [one.reason for one in dead.letters()] == ["late"] * 3


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_entries_closes_a_letter_once(seed):
    """Whatever is appended by whomever, and a damaged entry is said so."""
    chance = random.Random(seed)
    ledger, claims = Ledger(), Counter()
    for turn in range(200):
        letters = [(chance.randrange(2), chance.randrange(30)) for _ in range(5)]
        match chance.randrange(4):
            case 0:
                ledger.apply(entries.repair(letters[0], b"v"), turn)
            case 1:
                before = set(ledger.closed)
                ledger.apply(entries.drop(letters, "x"), turn)
                claims.update(set(ledger.closed) - before)
            case 2:
                before = set(ledger.closed)
                plan = entries.replay(str(turn), (1, 0), letters, None, {"t": 1}, {"t": {0: 0}})
                ledger.apply(plan, turn)
                assert set(ledger.unfinished[str(turn)].letters) == set(ledger.closed) - before
                claims.update(set(ledger.closed) - before)
            case _ if ledger.unfinished:
                plan_id = chance.choice(list(ledger.unfinished))
                released = ledger.unfinished[plan_id].letters[:1] if chance.random() < 0.3 else []
                ledger.apply(entries.done(plan_id, released), turn)
                claims.subtract(released)
                ledger.apply(entries.done(plan_id, released), turn)
        ledger.check()
        assert all(claims[letter] == 1 for letter in ledger.closed)
    with pytest.raises(CorruptError, match="ledger"):
        ledger.apply(b'{"entry": "what"}', 0)


def test_values_are_repaired_by_field_or_as_text():
    """Fields of objects in objects; text where it is no JSON."""
    set_user = parse_assignment("user.id=7")
    assert repaired_value(b'{"a": 1}', assignments=[set_user]) == b'{"a":1,"user":{"id":7}}'
    assert repaired_value(b'{"a": {"b": 1, "c": 2}}', removed=["a.b", "x.y"]) == b'{"a":{"c":2}}'
    assert repaired_value(b"{'a': 1}", replacements=[("'", '"')]) == b'{"a": 1}'
    assert repaired_value(None) is None
    for value in (b"{oops", None, b"[1]", b'{"user": 1}'):
        with pytest.raises(UserError, match="expected"):
            repaired_value(value, assignments=[set_user])


def test_headers_are_columns(address, origin):
    """All at once: of a name, or as they stand in the record."""
    fill(address, origin, 10)
    with Reader(address) as reader:
        (records,) = reader.read(f"{origin}.dead-letters", 0, 0, 5)
    assert header_values(records, "trace").to_pylist() == [b"t0", b"t2", b"t4", b"t6", b"t8"]
    assert header_values(records, "trac").null_count == 5
    raw = raw_headers(records)
    assert raw is not None
    with Producer(address) as producer:
        producer.send(
            origin, 0, records.keys(), records.values(), records.timestamp_ms, headers=raw
        )
    with Reader(address) as reader:
        (copied,) = reader.read(origin, 0, 0, 5)
    assert [header(copied, i) for i in range(5)] == [header(records, i) for i in range(5)]


def test_reasons_with_times_are_one_line(address, origin, tmp_path: Path, monkeypatch):
    """A thousand late letters are one kind, with an example; the kind can be asked for as it is shown."""
    monkeypatch.chdir(tmp_path)
    topic = f"{origin}.dead-letters"
    reasons = [
        f"late: its event time is 2026-01-01T{i // 60:02}:{i % 60:02}:00Z, too late; for per_minute"
        for i in range(1000)
    ]
    with Producer(address) as producer:
        headers = [[("penstock.reason", one.encode()), ("penstock.topic", b"t")] for one in reasons]
        values = pa.array([b"v"] * len(reasons), pa.binary())
        times = np.full(len(reasons), NOW_MS, np.int64)
        producer.send(topic, 0, None, values, times, headers=headers)

    def listed(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["dlq", "--broker", address, "list", topic, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    kind = "late: its event time is …, too late; for per_minute"
    shown = listed()
    assert shown.count("\n") == 3
    assert "1,000 letters" in shown
    assert f"reason: {kind}\n" in shown
    assert f"such as 0/0: {reasons[0]}" in shown
    for pattern in (kind, "late*"):
        [group] = [
            json.loads(one) for one in listed("--reason", pattern, "--format", "json").splitlines()
        ]
        assert (group["letters"], group["reason"], group["example"]) == (1000, kind, "0/0")
    assert listed("--reason", "early*", "--format", "json") == ""


def test_the_commands_do_it(address, origin, tmp_path: Path, monkeypatch):
    """List, show, repair, replay and drop from the command line."""
    fill(address, origin, 6)
    topic = f"{origin}.dead-letters"
    monkeypatch.chdir(tmp_path)

    def penstock(*arguments: str) -> tuple[str, str]:
        done = CliRunner().invoke(main, ["dlq", "--broker", address, *arguments])
        return done.stdout, done.stderr

    assert "no such field" in penstock("list", topic)[0]
    assert "naming" not in penstock("show", topic, "0/1")[0]
    repaired = penstock("repair", topic, "--reason", "no*", "--set", "user=7", "--replay")[1]
    assert "repaired 4" in repaired
    assert "replayed 4" in repaired
    assert "expected which letters" in penstock("replay", topic)[1]
    assert "dropped 2" in penstock("drop", topic, "--all", "--yes", "--because", "old")[1]
    assert "because: old" in penstock("show", topic, "--state", "dropped")[0]
    assert '"user":7' in penstock("show", topic, "--state", "replayed")[0]


def test_a_replay_says_what_would_be_late_again(address, origin, tmp_path: Path, monkeypatch):
    """Before anything is sent; a letter whose time was repaired is not counted, nor any for another topic."""
    reason = (
        "late: its event time is 2026-01-01T09:00:00Z, the watermark was already "
        "2026-01-01T10:00:00Z, and no window that it is in is open"
    )
    topic = f"{origin}.dead-letters"
    with Producer(address) as producer:
        headers = [("penstock.reason", reason.encode()), ("penstock.topic", origin.encode())]
        headers += [("penstock.partition", b"0"), ("penstock.offset", b"7")]
        values = pa.array([b'{"at": "2026-01-01T09:00:00Z"}'] * 2, pa.binary())
        times = np.full(2, NOW_MS, np.int64)
        producer.send(topic, 0, None, values, times, headers=[headers, headers])
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> str:
        return CliRunner().invoke(main, ["dlq", *arguments, "--broker", address]).stderr

    assert "2 of these letters, such as 0/0, will be late again" in said(
        "replay", topic, "--all", "--dry-run"
    )
    assert "late again" not in said(
        "repair", topic, "0/1", "--set", "at=2026-01-01T11:00:00Z", "--replay"
    )
    assert "late again" not in said("replay", topic, "--all", "--dry-run", "--to-topic", "other")
    assert "1 of these letters, such as 0/0, will be late again" in said("replay", topic, "--all")


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (
            {"kind": "field", "name": "at"},
            "1 of these letters, such as 0/0, have an event time before",
        ),
        ({"kind": "timestamp"}, "3 of these letters, such as 0/0, have an event time before"),
        (None, "in the pipeline shop, its event time isn't a field of a JSON object"),
        ("unknown", "the pipeline shop has not run with this release yet"),
        ("elsewhere", "no pipeline in this folder has read it from this broker"),
    ],
    ids=["field", "timestamp", "expression", "earlier release", "no pipeline"],
)
def test_a_replay_says_what_is_behind_the_watermark(
    address, origin, tmp_path: Path, monkeypatch, time, said
):
    """Letters with any reason, by the version of the pipeline that reads their topic, if that says enough."""
    topic = f"{origin}.dead-letters"
    with Producer(address) as producer:
        headers = [("penstock.reason", b"no such field: usr"), ("penstock.topic", origin.encode())]
        headers += [("penstock.partition", b"0"), ("penstock.offset", b"7")]
        values = pa.array(
            [b'{"at": "2026-01-01T09:00:00Z"}', b'{"at": "2026-01-01T11:00:00Z"}', b"{"],
            pa.binary(),
        )
        producer.send(topic, 0, None, values, np.full(3, NOW_MS, np.int64), headers=[headers] * 3)
    times = {} if time in ("unknown", "elsewhere") else {origin: time}
    times = {topic: one and TimeEntry(**one) for topic, one in times.items()}
    marks = {origin: (NOW_MS + 10 * 3_600_000) * 1000}
    offsets = {origin: {0: 9}}
    version = samples.version(name="shop", offsets=offsets, times=times, watermark_us=marks)
    if time != "elsewhere":
        Store(open_files(str(tmp_path / "shop.penstock/state"))).commit(version)
    monkeypatch.chdir(tmp_path)
    words = ["dlq", "replay", topic, "--all", "--broker", address]
    found = CliRunner().invoke(main, words).stderr
    assert said in found
    assert found.index(said) < found.index("replayed 3 letters")
    assert ("isn't known" in found) is not isinstance(time, dict)


def test_a_letter_that_was_cut_is_not_replayed(address, origin):
    """Its beginning is no record of its topic; repaired, it is one."""
    with Producer(address) as producer:
        producer.send(
            f"{origin}.dead-letters",
            0,
            None,
            pa.array([b"[xx", b"[y"], pa.binary()),
            np.full(2, NOW_MS, np.int64),
            headers=[
                [
                    ("penstock.reason", b"no JSON"),
                    ("penstock.topic", origin.encode()),
                    ("penstock.partition", b"0"),
                    ("penstock.offset", b"7"),
                    *cut,
                ]
                for cut in ([("penstock.cut", b"9999999")], [])
            ],
        )
    with DeadLetters(address, f"{origin}.dead-letters") as dead:
        assert dead.replay(Where()) == 1
        dead.repair({(0, 0): b"{}"})
        assert dead.replay(Where()) == 1
    with Reader(address) as reader, Client(address) as client:
        end = client.offsets(origin, "latest")[0]
        found = [v for r in reader.read(origin, 0, 0, end) for v in r.values().to_pylist()]
    assert found == [b"[y", b"{}"]
