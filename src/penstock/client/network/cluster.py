"""What the client knows of a cluster: nodes, leaders, connections; and how it waits for it.

A broker that is restarting, or a leader that has moved, is not a failure: `Cluster.attempt` repeats
an action with growing pauses until it succeeds or patience runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.client.network import hot
from penstock.client.network.connection import (
    REQUEST_TIMEOUT_S,
    Connection,
    HandshakeError,
)
from penstock.client.network.errors import Advice, broker_error, check
from penstock.client.network.security import Security, parse_target
from penstock.core.names import hint, known_names
from penstock.errors import BrokerError
from penstock.wire.protocol import ApiKey, ErrorCode

if TYPE_CHECKING:
    from penstock.wire.messages import Codec

T = TypeVar("T")
OnWait = Callable[[str, float], None]  # what is waited for, seconds so far

PATIENCE_S: Final = 30.0
"""A broker's restart takes a second or so; a Kafka leader's move up to 20 s."""
UNKNOWN_TOPIC_PATIENCE_S: Final = 2.0  # news of a new topic spreads in milliseconds
FEATURES_FROM: Final = 3
"""Version of ApiVersions from which on answers have the cluster's features."""
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
HANDSHAKES_MAX: Final = 8
"""TLS handshakes in a row that the peer may break off (within some 2 s) before that is an answer."""

# The newest version of each cold API whose fields this client knows.
_NEWEST: Final[dict[ApiKey, int]] = {
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,  # where topics' ids are wanted
    ApiKey.OFFSET_COMMIT: 8,  # by topic name
    ApiKey.OFFSET_FETCH: 7,  # one group
    ApiKey.FIND_COORDINATOR: 3,  # one group
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 5,  # by topic name
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,  # which leaves the epoch as it is
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
}


class Call(NamedTuple):
    """A request that is not on the hot path, on its way; its connection, its number there, and how its
    answer is read.
    """

    connection: Connection
    number: int
    codec: Codec

    def answer(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for the answer."""
        frame = self.connection.receive(self.number, timeout_s)
        return self.codec.decode(_body(frame, flexible=self.codec.flexible))


class Cluster:
    """Connections to a cluster's brokers; not to be shared between threads.

    Args:
        bootstrap: "host:port[,host:port]", any of the brokers; or a URL (see `_security`).
        client_id: the name the brokers log.
        patience_s: how long to keep trying.
        on_wait: called before each pause with what is waited for and the seconds so far.
        timeout_s: how long one answer may take.
        security: settings of TLS and log-in that the address does not have.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        patience_s: float = PATIENCE_S,
        on_wait: OnWait | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        security: Security | None = None,
    ) -> None:
        target = parse_target(bootstrap, security)
        self._seeds = target.addresses
        self._security = target.security
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self.patience_s = patience_s
        self._nodes: dict[int, tuple[str, int]] = {}
        self._controller = -1
        self._leaders: dict[tuple[str, int], int] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._is_interrupted = False

    def close(self) -> None:
        """Closes all connections; the next use opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()

    def interrupt(self) -> None:
        """Ends what another thread asks here, with an OSError; from any thread. Nothing can be asked then.

        A connection that is just being made is waited for.
        """
        self._is_interrupted = True  # first: `connect` looks at it once it has added a connection
        for connection in list(self._connections.values()):
            connection.interrupt()

    def attempt(
        self,
        what: str,
        action: Callable[[], T],
        patience_s: float | None = None,
        *,
        by_id: bool = False,
    ) -> T:
        """Runs an action until it succeeds; between tries all connections are renewed.

        Args:
            what: what it does, to follow "expected to ".
            action: may be repeated.
            patience_s: other than the cluster's.
            by_id: whether it asks for a topic by an id that stays: an unknown one is an unknown topic then.

        Raises:
            BrokerError: the broker refused for good, or patience ran out.
            OSError: it was interrupted.
        """
        patience = self.patience_s if patience_s is None else patience_s
        begun = time.monotonic()
        pause = PAUSE_MIN_S
        hung_up = 0
        while True:
            try:
                return action()
            except (OSError, BrokerError) as e:
                if isinstance(e, BrokerError) and not e.retriable:
                    raise
                hung_up = hung_up + 1 if isinstance(e, HandshakeError) else 0
                if hung_up == HANDSHAKES_MAX:
                    raise
                self.close()
                if self._is_interrupted:
                    raise
                code = e.code if isinstance(e, BrokerError) else 0
                limit = patience
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (
                    by_id and code == ErrorCode.UNKNOWN_TOPIC_ID
                ):
                    limit = min(patience, UNKNOWN_TOPIC_PATIENCE_S)
                waited = time.monotonic() - begun
                if waited + pause > limit:
                    raise self._gave_up(what, waited, e) from e
            if self._on_wait is not None:
                self._on_wait(what, waited)
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _gave_up(self, what: str, waited_s: float, cause: OSError | BrokerError) -> BrokerError:
        """The error when patience is over; it still counts as retriable."""
        if isinstance(cause, BrokerError):
            text = f"{cause} (tried for {waited_s:.1f} s)"
            return BrokerError(text, code=cause.code, retriable=True)
        seeds = ", ".join(f"{host}:{port}" for host, port in self._seeds)
        return BrokerError(
            f"expected to {what} within {waited_s:.1f} s; found no broker answering at {seeds}: "
            f"{cause}. Check the address, and that the broker runs (penstock broker)",
            retriable=True,
        )

    def connect(self, address: tuple[str, int]) -> Connection:
        """The connection to an address, opened if need be."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            if connection is not None:
                connection.close()
            connection = Connection(*address, self._client_id, self._timeout_s, self._security)
            self._connections[address] = connection
        if self._is_interrupted:
            raise ConnectionAbortedError("what was asked of the brokers was interrupted")
        return connection

    def any(self) -> Connection:
        """A connection to some broker.

        Raises:
            OSError: none can be reached.
        """
        known = [address for address, c in self._connections.items() if c.is_usable]
        failure: OSError | None = None
        for address in [*known, *self._seeds, *self._nodes.values()]:
            try:
                return self.connect(address)
            except OSError as e:
                failure = e
        raise failure or ConnectionError("no address")

    def refresh(self, topics: Sequence[str] | None) -> dict[str, hot.TopicMetadata]:
        """Asks for the nodes and these topics' leaders (all topics': None)."""
        connection = self.any()
        self.version(connection, ApiKey.METADATA, (hot.METADATA_VERSION,) * 2)
        request = hot.metadata_request(topics)
        number = connection.send(ApiKey.METADATA, hot.METADATA_VERSION, [request], flexible=False)
        frame = connection.receive(number)
        self._nodes, self._controller, found = hot.read_metadata(frame)
        for name, topic in found.items():
            self._leaders.update({(name, p): node for p, node in topic.leaders.items()})
        return found

    def describe(self, topic: str) -> hot.TopicMetadata:
        """One topic's partitions.

        Raises:
            BrokerError: there is no such topic, or it can't be described.
        """
        found = self.refresh([topic]).get(topic)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
        if found is None or error:
            advice = "Create it first, or check its name (penstock topics)"
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                advice = f"There {self._topics_like(topic)}. {advice}"
            raise broker_error(error, f"know topic {topic!r}", advice)
        return found

    def _topics_like(self, topic: str) -> str:
        """Which topics there are, and which of them was probably meant; for a message."""
        names = sorted(
            name
            for name, one in self.refresh(None).items()
            if not one.is_internal and not one.error
        )
        return (
            f"are the topics {known_names(names)}{hint(topic, names)}" if names else "are no topics"
        )

    def leader(self, topic: str, partition: int) -> Connection:
        """The connection to a partition's leader.

        Raises:
            BrokerError: there is no such topic or partition, or no leader at the moment.
        """
        node = self._leaders.get((topic, partition))
        if node is None:
            leaders = self.describe(topic).leaders
            if partition not in leaders:
                raise broker_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"know partition {partition} of topic {topic!r}",
                    f"The topic has partitions {sorted(leaders)}",
                )
            node = leaders[partition]
        address = self._nodes.get(node)
        if address is None:
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE, f"lead partition {partition} of topic {topic!r}"
            )
        return self.connect(address)

    def by_leader(
        self, partitions: Sequence[tuple[str, int]]
    ) -> dict[Connection, list[tuple[str, int]]]:
        """Groups partitions by the connection to their leader."""
        unknown = {topic for topic, p in partitions if (topic, p) not in self._leaders}
        if unknown:
            self.refresh(sorted(unknown))
        groups: dict[Connection, list[tuple[str, int]]] = {}
        for topic, partition in partitions:
            groups.setdefault(self.leader(topic, partition), []).append((topic, partition))
        return groups

    def controller(self) -> Connection:
        """The connection to the controller, which creates and deletes topics."""
        self.refresh([])
        address = self._nodes.get(self._controller)
        return self.any() if address is None else self.connect(address)

    def version(self, connection: Connection, api: ApiKey, ours: tuple[int, int]) -> int:
        """The newest version of an API that both sides know.

        Raises:
            BrokerError: there is none.
        """
        low, high = connection.versions().get(api, (0, -1))
        best = min(high, ours[1])
        if best < max(low, ours[0]):
            theirs = f"versions {low} to {high}" if high >= 0 else "that it does not serve it"
            raise broker_error(
                ErrorCode.UNSUPPORTED_VERSION,
                f"serve request type {api} in a version from {ours[0]} to {ours[1]}",
                "Use a broker of Kafka 2.1 or newer, or Penstock's own",
                theirs,
            )
        return best

    def feature(self, connection: Connection, name: str) -> int:
        """The level of a feature that the cluster has finalized, such as `transaction.version`; 0: none."""
        from penstock.wire import messages

        if connection.versions().get(ApiKey.API_VERSIONS, (0, 0))[1] < FEATURES_FROM:
            return 0
        codec = messages.request_codec(ApiKey.API_VERSIONS, FEATURES_FROM)
        fields = {"client_software_name": "penstock", "client_software_version": "1"}
        body = codec.encode(fields)
        number = connection.send(
            ApiKey.API_VERSIONS, FEATURES_FROM, [body], flexible=codec.flexible
        )
        frame = connection.receive(number)  # its header never has tagged fields
        answer = messages.response_codec(ApiKey.API_VERSIONS, FEATURES_FROM).decode(bytes(frame))
        levels = {f["name"]: f["max_version_level"] for f in answer["finalized_features"]}
        return int(levels.get(name, 0))

    def call(
        self,
        connection: Connection,
        api: ApiKey,
        fields: dict[str, Any],
        timeout_s: float | None = None,
        newest: int | None = None,
    ) -> dict[str, Any]:
        """A request that is not on the hot path, as dicts of Kafka's field names in snake case.

        Fields that the negotiated version lacks are left out. `newest` is the newest version to be used,
        other than what is usual for this API.
        """
        return self.begin_call(connection, api, fields, newest).answer(timeout_s)

    def request(
        self,
        what: str,
        to: Callable[[], Connection],
        api: ApiKey,
        fields: dict[str, Any],
        *lists: str,
        advice: Advice = "",
        accepts: Collection[int] = (),
    ) -> dict[str, Any]:
        """Asks until there is an answer without an error that may pass; see `attempt`, `call`.

        Args:
            what: what is asked for, to follow "expected the broker to ".
            to: connects to who is asked.
            api: which request.
            fields: its fields.
            lists: the answer's lists whose entries have errors of their own (see `check`).
            advice: what to do about an error.
            accepts: error codes that the caller reads himself.

        Raises:
            BrokerError: the broker refused for good, or patience ran out.
        """

        def ask() -> dict[str, Any]:
            answer = self.call(to(), api, fields)
            check(answer, what, *lists, advice=advice, accepts=accepts)
            return answer

        return self.attempt(what, ask)

    def begin_call(
        self, connection: Connection, api: ApiKey, fields: dict[str, Any], newest: int | None = None
    ) -> Call:
        """Sends such a request, and doesn't wait for its answer; see `call`."""
        from penstock.wire import messages  # loads Kafka's schemas: only where they are needed

        oldest, known = messages.versions(api)
        limit = _NEWEST[api] if newest is None else newest
        version = self.version(connection, api, (oldest, min(known, limit)))
        codec = messages.request_codec(api, version)
        number = connection.send(api, version, [codec.encode(fields)], flexible=codec.flexible)
        return Call(connection, number, messages.response_codec(api, version))


def _body(frame: memoryview, *, flexible: bool) -> bytes:
    """An answer's body: what follows the tagged fields of its header."""
    cursor = hot.Cursor(frame, flexible=flexible)
    cursor.tags()
    return bytes(frame[cursor.at :])
