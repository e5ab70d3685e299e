"""Kafka's own command-line tools against our broker: each does its work, and what it prints is looked at.

    python tests/suites/kafka_tools.py [--address HOST:PORT] [--only name]

The tools come as jars with `python benchmarks/peers/fetch.py kafka`. They run one after another on
the same topics, so the order below matters.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from suite import Outcome, arguments, cache, report, run, serving

TOOL_S_MAX = 90
GROUP, TOPIC, TRANSACTIONAL, COMPACTED = "tools-group", "tools", "tools-txn", "tools-compact"

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""


@dataclass(frozen=True)
class Case:
    """One run of a tool.

    Attributes:
        name: what it shows.
        tool: the class's name.
        options: its arguments; ADDRESS stands for the broker's, DIR for a folder.
        finds: patterns that its output must have.
        lacks: patterns that it must not have.
        stdin: what it reads.
        may_fail: whether its exit status may be other than 0.
    """

    name: str
    tool: str
    options: str
    finds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = (r"\bERROR\b", r"UnsupportedVersionException")
    stdin: str | None = None
    may_fail: bool = False


TOOLS = "org.apache.kafka.tools."
AT = "--bootstrap-server ADDRESS"
TOPICS, CONFIGS = f"{TOOLS}TopicCommand", "kafka.admin.ConfigCommand"
GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"
SHARES = f"{TOOLS}consumer.group.ShareGroupCommand"
PRODUCE, CONSUME = f"{TOOLS}ConsoleProducer", f"{TOOLS}consumer.ConsoleConsumer"
CASES = (
    Case("api-versions", f"{TOOLS}BrokerApiVersionsCommand", AT, (r"Produce\(0\): .*usable",)),
    Case(
        "topics create",
        TOPICS,
        f"{AT} --create --topic {TOPIC} --partitions 3 --config retention.ms=123456789",
        (f"Created topic {TOPIC}",),
    ),
    Case(
        "topics create again",
        TOPICS,
        f"{AT} --create --topic {TOPIC}",
        ("already exists",),
        (),
        may_fail=True,
    ),
    Case("topics list", TOPICS, f"{AT} --list", (f"(?m)^{TOPIC}$",)),
    Case(
        "topics describe",
        TOPICS,
        f"{AT} --describe --topic {TOPIC}",
        ("PartitionCount: 3", "ReplicationFactor: 1", "retention.ms=123456789", "Leader: 1"),
    ),
    Case("topics grow", TOPICS, f"{AT} --alter --topic {TOPIC} --partitions 4"),
    Case("topics count", TOPICS, f"{AT} --describe --topic {TOPIC}", ("PartitionCount: 4",)),
    Case(
        "configs alter topic",
        CONFIGS,
        f"{AT} --alter --entity-type topics --entity-name {TOPIC}"
        " --add-config max.message.bytes=900000",
        ("Completed updating",),
    ),
    Case(
        "configs describe topic",
        CONFIGS,
        f"{AT} --describe --entity-type topics --entity-name {TOPIC}",
        ("max.message.bytes=900000",),
    ),
    Case(
        "configs delete topic",
        CONFIGS,
        f"{AT} --alter --entity-type topics --entity-name {TOPIC} --delete-config max.message.bytes",
        ("Completed updating",),
    ),
    Case(
        "configs describe broker",
        CONFIGS,
        f"{AT} --describe --all --entity-type brokers --entity-name 1",
        ("num.partitions=",),
    ),
    Case(
        "configs alter broker",
        CONFIGS,
        f"{AT} --alter --entity-type brokers --entity-name 1 --add-config message.max.bytes=1048000",
        ("Completed updating",),
    ),
    Case(
        "configs alter all brokers",
        CONFIGS,
        f"{AT} --alter --entity-type brokers --entity-default --add-config message.max.bytes=1048001",
        ("Completed updating",),
    ),
    Case(
        "configs describe broker's own",
        CONFIGS,
        f"{AT} --describe --entity-type brokers --entity-name 1",
        ("DYNAMIC_BROKER_CONFIG:message.max.bytes=1048000",),
    ),
    Case(
        "configs delete broker",
        CONFIGS,
        f"{AT} --alter --entity-type brokers --entity-name 1 --delete-config message.max.bytes",
        ("Completed updating",),
    ),
    Case(
        "configs describe all brokers'",
        CONFIGS,
        f"{AT} --describe --entity-type brokers --entity-default",
        ("DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1048001",),
    ),
    Case(
        "console-producer",
        PRODUCE,
        f"{AT} --topic {TOPIC} --reader-property parse.key=true --reader-property key.separator=:",
        stdin="".join(f"k{n}:v{n}\n" for n in range(50)),
    ),
    Case(
        "console-consumer",
        CONSUME,
        f"{AT} --topic {TOPIC} --from-beginning --max-messages 50 --group {GROUP} --timeout-ms 30000"
        " --formatter-property print.key=true",
        ("k49\tv49", "Processed a total of 50 messages"),
    ),
    Case(
        "console-consumer KIP-848",
        CONSUME,
        f"{AT} --topic {TOPIC} --from-beginning --max-messages 50 --group {GROUP}-848 --timeout-ms"
        " 30000 --command-property group.protocol=consumer",
        ("v49", "Processed a total of 50 messages"),
    ),
    Case(
        "console-share-consumer",
        f"{TOOLS}consumer.ConsoleShareConsumer",
        f"{AT} --topic {TOPIC} --group {GROUP}-share --timeout-ms 5000",
        ("Processed a total of",),
    ),
    Case("get-offsets", f"{TOOLS}GetOffsetShell", f"{AT} --topic {TOPIC}", (f"{TOPIC}:3:\\d+",)),
    Case(
        "get-offsets earliest",
        f"{TOOLS}GetOffsetShell",
        f"{AT} --topic {TOPIC} --time earliest",
        (f"{TOPIC}:0:0",),
    ),
    Case("consumer-groups list", GROUPS, f"{AT} --list", (f"(?m)^{GROUP}$",)),
    Case(
        "consumer-groups list state",
        GROUPS,
        f"{AT} --list --state",
        (f"{GROUP}\\s+.*(Empty|EMPTY)",),
    ),
    Case(
        "consumer-groups describe",
        GROUPS,
        f"{AT} --describe --group {GROUP}",
        (f"{GROUP}\\s+{TOPIC}\\s+0\\s+\\d+\\s+\\d+\\s+0",),
    ),
    Case(
        "consumer-groups reset",
        GROUPS,
        f"{AT} --reset-offsets --group {GROUP} --topic {TOPIC} --to-earliest --execute",
        (f"{GROUP}\\s+{TOPIC}\\s+0\\s+0",),
    ),
    Case(
        "consumer-groups delete-offsets",
        GROUPS,
        f"{AT} --delete-offsets --group {GROUP} --topic {TOPIC}",
        ("Successful",),
    ),
    Case("consumer-groups delete", GROUPS, f"{AT} --delete --group {GROUP}", ("successful",)),
    Case("share-groups list", SHARES, f"{AT} --list", (f"{GROUP}-share",)),
    Case("share-groups describe", SHARES, f"{AT} --describe --group {GROUP}-share", (TOPIC,)),
    Case("groups list", f"{TOOLS}GroupsCommand", f"{AT} --list", (f"{GROUP}-848",)),
    Case(
        "producer-perf-test",
        f"{TOOLS}ProducerPerformance",
        f"--topic {TOPIC} --num-records 20000 --record-size 100 --throughput -1 {AT}",
        ("20000 records sent",),
    ),
    Case(
        "consumer-perf-test",
        f"{TOOLS}ConsumerPerformance",
        f"{AT} --topic {TOPIC} --num-records 20000 --timeout 30000",
        (r"20\d\d\d",),
    ),
    Case(
        "end-to-end-latency",
        f"{TOOLS}EndToEndLatency",
        f"{AT} --topic {TOPIC} --num-records 200 --producer-acks all --record-size 100",
        ("Avg latency",),
    ),
    Case(
        "verifiable-producer",
        f"{TOOLS}VerifiableProducer",
        f"{AT} --topic {TOPIC} --max-messages 100 --acks -1",
        ('"sent":100,"acked":100', "producer_send_success"),
    ),
    Case(
        "verifiable-consumer",
        f"{TOOLS}VerifiableConsumer",
        f"{AT} --topic {TOPIC} --group-id {GROUP}-v --max-messages 100 --reset-policy earliest",
        ("offsets_committed",),
    ),
    Case(
        "transactional perf",
        f"{TOOLS}ProducerPerformance",
        f"--topic {TOPIC} --num-records 2000 --record-size 100 --throughput -1 {AT}"
        f" --transactional-id {TRANSACTIONAL} --transaction-duration-ms 100",
        ("2000 records sent",),
    ),
    Case("transactions list", f"{TOOLS}TransactionsCommand", f"{AT} list", (TRANSACTIONAL,)),
    Case(
        "transactions describe",
        f"{TOOLS}TransactionsCommand",
        f"{AT} describe --transactional-id {TRANSACTIONAL}",
        ("CompleteCommit",),
    ),
    Case(
        "transactions describe-producers",
        f"{TOOLS}TransactionsCommand",
        f"{AT} describe-producers --topic {TOPIC} --partition 0",
        ("ProducerId",),
    ),
    Case(
        "log-dirs", f"{TOOLS}LogDirsCommand", f"{AT} --describe --topic-list {TOPIC}", ('"size":',)
    ),
    Case(
        "delete-records",
        f"{TOOLS}DeleteRecordsCommand",
        f"{AT} --offset-json-file DIR/records.json",
        ("low_watermark: 5",),
    ),
    Case(
        "acls add",
        f"{TOOLS}AclCommand",
        f"{AT} --add --allow-principal User:ann --operation Read --topic {TOPIC}",
        ("User:ann|SecurityDisabledException",),
        (),
        may_fail=True,
    ),
    Case(
        "leader-election",
        f"{TOOLS}LeaderElectionCommand",
        f"{AT} --election-type preferred --all-topic-partitions",
        (),
    ),
    Case(
        "reassign list",
        f"{TOOLS}reassign.ReassignPartitionsCommand",
        f"{AT} --list",
        ("No partition reassignments found",),
    ),
    Case("features", f"{TOOLS}FeatureCommand", f"{AT} describe"),
    Case(
        "features upgrade",
        f"{TOOLS}FeatureCommand",
        f"{AT} upgrade --feature transaction.version=2",
        (r"transaction.version was upgraded to 2",),
    ),
    Case("cluster id", f"{TOOLS}ClusterTool", f"cluster-id {AT}", ("Cluster ID: ",)),
    Case("topics delete", TOPICS, f"{AT} --delete --topic {TOPIC}"),
    Case("topics gone", TOPICS, f"{AT} --list", (), (f"(?m)^{TOPIC}$",)),
)


def java(tool: str) -> list[str]:
    """How a tool is started."""
    launcher = cache.java()
    assert launcher is not None
    quick = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    return [str(launcher), *quick, "-cp", cache.classpath("kafka"), tool]


def carry_out(case: Case, address: str, folder: Path) -> Outcome:
    """Runs a tool and looks at what it says."""
    options = case.options.replace("ADDRESS", address).replace("DIR", str(folder)).split()
    got = run([*java(case.tool), *options], stdin=case.stdin, timeout_s=TOOL_S_MAX)
    (folder / "last.log").write_text(got.stdout, encoding="utf-8")
    why = ""
    if got.returncode and not case.may_fail:
        why = f"exit {got.returncode}"
    elif missing := [one for one in case.finds if not re.search(one, got.stdout)]:
        why = f"expected {missing[0]!r}"
    elif present := [one for one in case.lacks if re.search(one, got.stdout)]:
        why = f"found {present[0]!r}"
    if why:
        return Outcome(case.name, "failed", f"{why}: {got.stdout[-900:]}")
    return Outcome(case.name, "passed")


def main() -> int:
    """Runs all tools, tells."""
    asked = arguments(__doc__)
    if reason := cache.problem("kafka"):
        raise SystemExit(reason)
    found = []
    with serving(asked.address) as address, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = [{"topic": TOPIC, "partition": 0, "offset": 5}]
        wanted = {"partitions": records, "version": 1}
        (folder / "records.json").write_text(json.dumps(wanted), encoding="utf-8")
        for case in CASES:
            if asked.only in case.name:
                found.append(carry_out(case, address, folder))
                print(f"{found[-1].result:8} {case.name}", file=sys.stderr, flush=True)
    return report("Kafka 4.3.1's command-line tools", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())
