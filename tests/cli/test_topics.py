"""`penstock topics`, `produce` and `consume`, against a broker."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

_names = (f"cli-{i}" for i in itertools.count())


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return next(_names)


@pytest.fixture(autouse=True)
def _address(penstock: Any, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", broker)


def test_topics_are_made_described_listed_and_deleted(penstock: Any, topic: str) -> None:
    """The life of a topic; results are on standard output, what was done on standard error."""
    made = penstock("topics", "create", topic, "--partitions", 3)
    assert (made.code, made.out) == (0, "")
    assert f"created topic {topic}" in made.err
    described = penstock("topics", "describe", topic, "--format", "csv").out.splitlines()
    assert described == [
        "partition,first_offset,next_offset,records",
        "0,0,0,0",
        "1,0,0,0",
        "2,0,0,0",
    ]
    listed = [
        json.loads(x) for x in penstock("topics", "list", "--format", "json").out.splitlines()
    ]
    assert {"topic": topic, "partitions": 3, "records": 0} in listed
    assert penstock("topics", "create", topic).code == 1
    assert penstock("topics", "create", topic, "--exists-ok").code == 0
    assert penstock("topics", "delete", topic, "--yes").code == 0
    assert penstock("topics", "delete", topic, "--yes", "--missing-ok").code == 0
    assert topic not in penstock("topics").out


def test_deleting_asks_first(penstock: Any, topic: str) -> None:
    """Without --yes and without a yes, nothing is deleted."""
    penstock("topics", "create", topic)
    assert penstock("topics", "delete", topic, stdin=b"n\n").code == 1
    assert topic in penstock("topics").out


def configs_of(penstock: Any, topic: str) -> dict[str, tuple[str, str]]:
    """Values and where they come from."""
    out = penstock("topics", "describe", topic, "--configs", "--format", "json").out
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(one["meaning"] for one in rows)
    return {one["config"]: (one["value"], one["from"]) for one in rows}


def test_a_topics_configs_are_shown_and_changed(penstock: Any, topic: str) -> None:
    """All of a change is done, or nothing of it."""
    penstock("topics", "create", topic, "--config", "retention.ms=1000000")
    assert configs_of(penstock, topic)["retention.ms"] == ("1000000", "topic")
    done = penstock(
        *("topics", "alter", topic, "--set", "compression.type=zstd", "--unset", "retention.ms"),
        *("--partitions", 3),
    )
    assert done.code == 0, done.err
    found = configs_of(penstock, topic)
    assert found["retention.ms"] == ("604800000", "default")
    assert found["compression.type"] == ("zstd", "topic")
    assert len(penstock("topics", "describe", topic, "--format", "json").out.splitlines()) == 3
    wrong = penstock("topics", "alter", topic, "--set", "retention.ms=5", "--set", "no.such=1")
    assert wrong.code == 1
    assert "no.such" in wrong.err
    assert configs_of(penstock, topic) == found
    fewer = penstock("topics", "alter", topic, "--partitions", 2)
    assert fewer.code == 1
    assert "3" in fewer.err


def test_trimming_deletes_what_is_older(penstock: Any, topic: str) -> None:
    """Up to a moment; asked for before; nothing where nothing is older."""
    assert penstock("produce", topic, "--create", stdin=b"a\nb\n").code == 0
    assert "deleted 0 records" in penstock("topics", "trim", topic, "--before", "1 hour ago").err
    assert penstock("topics", "trim", topic, "--before", "now", stdin=b"n\n").code == 1
    assert penstock("produce", topic, stdin=b"c\n").code == 0
    done = penstock("topics", "trim", topic, "--before", "now", "--yes")
    assert (done.code, "deleted 3 records" in done.err) == (0, True)
    row = json.loads(penstock("topics", "describe", topic, "--format", "json").out)
    assert (row["first_offset"], row["next_offset"]) == (3, 3)
    assert penstock("produce", topic, stdin=b"d\ne\n").code == 0
    done = penstock("topics", "trim", topic, "--to-offset", 4, "-p", 0, "--yes")
    assert (done.code, "deleted 1 records" in done.err) == (0, True)
    assert penstock("consume", topic).out == "e\n"


def test_lines_go_in_and_come_out(penstock: Any, topic: str) -> None:
    """What is produced is consumed, byte for byte and in order."""
    lines = b"".join(b"line %d \xff\n" % i for i in range(1000))
    assert penstock("produce", topic, "--create", stdin=lines).code == 0
    file = Path("copy")
    consumed = penstock("consume", topic, "--max", 3, "--format", "json").out.splitlines()
    assert [json.loads(x)["offset"] for x in consumed] == [0, 1, 2]
    assert json.loads(consumed[0])["value"] == "line 0 \ufffd"
    file.write_bytes(lines)
    assert penstock("produce", topic, "--file", file).code == 0
    described = json.loads(penstock("topics", "describe", topic, "--format", "json").out)
    assert described["next_offset"] == 2000


def test_keys_choose_partitions_as_kafka_does(penstock: Any, topic: str) -> None:
    """A key is before the separator; a line without one has no key."""
    penstock("topics", "create", topic, "--partitions", 5)
    penstock("produce", topic, "-K", ":", stdin=b"21:a\nfoobar:b:c\nno key\n")
    rows = [json.loads(x) for x in penstock("consume", topic, "--format", "json").out.splitlines()]
    found = {row["key"]: (row["value"], row["partition"]) for row in rows}
    assert found["foobar"][0] == "b:c"
    assert found[None][0] == "no key"
    # Kafka's own partitioner, from its test: murmur2("21") = -973932308, murmur2("foobar") = -790332482
    assert found["21"][1] == (-973932308 & 0x7FFFFFFF) % 5
    assert found["foobar"][1] == (-790332482 & 0x7FFFFFFF) % 5


def test_consuming_begins_where_it_is_asked_to(penstock: Any, topic: str) -> None:
    """An offset, the end, a time before and a time after all records."""
    penstock("produce", topic, "--create", stdin=b"a\nb\nc\n")

    def values(*options: object) -> list[str]:
        return list(penstock("consume", topic, *options).out.split())

    assert values("--from", 1) == ["b", "c"]
    assert values("--from", "end") == []
    assert values("--from", "2020-01-01") == ["a", "b", "c"]
    assert values("--from", "2999-01-01T00:00:00Z") == []
    assert values("--from", 99) == []


def test_a_group_goes_on_where_it_stopped(penstock: Any, topic: str) -> None:
    """What was printed is committed, and no more than that."""
    penstock("produce", topic, "--create", stdin=b"a\nb\nc\n")
    assert penstock("consume", topic, "-g", "g", "--max", 2).out.split() == ["a", "b"]
    assert penstock("consume", topic, "-g", "g").out.split() == ["c"]
    assert penstock("consume", topic, "-g", "g").out.split() == []
    assert penstock("consume", topic, "-g", "g", "--from", "beginning", "-n", 1).out.split() == [
        "a"
    ]


def test_gzipped_files_are_unpacked(penstock: Any, topic: str, tmp_path: Path) -> None:
    """Whatever the name says."""
    (tmp_path / "events").write_bytes(gzip.compress(b'{"a":1}\n{"a":2}'))
    penstock("produce", topic, "--create", "-f", tmp_path / "events", "--compression", "zstd")
    assert penstock("consume", topic).out == '{"a":1}\n{"a":2}\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("consume", "no-such-topic"), "no-such-topic"),
        (("produce", "no-such-topic", "--file", "nope"), "no"),
        (("consume", "{topic}", "--from", "soon"), "--from"),
        (("consume", "{topic}", "-p", "7"), "from 0 to 0"),
        (("topics", "create", "x", "--config", "oops"), "NAME=VALUE"),
        (("topics", "create", "a/b"), "a/b"),
        (("topics", "alter", "x"), "nothing to change"),
        (("topics", "alter", "x", "--set", "oops"), "--set NAME=VALUE"),
        (("topics", "trim", "x", "--before", "then"), "--before"),
        (("topics", "trim", "x"), "either --before or --to-offset"),
        (("topics", "trim", "{topic}", "--to-offset", "1", "-p", "7"), "from 0 to 0"),
    ],
)
def test_mistakes_have_one_clear_message(
    penstock: Any, topic: str, arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 1, nothing on standard output, the reason on standard error, no traceback."""
    penstock("topics", "create", topic)
    result = penstock(*(a.format(topic=topic) for a in arguments))
    assert (result.code, result.out) == (1, "")
    # A broker of a busy machine is waited for, which is said first.
    said = "".join(
        line for line in result.err.splitlines(keepends=True) if not line.startswith("waiting for ")
    )
    assert said.startswith("error: ")
    assert message in said
    assert "Traceback" not in said
