"""kcat (librdkafka's command line) against our broker, in scenarios of our own.

    python tests/suites/kcat.py [--address HOST:PORT] [--only name]

kcat comes with the system (Debian: `apt install kcat`). Nothing here depends on how fast it is: each
run ends at a count of messages or at the end of a partition.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from suite import Scenario, create_topic, expect, report, run, tried, wait

RUN_S_MAX = 120
QUICK = ("-X", "topic.message.timeout.ms=60000", "-X", "linger.ms=1")
GROUP_QUICK = ("-X", "heartbeat.interval.ms=200", "-X", "session.timeout.ms=30000")
CODECS = ("gzip", "snappy", "lz4", "zstd")

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""


def problem() -> str | None:
    """Why kcat can't be run, or None."""
    return None if shutil.which("kcat") else "expected kcat on the path, found none; install kcat"


def kcat(address: str, *options: str, stdin: str | None = None, status: int = 0) -> str:
    """What kcat prints (both streams).

    Raises:
        AssertionError: its exit status is another one.
    """
    got = run(["kcat", "-b", address, *options], stdin=stdin, timeout_s=RUN_S_MAX)
    expect(f"exit status of kcat {' '.join(options)} ({got.stdout[-300:]})", got.returncode, status)
    return got.stdout


def produce(address: str, topic: str, lines: list[str], *options: str) -> None:
    """Writes one message per line."""
    kcat(address, "-P", "-t", topic, *QUICK, *options, stdin="".join(f"{one}\n" for one in lines))


def consume(address: str, topic: str, *options: str, form: str = r"%s\n") -> list[str]:
    """The messages of a topic up to its end, one line each."""
    return kcat(address, "-C", "-q", "-e", "-t", topic, "-f", form, *options).splitlines()


def keys_and_partitions(address: str) -> None:
    """Keys go to their partitions, `-p` overrules them, and the formats show all of it."""
    topic = create_topic(address, "kcat-keys", 3)
    produce(address, topic, [f"k{n}:v{n}" for n in range(30)], "-K:")
    seen = consume(address, topic, form=r"%t %p %o %k %K %s %S %T\n")
    expect("messages", len(seen), 30)
    fields = [one.split(" ") for one in seen]
    expect("keys", {(one[3], one[5]) for one in fields}, {(f"k{n}", f"v{n}") for n in range(30)})
    expect("lengths", all(len(one[3]) == int(one[4]) for one in fields), True)
    expect("partitions", {one[1] for one in fields}, {"0", "1", "2"})
    produce(address, topic, ["here"], "-p", "2", "-k", "fixed")
    expect("partition 2", consume(address, topic, "-p", "2", form=r"%k=%s\n")[-1], "fixed=here")


def headers(address: str) -> None:
    """Headers keep their order, repeats and empty values."""
    topic = create_topic(address, "kcat-headers", 1)
    produce(address, topic, ["one"], "-H", "a=1", "-H", "b=2", "-H", "a=3", "-H", "empty=")
    expect("headers", consume(address, topic, form=r"%h|%s\n"), ["a=1,b=2,a=3,empty=|one"])


def nulls(address: str) -> None:
    """`-Z` writes null keys and values, which differ from empty ones."""
    topic = create_topic(address, "kcat-null", 1)
    produce(address, topic, ["gone:", ":no key", "k:v"], "-K:", "-Z")
    seen = consume(address, topic, "-Z", form=r"%k(%K) %s(%S)\n")
    expect("messages", seen, ["gone(4) NULL(-1)", "NULL(-1) no key(6)", "k(1) v(1)"])
    produce(address, topic, ["gone:"], "-K:")
    expect("empty", consume(address, topic, "-Z", "-o", "3", form=r"%k %S\n"), ["gone 0"])


def compression(address: str) -> None:
    """Each codec's batches come back as they were."""
    for codec in CODECS:
        topic = create_topic(address, f"kcat-{codec}", 1)
        lines = [f"{n} {'squeeze ' * 40}".rstrip() for n in range(500)]
        produce(address, topic, lines, "-z", codec)
        expect(f"{codec} messages", consume(address, topic) == lines, True)


def idempotence(address: str) -> None:
    """An idempotent producer's messages are there once each, in order."""
    topic = create_topic(address, "kcat-idempotent", 1)
    lines = [f"{n}" for n in range(5000)]
    produce(address, topic, lines, "-X", "enable.idempotence=true", "-X", "batch.num.messages=50")
    expect("messages", consume(address, topic) == lines, True)


def transactions(address: str) -> None:
    """A transaction's messages are there for read_committed once it is committed, never if it isn't."""
    topic = create_topic(address, "kcat-txn", 2)
    mine = ("-X", "transactional.id=kcat-txn")
    lines = [f"in {n}" for n in range(100)]
    produce(address, topic, lines, *mine)
    committed = ("-X", "isolation.level=read_committed")
    uncommitted = ("-X", "isolation.level=read_uncommitted")
    expect("committed", sorted(consume(address, topic, *committed)), sorted(lines))
    with open_producer(address, "-t", topic, "-p", "0", "-X", "linger.ms=1", *mine) as producer:
        assert producer.stdin is not None
        producer.stdin.write("never\n" * 200)
        producer.stdin.flush()
        wait(lambda: "never" in consume(address, topic, *uncommitted), "messages of the open one")
        expect("while open", sorted(consume(address, topic, *committed)), sorted(lines))
        producer.kill()
    produce(address, topic, ["after"], "-p", "0", *mine)  # its id's next holder ends the dead one's
    expect("fenced", sorted(consume(address, topic, *committed)), sorted([*lines, "after"]))


def offsets(address: str) -> None:
    """Consuming begins at an offset, at so many before the end, at the end, and ends at `-c`."""
    topic = create_topic(address, "kcat-offsets", 1)
    produce(address, topic, [str(n) for n in range(20)])
    one = ("-p", "0", "-o")
    expect("-o 15", consume(address, topic, *one, "15"), [str(n) for n in range(15, 20)])
    expect("-o -3", consume(address, topic, *one, "-3"), ["17", "18", "19"])
    expect("-o end", consume(address, topic, *one, "end"), [])
    expect("-o beginning -c 2", consume(address, topic, *one, "beginning", "-c", "2"), ["0", "1"])
    output = kcat(address, "-C", "-e", "-t", topic, "-p", "0", "-o", "end")
    expect("end of partition in what it tells", "Reached end of topic" in output, True)


def beyond_the_end(address: str) -> None:
    """An offset that isn't there follows `auto.offset.reset`, or ends kcat with an error."""
    topic = create_topic(address, "kcat-beyond", 1)
    produce(address, topic, ["a", "b"])
    far = ("-p", "0", "-o", "500")
    reset = ("-X", "topic.auto.offset.reset=earliest")
    expect("reset to earliest", consume(address, topic, *far, *reset), ["a", "b"])
    refused = ("-X", "topic.auto.offset.reset=error")
    output = kcat(address, "-C", "-e", "-t", topic, *far, *refused, status=1)
    expect("out of range in what it tells", "out of range" in output.lower(), True)


def times(address: str) -> None:
    """`-o s@` and `e@` cut by time; `-Q` tells a time's offset, the end's and the beginning's."""
    topic = create_topic(address, "kcat-times", 1)
    produce(address, topic, ["early 0", "early 1"])
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    produce(address, topic, ["late 0", "late 1", "late 2"])
    late, early = [f"late {n}" for n in range(3)], ["early 0", "early 1"]
    expect("since", consume(address, topic, "-p", "0", "-o", f"s@{between}"), late)
    expect("until", consume(address, topic, "-p", "0", "-o", "s@0", "-o", f"e@{between}"), early)
    asked = {between: 2, 0: 0, between + 3_600_000: -1, -1: 5, -2: 0}
    for timestamp, offset in asked.items():
        output = kcat(address, "-Q", "-t", f"{topic}:0:{timestamp}")
        # librdkafka tells the end (-1) for a time after all messages
        expect(f"-Q {timestamp}", output.strip(), f"{topic} [0] offset {offset}")


def json_envelope(address: str) -> None:
    """`-J` has where a message lies, when it was written, its headers and nulls."""
    topic = create_topic(address, "kcat-json", 1)
    produce(address, topic, ["k:v", "gone:"], "-K:", "-Z", "-H", "a=1")
    lines = kcat(address, "-C", "-q", "-e", "-J", "-t", topic).splitlines()
    found = [json.loads(one) for one in lines]
    expect("places", [(one["topic"], one["partition"], one["offset"]) for one in found],
           [(topic, 0, 0), (topic, 0, 1)])  # fmt: skip
    expect("kind of time", {one["tstype"] for one in found}, {"create"})
    expect("age in seconds", all(abs(one["ts"] / 1000 - time.time()) < 60 for one in found), True)
    expect("headers", [one["headers"] for one in found], [["a", "1"]] * 2)
    expect(
        "payloads", [(one["key"], one["payload"]) for one in found], [("k", "v"), ("gone", None)]
    )
    appended = create_topic(
        address, "kcat-append", 1, **{"message.timestamp.type": "LogAppendTime"}
    )
    produce(address, appended, ["v"])
    (one,) = kcat(address, "-C", "-q", "-e", "-J", "-t", appended).splitlines()
    expect("kind of time", json.loads(one)["tstype"], "logappend")


def packed(address: str) -> None:
    """`-s` unpacks binary keys, and a message may have any bytes: a file is one message."""
    topic = create_topic(address, "kcat-packed", 1)
    produce(address, topic, ["abcd:value"], "-K:")
    expect(
        "as an int", consume(address, topic, "-s", "key=>i", form=r"%k %s\n"), ["1633837924 value"]
    )
    kcat(address, "-P", "-t", topic, *QUICK, str(Path(__file__)))
    sizes = consume(address, topic, "-o", "1", form=r"\n%S\n")
    expect("size of a file", sizes[-1], str(Path(__file__).stat().st_size))


def metadata(address: str) -> None:
    """`-L` lists brokers, topics and partitions, in words and in JSON; an unknown topic has an error."""
    topic = create_topic(address, "kcat-metadata", 3)
    output = kcat(address, "-L")
    expect("brokers in what it tells", "1 brokers:" in output, True)
    expect("partitions in what it tells", f'topic "{topic}" with 3 partitions:' in output, True)
    found = json.loads(kcat(address, "-L", "-J", "-t", topic))
    (described,) = found["topics"]
    expect("partitions", [one["partition"] for one in described["partitions"]], [0, 1, 2])
    expect("leaders", {one["leader"] for one in described["partitions"]}, {1})
    expect("brokers", [one["name"] for one in found["brokers"]], [address])
    expect("controller", found["controllerid"], 1)
    unknown = kcat(address, "-L", "-t", "kcat-nowhere", "-X", "allow.auto.create.topics=false")
    expect("error in what it tells", "Unknown topic or partition" in unknown, True)


def group_of_one(address: str) -> None:
    """A group goes on where it stopped, over several topics."""
    first, second = (create_topic(address, f"kcat-group-{one}", 2) for one in "ab")
    produce(address, first, ["1", "2"])
    produce(address, second, ["3", "4"])
    options = ("-q", "-e", *GROUP_QUICK, "-X", "auto.offset.reset=earliest", first, second)
    group = f"{first}-group"
    expect("first", sorted(kcat(address, "-G", group, *options).split()), ["1", "2", "3", "4"])
    expect("again", kcat(address, "-G", group, *options).split(), [])
    produce(address, second, ["5"])
    expect("news", kcat(address, "-G", group, *options).split(), ["5"])


def group_by_pattern(address: str) -> None:
    """A group may subscribe to a pattern of names."""
    topic = create_topic(address, "kcat-pattern", 1)
    produce(address, topic, ["found"])
    options = ("-q", "-e", *GROUP_QUICK, "-X", "auto.offset.reset=earliest", f"^{topic[:-2]}.*")
    expect("messages", kcat(address, "-G", f"{topic}-group", *options).split(), ["found"])


def group_of_two(address: str) -> None:
    """Two members share the partitions; what the one leaves, the other takes over."""
    topic = create_topic(address, "kcat-two", 4)
    group = f"{topic}-group"
    with member(address, group, topic) as one, member(address, group, topic) as two:
        both = (one, two)
        wait(lambda: [len(assigned(each)) for each in both] == [2, 2], "two partitions for each")
        expect("all partitions", assigned(one) | assigned(two), {0, 1, 2, 3})
        for partition in range(4):
            produce(address, topic, [f"m{partition}"], "-p", str(partition))
        wait(lambda: len(messages(one)) + len(messages(two)) == 4, "4 messages")
        expect("messages", sorted(messages(one) + messages(two)), [f"m{n}" for n in range(4)])
        expect("messages for each", (len(messages(one)), len(messages(two))), (2, 2))
        two.process.terminate()
        two.process.wait(RUN_S_MAX)
        wait(lambda: len(assigned(one)) == 4, "4 partitions for the one that stays")
        for partition in range(4):
            produce(address, topic, [f"later{partition}"], "-p", str(partition))
        wait(lambda: len([m for m in messages(one) if "later" in m]) == 4, "4 later messages")


class Member:
    """A kcat in a group that runs on; its output is in files."""

    def __init__(self, process: subprocess.Popen[str], output: Path, errors: Path) -> None:
        self.process, self.output, self.errors = process, output, errors


@contextlib.contextmanager
def member(address: str, group: str, topic: str) -> Iterator[Member]:
    """A member of a group, for as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "out"), Path(folder, "err")
        command = ["kcat", "-b", address, "-u", "-G", group, *GROUP_QUICK]
        command += ["-X", "auto.offset.reset=earliest", topic]
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        try:
            yield Member(process, output, errors)
        finally:
            process.kill()
            process.wait()


def assigned(one: Member) -> set[int]:
    """The partitions that a member says it has."""
    lines = [line for line in one.errors.read_text().splitlines() if "rebalanced" in line]
    last = lines[-1] if lines else ""
    if ": assigned: " not in last:
        return set()
    return {
        int(part.split("[")[1].split("]")[0]) for part in last.split("assigned: ")[1].split(",")
    }


def messages(one: Member) -> list[str]:
    """What a member has read."""
    return one.output.read_text().splitlines()


@contextlib.contextmanager
def open_producer(address: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A producer whose input stays open for as long as the block."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        ["kcat", "-b", address, "-P", *options],
        stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(OSError):
            process.communicate()


SCENARIOS: tuple[Scenario, ...] = (
    keys_and_partitions,
    headers,
    nulls,
    compression,
    idempotence,
    transactions,
    offsets,
    beyond_the_end,
    times,
    json_envelope,
    packed,
    metadata,
    group_of_one,
    group_by_pattern,
    group_of_two,
)


def main() -> int:
    """Runs the scenarios, tells."""
    found = tried(SCENARIOS, __doc__, problem())
    version = run(["kcat", "-V"]).stdout.split("Version ")[1].split(" ")[0]
    return report(f"kcat {version}, own scenarios", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())
