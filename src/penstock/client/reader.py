"""Reads ranges of partitions as columns: what was committed, and nothing of transactions that were
aborted or are still open.

While a chunk is being decoded and used, the broker is already sending the next one. Each chunk has
a receive buffer of its own: `Records` stay valid for as long as they are held.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from penstock.client.network import hot
from penstock.client.network.cluster import PATIENCE_S, Cluster, OnWait
from penstock.client.network.connection import Connection
from penstock.client.network.errors import broker_error, check
from penstock.client.network.security import Security
from penstock.core.closing import Closing
from penstock.errors import BrokerError, CorruptError, LimitError, ProtocolError
from penstock.wire.columns import Batches, Records, decode, scan
from penstock.wire.protocol import ApiKey, ErrorCode

CHUNK_BYTES: Final = 16 << 20  # large enough that a request costs little compared with its bytes
CHUNK_BYTES_MIN: Final = 64 << 10
CHUNK_BYTES_MAX: Final = 1 << 30  # a single batch can't be larger than a response
WAIT_MS: Final = 500  # a long poll's length, as Kafka's own consumer's

OnDamage = Callable[[int, int], None]
"""Is called with a stretch that can't be read: its first offset, and the next one that can."""

# How far the estimate of a range's bytes may fall short before a second request is needed.
_ESTIMATE_SLACK: Final = 1.25


@dataclass(slots=True)
class _Flight:
    """A request under way."""

    connection: Connection
    number: int
    version: int
    offset: int


@dataclass(slots=True)
class _Cursor:
    """Where reading a partition stands."""

    topic: str
    partition: int
    position: int
    stop: int
    chunk_bytes: int
    may_skip: bool
    on_damage: OnDamage | None = None
    topic_id: uuid.UUID | None = None
    bytes_per_offset: float = 0.0
    flight: _Flight | None = None
    end_seen_at: float | None = None
    stable_end: int = -1
    aborted: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """For messages."""
        return f"partition {self.partition} of topic {self.topic!r}"


class Reader(Closing):
    """Reads partitions over persistent connections. Don't share it between threads.

    Args:
        bootstrap: "host:port[,host:port]", or a URL that says how to reach it (`Security`).
        client_id: the name the brokers log.
        patience_s: how long to keep trying while a broker is away, or an offset isn't there yet.
        on_wait: called before each pause with what is waited for and the seconds so far.
        security: settings of TLS and log-in that the address does not have.
        verify_crc: whether to check each batch's checksum.
        uncommitted: whether to read records of transactions whatever becomes of them.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "penstock",
        patience_s: float = PATIENCE_S,
        on_wait: OnWait | None = None,
        security: Security | None = None,
        verify_crc: bool = True,
        uncommitted: bool = False,
    ) -> None:
        self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            patience_s=patience_s,
            on_wait=on_wait,
            security=security,
        )
        self._verify_crc = verify_crc
        self._isolation = 0 if uncommitted else hot.READ_COMMITTED
        #: Seconds spent on decoding so far, for those who account for time.
        self.decode_s = 0.0

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def read(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        to_offset: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        missing: Literal["error", "skip"] = "error",
        on_damage: OnDamage | None = None,
        topic_id: uuid.UUID | None = None,
    ) -> Iterator[Records]:
        """Reads the records with `from_offset <= offset < to_offset`, in order.

        Offsets that compaction removed or that transaction markers took are simply not there.

        Args:
            topic: its name.
            partition: its number.
            from_offset: the first offset.
            to_offset: the offset to stop before. Where the partition does not reach that far yet,
                the reader waits for it, up to its patience.
            chunk_bytes: about how much to ask for at a time; a larger batch still comes whole.
            missing: what to do where retention has removed the first offsets: `error`, or `skip`.
            on_damage: called with records that the broker can't read, which are then skipped; without
                it they are an error.
            topic_id: of the topic that is meant. Brokers of Kafka 3.1 or newer refuse another one of the
                name, which was created since.

        Yields:
            Records that are never empty.

        Raises:
            BrokerError: `OFFSET_OUT_OF_RANGE` where offsets were removed, `CORRUPT_MESSAGE` where the
                broker can't read them, `UNKNOWN_TOPIC_ID`; or patience ran out.
            CorruptError: a batch is damaged.
            LimitError: a single batch unpacks to more than `DECOMPRESSED_BYTES_MAX`.
        """
        may_skip = missing == "skip"
        cursor = _Cursor(
            topic, partition, from_offset, to_offset, chunk_bytes, may_skip, on_damage, topic_id
        )
        try:
            while cursor.position < cursor.stop:
                batches = self._cluster.attempt(
                    f"read {cursor.name}",
                    lambda: self._next_batches(cursor),
                    by_id=cursor.topic_id is not None,
                )
                if batches is None:
                    continue
                batches.check_order(cursor.position)
                kept = batches.without_aborted(cursor.aborted)
                start, cursor.position = cursor.position, batches.next_offset
                span = cursor.position - int(start)
                cursor.bytes_per_offset = batches.whole_bytes / max(span, 1)
                if cursor.position < cursor.stop:
                    self._request_ahead(cursor)
                for records in self._decoded(kept):
                    wanted = records.between(start, to_offset)
                    if len(wanted):
                        yield wanted
        finally:
            if cursor.flight is not None:
                cursor.flight.connection.discard(cursor.flight.number)

    def _decoded(self, batches: Batches) -> Iterator[Records]:
        """The records of batches: all at once, or a part at a time where they unpack to very many bytes."""
        began = time.perf_counter()
        try:
            records = decode(batches, verify_crc=self._verify_crc)
        except LimitError:
            if len(batches.table) < 2:
                raise
            records = None
        finally:
            self.decode_s += time.perf_counter() - began
        if records is not None:
            yield records
            return
        for half in batches.halves():
            yield from self._decoded(half)

    def _request_ahead(self, cursor: _Cursor) -> None:
        """Sends the next request; a failure shows when its answer is awaited."""
        try:
            self._request(cursor)
        except OSError:
            cursor.flight = None

    def _request(self, cursor: _Cursor) -> _Flight:
        """Sends a request for what follows the cursor's position."""
        connection = self._cluster.leader(cursor.topic, cursor.partition)
        known = hot.FETCH_VERSIONS
        ids = None
        if cursor.topic_id is not None:
            known, ids = (known[0], hot.FETCH_BY_ID), {cursor.topic: cursor.topic_id}
        version = self._cluster.version(connection, ApiKey.FETCH, known)
        bytes_max = cursor.chunk_bytes
        if cursor.bytes_per_offset:
            rest = (cursor.stop - cursor.position) * cursor.bytes_per_offset * _ESTIMATE_SLACK
            bytes_max = min(bytes_max, int(rest) + CHUNK_BYTES_MIN)
        request = hot.fetch_request(
            version,
            [(cursor.topic, cursor.partition, cursor.position)],
            wait_ms=WAIT_MS,
            bytes_max=bytes_max,
            isolation=self._isolation,
            ids=ids,
        )
        flexible = version >= hot.FETCH_FLEXIBLE
        number = connection.send(ApiKey.FETCH, version, [request], flexible=flexible)
        cursor.flight = _Flight(connection, number, version, cursor.position)
        return cursor.flight

    def _next_batches(self, cursor: _Cursor) -> Batches | None:
        """Awaits the next chunk; None where the cursor was moved or must ask again.

        Raises:
            OSError, BrokerError: as `Cluster.attempt` expects; the cursor then has no request.
        """
        flight = cursor.flight
        cursor.flight = None
        if flight is None or flight.offset != cursor.position:
            flight = self._request(cursor)
            cursor.flight = None
        frame = flight.connection.receive(flight.number)
        error, found = hot.read_fetch(flight.version, frame)
        if error:
            raise broker_error(error, f"read {cursor.name}")
        if len(found) != 1 or found[0].partition != cursor.partition:
            raise ProtocolError(f"expected {cursor.name} alone in the answer; found {found}")
        return self._judge(cursor, found[0], frame)

    def _judge(self, cursor: _Cursor, part: hot.Fetched, frame: memoryview) -> Batches | None:
        """What an answer means for the cursor."""
        is_stable = self._isolation == hot.READ_COMMITTED and part.last_stable >= 0
        cursor.stable_end = part.last_stable if is_stable else part.high_watermark
        cursor.aborted = part.aborted
        if part.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(cursor)
            return None
        if part.error == ErrorCode.CORRUPT_MESSAGE:
            self._damaged(cursor)
            return None
        if part.error:
            raise broker_error(part.error, f"read {cursor.name} from offset {cursor.position}")
        batches = scan(frame[part.start : part.end])
        if len(batches.table):
            cursor.end_seen_at = None
            return batches
        if part.end > part.start:
            self._ask_for_more(cursor, part.end - part.start)
        else:
            self._wait_for_end(cursor)
        return None

    def _out_of_range(self, cursor: _Cursor) -> None:
        """Skips to the log's first offset, or says that offsets are gone."""
        log_start, log_end = (self._offset(cursor, which) for which in (-2, -1))
        if cursor.may_skip and cursor.position < log_start:
            cursor.position = log_start
            return
        raise broker_error(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"have offset {cursor.position} of {cursor.name}",
            "Retention has removed records: read from the log's start "
            "(missing='skip'), or restore the topic",
            f"the log goes from {log_start} to {log_end}",
        )

    def _damaged(self, cursor: _Cursor) -> None:
        """Skips what the broker can't read, or says what that is and how to continue."""
        first, following = cursor.position, self._first_readable(cursor)
        if cursor.on_damage is not None:
            cursor.on_damage(first, following)
            cursor.position = following
            return
        place = f"{cursor.topic}:{cursor.partition}"
        raise broker_error(
            ErrorCode.CORRUPT_MESSAGE,
            f"read {cursor.name} from offset {first}",
            f"Offsets {first} to {following - 1} are damaged or lost there. Restore the file that the "
            f"broker's log names, or give them up and continue at offset {following}: "
            f"`penstock consume {cursor.topic} -p {cursor.partition} --from {following}`, "
            f"`penstock groups reset GROUP --topic {place} --to-offset {following}`; for a pipeline, "
            f"`penstock topics trim {cursor.topic} -p {cursor.partition} --to-offset {following}`, "
            "which deletes the records before it",
        )

    def _first_readable(self, cursor: _Cursor) -> int:
        """The first offset after the cursor's that isn't damaged; any broker can be asked so."""
        damaged, step = cursor.position, 1
        while self._is_damaged(cursor, damaged + step):
            damaged += step
            step *= 2
        readable = damaged + step
        while readable - damaged > 1:
            middle = (damaged + readable) // 2
            if self._is_damaged(cursor, middle):
                damaged = middle
            else:
                readable = middle
        return readable

    def _is_damaged(self, cursor: _Cursor, offset: int) -> bool:
        connection = self._cluster.leader(cursor.topic, cursor.partition)
        version = self._cluster.version(connection, ApiKey.FETCH, hot.FETCH_VERSIONS)
        place = (cursor.topic, cursor.partition, offset)
        request = hot.fetch_request(version, [place], wait_ms=0, bytes_max=1)
        flexible = version >= hot.FETCH_FLEXIBLE
        number = connection.send(ApiKey.FETCH, version, [request], flexible=flexible)
        error, found = hot.read_fetch(version, connection.receive(number))
        return not error and found[0].error == ErrorCode.CORRUPT_MESSAGE

    def _offset(self, cursor: _Cursor, which: int) -> int:
        """The log's first (-2) or next (-1) offset."""
        part = {"partition_index": cursor.partition, "timestamp": which}
        fields = {"replica_id": -1, "topics": [{"name": cursor.topic, "partitions": [part]}]}
        connection = self._cluster.leader(cursor.topic, cursor.partition)
        answer = self._cluster.call(connection, ApiKey.LIST_OFFSETS, fields)
        check(answer, f"return the offsets of {cursor.name}", "topics", "partitions")
        return int(answer["topics"][0]["partitions"][0]["offset"])

    def _ask_for_more(self, cursor: _Cursor, got: int) -> None:
        """Doubles the chunk after an answer that held no whole batch."""
        if cursor.chunk_bytes >= CHUNK_BYTES_MAX:
            raise CorruptError(
                f"expected a record batch of at most {CHUNK_BYTES_MAX} bytes (CHUNK_BYTES_MAX) at "
                f"offset {cursor.position} of {cursor.name}; found {got} bytes without a whole "
                "one. The log is damaged there: read from a later offset, or restore it"
            )
        cursor.chunk_bytes = min(2 * max(cursor.chunk_bytes, got), CHUNK_BYTES_MAX)
        cursor.bytes_per_offset = 0.0

    def _wait_for_end(self, cursor: _Cursor) -> None:
        """Notes that the log ends here, and gives up if it has for too long."""
        now = time.monotonic()
        if cursor.end_seen_at is None:
            cursor.end_seen_at = now
        if now - cursor.end_seen_at > self._cluster.patience_s:
            raise BrokerError(
                f"expected {cursor.name} to have records up to offset {cursor.stop}; found that "
                f"it ends at {cursor.stable_end}, for {self._cluster.patience_s:g} s. Records that "
                "were there are lost, the range was never written, or a transaction is open: "
                "compare the offsets with those of the log (penstock topics)",
                code=ErrorCode.OFFSET_NOT_AVAILABLE,
            )
