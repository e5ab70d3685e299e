"""Steps of a scripted session on transactions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oracle import Answer, Ref, Side, Step

from penstock.wire import batches
from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

OFFSETS_TOPIC = "__consumer_offsets"


@dataclass
class Txn:
    """A transactional producer."""

    name: str
    epoch: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    is_open: bool = False


class TransactionSteps:
    """Draws steps on a few transactional producers."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.txns: dict[str, Txn] = {}

    def init_txn(self) -> Step:
        """A transactional producer starts (again)."""
        name = f"x{self.script.seed}-{self.chance.randrange(3)}"
        txn = self.txns[name] = Txn(name)
        version = min(self.script.version(22), 4)
        fields = {"transactional_id": name, "transaction_timeout": 600_000}

        def step(side: Side) -> Answer:
            answer = side.until(22, version, fields, lambda found: found["error_code"] != 51)
            side.learn(f"txn {name}", answer["producer_id"])
            txn.epoch = answer["producer_epoch"]
            settle_all(side, self.script.topics)
            return side.common(answer, 22)

        return f"init v{version} {name}", step

    def a_txn(self) -> Txn | None:
        """A transactional producer that has started."""
        return self.txns[self.chance.choice(sorted(self.txns))] if self.txns else None

    def produce_in_txn(self) -> Step:
        """Records and offsets in a transaction."""
        txn = self.a_txn()
        if txn is None:
            return self.init_txn()
        topic = self.script.a_topic(wrong=0)
        partition = self.script.a_partition(topic, wrong=0)
        sequence = txn.sequences.get((topic, partition), 0)
        txn.sequences[topic, partition] = sequence + 1
        txn.is_open = True
        add, times = min(self.script.version(24), 3), [self.script.base_ms + self.script.clock]
        with_offsets = self.chance.random() < 0.3
        group = f"g{self.script.seed}-txn"
        offset = self.chance.randrange(50)
        name, produce_version = txn.name, min(self.script.version(0), 11)

        def step(side: Side) -> Answer:
            own = {"producer_id": Ref(f"txn {name}"), "producer_epoch": txn.epoch}
            own["transactional_id"] = name
            old = {f"v3_and_below_{one}": value for one, value in own.items()}
            parts = [{"name": topic, "partitions": [partition]}]
            fields = {**old, "v3_and_below_topics": parts}
            answers = [side.common(side.until(24, add, fields, added), 24)]
            batch = batches.build(
                [(b"x", b"%d" % sequence)],
                timestamps_ms=times,
                producer_id=side.real[f"txn {name}"],
                producer_epoch=txn.epoch,
                base_sequence=sequence,
                attributes=0x10,
            )
            sent = self.script.records.produce_fields(
                topic, partition, bytes(batch), transactional_id=name
            )
            answers.append(side.call(ApiKey.PRODUCE, produce_version, sent))
            if with_offsets:
                answers.append(side.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**own, "group_id": group}))
                one = {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": "",
                }
                topics = [{"name": topic, "partitions": [one]}]
                answers.append(
                    side.call(
                        ApiKey.TXN_OFFSET_COMMIT, 3, {**own, "group_id": group, "topics": topics}
                    )
                )
            return answers

        what = f"txn {name} {topic}-{partition} seq {sequence}, offsets {with_offsets}"
        return what, step

    def end_txn(self) -> Step:
        """Commit or abort; then every reader may go on."""
        txn = self.a_txn()
        if txn is None:
            return self.init_txn()
        commits = self.chance.random() < 0.6
        version, name = min(self.script.version(26), 4), txn.name
        txn.is_open = False

        def step(side: Side) -> Answer:
            fields = {
                "transactional_id": name,
                "producer_id": Ref(f"txn {name}"),
                "producer_epoch": txn.epoch,
                "committed": commits,
            }
            answer = side.until(26, version, fields, lambda found: found["error_code"] != 51)
            side.until(65, 0, {"transactional_ids": [name]}, ended)
            return side.common(answer, 26)

        return f"end v{version} {name} commits {commits}", step

    def txn_misuse(self) -> Step:
        """The wrong epoch, the wrong id, the wrong producer."""
        name = self.chance.choice([*sorted(self.txns), "stranger"])
        own = {
            "transactional_id": name,
            "producer_id": self.chance.choice([Ref(f"txn {name}"), 123_456]),
            "producer_epoch": self.chance.choice([-1, 30_000]),
        }
        old = {f"v3_and_below_{one}": value for one, value in own.items()}
        topics = [{"name": self.script.a_topic(), "partitions": [0]}]
        match self.chance.randrange(3):
            case 0:
                return self.script.one_call(24, {**old, "v3_and_below_topics": topics}, 3)
            case 1:
                return self.script.one_call(25, {**own, "group_id": "g"}, 3)
            case _:
                return self.script.one_call(26, {**own, "committed": True}, 3)

    def describe_txn(self) -> Step:
        """A transaction from outside."""
        name = self.chance.choice([*sorted(self.txns), "stranger"])
        what, describe = self.script.one_call(65, {"transactional_ids": [name]}, 0)

        def step(side: Side) -> Answer:
            answer = describe(side)
            for one in answer["transaction_states"]:  # Kafka keeps offsets in a topic
                own = [topic for topic in one["topics"] if topic["topic"] != OFFSETS_TOPIC]
                one["topics"] = own
            return answer

        return what, step


# -- what steps share ------------------------------------------------------------------------------


def added(found: Any) -> bool:
    """Whether partitions were added, or refused for good."""
    return all(
        part["partition_error_code"] != 51
        for topic in found["results_by_topic_v3_and_below"]
        for part in topic["results_by_partition"]
    )


def ended(found: Any) -> bool:
    """Whether a transaction's markers are written."""
    (one,) = found["transaction_states"]
    return one["transaction_state"] not in {"PrepareCommit", "PrepareAbort", "PrepareEpochFence"}


def settle_all(side: Side, topics: dict[str, int]) -> None:
    """Waits a moment: an open transaction that was aborted by a new start writes its markers."""
    time.sleep(0.05)
