"""Transactions (KIP-98): records in several partitions and offsets of groups, all of them or none.

    with TransactionalProducer("127.0.0.1:9092", "loader") as writer:
        writer.start()                                        # fences the previous writer of this id
        writer.send("clicks", 0, None, values, times_ms)
        writer.commit_offsets("loader", {("clicks", 0): 17})
        writer.commit()

A transactional id has one writer at a time. `start` gives it a new epoch and ends what an earlier
writer left: a commit that had been decided is completed, everything else is aborted. So after
`start` a group's committed offsets say what the earlier writer achieved.

The epoch is the same until `start`, so that several processes may write in one transaction. With `version=2`
(KIP-890) each transaction has an epoch of its own, and a batch makes its partition part of the transaction,
which saves a request. A Penstock broker then doesn't make records durable one request after another: the
commit does, together with itself. The commit says how many records were acknowledged; where the machine has
gone down in between and lost some, it is refused, and nothing counts. Kafka passes over both. As a Penstock
broker refuses a commit without all of its records, and says so, the commit may follow them at once, before
they are acknowledged (`commit_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.client import Partition
from penstock.client.network import hot
from penstock.client.network.cluster import Call
from penstock.client.network.connection import Connection
from penstock.client.network.errors import broker_error, check
from penstock.client.producer import Part, Producer, Together
from penstock.core.closing import Closing
from penstock.errors import FencedError, PenstockError, ProtocolError, UserError
from penstock.wire.columns import SEQUENCE_MODULUS, Headers
from penstock.wire.protocol import ApiKey, CoordinatorKind, ErrorCode

__all__ = ["TransactionalProducer"]

TIMEOUT_MS: Final = 60_000
"""How long a transaction may stay open before the broker aborts it: Kafka's default."""
EPOCH_EACH: Final = 5
"""Version of EndTxn that gives the producer a new epoch."""
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.INVALID_TXN_STATE: "It was ended already",
    ErrorCode.TRANSACTION_ABORTABLE: "The broker no longer has all of its records, as its machine went down",
}


class Commit:
    """A commit that is on its way.

    Args:
        together: its last records, whose answer comes before its own.
        call: its request.
        finish: takes the answers.
    """

    def __init__(
        self, together: Together, call: Call, finish: Callable[[Together, Call], None]
    ) -> None:
        self._together, self._call, self._finish = together, call, finish

    def fileno(self) -> int:
        """A descriptor that becomes readable when something of the answers comes; -1 once it broke."""
        return self._call.connection.fileno()

    @property
    def is_answered(self) -> bool:
        """Whether `finish` needn't wait."""
        try:
            return self._call.connection.has(self._call.number)
        except (OSError, ProtocolError):
            return True

    def finish(self) -> None:
        """Waits until the transaction is committed.

        Raises:
            FencedError, LimitError, BrokerError: as `TransactionalProducer.send_together` and `commit`.
        """
        self._finish(self._together, self._call)


class TransactionalProducer(Closing):
    """Writes in transactions. Don't share it between threads.

    A failed call leaves the transaction open or its end unknown: `start` again, and look at what is
    committed.

    Args:
        bootstrap: "host:port[,host:port]", or a URL that says how to reach it (`Security`).
        transactional_id: who writes, across restarts.
        timeout_ms: how long a transaction may stay open.
        compression: as for `Producer`.
        version: 2 to use Kafka's second version of transactions where the cluster has it; not for
            transactions that several processes share.
        settings: as for `Client`.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        compression: str = "none",
        client_id: str = "penstock",
        version: Literal[1, 2] = 1,
        **settings: Any,
    ) -> None:
        self._version, self._joins = version, False
        self._producer = Producer(
            bootstrap, acks="all", compression=compression, client_id=client_id, **settings
        )
        self._cluster = self._producer.cluster
        self._counting: Connection | None = None  # to a broker that has said that it counts records
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()
        self._is_open = False
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}

    def close(self) -> None:
        """Closes the connections. What is still open is aborted by the next `start`, or in time."""
        self._producer.close()

    def interrupt(self) -> None:
        """Ends a call of another thread, with OSError; only `close` may follow. From any thread.

        Whether a commit that is interrupted counts is unknown, until the next `start`.
        """
        self._producer.interrupt()

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and the epoch.

        Raises:
            UserError: `start` was not called.
        """
        if self._identity is None:
            raise UserError("expected start() before a transaction's records; found none")
        return self._identity

    def start(self) -> None:
        """Takes over the transactional id; must be called before anything else.

        Raises:
            BrokerError: the broker refused for good, or patience ran out.
        """
        fields = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        what = f"start transactions as {self.transactional_id!r}"
        self._coordinators.clear()

        def level() -> int:
            return self._cluster.feature(self._coordinator(), "transaction.version")

        api = ApiKey.INIT_PRODUCER_ID
        answer = self._cluster.request(what, self._coordinator, api, fields)
        self._identity = answer["producer_id"], answer["producer_epoch"]
        self._joins = self._version > 1 and self._cluster.attempt(what, level) > 1
        self._producer.versions = hot.PRODUCE_JOINING if self._joins else hot.PRODUCE_VERSIONS
        self._producer.durable_later = self._joins
        self._sequences.clear()
        self._added.clear()
        self._is_open = False

    def resume(self, identity: tuple[int, int]) -> None:
        """Takes over an open transaction of another process that no longer writes, to end it."""
        self._identity, self._is_open = identity, True

    def send(
        self,
        topic: str,
        partition: int,
        keys: pa.Array[Any] | pa.ChunkedArray[Any] | None,
        values: pa.Array[Any] | pa.ChunkedArray[Any],
        timestamps_ms: npt.NDArray[np.int64],
        *,
        headers: Sequence[Headers] | pa.Array[Any] | None = None,
    ) -> None:
        """Writes records to a partition, in the transaction; begins one where none is open.

        Arguments and errors as for `Producer.send`.
        """
        producer_id, epoch = self.identity
        if not self._joins and (topic, partition) not in self._added:
            self._ask(f"add {topic}[{partition}]", lambda: self._add_partition(topic, partition))
            self._added.add((topic, partition))
        self._is_open = True
        self._sequences[topic, partition] = self._producer.send(
            topic,
            partition,
            keys,
            values,
            timestamps_ms,
            headers=headers,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences.get((topic, partition), 0),
            transactional_id=self.transactional_id,
        )

    def limit_batches(self, bytes_max: int) -> None:
        """Makes batches smaller from now on: a topic may take only such."""
        self._producer.batch_bytes_max = min(self._producer.batch_bytes_max, bytes_max)

    def send_together(self, parts: Sequence[Part]) -> None:
        """Writes records to several partitions, in the transaction; begins one where none is open.

        Args:
            parts: different partitions; their sequence numbers are counted here.

        Raises:
            FencedError, LimitError, BrokerError: as for `send`.
        """
        self._together(parts).run()
        self._count(parts)

    def _together(self, parts: Sequence[Part]) -> Together:
        places = [(one.topic, one.partition) for one in parts]
        if not self._joins and (new := [place for place in places if place not in self._added]):
            self.add_partitions(new)
            self._added.update(new)
        self._is_open = True
        numbered = [
            part._replace(base_sequence=self._sequences.get(place, 0))
            for part, place in zip(parts, places, strict=True)
        ]
        return self._producer.together(numbered, self.identity, self.transactional_id)

    def _count(self, parts: Sequence[Part]) -> None:
        for one in parts:
            place = one.topic, one.partition
            self._sequences[place] = self._sequences.get(place, 0) + len(one.values)
            self._sequences[place] %= SEQUENCE_MODULUS

    def add_partitions(self, places: Iterable[Partition]) -> None:
        """Adds partitions to the transaction, at once; `send` does it for those that aren't added yet."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        self._ask(f"add {', '.join(by_topic)}", lambda: self._add_partitions(by_topic))

    def _add_partition(self, topic: str, partition: int) -> int:
        return self._add_partitions({topic: [partition]})

    def _add_partitions(self, by_topic: Mapping[str, list[int]]) -> int:
        old = "v3_and_below_"
        fields = {old + name: value for name, value in self._who().items()}
        fields[old + "topics"] = [{"name": n, "partitions": some} for n, some in by_topic.items()]
        answer = self._cluster.call(self._coordinator(), ApiKey.ADD_PARTITIONS_TO_TXN, fields)
        found = answer["results_by_topic_v3_and_below"]
        codes = [p["partition_error_code"] for t in found for p in t["results_by_partition"]]
        # Where one is refused, the others are not attempted, which says nothing.
        return int(
            next(
                (c for c in codes if c and c != ErrorCode.OPERATION_NOT_ATTEMPTED),
                max(codes, default=0),
            )
        )

    def commit_offsets(
        self, group: str, offsets: Mapping[Partition, int], metadata: str = ""
    ) -> None:
        """Commits offsets of a group, in the transaction; begins one where none is open.

        Args:
            group: its name; it has no members.
            offsets: by topic, which exists, and partition.
            metadata: text stored with each offset, at most 4096 characters.
        """

        def add() -> int:
            fields = {**self._who(), "group_id": group}
            return int(
                self._cluster.call(self._coordinator(), ApiKey.ADD_OFFSETS_TO_TXN, fields)[
                    "error_code"
                ]
            )

        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            entry = {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
            by_topic.setdefault(topic, []).append(entry)
        fields = {
            **self._who(),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": name, "partitions": some} for name, some in by_topic.items()],
        }

        def commit() -> int:
            answer = self._cluster.call(self._coordinator(group), ApiKey.TXN_OFFSET_COMMIT, fields)
            codes = [p["error_code"] for topic in answer["topics"] for p in topic["partitions"]]
            return int(next(filter(None, codes), 0))

        self._ask(f"add offsets of group {group!r}", add)
        self._is_open = True
        self._ask(f"commit offsets of group {group!r}", commit)

    def commit(self) -> None:
        """Commits everything that was sent since the last transaction.

        Raises:
            FencedError: another writer has started under this id.
            BrokerError: the transaction was aborted because it took too long; or the broker refused.
        """
        self._end(commit=True)

    def commit_ahead(self, parts: Sequence[Part]) -> Commit | None:
        """Writes records to several partitions and commits, as `send_together` and `commit` do.

        Where the broker counts a transaction's records, both requests are sent at once, and this doesn't
        wait for their answers: `Commit.finish` must follow before anything else does. Elsewhere it returns
        None, once all is done.

        Raises:
            FencedError, LimitError, BrokerError: as `send_together` and `commit`.
        """
        together = self._together(parts)
        connection = self._counting
        if connection is not None and connection.is_usable and connection.is_quiet:
            try:
                if together.begin(connection):
                    self._count(parts)
                    call = self._cluster.begin_call(
                        *(connection, ApiKey.END_TXN, self._end_fields(commit=True)),
                        newest=EPOCH_EACH,
                    )
                    return Commit(together, call, self._committed)
            except OSError:
                self._cluster.close()
                raise
        together.run()
        self._count(parts)
        self.commit()
        return None

    def _committed(self, together: Together, call: Call) -> None:
        """Takes the answers to `commit_ahead`."""
        try:
            answer = call.answer()
        except (OSError, ProtocolError):  # it may count: the broker says so, or refuses
            self._cluster.close()
            self.commit()
            return
        if not answer["error_code"]:
            self._ended(answer)
            return
        together.answered()  # why it was refused: some of the records may have been
        together.run()
        self.commit()

    def abort(self) -> None:
        """Aborts everything that was sent since the last transaction."""
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        if self._is_open:
            fields = self._end_fields(commit=commit)
            newest = EPOCH_EACH if self._joins else None

            def end() -> int:
                connection = self._coordinator()
                answer = self._cluster.call(connection, ApiKey.END_TXN, fields, newest=newest)
                code = int(answer["error_code"])
                if not code:
                    self._counting = connection if answer.get("penstock_counts") else None
                    self._ended(answer)
                return code

            self._ask("commit" if commit else "abort", end)
        self._is_open = False
        self._added.clear()

    def _end_fields(self, *, commit: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {**self._who(), "committed": commit}
        if self._joins:  # sequences count the records, as each transaction has an epoch
            fields["penstock_records"] = sum(self._sequences.values())
        return fields

    def _ended(self, answer: Mapping[str, Any]) -> None:
        """The transaction has ended."""
        if self._joins:
            self._identity = answer["producer_id"], answer["producer_epoch"]
            self._sequences.clear()
        self._is_open = False
        self._added.clear()

    def _who(self) -> dict[str, Any]:
        producer_id, epoch = self.identity
        return {
            "transactional_id": self.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def _ask(self, step: str, action: Callable[[], int]) -> None:
        """One step of the transaction; `action` gives the error code."""
        what = f"{step} in a transaction of {self.transactional_id!r}"

        def ask() -> None:
            try:
                code = action()
            except (OSError, PenstockError):
                self._coordinators.clear()
                raise
            if code:  # it may be another one by now
                self._coordinators.clear()
            if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
                raise FencedError(
                    f"expected to {what}; found that another writer has started under this "
                    "transactional id, or that the broker has aborted the transaction because it "
                    f"was open for more than {self._timeout_ms} ms. Nothing of it is visible"
                )
            if code:
                advice = _ADVICE.get(code, "")
                raise broker_error(code, what, advice)

        self._cluster.attempt(what, ask)

    def _coordinator(self, group: str | None = None) -> Connection:
        """The connection to the coordinator of the transactional id, or of a group."""
        kind, key = (
            (CoordinatorKind.TRANSACTION, self.transactional_id)
            if group is None
            else (CoordinatorKind.GROUP, group)
        )
        if (kind, key) in self._coordinators:
            return self._cluster.connect(self._coordinators[kind, key])
        fields = {"key": key, "key_type": kind}
        answer = self._cluster.call(self._cluster.any(), ApiKey.FIND_COORDINATOR, fields)
        check(answer, f"coordinate {key!r}")
        self._coordinators[kind, key] = answer["host"], answer["port"]
        return self._cluster.connect(self._coordinators[kind, key])
