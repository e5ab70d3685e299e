"""Fetch, by hand: batches go from mapped files to the socket without being copied or decoded.

`parse` and `_render` know the request's and the answer's bytes in versions 4 to 18; `FetchApi` knows
what to do. In a fetch session (see `penstock.broker.protocol.fetch_sessions`) a request brings only what has
changed, and an answer leaves out the partitions of which there is nothing to say.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.limits import FETCH_BYTES_MAX
from penstock.broker.logs import Seldom
from penstock.broker.protocol.connection import Connection, Slot
from penstock.broker.protocol.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSessions,
    Key,
    Session,
)
from penstock.broker.protocol.frames import read_count, read_text, skip_tags, text_of, write_count
from penstock.broker.security.guard import Guard
from penstock.broker.security.model import Operation
from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.broker.tier import fetching as tier_fetch
from penstock.errors import ProtocolError
from penstock.log.errors import DamagedError, OffsetRangeError, StorageError
from penstock.log.markers import Aborted
from penstock.log.partition import LEADER_EPOCH
from penstock.log.tier import NotLoadedError
from penstock.wire.batches import Buffer, iterate
from penstock.wire.messages import ELEMENTS_MAX
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.tier.tiering import Tiering

__all__ = ["FLEXIBLE_FROM", "FetchApi", "parse"]

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
READ_COMMITTED: Final = 1
ABORTED_UNFILTERED_MAX: Final = 100
"""Aborted transactions that an answer may name though they begin after its records."""
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_SESSION = struct.Struct(">ii")
_HEAD = struct.Struct(">iiib")
_faults = Seldom(logging.getLogger(__name__))
_ANSWER = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")


@dataclass(slots=True)
class Wanted:
    """One partition of a request, or of a session: then with the offsets that the client knows."""

    index: int
    offset: int
    bytes_max: int
    leader_epoch: int
    hosted: Hosted | None = None
    code: int = 0
    sent_end: int = -1
    sent_start: int = -1


@dataclass(slots=True)
class Request:
    """A request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_committed: bool = False
    session_id: int = 0
    session_epoch: int = FINAL_EPOCH
    session: Session[Wanted] | None = None
    topics: list[tuple[bytes, list[Wanted]]] = field(default_factory=list)
    forgotten: list[Key] = field(default_factory=list)

    @property
    def is_incremental(self) -> bool:
        """Whether only changes are asked for."""
        return self.session_epoch > INITIAL_EPOCH


def parse(frame: memoryview, at: int, version: int) -> Request:
    """The request in `frame` from `at` on."""
    flexible = version >= FLEXIBLE_FROM
    if version < 15:
        at += 4  # replica id
    max_wait_ms, min_bytes, max_bytes, isolation = _HEAD.unpack_from(frame, at)
    at += _HEAD.size
    request = Request(max_wait_ms, min_bytes, max_bytes, isolation == READ_COMMITTED)
    if version >= 7:
        request.session_id, request.session_epoch = _SESSION.unpack_from(frame, at)
        at += _SESSION.size
    count, at = read_count(frame, at, flexible=flexible)
    total = 0
    for _ in range(count):
        name, at = _parse_name(frame, at, version)
        partitions, at = read_count(frame, at, flexible=flexible)
        total += partitions
        if total > ELEMENTS_MAX:
            raise ProtocolError(f"expected at most {ELEMENTS_MAX} partitions; found more")
        wanted = []
        for _ in range(partitions):
            one, at = _parse_wanted(frame, at, version)
            wanted.append(one)
        request.topics.append((name, wanted))
        if flexible:
            at = skip_tags(frame, at)
    request.forgotten = _parse_rest(frame, at, version)
    return request


def _parse_name(frame: memoryview, at: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS_FROM:
        if at + 16 > len(frame):
            raise ProtocolError("expected a topic's id; found that the request ends")
        return bytes(frame[at : at + 16]), at + 16
    name, at = read_text(frame, at, flexible=version >= FLEXIBLE_FROM)
    if name is None:
        raise ProtocolError("expected a topic's name; found null")
    return name, at


def _parse_rest(frame: memoryview, at: int, version: int) -> list[Key]:
    """The partitions to forget from a session; the client's rack is passed over."""
    flexible = version >= FLEXIBLE_FROM
    forgotten: list[Key] = []
    if version >= 7:
        count, at = read_count(frame, at, flexible=flexible)
        for _ in range(count):
            name, at = _parse_name(frame, at, version)
            partitions, at = read_count(frame, at, flexible=flexible)
            if len(forgotten) + partitions > ELEMENTS_MAX:
                raise ProtocolError(f"expected at most {ELEMENTS_MAX} partitions; found more")
            indexes = struct.unpack_from(f">{partitions}i", frame, at)
            forgotten += [(name, index) for index in indexes]
            at += 4 * partitions
            if flexible:
                at = skip_tags(frame, at)
    if version >= 11:
        _, at = read_text(frame, at, flexible=flexible)
    if flexible:
        at = skip_tags(frame, at)
    if at > len(frame):
        raise ProtocolError(f"expected a request of {at} bytes; found {len(frame)}")
    return forgotten


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


def _form(version: int) -> int:
    return (version >= FLEXIBLE_FROM) + (version >= TOPIC_IDS_FROM)


def _keyed(request: Request) -> dict[Key, Wanted]:
    return {(name, one.index): one for name, parts in request.topics for one in parts}


@dataclass(slots=True, kw_only=True)
class FetchApi:
    """Serves Fetch.

    Attributes:
        topics: what is read.
        guard: who may read.
        tiering: what lies in object storage, where something may.
        clock_s: a monotonic clock for sessions.
        sessions: what readers are remembered for.
    """

    topics: Topics
    guard: Guard
    tiering: Tiering | None
    clock_s: Callable[[], float]
    sessions: FetchSessions[Wanted] = field(default_factory=lambda: FetchSessions(_new_session_id))

    def serve(
        self, connection: Connection, frame: memoryview, at: int, version: int, corr: int
    ) -> None:
        """Answers at once if there is enough (or an error), else waits for more."""
        request = parse(frame, at, version)
        slot = connection.slot()
        fault = self._find_session(request, version)
        if fault is not None:
            slot.send(_render_fault(fault, corr, version))
            return
        for name, parts in request.topics:
            topic = self._topic(name, version)
            is_allowed = self._may_read(connection, topic, name, version)
            for wanted in parts:
                wanted.code = 0
                if is_allowed:
                    _resolve(topic, wanted, version)
                else:
                    wanted.hosted, wanted.code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        cold = tier_fetch.cold(wanted for _, parts in request.topics for wanted in parts)
        if self.tiering is not None and cold:
            connection.block_on(_load_and_answer(self.tiering, cold, request, slot, corr, version))
        elif request.max_wait_ms <= 0 or _has_enough(request):
            slot.send(_render(request, corr, version))
        else:
            connection.block_on(_wait_and_answer(request, slot, corr, version))

    def _find_session(self, request: Request, version: int) -> ErrorCode | None:
        """Begins, continues with or ends a session, and puts what it knows into the request."""
        sessions, now_s = self.sessions, self.clock_s()
        if not request.is_incremental:
            if request.session_id:
                sessions.end(request.session_id)
            if request.session_epoch == INITIAL_EPOCH:
                request.session = sessions.begin(now_s, _form(version), _keyed(request))
            return None
        number, epoch, changed = request.session_id, request.session_epoch, _keyed(request)
        known = sessions.get(number)
        if known is not None:
            for key in changed.keys() & known.parts.keys():
                before = known.parts[key]
                changed[key].sent_end, changed[key].sent_start = before.sent_end, before.sent_start
        found = sessions.go_on(now_s, number, epoch, _form(version), changed, request.forgotten)
        if isinstance(found, ErrorCode):
            return found
        request.session, request.topics = found, found.topics()
        return None

    def _may_read(
        self, connection: Connection, topic: Topic | None, name: bytes, version: int
    ) -> bool:
        if not self.guard.authorizer.is_on or (topic is None and version >= TOPIC_IDS_FROM):
            return True
        flexible = version >= FLEXIBLE_FROM
        called = text_of(name, flexible=flexible) if topic is None else topic.name
        return self.guard.may(connection, Operation.READ, called)

    def _topic(self, name: bytes, version: int) -> Topic | None:
        if version >= TOPIC_IDS_FROM:
            return self.topics.by_id(name)
        return self.topics.get(text_of(name, flexible=version >= FLEXIBLE_FROM))


def _new_session_id() -> int:
    return secrets.randbelow((1 << 31) - 1) + 1


def _resolve(topic: Topic | None, wanted: Wanted, version: int) -> None:
    wanted.hosted = topic.partition(wanted.index) if topic is not None else None
    if topic is None and version >= TOPIC_IDS_FROM:
        wanted.code = ErrorCode.UNKNOWN_TOPIC_ID
    elif wanted.hosted is None:
        wanted.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif wanted.leader_epoch > LEADER_EPOCH:
        wanted.code = ErrorCode.UNKNOWN_LEADER_EPOCH


def _has_enough(request: Request) -> bool:
    """Whether an answer is due: enough bytes, or something that the client must know."""
    found = 0
    for _, parts in request.topics:
        for wanted in parts:
            if wanted.hosted is not None and wanted.hosted.topic.is_deleted:
                wanted.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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
    is_committed = request.is_committed
    waiters = [one.committed_waiters if is_committed else one.waiters for one in places]
    while True:
        changed = loop.create_future()
        for those in waiters:
            those.add(changed)
        try:
            if _has_enough(request):
                break
            timer = loop.call_at(deadline, _wake, changed)
            try:
                await changed
            finally:
                timer.cancel()
        finally:
            for those in waiters:
                those.discard(changed)
        if loop.time() >= deadline:
            break
    slot.send(_render(request, corr, version))


def _wake(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)


def _render_fault(code: ErrorCode, corr: int, version: int) -> list[Buffer]:
    """An answer with the error of a session; the client starts another one."""
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(4)
    out += _INT32.pack(corr)
    if flexible:
        out.append(0)
    out += _INT32.pack(0)
    out += struct.pack(">hi", code, 0)
    out += b"\x01\0" if flexible else b"\0\0\0\0"
    _INT32.pack_into(out, 0, len(out) - 4)
    return [out]


def _render(request: Request, corr: int, version: int) -> list[Buffer]:
    """The answer's frame: our bytes and the log's views in turn."""
    flexible = version >= FLEXIBLE_FROM
    topics = _read_all(request)
    parts: list[Buffer] = []
    total = 0
    out = bytearray(4)
    out += _INT32.pack(corr)
    if flexible:
        out.append(0)
    out += b"\0\0\0\0"  # throttle time
    if version >= 7:
        session = request.session
        out += b"\0\0"
        out += _INT32.pack(session.id if session is not None and session.parts else 0)
    write_count(out, len(topics), flexible=flexible)
    for name, found in topics:
        out += name
        write_count(out, len(found), flexible=flexible)
        for wanted, data in found:
            aborted = _aborted(wanted, data, is_committed=request.is_committed)
            _write_partition(out, wanted, len(data), aborted, version)
            if data:
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


def _read_all(request: Request) -> list[tuple[bytes, list[tuple[Wanted, Buffer]]]]:
    """The partitions that the answer is to name, by topic, with their next bytes."""
    left = min(max(request.max_bytes, 0), FETCH_BYTES_MAX)
    session, is_incremental = request.session, request.is_incremental
    is_first = True
    topics = []
    served: list[Key] = []
    for name, parts in request.topics:
        found = []
        for wanted in parts:
            data = _read(wanted, left, at_least_one=is_first, is_committed=request.is_committed)
            if data:
                is_first = False
                left -= len(data)
            if session is None:
                found.append((wanted, data))
                continue
            if _is_news(wanted, data) or not is_incremental:
                found.append((wanted, data))
            if data:
                served.append((name, wanted.index))
        if found or not is_incremental:
            topics.append((name, found))
    if session is not None and len(session.parts) > 1:
        session.served(served)
    return topics


def _is_news(wanted: Wanted, data: Buffer) -> bool:
    """Whether the answer to a session's client must have a partition; it then counts as sent."""
    if wanted.code or wanted.hosted is None:
        wanted.sent_end = -1  # whatever it is afterwards, it is news
        return True
    log = wanted.hosted.log
    now = log.end_offset, log.start_offset
    is_news = bool(data) or now != (wanted.sent_end, wanted.sent_start)
    wanted.sent_end, wanted.sent_start = now
    return is_news


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
        if log.is_remote(wanted.offset):
            limit = min(limit, tier_fetch.READ_BYTES_MAX)
        upto = log.last_stable_offset if is_committed else None
        return log.read(wanted.offset, limit, at_least_one=at_least_one, upto=upto)
    except OffsetRangeError:
        wanted.code = ErrorCode.OFFSET_OUT_OF_RANGE
    except NotLoadedError:  # it is on its way from object storage: the client asks again
        return b""
    except DamagedError as error:
        _faults.say("damaged records were asked for", error)
        wanted.code = ErrorCode.CORRUPT_MESSAGE
    except StorageError:
        wanted.code = ErrorCode.KAFKA_STORAGE_ERROR
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
    write_count(out, -1 if aborted is None else len(aborted), flexible=flexible)
    for one in aborted or ():
        out += _ABORTED.pack(one.producer_id, one.first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # preferred read replica
    write_count(out, size, flexible=flexible)
