"""Fetch, by hand: batches go from mapped files to the socket without being copied or decoded.

`parse` and `render` know the request's and the answer's bytes in versions 4 to 18; `serve` knows
what to do. Fetch sessions (KIP-227) are answered with session 0: the client then sends all its
partitions each time.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker import tier_fetch
from penstock.broker.config import FETCH_BYTES_MAX
from penstock.broker.connection import Connection, Slot
from penstock.broker.logs import Seldom
from penstock.broker.produce import read_count, read_text, skip_tags, text_of
from penstock.broker.security.model import Operation
from penstock.broker.topics import Hosted, Topic
from penstock.errors import ProtocolError
from penstock.log.errors import DamagedError, OffsetRangeError, StorageError
from penstock.log.markers import Aborted
from penstock.log.partition import LEADER_EPOCH
from penstock.log.tier import NotLoadedError
from penstock.wire.batches import Buffer, iterate
from penstock.wire.kafka import ErrorCode
from penstock.wire.messages import write_unsigned_varint

if TYPE_CHECKING:
    from penstock.broker.server import Broker
    from penstock.broker.tiering import Tiering

__all__ = ["FLEXIBLE_FROM", "parse", "serve"]

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
READ_COMMITTED: Final = 1
ABORTED_UNFILTERED_MAX: Final = 100
"""Aborted transactions that an answer may name though they begin after its records."""
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD = struct.Struct(">iiib")
_faults = Seldom(logging.getLogger(__name__))
_ANSWER = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")


@dataclass(slots=True)
class Wanted:
    """One partition of a request."""

    index: int
    offset: int
    bytes_max: int
    leader_epoch: int
    hosted: Hosted | None = None
    code: int = 0


@dataclass(slots=True)
class Request:
    """A request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_committed: bool = False
    session_id: int = 0
    topics: list[tuple[bytes, list[Wanted]]] = field(default_factory=list)


def parse(frame: memoryview, at: int, version: int) -> Request:
    """The request in `frame` from `at` on."""
    flexible = version >= FLEXIBLE_FROM
    if version < 15:
        at += 4  # replica id
    max_wait_ms, min_bytes, max_bytes, isolation = _HEAD.unpack_from(frame, at)
    at += _HEAD.size
    request = Request(max_wait_ms, min_bytes, max_bytes, isolation == READ_COMMITTED)
    if version >= 7:
        request.session_id = _INT32.unpack_from(frame, at)[0]
        at += 8
    count, at = read_count(frame, at, flexible=flexible)
    for _ in range(count):
        if version >= TOPIC_IDS_FROM:
            name: bytes | None = bytes(frame[at : at + 16])
            at += 16
        else:
            name, at = read_text(frame, at, flexible=flexible)
        if name is None:
            raise ProtocolError("expected a topic's name, found null")
        partitions, at = read_count(frame, at, flexible=flexible)
        wanted = []
        for _ in range(partitions):
            one, at = _parse_wanted(frame, at, version)
            wanted.append(one)
        request.topics.append((name, wanted))
        if flexible:
            at = skip_tags(frame, at)
    _skip_rest(frame, at, version)
    return request


def _skip_rest(frame: memoryview, at: int, version: int) -> None:
    """Topics to forget from a session, and the client's rack: read only to see that they are
    there.
    """
    flexible = version >= FLEXIBLE_FROM
    if version >= 7:
        count, at = read_count(frame, at, flexible=flexible)
        for _ in range(count):
            if version >= TOPIC_IDS_FROM:
                at += 16
            else:
                _, at = read_text(frame, at, flexible=flexible)
            partitions, at = read_count(frame, at, flexible=flexible)
            at += 4 * partitions
            if flexible:
                at = skip_tags(frame, at)
    if version >= 11:
        _, at = read_text(frame, at, flexible=flexible)
    if flexible:
        at = skip_tags(frame, at)
    if at > len(frame):
        raise ProtocolError(f"expected a request of {at} bytes, found {len(frame)}")


def _parse_wanted(frame: memoryview, at: int, version: int) -> tuple[Wanted, int]:
    index = _INT32.unpack_from(frame, at)[0]
    at += 4
    leader_epoch = -1
    if version >= 9:
        leader_epoch = _INT32.unpack_from(frame, at)[0]
        at += 4
    offset = _INT64.unpack_from(frame, at)[0]
    at += 8
    if version >= 12:
        at += 4  # last fetched epoch
    if version >= 5:
        at += 8  # a follower's log start
    bytes_max = _INT32.unpack_from(frame, at)[0]
    at += 4
    if version >= FLEXIBLE_FROM:
        at = skip_tags(frame, at)
    return Wanted(index, offset, bytes_max, leader_epoch), at


def serve(
    broker: Broker, connection: Connection, frame: memoryview, at: int, version: int, corr: int
) -> None:
    """Answers at once if there is enough (or an error), else waits for more."""
    request = parse(frame, at, version)
    slot = connection.slot()
    if request.session_id != 0:
        slot.send(_render_no_session(corr, version))
        return
    for name, parts in request.topics:
        topic = _topic(broker, name, version)
        is_allowed = _may_read(broker, connection, topic, name, version)
        for wanted in parts:
            if is_allowed:
                _resolve(topic, wanted, version)
            else:
                wanted.code = ErrorCode.topic_authorization_failed
    cold = tier_fetch.cold(wanted for _, parts in request.topics for wanted in parts)
    if broker.tiering is not None and cold:
        connection.block_on(_load_and_answer(broker.tiering, cold, request, slot, corr, version))
    elif request.max_wait_ms <= 0 or _has_enough(request):
        slot.send(_render(request, corr, version))
    else:
        connection.block_on(_wait_and_answer(request, slot, corr, version))


def _may_read(
    broker: Broker, connection: Connection, topic: Topic | None, name: bytes, version: int
) -> bool:
    if not broker.guard.authorizer.is_on or (topic is None and version >= TOPIC_IDS_FROM):
        return True
    flexible = version >= FLEXIBLE_FROM
    called = text_of(name, flexible=flexible) if topic is None else topic.name
    return broker.guard.may(connection, Operation.READ, called)


def _topic(broker: Broker, name: bytes, version: int) -> Topic | None:
    if version >= TOPIC_IDS_FROM:
        return broker.topics.by_id(name)
    return broker.topics.get(text_of(name, flexible=version >= FLEXIBLE_FROM))


def _resolve(topic: Topic | None, wanted: Wanted, version: int) -> None:
    wanted.hosted = topic.partition(wanted.index) if topic is not None else None
    if topic is None and version >= TOPIC_IDS_FROM:
        wanted.code = ErrorCode.unknown_topic_id
    elif wanted.hosted is None:
        wanted.code = ErrorCode.unknown_topic_or_partition
    elif wanted.leader_epoch > LEADER_EPOCH:
        wanted.code = ErrorCode.unknown_leader_epoch


def _has_enough(request: Request) -> bool:
    """Whether an answer is due: enough bytes, or something that the client must know."""
    found = 0
    for _, parts in request.topics:
        for wanted in parts:
            if wanted.hosted is not None and wanted.hosted.topic.is_deleted:
                wanted.code = ErrorCode.unknown_topic_or_partition
            if wanted.hosted is None or wanted.code:
                return True
            log = wanted.hosted.log
            if not log.start_offset <= wanted.offset <= log.end_offset:
                return True
            end = log.last_stable_offset if request.is_committed else log.end_offset
            if wanted.offset < end:
                if request.min_bytes <= 1:
                    return True
                try:
                    found += log.bytes_from(wanted.offset) - log.bytes_from(end)
                except StorageError:
                    return True
    return found >= request.min_bytes


async def _load_and_answer(
    tiering: Tiering,
    cold: list[tier_fetch.Wanted],
    request: Request,
    slot: Slot,
    corr: int,
    version: int,
) -> None:
    """Brings what lies in object storage, as far as that is quick, and answers with it."""
    held = await tier_fetch.load(tiering, cold, request.max_bytes, request.max_wait_ms)
    slot.send(_render(request, corr, version))
    del held


async def _wait_and_answer(request: Request, slot: Slot, corr: int, version: int) -> None:
    """The long poll: registers first and looks again then, so that no append is missed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    places = [one.hosted for _, parts in request.topics for one in parts if one.hosted is not None]
    while True:
        changed = loop.create_future()
        for place in places:
            place.waiters.add(changed)
        try:
            if _has_enough(request):
                break
            timer = loop.call_at(deadline, _wake, changed)
            try:
                await changed
            finally:
                timer.cancel()
        finally:
            for place in places:
                place.waiters.discard(changed)
        if loop.time() >= deadline:
            break
    slot.send(_render(request, corr, version))


def _wake(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)


def _render_no_session(corr: int, version: int) -> list[Buffer]:
    """Sessions are never given out, so one that is named can't be found; the client starts
    afresh.
    """
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(4)
    out += _INT32.pack(corr)
    if flexible:
        out.append(0)
    out += _INT32.pack(0)
    out += struct.pack(">hi", ErrorCode.fetch_session_id_not_found, 0)
    out += b"\x01\0" if flexible else b"\0\0\0\0"
    _INT32.pack_into(out, 0, len(out) - 4)
    return [out]


def _render(request: Request, corr: int, version: int) -> list[Buffer]:
    """The answer's frame: our bytes and the log's views in turn."""
    flexible = version >= FLEXIBLE_FROM
    left = min(max(request.max_bytes, 0), FETCH_BYTES_MAX)
    is_first = True
    parts: list[Buffer] = []
    total = 0
    out = bytearray(4)
    out += _INT32.pack(corr)
    if flexible:
        out.append(0)
    out += b"\0\0\0\0"  # throttle time
    if version >= 7:
        out += b"\0\0\0\0\0\0"  # error, session
    _write_count(out, len(request.topics), flexible=flexible)
    for name, wanted_parts in request.topics:
        out += name
        _write_count(out, len(wanted_parts), flexible=flexible)
        for wanted in wanted_parts:
            data = _read(wanted, left, at_least_one=is_first, is_committed=request.is_committed)
            aborted = _aborted(wanted, data, is_committed=request.is_committed)
            _write_partition(out, wanted, len(data), aborted, version)
            if data:
                is_first = False
                left -= len(data)
                total += len(data)
                parts += (out, data)
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    parts.append(out)
    head = parts[0]
    assert isinstance(head, bytearray)
    own = sum(len(part) for part in parts if isinstance(part, bytearray))
    _INT32.pack_into(head, 0, own + total - 4)
    return parts


def _read(wanted: Wanted, left: int, *, at_least_one: bool, is_committed: bool) -> Buffer:
    """The partition's next bytes; an error becomes the partition's code."""
    if wanted.hosted is None or wanted.code:
        return b""
    log = wanted.hosted.log
    try:
        log.check_offset(wanted.offset)
        if left <= 0 and not at_least_one:
            return b""
        limit = max(min(left, wanted.bytes_max), 0)
        if wanted.offset < log.local_start_offset:
            limit = min(limit, tier_fetch.READ_BYTES_MAX)
        upto = log.last_stable_offset if is_committed else None
        return log.read(wanted.offset, limit, at_least_one=at_least_one, upto=upto)
    except OffsetRangeError:
        wanted.code = ErrorCode.offset_out_of_range
    except NotLoadedError:  # it is on its way from object storage: the client asks again
        return b""
    except DamagedError as error:
        _faults.say("damaged records were asked for", error)
        wanted.code = ErrorCode.corrupt_message
    except StorageError:
        wanted.code = ErrorCode.kafka_storage_error
    return b""


def _aborted(wanted: Wanted, data: Buffer, *, is_committed: bool) -> list[Aborted] | None:
    """The aborted transactions of which `data` may hold records; None for those who don't ask."""
    if wanted.hosted is None:
        return []
    if wanted.code or not is_committed:
        return None
    if not data:
        return []
    log = wanted.hosted.log
    found = log.aborted(wanted.offset, log.last_stable_offset)
    if len(found) > ABORTED_UNFILTERED_MAX:  # only then is it worth finding out where `data` ends
        end = max((header.next_offset for _, header in iterate(data)), default=wanted.offset)
        found = [one for one in found if one.first_offset < end]
    return found


def _write_partition(
    out: bytearray, wanted: Wanted, size: int, aborted: list[Aborted] | None, version: int
) -> None:
    flexible = version >= FLEXIBLE_FROM
    end = stable = start = -1
    if wanted.hosted is not None and not wanted.code:
        log = wanted.hosted.log
        end, stable, start = log.end_offset, log.last_stable_offset, log.start_offset
    out += _ANSWER.pack(wanted.index, wanted.code, end, stable)
    if version >= 5:
        out += _INT64.pack(start)
    _write_count(out, -1 if aborted is None else len(aborted), flexible=flexible)
    for one in aborted or ():
        out += _ABORTED.pack(one.producer_id, one.first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # preferred read replica
    _write_count(out, size, flexible=flexible)


def _write_count(out: bytearray, count: int, *, flexible: bool) -> None:
    if flexible:
        write_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)
