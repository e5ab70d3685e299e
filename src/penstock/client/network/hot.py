"""Metadata, Fetch and Produce by hand: what every worker process needs, without loading a schema.

Versions: Metadata 4, Fetch 4-13, Produce 3-9 and 12; of the ranges Apache Kafka 4.3 serves the last of each.
Answers are read from within their frame only, whatever their counts say.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import ProtocolError
from penstock.wire.batches import DURABLE_LATER

READ_COMMITTED: Final = 1

METADATA_VERSION: Final = 4
FETCH_VERSIONS: Final = (4, 12)
FETCH_BY_ID: Final = 13
"""The version of Fetch that names topics by their ids: another topic of the name isn't read."""
FETCH_FLEXIBLE: Final = 12
PRODUCE_VERSIONS: Final = (3, 9)
PRODUCE_FLEXIBLE: Final = 9
PRODUCE_JOINING: Final = (12, 12)
"""Versions whose batches make their partitions part of the transaction (KIP-890); laid out as version 9."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition's part of a Fetch answer; its records are `frame[start:end]`. `aborted` has the
    producer id and the first offset of transactions that were aborted.
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    start: int
    end: int
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Produced:
    """A partition's part of a Produce answer."""

    topic: str
    partition: int
    error: int
    base_offset: int
    message: str | None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's partitions and their leaders (node -1: none at the moment)."""

    error: int
    is_internal: bool
    leaders: dict[int, int]


def unsigned_varint(value: int) -> bytes:
    """An unsigned varint, as compact lengths are written."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(text: str, *, flexible: bool) -> bytes:
    """A string with its length."""
    data = text.encode()
    return (unsigned_varint(len(data) + 1) if flexible else struct.pack(">h", len(data))) + data


def _count(n: int, *, flexible: bool) -> bytes:
    """An array's length."""
    return unsigned_varint(n + 1) if flexible else struct.pack(">i", n)


class Cursor:
    """Reads fields from a frame and never beyond it."""

    __slots__ = ("at", "flexible", "view")

    def __init__(self, frame: memoryview, *, flexible: bool) -> None:
        self.view = frame
        self.at = 0
        self.flexible = flexible

    def number(self, code: str) -> int:
        """One big-endian integer of a `struct` code."""
        try:
            value: int = struct.unpack_from(">" + code, self.view, self.at)[0]
        except struct.error as e:
            raise ProtocolError(f"expected a whole answer; found it cut at byte {self.at}") from e
        self.at += struct.calcsize(code)
        return value

    def varint(self) -> int:
        """An unsigned varint of at most 5 bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolError(f"expected a length; found an endless varint at byte {self.at}")

    def count(self) -> int:
        """An array's length, 0 for null; never more than the bytes that are left."""
        n = self.varint() - 1 if self.flexible else self.number("i")
        if n > len(self.view) - self.at:
            raise ProtocolError(f"expected a count that fits in the answer; found {n}")
        return max(n, 0)

    def skip(self, size: int) -> int:
        """Passes over bytes; the position where they begin."""
        start = self.at
        if not 0 <= size <= len(self.view) - start:
            raise ProtocolError(f"expected {size} more bytes in an answer; found it cut at {start}")
        self.at += size
        return start

    def string(self) -> str | None:
        """A string or null."""
        size = self.varint() - 1 if self.flexible else self.number("h")
        if size < 0:
            return None
        start = self.skip(size)
        return str(self.view[start : start + size], "utf-8", "replace")

    def uuid(self) -> str:
        """An id, as text."""
        start = self.skip(16)
        return str(uuid.UUID(bytes=bytes(self.view[start : self.at])))

    def span(self) -> tuple[int, int]:
        """Where a byte string lies; null is an empty one."""
        size = self.varint() - 1 if self.flexible else self.number("i")
        start = self.skip(max(size, 0))
        return start, self.at

    def tags(self) -> None:
        """Passes over tagged fields, where this version has them."""
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                self.skip(self.varint())


def metadata_request(topics: Sequence[str] | None) -> bytes:
    """A Metadata request for these topics, or all; it creates none."""
    if topics is None:
        return b"\xff\xff\xff\xff\0"
    names = b"".join(_string(name, flexible=False) for name in topics)
    return struct.pack(">i", len(topics)) + names + b"\0"


def read_metadata(
    frame: memoryview,
) -> tuple[dict[int, tuple[str, int]], int, dict[str, TopicMetadata]]:
    """Reads a Metadata answer: addresses of nodes, the controller's node, topics by name."""
    c = Cursor(frame, flexible=False)
    c.number("i")  # throttle time
    nodes = {}
    for _ in range(c.count()):
        node, host, port = c.number("i"), c.string(), c.number("i")
        c.string()  # rack
        nodes[node] = (host or "", port)
    c.string()  # cluster id
    controller = c.number("i")
    topics = {}
    for _ in range(c.count()):
        error, name, internal = c.number("h"), c.string(), c.number("b")
        leaders = {}
        for _ in range(c.count()):
            c.number("h")
            partition, leader = c.number("i"), c.number("i")
            c.skip(4 * c.count())  # replicas
            c.skip(4 * c.count())  # in-sync replicas
            leaders[partition] = leader
        topics[name or ""] = TopicMetadata(error, bool(internal), leaders)
    return nodes, controller, topics


def fetch_request(
    version: int,
    wanted: Sequence[tuple[str, int, int]],
    *,
    wait_ms: int,
    bytes_max: int,
    isolation: int = READ_COMMITTED,
    ids: Mapping[str, uuid.UUID] | None = None,
) -> bytes:
    """A Fetch request, without a session.

    Args:
        version: 4 to 13.
        wanted: (topic, partition, offset) of each partition.
        wait_ms: how long the broker may wait for a first byte.
        bytes_max: of each partition and of the whole; the first batch always comes whole.
        isolation: `READ_COMMITTED`, or 0 to read whatever is there.
        ids: of the topics, which version 13 needs.
    """
    flexible = version >= FETCH_FLEXIBLE
    out = [struct.pack(">iiiib", -1, wait_ms, 1, bytes_max, isolation)]
    if version >= 7:
        out.append(struct.pack(">ii", 0, -1))  # no session
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for topic, partition, offset in wanted:
        by_topic.setdefault(topic, []).append((partition, offset))
    out.append(_count(len(by_topic), flexible=flexible))
    for topic, partitions in by_topic.items():
        named = _string(topic, flexible=flexible)
        if version >= FETCH_BY_ID:
            assert ids is not None
            named = ids[topic].bytes
        out += [named, _count(len(partitions), flexible=flexible)]
        for partition, offset in partitions:
            out.append(struct.pack(">i", partition))
            out.append(struct.pack(">i", -1) if version >= 9 else b"")  # leader epoch: any
            out.append(struct.pack(">q", offset))
            out.append(struct.pack(">i", -1) if version >= 12 else b"")  # last fetched epoch
            out.append(struct.pack(">q", -1) if version >= 5 else b"")  # log start: of followers
            out.append(struct.pack(">i", bytes_max) + (b"\0" if flexible else b""))
        out.append(b"\0" if flexible else b"")
    if version >= 7:
        out.append(_count(0, flexible=flexible))  # forgotten topics
    if version >= 11:
        out.append(_string("", flexible=flexible))  # rack
    out.append(b"\0" if flexible else b"")
    return b"".join(out)


def read_fetch(version: int, frame: memoryview) -> tuple[int, list[Fetched]]:
    """Reads a Fetch answer: its own error code, and each partition's part. Version 13 has ids as topics."""
    c = Cursor(frame, flexible=version >= FETCH_FLEXIBLE)
    c.tags()  # of the header
    c.number("i")  # throttle time
    error = 0
    if version >= 7:
        error = c.number("h")
        c.number("i")  # session
    found = []
    for _ in range(c.count()):
        topic = (c.string() or "") if version < FETCH_BY_ID else c.uuid()
        found += [_read_fetched(c, version, topic) for _ in range(c.count())]
        c.tags()
    c.tags()
    return error, found


def _read_fetched(c: Cursor, version: int, topic: str) -> Fetched:
    """Reads one partition of a Fetch answer."""
    partition, error, high_watermark = c.number("i"), c.number("h"), c.number("q")
    last_stable = c.number("q")
    log_start = c.number("q") if version >= 5 else -1
    aborted = []
    for _ in range(c.count()):
        aborted.append((c.number("q"), c.number("q")))
        c.tags()
    if version >= 11:
        c.number("i")  # preferred replica
    start, end = c.span()
    c.tags()
    return Fetched(
        topic, partition, error, high_watermark, last_stable, log_start, start, end, tuple(aborted)
    )


def produce_request(
    version: int,
    topic: str,
    partition: int,
    batch: memoryview,
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    durable_later: bool = False,
) -> list[bytes | memoryview]:
    """A Produce request with one batch, in pieces; the batch is not copied. See `DURABLE_LATER`."""
    flexible = version >= PRODUCE_FLEXIBLE
    head = [b"\0" if flexible else b"\xff\xff"]  # no transactional id
    if transactional_id is not None:
        head = [_string(transactional_id, flexible=flexible)]
    head.append(struct.pack(">hi", acks, timeout_ms))
    head += [_count(1, flexible=flexible), _string(topic, flexible=flexible)]
    head += [_count(1, flexible=flexible), struct.pack(">i", partition)]
    head.append(_count(len(batch), flexible=flexible))
    tags = DURABLE_LATER if durable_later else b"\0"
    return [b"".join(head), batch, b"\0\0" + tags if flexible else b""]


def produce_together(
    version: int,
    batches: Mapping[str, Mapping[int, memoryview]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    durable_later: bool = False,
) -> list[bytes | memoryview]:
    """A Produce request with one batch of each of several partitions, by topic and partition, in pieces."""
    flexible = version >= PRODUCE_FLEXIBLE
    tags = b"\0" if flexible else b""
    head = b"\0" if flexible else b"\xff\xff"
    if transactional_id is not None:
        head = _string(transactional_id, flexible=flexible)
    parts: list[bytes | memoryview] = [head, struct.pack(">hi", acks, timeout_ms)]
    parts.append(_count(len(batches), flexible=flexible))
    for topic, some in batches.items():
        parts += [_string(topic, flexible=flexible), _count(len(some), flexible=flexible)]
        for partition, batch in some.items():
            size = _count(len(batch), flexible=flexible)
            parts += [struct.pack(">i", partition) + size, batch, tags]
        parts.append(tags)
    parts.append(DURABLE_LATER if flexible and durable_later else tags)
    return parts


def read_produce(version: int, frame: memoryview) -> list[Produced]:
    """Reads a Produce answer."""
    c = Cursor(frame, flexible=version >= PRODUCE_FLEXIBLE)
    c.tags()  # of the header
    found = []
    for _ in range(c.count()):
        topic = c.string() or ""
        found += [_read_produced(c, version, topic) for _ in range(c.count())]
        c.tags()
    return found


def _read_produced(c: Cursor, version: int, topic: str) -> Produced:
    """Reads one partition of a Produce answer."""
    partition, error, base_offset = c.number("i"), c.number("h"), c.number("q")
    c.number("q")  # append time
    if version >= 5:
        c.number("q")  # log start
    message = None
    if version >= 8:
        for _ in range(c.count()):  # errors of single records
            c.number("i")
            c.string()
            c.tags()
        message = c.string()
    c.tags()
    return Produced(topic, partition, error, base_offset, message)
