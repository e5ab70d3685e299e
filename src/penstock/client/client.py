"""Administration and metadata: topics, offsets, groups, producers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from penstock.client.network import hot
from penstock.client.network.cluster import PATIENCE_S, Cluster, OnWait
from penstock.client.network.connection import REQUEST_TIMEOUT_S, Aside, Connection, wait_for_any
from penstock.client.network.errors import broker_error, check
from penstock.client.network.security import Security
from penstock.core.closing import Closing
from penstock.errors import BrokerError
from penstock.wire.protocol import ApiKey, CoordinatorKind, ErrorCode

Partition = tuple[str, int]


ADMIN_TIMEOUT_MS: Final = 30_000
_WAIT_SLACK_S: Final = 5.0
"""How much longer than asked a long poll may take before it counts as lost."""
_WAIT_BYTES: Final = 1  # the first batch always comes whole; nothing more is wanted
_TIMES: Final = {"earliest": -2, "latest": -1}


class ProducerState(NamedTuple):
    """What a partition's leader remembers of an idempotent producer."""

    epoch: int
    last_sequence: int
    last_timestamp_ms: int


class Lag(NamedTuple):
    """How far a group is behind in a partition."""

    committed: int
    end: int


class Client(Closing):
    """A client for everything except records. Don't share it between threads.

    Args:
        bootstrap: "host:port[,host:port]", or a URL that says how to reach it (`Security`).
        client_id: the name the brokers log.
        patience_s: how long to keep trying while a broker is away.
        on_wait: called before each pause with what is waited for and the seconds so far.
        timeout_s: how long one answer may take.
        security: settings of TLS and log-in that the address does not have.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str = "penstock",
        *,
        patience_s: float = PATIENCE_S,
        on_wait: OnWait | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        security: Security | None = None,
    ) -> None:
        self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            patience_s=patience_s,
            on_wait=on_wait,
            timeout_s=timeout_s,
            security=security,
        )
        self._partitions: tuple[float, dict[str, list[int]]] = (0.0, {})

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    # Topics

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, without Kafka's internal ones."""
        found = self._cluster.attempt("list topics", lambda: self._cluster.refresh(None))
        return {
            name: len(topic.leaders)
            for name, topic in sorted(found.items())
            if not topic.is_internal and not topic.error
        }

    def partitions(self, topic: str) -> list[int]:
        """A topic's partition numbers.

        Raises:
            BrokerError: there is no such topic.
        """
        return self._cluster.attempt(
            f"describe topic {topic!r}", lambda: sorted(self._cluster.describe(topic).leaders)
        )

    def topic_id(self, topic: str) -> uuid.UUID:
        """A topic's id. A topic that was deleted and created again has another one.

        Raises:
            BrokerError: there is no such topic.
        """
        what = f"know topic {topic!r}"
        fields = {
            "topics": [{"topic_id": uuid.UUID(int=0), "name": topic}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        cluster = self._cluster
        answer = cluster.request(what, cluster.any, ApiKey.METADATA, fields, "topics")
        topic_id: uuid.UUID | None = answer["topics"][0]["topic_id"]
        return topic_id or uuid.UUID(int=0)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        exists_ok: bool = False,
        replication: int = -1,
    ) -> bool:
        """Creates a topic and waits until its partitions can be written to.

        Args:
            name: its name.
            partitions: how many.
            configs: Kafka's topic configs.
            exists_ok: whether a topic of this name may be there already.
            replication: copies of each partition; -1 for the cluster's default.

        Returns:
            Whether it was created now.
        """
        settings = [{"name": k, "value": str(v)} for k, v in (configs or {}).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": settings,
        }
        fields = {"topics": [topic], "timeout": ADMIN_TIMEOUT_MS, "validate_only": False}
        answer = self._cluster.request(
            f"create topic {name!r} with {partitions} partitions",
            self._cluster.controller,
            ApiKey.CREATE_TOPICS,
            fields,
            "topics",
            advice={ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or use it as it is"},
            accepts={ErrorCode.TOPIC_ALREADY_EXISTS} if exists_ok else (),
        )
        self._cluster.attempt(f"lead topic {name!r}", lambda: self._require_leaders(name))
        return not answer["topics"][0]["error_code"]

    def _require_leaders(self, name: str) -> None:
        """Raises a retriable error unless each partition of a topic has a leader."""
        leaders = self._cluster.describe(name).leaders
        missing = [p for p, node in leaders.items() if node < 0]
        if missing or not leaders:
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE, f"lead partitions {missing} of topic {name!r}"
            )

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Deletes a topic and its records, and waits until the broker's metadata doesn't have it.

        Returns:
            Whether it was there.
        """
        fields = {"topic_names": [name], "timeout": ADMIN_TIMEOUT_MS}
        answer = self._cluster.request(
            f"delete topic {name!r}",
            self._cluster.controller,
            ApiKey.DELETE_TOPICS,
            fields,
            "responses",
            accepts={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if missing_ok else (),
        )
        self._cluster.attempt(f"forget topic {name!r}", lambda: self._require_absence(name))
        return not answer["responses"][0]["error_code"]

    def _require_absence(self, name: str) -> None:
        """Raises a retriable error while a topic is still there."""
        found = self._cluster.refresh([name]).get(name)
        if found is not None and found.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise BrokerError(
                f"expected topic {name!r} to be deleted; found that it still exists", retriable=True
            )

    # Offsets

    def offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | int = "latest",
        partitions: Sequence[int] | None = None,
        *,
        uncommitted: bool = False,
    ) -> dict[int, int]:
        """An offset of each partition.

        Args:
            topic: its name.
            at: `earliest` (the log's first), `latest` (the next to be written), or a timestamp in
                ms: the first record at that time or later, the end where there is none.
            partitions: which; all by default.
            uncommitted: whether `latest` is behind the records of open transactions.
        """

        def ask() -> dict[int, int]:
            wanted = partitions
            if wanted is None:
                wanted = sorted(self._cluster.describe(topic).leaders)
            pairs = [(topic, p) for p in wanted]
            isolation = 0 if uncommitted else hot.READ_COMMITTED
            found = self._list_offsets(pairs, _TIMES.get(str(at), at), isolation)
            beyond = [pair for pair, offset in found.items() if offset < 0]
            if beyond:
                found |= self._list_offsets(beyond, _TIMES["latest"], isolation)
            return {p: found[topic, p] for p in wanted}

        return self._cluster.attempt(f"return the offsets of topic {topic!r}", ask)

    def end_offsets_many(
        self, topics: Iterable[str], *, partitions_age_s: float = 0.0
    ) -> dict[str, dict[int, int]]:
        """The next offset of each partition of each topic, in one request to each broker.

        Args:
            topics: their names.
            partitions_age_s: for how long which partitions they have is not asked again, unless a broker
                refuses one of them.

        Raises:
            BrokerError: a topic does not exist.
        """
        names = list(dict.fromkeys(topics))

        def ask() -> dict[str, dict[int, int]]:
            asked_s, known = self._partitions
            self._partitions = (0.0, {})  # where the brokers refuse, they are asked again
            now_s = time.monotonic()
            if now_s - asked_s >= partitions_age_s or not known.keys() >= set(names):
                asked_s, known = now_s, self._partitions_of(names)
            ends = self._offsets_many({name: known[name] for name in names}, "latest")
            self._partitions = (asked_s, known)
            return ends

        return self._cluster.attempt("return the end offsets of topics", ask)

    def ranges_many(self, topics: Iterable[str]) -> dict[str, dict[int, tuple[int, int]]]:
        """The first and the next offset of each partition of each topic, in two requests to each broker.

        Raises:
            BrokerError: a topic does not exist.
        """
        names = list(dict.fromkeys(topics))

        def ask() -> dict[str, dict[int, tuple[int, int]]]:
            known = self._partitions_of(names)
            first = self._offsets_many(known, "earliest")
            ends = self._offsets_many(known, "latest")
            return {
                name: {p: (first[name][p], end) for p, end in ends[name].items()} for name in names
            }

        return self._cluster.attempt("return the first and end offsets of topics", ask)

    def _offsets_many(
        self, partitions: Mapping[str, Sequence[int]], at: Literal["earliest", "latest"]
    ) -> dict[str, dict[int, int]]:
        """One try at an offset of each of these partitions, by topic."""
        found: dict[str, dict[int, int]] = {name: {} for name in partitions}
        pairs = [(name, p) for name, some in partitions.items() for p in some]
        for (name, p), offset in self._list_offsets(pairs, _TIMES[at]).items():
            found[name][p] = offset
        return found

    def _partitions_of(self, names: Sequence[str]) -> dict[str, list[int]]:
        """One try at the partitions of several topics."""
        described = self._cluster.refresh(names) if names else {}
        for name in names:
            if name not in described or described[name].error:
                self._cluster.describe(name)  # raises the error that says so
        return {name: sorted(described[name].leaders) for name in names}

    def _list_offsets(
        self, pairs: Sequence[Partition], at: Any, isolation: int = hot.READ_COMMITTED
    ) -> dict[Partition, int]:
        """One try at ListOffsets; -1 where no record is that young."""
        found: dict[Partition, int] = {}
        for connection, mine in self._cluster.by_leader(pairs).items():
            topics = _by_topic(mine, lambda _, p: {"partition_index": p, "timestamp": at})
            fields = {
                "replica_id": -1,
                "isolation_level": isolation,
                "topics": topics,
            }
            for topic in self._cluster.call(connection, ApiKey.LIST_OFFSETS, fields)["topics"]:
                for part in topic["partitions"]:
                    pair = topic["name"], part["partition_index"]
                    check(part, "return offsets of {}[{}]".format(*pair))
                    found[pair] = part["offset"]
        return found

    def wait_for_data(
        self, positions: Mapping[Partition, int], timeout_s: float, aside: Aside | None = None
    ) -> bool:
        """Waits until any of these partitions has a record at its position or later.

        Args:
            positions: (topic, partition) -> the next offset to read.
            timeout_s: how long to wait at most.
            aside: what is attended to meanwhile.

        Returns:
            Whether there is one; at once if there is one already.
        """
        deadline = time.monotonic() + timeout_s
        return self._cluster.attempt(
            "wait for data",
            lambda: self._long_poll(positions, max(deadline - time.monotonic(), 0.0), aside),
        )

    def ends_past(
        self, positions: Mapping[Partition, int], timeout_s: float, aside: Aside | None = None
    ) -> dict[Partition, int] | None:
        """The next offset of each partition, as soon as one is past its position: in one request.

        Args:
            positions: (topic, partition) -> the next offset to read.
            timeout_s: how long to wait at most.
            aside: what is attended to meanwhile.

        Returns:
            None where one request can't answer: several brokers lead, or a position isn't there any more.
        """
        deadline = time.monotonic() + timeout_s

        def ask() -> dict[Partition, int] | None:
            leaders = self._cluster.by_leader(list(positions))
            if len(leaders) != 1:
                return None
            [(connection, pairs)] = leaders.items()
            rest_s = max(deadline - time.monotonic(), 0.0)
            number, version = self._send_poll(connection, pairs, positions, rest_s)
            if aside is not None:
                try:
                    if not wait_for_any([connection], rest_s + _WAIT_SLACK_S, aside):
                        raise TimeoutError("a broker did not answer a long poll")
                except BaseException:
                    connection.close()  # the answer would come in the way of the next request
                    raise
            frame = connection.receive(number, rest_s + _WAIT_SLACK_S)
            error, parts = hot.read_fetch(version, frame)
            ends = {
                (part.topic, part.partition): part.high_watermark
                if part.last_stable < 0
                else part.last_stable
                for part in parts
                if not part.error
            }
            return None if error or ends.keys() != positions.keys() else ends

        return self._cluster.attempt("wait for data", ask)

    def _send_poll(
        self,
        connection: Connection,
        pairs: Sequence[Partition],
        positions: Mapping[Partition, int],
        timeout_s: float,
    ) -> tuple[int, int]:
        """Asks a leader for a first batch; the number of the request, and its version."""
        version = self._cluster.version(connection, ApiKey.FETCH, hot.FETCH_VERSIONS)
        request = hot.fetch_request(
            version,
            [(topic, p, positions[topic, p]) for topic, p in pairs],
            wait_ms=int(timeout_s * 1000),
            bytes_max=_WAIT_BYTES,
        )
        flexible = version >= hot.FETCH_FLEXIBLE
        return connection.send(ApiKey.FETCH, version, [request], flexible=flexible), version

    def _long_poll(
        self, positions: Mapping[Partition, int], timeout_s: float, aside: Aside | None = None
    ) -> bool:
        """One Fetch to each leader; the first answer with data ends the wait."""
        flights: dict[Connection, tuple[int, int]] = {}
        for connection, pairs in self._cluster.by_leader(list(positions)).items():
            flights[connection] = self._send_poll(connection, pairs, positions, timeout_s)
        deadline = time.monotonic() + timeout_s + _WAIT_SLACK_S
        try:
            while flights:
                rest_s = deadline - time.monotonic()
                ready = wait_for_any(flights, max(rest_s, 0.0), aside)
                if not ready:
                    raise TimeoutError("a broker did not answer a long poll")
                for connection in ready:
                    number, version = flights.pop(connection)
                    if _has_data(version, connection.receive(number)):
                        return True
            return False
        finally:
            for connection in flights:  # their answers would come in the way of the next request
                connection.close()

    # Groups

    def commit(self, group: str, offsets: Mapping[Partition, int], metadata: str = "") -> None:
        """Commits offsets of a group that has no members at the moment."""
        topics = _by_topic(
            list(offsets),
            lambda topic, p: {
                "partition_index": p,
                "committed_offset": offsets[topic, p],
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            },
        )
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": topics,
        }
        self._cluster.request(
            f"commit offsets of group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.OFFSET_COMMIT,
            fields,
            "topics",
            "partitions",
        )

    def committed(self, group: str, topics: Iterable[str] | None = None) -> dict[Partition, int]:
        """The offsets that a group has committed, for these topics or all."""
        wanted = None if topics is None else set(topics)
        return {
            (topic, p): offset
            for (topic, p), (offset, _) in self.committed_entries(group).items()
            if wanted is None or topic in wanted
        }

    def committed_entries(self, group: str) -> dict[Partition, tuple[int, str]]:
        """A group's committed offsets with their metadata."""
        answer = self._cluster.request(
            f"return the offsets of group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.OFFSET_FETCH,
            {"group_id": group, "topics": None, "require_stable": False},
        )
        return {
            (topic["name"], part["partition_index"]): (
                part["committed_offset"],
                part["metadata"] or "",
            )
            for topic in answer["topics"]
            for part in topic["partitions"]
            if part["committed_offset"] >= 0
        }

    def groups(self) -> dict[str, str]:
        """The state of each consumer group that this broker coordinates."""
        answer = self._cluster.request("list groups", self._cluster.any, ApiKey.LIST_GROUPS, {})
        return {g["group_id"]: g.get("group_state", "") for g in answer["groups"]}

    def lag(self, group: str) -> dict[Partition, Lag]:
        """How far a group is behind in each partition that it has committed an offset of."""
        committed = self.committed(group)
        ends = self.end_offsets_many({topic for topic, _ in committed})
        return {(t, p): Lag(offset, ends[t][p]) for (t, p), offset in committed.items()}

    def _coordinator(self, group: str) -> Connection:
        """The connection to a group's coordinator."""
        fields = {"key": group, "key_type": CoordinatorKind.GROUP}
        answer = self._cluster.call(self._cluster.any(), ApiKey.FIND_COORDINATOR, fields)
        check(answer, f"coordinate group {group!r}")
        return self._cluster.connect((answer["host"], answer["port"]))

    # Producers

    def init_producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch, for idempotent writes."""
        fields = {"transactional_id": None, "transaction_timeout": ADMIN_TIMEOUT_MS}
        what, to = "give out a producer id", self._cluster.any
        answer = self._cluster.request(what, to, ApiKey.INIT_PRODUCER_ID, fields)
        return answer["producer_id"], answer["producer_epoch"]

    def describe_producers(
        self, topic: str, partitions: Sequence[int]
    ) -> dict[int, dict[int, int]]:
        """The last sequence number of each idempotent producer, by partition and producer id."""
        return {
            p: {producer: state.last_sequence for producer, state in producers.items()}
            for p, producers in self.producer_states(topic, partitions).items()
        }

    def producer_states(
        self, topic: str, partitions: Sequence[int]
    ) -> dict[int, dict[int, ProducerState]]:
        """The leaders' state of idempotent producers, by partition and producer id."""
        return self._cluster.attempt(
            f"describe producers of topic {topic!r}",
            lambda: producer_states(self._cluster, topic, partitions),
        )


def producer_states(
    cluster: Cluster, topic: str, partitions: Sequence[int]
) -> dict[int, dict[int, ProducerState]]:
    """One try at DescribeProducers."""
    found: dict[int, dict[int, ProducerState]] = {}
    for connection, mine in cluster.by_leader([(topic, p) for p in partitions]).items():
        fields = {"topics": [{"name": topic, "partition_indexes": [p for _, p in mine]}]}
        for answer in cluster.call(connection, ApiKey.DESCRIBE_PRODUCERS, fields)["topics"]:
            for part in answer["partitions"]:
                what = f"describe producers of partition {part['partition_index']} of {topic!r}"
                check(part, what)
                found[part["partition_index"]] = {
                    p["producer_id"]: ProducerState(
                        p["producer_epoch"], p["last_sequence"], p["last_timestamp"]
                    )
                    for p in part["active_producers"]
                }
    return found


def _by_topic(
    pairs: Sequence[Partition], entry: Callable[[str, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Partitions as Kafka's messages nest them: topics, and in each its partitions' entries."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, p in pairs:
        topics.setdefault(topic, []).append(entry(topic, p))
    return [{"name": topic, "partitions": parts} for topic, parts in topics.items()]


def _has_data(version: int, frame: memoryview) -> bool:
    """Whether a Fetch answer holds records."""
    error, parts = hot.read_fetch(version, frame)
    if error:
        raise broker_error(error, "wait for data")
    for part in parts:
        if part.error:
            what = f"wait for data in partition {part.partition} of topic {part.topic!r}"
            raise broker_error(part.error, what)
    return any(part.end > part.start for part in parts)
