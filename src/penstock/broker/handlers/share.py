"""Share groups: ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge, and the
offsets of share groups.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Sequence
from typing import Final

from penstock.broker.groups.registry import SHARE
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import OPERATIONS_OMITTED
from penstock.broker.share.coordinator import Assignment, Beat, ShareMember, member_fields
from penstock.broker.share.held import Held
from penstock.broker.share.model import Ack, AckType
from penstock.broker.share.serving import Portion, Wanted, portion
from penstock.broker.share.sessions import FINAL, PARTITIONS_MAX, Session
from penstock.broker.storage.flusher import made_durable
from penstock.broker.storage.topics import Topic
from penstock.errors import LimitError
from penstock.log.errors import StorageError
from penstock.log.partition import LEADER_EPOCH
from penstock.log.tier import NotLoadedError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

FETCH_BYTES_MAX: Final = 32 << 20
"""Most bytes of record batches in one answer."""
WAIT_MS_MAX: Final = 60_000
"""Longest wait for records."""
STRICT: Final = 1
"""KIP-1206's acquire mode in which the number of records is a limit."""
_Place = tuple[bytes, int]


# -- membership ------------------------------------------------------------------------------------


def _group_fault(call: Call, group_id: str, *, joins: bool = False) -> Fields | None:
    """An error where the group is of another kind; one without members becomes a share group."""
    registry = call.broker.registry
    kind = registry.kind(group_id)
    if kind in {None, SHARE} or (joins and registry.claim(group_id, SHARE)):
        return None
    return {
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
        "error_message": f"expected a share group; found {group_id!r}, a {kind} group",
    }


async def share_group_heartbeat(call: Call, fields: Fields) -> Fields:
    """A member joins, lives or leaves; it learns its partitions.

    Who leaves keeps what it has acquired until its session ends: its last acknowledgements may be on
    their way still, over another connection.
    """
    shares = call.broker.share
    group_id, member_id = fields["group_id"], fields["member_id"]
    joins = fields["member_epoch"] == 0
    fault = _group_fault(call, group_id, joins=joins)
    if fault is None and group_id and member_id and not joins:
        fault = _no_group(call, group_id)
    if fault is not None:
        return fault
    policy = shares.policy(group_id)
    topics = fields["subscribed_topic_names"]
    beat = Beat(
        group_id,
        member_id,
        fields["member_epoch"],
        None if topics is None else tuple(sorted(set(topics))),
        fields["rack_id"],
        call.client_id,
        call.client_host,
    )
    answer = shares.groups.heartbeat(call.broker.now_ms(), policy.session_ms, beat)
    if answer.code is not ErrorCode.NONE:
        return {"error_code": answer.code, "error_message": answer.message}
    result: Fields = {
        "error_code": ErrorCode.NONE,
        "member_id": member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": policy.heartbeat_ms if answer.epoch >= 0 else 0,
    }
    try:
        if answer.assignment is not None:
            result["assignment"] = {"topic_partitions": _assigned(call, answer.assignment)}
            await shares.loaded(functools.partial(_open, call, group_id, answer.assignment))
            if not await made_durable(call.broker.flusher.make_durable, [shares.journal]):
                raise StorageError(shares.journal.failure or "the journal was not synced")
    except StorageError as error:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": str(error)}
    except LimitError as error:
        return {"error_code": ErrorCode.GROUP_MAX_SIZE_REACHED, "error_message": str(error)}
    return result


def _no_group(call: Call, group_id: str) -> Fields | None:
    """An error where there is no group of that name."""
    if call.broker.registry.kind(group_id) is not None:
        return None
    return {
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
        "error_message": f"expected a share group; found none named {group_id!r}",
    }


def _open(call: Call, group_id: str, assignment: Assignment) -> None:
    """Makes the group's partitions begin, if they are new."""
    for topic, indexes in _topics_of(call, assignment):
        for index in indexes:
            call.broker.share.open(group_id, topic, index)


def _assigned(call: Call, assignment: Assignment, *, named: bool = False) -> list[Fields]:
    result = []
    for topic, indexes in _topics_of(call, assignment):
        one = {"topic_id": topic.id, "partitions": indexes}
        result.append(one | {"topic_name": topic.name} if named else one)
    return result


def _topics_of(call: Call, assignment: Assignment) -> list[tuple[Topic, list[int]]]:
    """The topics that are there still, with the partitions."""
    found: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment):
        found.setdefault(topic_id, []).append(index)
    topics = [(call.broker.topics.by_id(one.bytes), some) for one, some in found.items()]
    there = [(topic, some) for topic, some in topics if topic is not None]
    return sorted(there, key=lambda pair: pair[0].name)


def share_group_describe(call: Call, fields: Fields) -> Fields:
    """Groups with their members and partitions."""
    return {"groups": [_describe(call, group_id) for group_id in fields["group_ids"]]}


def _describe(call: Call, group_id: str) -> Fields:
    shares = call.broker.share
    result: Fields = {"group_id": group_id, "authorized_operations": OPERATIONS_OMITTED}
    group = shares.groups.get(group_id)
    if not group_id:
        return result | {"error_code": ErrorCode.INVALID_GROUP_ID, "group_state": ""}
    if group is None:
        if shares.has(group_id):
            return result | {"group_state": "Empty", "assignor_name": "simple"}
        return result | {
            "group_state": "",
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"expected a share group; found none named {group_id!r}",
        }

    def member(one: ShareMember) -> Fields:
        found = _assigned(call, one.assignment, named=True)
        return member_fields(one) | {"assignment": {"topic_partitions": found}}

    return result | {
        "group_state": "Stable",
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "simple",
        "members": [member(one) for one in group.members.values()],
    }


# -- fetching and acknowledging --------------------------------------------------------------------


def _session(call: Call, fields: Fields) -> Session | ErrorCode:
    """The request's session. One that begins replaces the one before it.

    What its member acquired in that one stays acquired, as in Kafka, unless it has changed its
    connection: then the former one is given up, whether or not its end has been seen yet.
    """
    sessions = call.broker.share.sessions
    group, member, epoch = fields["group_id"], fields["member_id"], fields["share_session_epoch"]
    if not group or not member:
        return ErrorCode.INVALID_REQUEST
    if epoch != 0:
        return sessions.next(group, member, epoch, call.connection)
    if call.api_key == ApiKey.SHARE_ACKNOWLEDGE:
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    before = sessions.get(group, member)
    if before is not None and before.connection is not call.connection:
        call.broker.share.end_session(before)
    return sessions.begin(group, member, call.connection)


def _acks(topics: Sequence[Fields]) -> dict[_Place, list[Ack]]:
    found: dict[_Place, list[Ack]] = {}
    for topic in topics:
        for part in topic["partitions"]:
            if part["acknowledgement_batches"]:
                place = topic["topic_id"].bytes, part["partition_index"]
                found.setdefault(place, []).extend(
                    _ack(one) for one in part["acknowledgement_batches"]
                )
    return found


def _ack(fields: Fields) -> Ack:
    return Ack(
        fields["first_offset"],
        fields["last_offset"],
        fields["acknowledge_types"],
        fields.get("penstock_delay", 0),
        fields.get("penstock_reason", ""),
        fields.get("penstock_uncounted", False),
    )


def _renews(acks: dict[_Place, list[Ack]]) -> bool:
    return any(AckType.RENEW in one.types for some in acks.values() for one in some)


async def _acknowledge(
    call: Call, session: Session, acks: dict[_Place, list[Ack]]
) -> dict[_Place, ErrorCode]:
    """Takes acknowledgements, and makes them durable."""
    shares = call.broker.share
    codes: dict[_Place, ErrorCode] = {}
    for place, some in acks.items():
        held = shares.get(session.group, *place)
        if held is None:
            known = call.broker.topics.by_id(place[0]) is not None
            codes[place] = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID
            )
            continue
        held.state.skip_to(held.hosted.log.start_offset)
        held.state.tick(call.broker.now_ms())
        code = held.state.acknowledge(call.broker.now_ms(), session.member, some)
        try:
            shares.save(held)
        except StorageError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        codes[place] = code or ErrorCode.NONE
        held.wake()
    if codes and not await made_durable(call.broker.flusher.make_durable, [shares.journal]):
        codes = dict.fromkeys(codes, ErrorCode.KAFKA_STORAGE_ERROR)
    return codes


async def share_acknowledge(call: Call, fields: Fields) -> Fields:
    """A member says what became of records."""
    session = _session(call, fields)
    if isinstance(session, ErrorCode):
        return {"error_code": session, "error_message": f"{session.name}"}
    acks = _acks(fields["topics"])
    codes = await _acknowledge(call, session, acks)
    if fields["share_session_epoch"] == FINAL:
        call.broker.share.end_session(session)
    return {
        "acquisition_lock_timeout": call.broker.share.policy(session.group).rules.lock_ms,
        "responses": _by_topic(
            {
                place: {"partition_index": place[1], "error_code": code}
                for place, code in codes.items()
            },
        ),
    }


async def share_fetch(call: Call, fields: Fields) -> Fields:
    """Hands records to a member, or waits for some; first applies its acknowledgements of earlier
    ones.
    """
    session = _session(call, fields)
    if isinstance(session, ErrorCode):
        return {"error_code": session, "error_message": f"{session.name}"}
    acks = _acks(fields["topics"])
    if _renews(acks) and (fields.get("max_records") or not fields.get("is_renew_ack")):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "expected no records to be asked for together with a renewal",
        }
    if not _subscribe(session, fields):
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": "too many partitions"}
    codes = await _acknowledge(call, session, acks)
    is_final = fields["share_session_epoch"] == FINAL
    parts: dict[_Place, Portion] = {}
    if is_final:
        call.broker.share.end_session(session)
    elif fields["max_records"] > 0 and fields["max_bytes"] > 0:
        parts = await _wait(call, session, fields, may_wait=not codes)
    rules = call.broker.share.policy(session.group).rules
    return {
        "acquisition_lock_timeout": rules.lock_ms,
        "responses": _by_topic(
            {
                place: _part(place, parts.get(place), codes.get(place, ErrorCode.NONE))
                for place in {**parts, **codes}
            }
        ),
    }


def _subscribe(session: Session, fields: Fields) -> bool:
    """Adds and removes the session's partitions."""
    for topic in fields["topics"]:
        for part in topic["partitions"]:
            session.partitions[topic["topic_id"].bytes, part["partition_index"]] = None
    for topic in fields["forgotten_topics_data"]:
        for index in topic["partitions"]:
            session.partitions.pop((topic["topic_id"].bytes, index), None)
    return len(session.partitions) <= PARTITIONS_MAX


def _part(place: _Place, found: Portion | None, ack_code: ErrorCode) -> Fields:
    found = found or Portion()
    return {
        "partition_index": place[1],
        "error_code": found.code,
        "acknowledge_error_code": ack_code,
        "records": found.records,
        "acquired_records": [
            {"first_offset": one.first, "last_offset": one.last, "delivery_count": one.deliveries}
            for one in found.acquired
        ],
    }


def _by_topic(parts: dict[_Place, Fields]) -> list[Fields]:
    found: dict[bytes, list[Fields]] = {}
    for (topic_id, _), part in parts.items():
        found.setdefault(topic_id, []).append(part)
    return [
        {"topic_id": uuid.UUID(bytes=topic_id), "partitions": some}
        for topic_id, some in found.items()
    ]


async def _wait(
    call: Call, session: Session, fields: Fields, *, may_wait: bool
) -> dict[_Place, Portion]:
    """Records as soon as there are some, or none when the time is over. A request with acknowledgements
    is answered at once, because their sender waits for that.

    A partition's fault is reported at once too, but only once. A member learns from its next heartbeat
    that a topic is gone; until then its requests for it wait as if there were no records.
    """
    broker = call.broker
    loop = asyncio.get_running_loop()
    wait_ms = min(max(fields["max_wait"], 0), WAIT_MS_MAX) if may_wait else 0
    deadline = loop.time() + wait_ms / 1000
    while True:
        changed = loop.create_future()
        helds = _helds(call, session)
        for held in helds.values():
            if held is not None:
                held.waiters.add(changed)
                held.hosted.waiters.add(changed)
        try:
            parts = await broker.share.loaded(
                functools.partial(_collect, call, session, helds, fields)
            )
            if _has_news(session, parts) or loop.time() >= deadline:
                session.rotate()
                return parts
            timer = loop.call_at(deadline, _wake, changed)
            try:
                await changed
            finally:
                timer.cancel()
        finally:
            for held in helds.values():
                if held is not None:
                    held.waiters.discard(changed)
                    held.hosted.waiters.discard(changed)
        if broker.share.sessions.get(session.group, session.member) is not session:
            return {}


def _has_news(session: Session, parts: dict[_Place, Portion]) -> bool:
    """Whether there are records, or faults that the last answer did not report."""
    faults = {place: part.code for place, part in parts.items() if part.code}
    is_new_fault = bool(faults.items() - session.faults.items())
    session.faults = faults
    return is_new_fault or any(part.acquired for part in parts.values())


def _wake(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)


def _helds(call: Call, session: Session) -> dict[_Place, Held | None]:
    """The session's partitions as the group has them; None for those that are not there."""
    found: dict[_Place, Held | None] = {}
    for place in session.partitions:
        held = call.broker.share.get(session.group, *place)
        if held is None:
            topic = call.broker.topics.by_id(place[0])
            if topic is not None:
                try:
                    held = call.broker.share.open(session.group, topic, place[1])
                except (StorageError, LimitError):
                    held = None
        found[place] = held
    return found


def _collect(
    call: Call, session: Session, helds: dict[_Place, Held | None], fields: Fields
) -> dict[_Place, Portion]:
    """What the partitions have now."""
    wanted = Wanted(
        session.member,
        min(fields["max_bytes"], FETCH_BYTES_MAX),
        fields["max_records"],
        fields.get("share_acquire_mode", 0) == STRICT,
    )
    parts: dict[_Place, Portion] = {}
    if call.broker.share.sessions.get(session.group, session.member) is not session:
        return parts  # it has ended: records acquired now would stay locked
    for place, held in helds.items():
        if held is None or held.hosted.topic.is_deleted:
            known = call.broker.topics.by_id(place[0]) is not None
            parts[place] = Portion(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID
            )
            continue
        if wanted.records_left <= 0 or wanted.bytes_left <= 0:
            break
        try:
            found = portion(call.broker.share, held, wanted)
        except NotLoadedError:
            if not parts:
                raise
            continue
        except StorageError:
            held.state.release(call.broker.now_ms(), session.member, is_counted=False)
            found = Portion(ErrorCode.KAFKA_STORAGE_ERROR)
        if found.acquired or found.code:
            parts[place] = found
    return parts


# -- offsets ---------------------------------------------------------------------------------------


def describe_share_group_offsets(call: Call, fields: Fields) -> Fields:
    """Where groups stand, and how much is before them."""
    return {"groups": [_describe_offsets(call, one) for one in fields["groups"]]}


def _describe_offsets(call: Call, wanted: Fields) -> Fields:
    shares, group_id = call.broker.share, wanted["group_id"]
    result: Fields = {"group_id": group_id, "topics": []}
    if wanted["topics"] is None:  # of a group that isn't there: none, as in Kafka
        names = sorted({one.hosted.topic.name for one in shares.of(group_id)})
        topics: list[Fields] = [{"topic_name": name, "partitions": None} for name in names]
    else:
        topics = wanted["topics"]
    for one in topics:
        topic = call.broker.topics.get(one["topic_name"])
        indexes = one["partitions"]
        if indexes is None and topic is not None:
            indexes = [part.index for part in topic.partitions]
        result["topics"].append(
            {
                "topic_name": one["topic_name"],
                "topic_id": topic.id if topic is not None else None,
                "partitions": [
                    _offset(call, group_id, topic.id.bytes if topic else b"", index)
                    for index in indexes or ()
                ],
            }
        )
    return result


def _offset(call: Call, group_id: str, topic_id: bytes, index: int) -> Fields:
    held = call.broker.share.get(group_id, topic_id, index)
    if held is None:
        return {"partition_index": index, "start_offset": -1, "leader_epoch": 0, "lag": -1}
    state = held.state
    unseen = max(held.hosted.log.end_offset - state.end_offset, 0)
    return {
        "partition_index": index,
        "start_offset": state.start_offset,
        "leader_epoch": LEADER_EPOCH,
        "lag": unseen + sum(state.counts),
    }


async def alter_share_group_offsets(call: Call, fields: Fields) -> Fields:
    """Makes a group without members begin elsewhere."""
    shares, group_id = call.broker.share, fields["group_id"]
    fault = _not_empty(call, group_id)
    if fault is not None:
        return fault
    responses = []
    for one in fields["topics"]:
        topic = call.broker.topics.get(one["topic_name"])
        parts = []
        for part in one["partitions"]:
            index = part["partition_index"]
            hosted = topic.partition(index) if topic is not None else None
            code = ErrorCode.NONE if hosted is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if hosted is not None:
                low, high = hosted.log.start_offset, hosted.log.end_offset
                try:
                    shares.place(group_id, hosted, min(max(part["start_offset"], low), high))
                except (StorageError, LimitError):
                    code = ErrorCode.KAFKA_STORAGE_ERROR
            parts.append({"partition_index": index, "error_code": code})
        topic_id = topic.id if topic is not None else None
        responses.append(
            {"topic_name": one["topic_name"], "topic_id": topic_id, "partitions": parts}
        )
    return await _once_durable(call, {"responses": responses})


async def _once_durable(call: Call, answer: Fields) -> Fields:
    """The answer, as soon as the journal of shares is on the disk."""
    journal = call.broker.share.journal
    if await made_durable(call.broker.flusher.make_durable, [journal]):
        return answer
    return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "error_message": journal.failure}


def _not_empty(call: Call, group_id: str) -> Fields | None:
    fault = _group_fault(call, group_id)
    if call.broker.share.groups.get(group_id) is not None:
        fault = {
            "error_code": ErrorCode.NON_EMPTY_GROUP,
            "error_message": f"expected no members of {group_id!r}; stop its consumers first",
        }
    return fault


async def delete_share_group_offsets(call: Call, fields: Fields) -> Fields:
    """Makes a group without members forget topics."""
    shares, group_id = call.broker.share, fields["group_id"]
    fault = _not_empty(call, group_id)
    if fault is None and not shares.has(group_id):
        fault = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": "no such group"}
    if fault is not None:
        return fault
    responses = []
    for one in fields["topics"]:
        topic = call.broker.topics.get(one["topic_name"])
        code = ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            for held in shares.of(group_id):
                if held.hosted.topic is topic:
                    shares.forget(held)
        except StorageError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        topic_id = topic.id if topic is not None else None
        responses.append(
            {"topic_name": one["topic_name"], "topic_id": topic_id, "error_code": code}
        )
    return await _once_durable(call, {"responses": responses})


APIS: Final = (
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, share_group_heartbeat),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, share_group_describe),
    Api(ApiKey.SHARE_FETCH, 1, 2, share_fetch),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, share_acknowledge),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, describe_share_group_offsets),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, alter_share_group_offsets),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, delete_share_group_offsets),
)
