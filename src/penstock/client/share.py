"""A member of a share group (KIP-932), and what there is to know of such groups.

    with ShareMember("127.0.0.1:9092", group="g", topic="jobs") as member:
        for job in member.fetch(records_max=1, wait_s=1):
            member.settle(job, ACCEPT)

A thread of its own sends the heartbeats. All else belongs to the thread that uses the member. When
a connection breaks, the broker takes back what was acquired through it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from penstock.client.client import Client
from penstock.client.network.connection import Connection
from penstock.client.network.errors import check
from penstock.core.closing import Closing
from penstock.errors import BrokerError, JobLostError
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ConfigChange, ConfigResource, ErrorCode

__all__ = [
    "ACCEPT",
    "REJECT",
    "RELEASE",
    "RENEW",
    "Delivery",
    "GroupOffset",
    "ShareClient",
    "ShareMember",
]

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
FETCH_BYTES_MAX: Final = 8 << 20
"""Most bytes of one answer, unless its first batch is larger."""
ANSWER_SLACK_S: Final = 10.0
"""How much longer than asked a long poll may take."""
HEARTBEAT_S: Final = 5.0
"""Time between heartbeats until the broker has said what it wants."""
_STRICT: Final = 1
_log = logging.getLogger(__name__)
_Part: TypeAlias = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that this member has acquired."""

    topic: str
    partition: int
    record: batches.Record
    attempt: int
    topic_id: uuid.UUID = field(repr=False)
    session: object = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a share group stands in a partition; `waiting` are records that are not settled."""

    topic: str
    partition: int
    start_offset: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Session:
    """A share session with one broker; its partitions are (topic id, index)."""

    connection: Connection
    epoch: int = 0
    partitions: set[_Part] = field(default_factory=set)
    unsettled: dict[_Part, set[int]] = field(default_factory=dict)
    """Offsets of records that were handed out and not settled."""

    def advance(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < (1 << 31) - 1 else 1


class ShareClient(Client):
    """What there is to know and to set of share groups."""

    def configure(self, kind: ConfigResource, name: str, settings: Mapping[str, str]) -> None:
        """Sets settings of a group or a topic; others stay as they are."""
        configs = [
            {"name": key, "config_operation": ConfigChange.SET, "value": value}
            for key, value in settings.items()
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        self._cluster.request(
            f"set {', '.join(settings)} of {name!r}",
            self._cluster.controller,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {"resources": [resource], "validate_only": False},
            "responses",
        )

    def share_groups(self) -> dict[str, str]:
        """Each share group's state."""
        fields = {"states_filter": [], "types_filter": ["share"]}
        what, to = "list share groups", self._cluster.any
        answer = self._cluster.request(what, to, ApiKey.LIST_GROUPS, fields)
        return {
            one["group_id"]: one.get("group_state", "")
            for one in answer["groups"]
            if one.get("group_type", "").lower() == "share"
        }

    def share_offsets(self, group: str) -> list[GroupOffset]:
        """Where a share group stands; nothing where there is no such group."""
        answer = self._cluster.request(
            f"return the offsets of group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"group_id": group, "topics": None}]},
            "groups",
            accepts={ErrorCode.GROUP_ID_NOT_FOUND},
        )
        return [
            GroupOffset(
                topic["topic_name"],
                part["partition_index"],
                part["start_offset"],
                part.get("lag", -1),
            )
            for topic in answer["groups"][0]["topics"]
            for part in topic["partitions"]
            if part["start_offset"] >= 0
        ]

    def share_members(self, group: str) -> int:
        """How many members a share group has; none where there is no such group."""
        answer = self._cluster.request(
            f"describe group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.SHARE_GROUP_DESCRIBE,
            {"group_ids": [group], "include_authorized_operations": False},
            "groups",
            accepts={ErrorCode.GROUP_ID_NOT_FOUND},
        )
        return len(answer["groups"][0].get("members") or ())

    def beat(self, group: str, member_id: str, epoch: int, topic: str | None) -> dict[str, Any]:
        """A member's heartbeat; the answer may hold an error."""
        fields = {
            "group_id": group,
            "member_id": member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": None if topic is None else [topic],
        }
        return self._cluster.request(
            f"join share group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.SHARE_GROUP_HEARTBEAT,
            fields,
            accepts={ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH},
        )


class ShareMember(Closing):
    """A member of a share group that takes records of one topic.

    Args:
        bootstrap: "host:port[,host:port]".
        group: the group's id.
        topic: the topic.
        settings: further arguments of `Client`.
    """

    def __init__(self, bootstrap: str, *, group: str, topic: str, **settings: Any) -> None:
        self.group = group
        self.topic = topic
        self.id = str(uuid.uuid4())
        self._client = ShareClient(bootstrap, **settings)
        self._cluster = self._client._cluster  # noqa: SLF001 - the same package's
        self._heart = _Heart(ShareClient(bootstrap, **settings), group, self.id, topic)
        self._sessions: dict[Connection, _Session] = {}

    def close(self) -> None:
        """Leaves; records that were not settled are given back at once, uncounted."""
        for session in list(self._sessions.values()):  # one that is lost is dropped on the way
            with contextlib.suppress(OSError, BrokerError):
                if session.connection.is_usable and session.epoch:
                    self._give_back(session)
                    session.epoch = -1
                    self._call(session, ApiKey.SHARE_ACKNOWLEDGE, {"topics": []})
        self._sessions.clear()
        self._client.close()
        self._heart.stop()

    def _give_back(self, session: _Session) -> None:
        """Releases what wasn't settled, uncounted; the end of a session gives it back as well, but
        counts it as delivered.
        """
        for part, offsets in session.unsettled.items():
            acks = [_ack(one, RELEASE) | {"penstock_uncounted": True} for one in sorted(offsets)]
            if acks and self._acknowledge(session, part, acks):
                for ack in acks:  # the locks of some are over, and one that isn't ours fails all
                    self._acknowledge(session, part, [ack])
        session.unsettled.clear()

    def fetch(self, records_max: int, wait_s: float) -> list[Delivery]:
        """Acquires some records; none if there are none within `wait_s`."""
        self._heart.start()
        deadline = time.monotonic() + wait_s
        while not self._heart.assigned:
            if time.monotonic() >= deadline:
                return []
            time.sleep(0.02)
            self._heart.raise_failure()
        self._heart.raise_failure()
        return self._cluster.attempt(
            f"take records of {self.topic!r}",
            lambda: self._fetch(records_max, max(deadline - time.monotonic(), 0.0)),
        )

    def _fetch(self, records_max: int, wait_s: float) -> list[Delivery]:
        assigned = self._heart.assigned
        places = self._cluster.by_leader([(self.topic, one) for _, one in sorted(assigned)])
        self._sessions = {c: s for c, s in self._sessions.items() if c.is_usable}
        found: list[Delivery] = []
        for connection, pairs in places.items():
            session = self._sessions.setdefault(connection, _Session(connection))
            indexes = {index for _, index in pairs}
            wanted = {part for part in assigned if part[1] in indexes}
            found += self._fetch_from(session, wanted, records_max, wait_s / len(places))
            if found:
                break
        return found

    def _fetch_from(
        self,
        session: _Session,
        partitions: set[_Part],
        records_max: int,
        wait_s: float,
    ) -> list[Delivery]:
        fields = {
            "max_wait": int(wait_s * 1000),
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "max_records": records_max,
            "batch_size": records_max,
            "share_acquire_mode": _STRICT,
            "topics": [
                {"topic_id": topic_id, "partitions": [_quiet(one) for one in indexes]}
                for topic_id, indexes in _by_topic(partitions - session.partitions)
            ],
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": indexes}
                for topic_id, indexes in _by_topic(session.partitions - partitions)
            ],
        }
        answer = self._call(session, ApiKey.SHARE_FETCH, fields, wait_s + ANSWER_SLACK_S)
        session.partitions = set(partitions)
        return [
            delivery
            for topic in answer["responses"]
            for part in topic["partitions"]
            for delivery in self._deliveries(session, topic["topic_id"], part)
        ]

    def _deliveries(
        self, session: _Session, topic_id: uuid.UUID, part: dict[str, Any]
    ) -> list[Delivery]:
        check(part, f"take records of {self.topic!r}")
        data, index = part["records"] or b"", part["partition_index"]
        records = {
            record.offset: record
            for at, header in batches.iterate(data)
            for record in batches.records(data, at, header)
        }
        found, gaps = [], []
        for one in part["acquired_records"]:
            for offset in range(one["first_offset"], one["last_offset"] + 1):
                record = records.get(offset)
                if record is None:
                    gaps.append(offset)
                else:
                    count = one["delivery_count"]
                    session.unsettled.setdefault((topic_id, index), set()).add(offset)
                    found.append(Delivery(self.topic, index, record, count, topic_id, session))
        if gaps:
            acks = [_ack(offset, 0) for offset in gaps]
            self._acknowledge(session, (topic_id, index), acks)
        return found

    def settle(
        self,
        delivery: Delivery,
        kind: int,
        *,
        delay_ms: int = 0,
        reason: str = "",
        is_counted: bool = True,
    ) -> None:
        """Says what became of a record; returns once the broker has that on its disk.

        Raises:
            JobLostError: the record isn't this member's any more.
        """
        session = delivery.session
        assert isinstance(session, _Session)
        extra = {
            "penstock_delay": delay_ms,
            "penstock_reason": reason,
            "penstock_uncounted": not is_counted,
        }
        ack = _ack(delivery.record.offset, kind) | extra
        try:
            if not session.connection.is_usable:
                raise ConnectionError("the connection is closed")
            part = delivery.topic_id, delivery.partition
            code = self._acknowledge(session, part, [ack], renews=kind == RENEW)
            if code or kind != RENEW:
                session.unsettled.get(part, set()).discard(delivery.record.offset)
        except (OSError, BrokerError) as error:
            raise _lost(delivery, str(error)) from error
        if code:
            raise _lost(delivery, f"error {code}")

    def _acknowledge(
        self,
        session: _Session,
        part: _Part,
        acks: Sequence[dict[str, Any]],
        *,
        renews: bool = False,
    ) -> int:
        topic_id, index = part
        acked = {"partition_index": index, "acknowledgement_batches": list(acks)}
        topics = [{"topic_id": topic_id, "partitions": [acked]}]
        fields = {"topics": topics, "is_renew_ack": renews}
        answer = self._call(session, ApiKey.SHARE_ACKNOWLEDGE, fields)
        code: int = answer["responses"][0]["partitions"][0]["error_code"]
        return code

    def _call(
        self, session: _Session, api: ApiKey, fields: dict[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """A request in a session. Whatever goes wrong in it ends the session with its connection,
        and with it what was acquired: neither side could be sure of the other's epoch.
        """
        head = {
            "group_id": self.group,
            "member_id": self.id,
            "share_session_epoch": session.epoch,
        }
        done = False
        try:
            answer = self._cluster.call(session.connection, api, head | fields, timeout_s)
            check(answer, f"serve share group {self.group!r}")
            done = True
        finally:
            if not done:
                session.connection.close()
                self._sessions.pop(session.connection, None)
        session.advance()
        return answer


def _by_topic(parts: set[_Part]) -> list[tuple[uuid.UUID, list[int]]]:
    found: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(parts):
        found.setdefault(topic_id, []).append(index)
    return list(found.items())


def _quiet(index: int) -> dict[str, Any]:
    return {"partition_index": index, "acknowledgement_batches": []}


def _ack(offset: int, kind: int) -> dict[str, Any]:
    return {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}


def _lost(delivery: Delivery, why: str) -> JobLostError:
    return JobLostError(
        f"expected record {delivery.record.offset} of {delivery.topic}[{delivery.partition}] to be "
        f"ours still; found that it isn't ({why}); it will be delivered again, or was. Settle "
        "records before their lock ends, renew the lock, or give the group a longer one"
    )


class _Heart:
    """Sends heartbeats from a thread, and knows what the member is to fetch from."""

    def __init__(self, client: ShareClient, group: str, member_id: str, topic: str) -> None:
        self.assigned: frozenset[_Part] = frozenset()
        self._client = client
        self._group, self._member_id, self._topic = group, member_id, topic
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BrokerError | None = None

    def start(self) -> None:
        """Joins, in the background."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"penstock-heartbeat-{self._group}", daemon=True
            )
            self._thread.start()

    def raise_failure(self) -> None:
        """Raises what the heartbeats came to, if they failed for good."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Leaves the group."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(ANSWER_SLACK_S)
        self._client.close()

    def _run(self) -> None:
        epoch = 0
        while not self._stopped.is_set():
            pause_s = HEARTBEAT_S
            try:
                topic = self._topic if epoch == 0 else None
                answer = self._client.beat(self._group, self._member_id, epoch, topic)
                self._failure = None
                if answer["error_code"]:  # we were silent for too long: join again
                    epoch, pause_s = 0, 0.1
                else:
                    epoch = answer["member_epoch"]
                    pause_s = answer["heartbeat_interval"] / 1000
                    if answer["assignment"] is not None:
                        self._assign(answer["assignment"]["topic_partitions"])
            except BrokerError as error:
                self._failure = None if error.retriable else error
                _log.warning("%s", error)
                pause_s = 0.5
            self._stopped.wait(pause_s)
        if epoch > 0:
            with contextlib.suppress(OSError, BrokerError):
                self._client.beat(self._group, self._member_id, -1, None)

    def _assign(self, parts: Sequence[dict[str, Any]]) -> None:
        self.assigned = frozenset(
            (one["topic_id"], index) for one in parts for index in one["partitions"]
        )
