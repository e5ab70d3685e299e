"""Produce, by hand: batches go from the receive buffer to the log without becoming objects.

`parse` and `render` know the request's and the answer's bytes in versions 3 to 13; `ProduceApi` knows
what to do. Nearly all requests have the same form: no transaction, one topic, one partition, no tagged
fields. In the newest version that form is read and answered by one `struct` each, as a request of a few
KB costs the broker little more than its interpretation; `parse` and `render` do the same for any form.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.broker.logs import Seldom
from penstock.broker.protocol.connection import Connection, Slot
from penstock.broker.protocol.frames import read_count, read_text, skip_tags, text_of, write_count
from penstock.broker.protocol.requests import Requests
from penstock.broker.security.guard import Guard
from penstock.broker.security.model import Operation, ResourceType
from penstock.broker.storage.contracts import Contracts
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.room import Room
from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.machine import Place
from penstock.errors import ProtocolError
from penstock.log.errors import AppendError, RecordError, StorageError
from penstock.wire.batches import DURABLE_LATER, HEADER_BYTES, Buffer
from penstock.wire.codecs import CODEC_BITS, CODECS
from penstock.wire.messages import ELEMENTS_MAX, read_unsigned_varint, write_unsigned_varint
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["FLEXIBLE_FROM", "ProduceApi", "parse", "render"]

PRODUCE: Final = int(ApiKey.PRODUCE)
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13
NEWEST: Final = 13
ZSTD_FROM: Final = 7
"""Clients of older versions may not know zstd (KIP-110)."""
ZSTD: Final = CODECS.index("zstd")
MAGIC: Final = 2
MAGIC_AT: Final = 16
ATTRIBUTES_AT: Final = 22
"""Where a batch has its attributes' lower byte."""
JOINS_FROM: Final = 12
"""Version from which on a batch makes its partition part of the transaction (KIP-890)."""
ABORTABLE_FROM: Final = 11
"""Version from which on producers know that they may abort and continue (KIP-890)."""
_TRANSACTIONAL_BIT: Final = 0x10
_PRODUCER_AT: Final = 43
_PRODUCER = struct.Struct(">qhi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_ANSWER = struct.Struct(">ihqq")
_faults = Seldom(logging.getLogger(__name__))

_PLAIN = struct.Struct(">bhib16sbi")
"""How a plain request begins: no transactional id, acks, timeout, one topic, its id, one partition, its
number. The records follow."""
_PLAIN_END: Final = b"\0\0\0"
"""How it ends: no tagged fields of the partition, the topic, the request."""
_PLAIN_ANSWER = struct.Struct(">iibb16sbihqqqbbbbib")
"""Its answer's frame: length, correlation id, no tags, one topic, its id, one partition, its number, error,
offset, time, log start, no errors of single records, no message, no tags (twice), throttle time, no tags."""
_ONE: Final = 2
"""The length of an array of one element."""


@dataclass(slots=True)
class Part:
    """One partition of a request, and what became of it."""

    index: int
    records: memoryview | None
    code: int = 0
    message: str | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    hosted: Hosted | None = None
    end_offset: int = -1  # what must be durable before acks=all is answered
    record_errors: Sequence[RecordError] = ()


Request = list[tuple[bytes, list[Part]]]
"""Per topic: its name or id as it stood in the request (so that it can be given back), its
partitions."""
Writer = tuple[str, frozenset[Place]]
"""Of a request: its transactional id, and where its transactional batches go."""


def parse(frame: memoryview, at: int, version: int) -> tuple[int, str | None, Request]:
    """The request's acks, transactional id and partitions. The records are views of `frame`.

    The acks are 1 where it is the commit of the transaction that makes the records durable.
    """
    flexible = version >= FLEXIBLE_FROM
    encoded, at = read_text(frame, at, flexible=flexible)
    transactional_id = None if encoded is None else text_of(encoded, flexible=flexible)
    acks = _INT16.unpack_from(frame, at)[0]
    count, at = read_count(frame, at + 6, flexible=flexible)
    request: Request = []
    total = 0
    for _ in range(count):
        if version >= TOPIC_IDS_FROM:
            name: bytes | None = bytes(frame[at : at + 16])
            at += 16
        else:
            name, at = read_text(frame, at, flexible=flexible)
        if name is None:
            raise ProtocolError("expected a topic's name; found null")
        partitions, at = read_count(frame, at, flexible=flexible)
        total += partitions
        if total > ELEMENTS_MAX:
            raise ProtocolError(f"expected at most {ELEMENTS_MAX} partitions; found more")
        parts = []
        for _ in range(partitions):
            part, at = _parse_part(frame, at, flexible=flexible)
            parts.append(part)
        request.append((name, parts))
        if flexible:
            at = skip_tags(frame, at)
    if flexible:
        if transactional_id is not None and acks == -1 and bytes(frame[at:]) == DURABLE_LATER:
            acks = 1
        else:
            skip_tags(frame, at)
    return acks, transactional_id, request


def _parse_part(frame: memoryview, at: int, *, flexible: bool) -> tuple[Part, int]:
    index = _INT32.unpack_from(frame, at)[0]
    at += 4
    if flexible:
        size, at = read_unsigned_varint(frame, at)
        size -= 1
    else:
        size = _INT32.unpack_from(frame, at)[0]
        at += 4
    if size > len(frame) - at:
        raise ProtocolError(f"expected {size} bytes of records; found {len(frame) - at}")
    records = frame[at : at + size] if size >= 0 else None
    at += max(size, 0)
    if flexible:
        at = skip_tags(frame, at)
    return Part(index, records), at


def _parse_plain(frame: memoryview, at: int) -> tuple[int, None, Request] | None:
    """What `parse` makes of a plain request of the newest version; None where it isn't one."""
    if len(frame) <= at + _PLAIN.size + len(_PLAIN_END):
        return None
    no_id, acks, _, topics, name, partitions, index = _PLAIN.unpack_from(frame, at)
    if no_id or topics != _ONE or partitions != _ONE:
        return None
    size, at = read_unsigned_varint(frame, at + _PLAIN.size)
    end = at + size - 1
    if end < at or len(frame) != end + len(_PLAIN_END) or bytes(frame[end:]) != _PLAIN_END:
        return None
    return acks, None, [(name, [Part(index, frame[at:end])])]


def _render_plain(request: Request, correlation_id: int) -> bytes | None:
    """What `render` makes of a plain request's answer; None where it isn't one."""
    if len(request) != 1:
        return None
    name, parts = request[0]
    if len(parts) != 1 or parts[0].message is not None:
        return None
    part = parts[0]
    result = part.index, part.code, part.base_offset, part.append_time_ms, part.start_offset
    size = _PLAIN_ANSWER.size - _INT32.size
    head = size, correlation_id, 0, _ONE, name, _ONE
    return _PLAIN_ANSWER.pack(*head, *result, 1, 0, 0, 0, 0, 0)


def render(request: Request, correlation_id: int, version: int) -> list[Buffer]:
    """The answer's frame."""
    if version == NEWEST:
        plain = _render_plain(request, correlation_id)
        if plain is not None:
            return [plain]
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(4)
    out += _INT32.pack(correlation_id)
    if flexible:
        out.append(0)
    write_count(out, len(request), flexible=flexible)
    for name, parts in request:
        out += name
        write_count(out, len(parts), flexible=flexible)
        for part in parts:
            _render_part(out, part, version)
        if flexible:
            out.append(0)
    out += b"\0\0\0\0"  # throttle time
    if flexible:
        out.append(0)
    _INT32.pack_into(out, 0, len(out) - 4)
    return [out]


def _render_part(out: bytearray, part: Part, version: int) -> None:
    flexible = version >= FLEXIBLE_FROM
    out += _ANSWER.pack(part.index, part.code, part.base_offset, part.append_time_ms)
    if version >= 5:
        out += _INT64.pack(part.start_offset)
    if version >= 8:
        write_count(out, len(part.record_errors), flexible=flexible)
        for error in part.record_errors:
            out += _INT32.pack(error.batch_index)
            _render_text(out, error.message, flexible=flexible)
            if flexible:
                out.append(0)
        _render_text(out, part.message, flexible=flexible)
    if flexible:
        out.append(0)


def _render_text(out: bytearray, text: str | None, *, flexible: bool) -> None:
    encoded = None if text is None else text.encode()
    if flexible:
        write_unsigned_varint(out, 0 if encoded is None else len(encoded) + 1)
    else:
        out += _INT16.pack(-1 if encoded is None else len(encoded))
    out += encoded or b""


def _is_transactional(records: memoryview | None) -> bool:
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[ATTRIBUTES_AT] & _TRANSACTIONAL_BIT != 0
    )


def _has_transactional(request: Request) -> bool:
    for _, parts in request:
        for part in parts:
            if _is_transactional(part.records):
                return True
    return False


def _places(taken: Iterable[tuple[Topic | None, Part]]) -> frozenset[Place]:
    """Where the transactional batches of a request go."""
    return frozenset(
        (topic.name, part.index)
        for topic, part in taken
        if topic is not None
        and topic.partition(part.index) is not None
        and _is_transactional(part.records)
    )


def _is_zstd(records: memoryview) -> bool:
    if len(records) <= ATTRIBUTES_AT or records[MAGIC_AT] != MAGIC:
        return False
    return records[ATTRIBUTES_AT] & CODEC_BITS == ZSTD


@dataclass(slots=True, kw_only=True)
class ProduceApi:
    """Serves Produce.

    Attributes:
        topics: where records go.
        transactions: what decides about transactional ones.
        guard: who may write.
        room: whether the disk takes more.
        flusher: what makes them durable.
        requests: where errors are counted.
        contracts: which schemas topics take.
        clock_ms: the time.
        flush_interval_ms: how often records that no request waits for are made durable.
    """

    topics: Topics
    transactions: Coordinator
    guard: Guard
    room: Room
    flusher: Flusher
    requests: Requests
    contracts: Contracts
    clock_ms: Callable[[], int]
    flush_interval_ms: int

    def serve(
        self, connection: Connection, frame: memoryview, at: int, version: int, corr: int
    ) -> None:
        """Appends; answers at once (acks=1), once durable (acks=all), or not at all (acks=0).

        Where as much isn't durable as the topic allows, acks=1 waits as well.
        """
        plain = _parse_plain(frame, at) if version == NEWEST else None
        acks, transactional_id, request = plain or parse(frame, at, version)
        slot = connection.slot()
        touched: list[Hosted] = []
        anonymous = None
        if transactional_id is None and _has_transactional(request):
            anonymous = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        taken: list[tuple[Topic | None, Part]] = []
        for name, parts in request:
            topic = self._topic(name, version)
            refusal = anonymous
            if acks not in {-1, 0, 1}:
                refusal = ErrorCode.INVALID_REQUIRED_ACKS
            elif refusal is None and self.guard.authorizer.is_on:
                refusal = self._refusal(connection, transactional_id, topic, name, version)
            for part in parts:
                if refusal is not None:
                    part.code = refusal
                else:
                    taken.append((topic, part))
        writer = None if transactional_id is None else (transactional_id, _places(taken))
        for topic, part in taken:
            self._append(topic, part, version, writer)
            if part.hosted is not None:
                touched.append(part.hosted)
        due = touched if acks == -1 else [one for one in touched if one.log.is_sync_due]
        if acks == 0:
            self.flusher.begin(one.log for one in due)
            slot.send(())
            if any(part.code for _, parts in request for part in parts):
                raise ProtocolError(
                    "expected batches that can be appended (acks=0, so closing is the only answer); "
                    f"found: {next(p.message or p.code for _, ps in request for p in ps if p.code)}"
                )
            return
        if any(one.log.is_dirty for one in due):
            self.flusher.when_durable(
                [one.log for one in due],
                lambda: self._answer_durable(slot, due, request, corr, version),
            )
            return
        slot.send(render(request, corr, version))

    def _answer_durable(
        self,
        slot: Slot,
        due: Collection[Hosted],
        request: Request,
        corr: int,
        version: int,
    ) -> None:
        awaited = set(due)
        for _, parts in request:
            for part in parts:
                if part.hosted in awaited and part.hosted.log.durable_offset < part.end_offset:
                    part.code = ErrorCode.KAFKA_STORAGE_ERROR
                    part.message = part.hosted.log.failure
                    self.requests.failed(PRODUCE, part.code)
                    part.base_offset = -1
        slot.send(render(request, corr, version))

    def _refusal(
        self,
        connection: Connection,
        transactional_id: str | None,
        topic: Topic | None,
        name: bytes,
        version: int,
    ) -> ErrorCode | None:
        """The error if the connection may not write to a topic; called where authorization is on."""
        kind = ResourceType.TRANSACTIONAL_ID
        if transactional_id is not None and not self.guard.allows(
            connection, Operation.WRITE, kind, transactional_id
        ):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if topic is None and version >= TOPIC_IDS_FROM:
            return None  # no topic has this id: the answer says so
        flexible = version >= FLEXIBLE_FROM
        called = text_of(name, flexible=flexible) if topic is None else topic.name
        if self.guard.may(connection, Operation.WRITE, called):
            return None
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _topic(self, name: bytes, version: int) -> Topic | None:
        if version >= TOPIC_IDS_FROM:
            return self.topics.by_id(name)
        return self.topics.get(text_of(name, flexible=version >= FLEXIBLE_FROM))

    def _transaction_fault(
        self, records: memoryview, hosted: Hosted, version: int, writer: Writer
    ) -> ErrorCode | None:
        """Why a transactional batch is not part of its producer's transaction; None if it is.

        Newer producers make the partition part of it with their first batch (KIP-890), all partitions of a
        request at once, and count from 0 in each transaction: where they don't, earlier batches were lost.
        """
        producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
        transactional_id, places = writer
        who, place = (transactional_id, producer_id, epoch), (hosted.topic.name, hosted.index)
        machine = self.transactions.machine
        fault = machine.fault_of(*who, place=place)
        if version >= JOINS_FROM:
            if fault is ErrorCode.INVALID_TXN_STATE:  # it isn't part of it yet
                answer = machine.add(self.clock_ms(), *who, places=places)
                fault = answer.code or None
                if answer.change is not None:
                    self.transactions.apply(answer.change)
            if not fault and sequence and not hosted.log.has_open_transaction(producer_id, epoch):
                fault = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        match fault:
            case ErrorCode.PRODUCER_FENCED:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            case ErrorCode.CONCURRENT_TRANSACTIONS if version < JOINS_FROM:
                return ErrorCode.NOT_ENOUGH_REPLICAS  # what older producers know to try again after
            case ErrorCode.INVALID_TXN_STATE if version >= ABORTABLE_FROM:
                return ErrorCode.TRANSACTION_ABORTABLE
            case _:
                return fault

    def _append(self, topic: Topic | None, part: Part, version: int, writer: Writer | None) -> None:
        hosted = topic.partition(part.index) if topic is not None else None
        records, part.records = part.records, None
        if hosted is None:
            by_id = version >= TOPIC_IDS_FROM and topic is None
            part.code = (
                ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            return
        part.start_offset = hosted.log.start_offset
        if records is None:
            part.code, part.message = (
                ErrorCode.INVALID_RECORD,
                "expected a record batch; found null",
            )
            return
        if version < ZSTD_FROM and _is_zstd(records):
            part.code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            part.message = f"expected zstd in version {ZSTD_FROM} or later; found version {version}"
            return
        is_transactional = writer is not None and _is_transactional(records)
        try:
            if self.room.is_full:
                raise StorageError(self.room.message)
            if writer is not None and is_transactional:
                fault = self._transaction_fault(records, hosted, version, writer)
                if fault is not None:
                    part.code = fault
                    part.message = (
                        f"expected a partition of the producer's transaction; found {fault.name}"
                    )
                    return
            if self.contracts.holds(hosted.topic):
                self.contracts.check(hosted.topic, records)
            appended = hosted.log.append(records, self.clock_ms())
            self.room.take(len(records))
        except AppendError as error:
            part.code, part.message = int(error.code), str(error)
            part.record_errors = error.records
            self.requests.failed(PRODUCE, part.code)
            return
        except StorageError as error:
            _faults.say("a record batch was refused", error)
            part.code, part.message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
            self.requests.failed(PRODUCE, part.code)
            return
        part.base_offset = appended.base_offset
        part.append_time_ms = appended.append_time_ms
        part.hosted = hosted
        part.end_offset = hosted.log.end_offset
        flush_ms = hosted.log.config.flush_ms
        if flush_ms < self.flush_interval_ms:
            self.flusher.begin_within(flush_ms, hosted.log)
        if is_transactional:  # its marker wakes those who read what is committed
            hosted.wake_for_open()
        else:
            hosted.wake()
