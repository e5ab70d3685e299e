"""Which schemas a topic accepts: those that a registry has for it.

A topic with `confluent.value.schema.validation` takes values that begin with a registry's head (a zero byte
and a schema's id in four bytes) whose id is one of the subject TOPIC-value; keys likewise. The broker
does not check that the rest is data of that schema. The registry's records are in this log, in the
topic
`_schemas`: the broker reads them itself, so it knows a schema by the time a serializer gets its id.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptError, LimitError
from penstock.log.errors import AppendError, RecordError
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Buffer, Header
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.storage.topics import Hosted, Topic, Topics
    from penstock.schemas.subjects import Subjects

__all__ = ["Contracts"]

SCHEMAS: Final = "_schemas"
KEYS: Final = "confluent.key.schema.validation"
VALUES: Final = "confluent.value.schema.validation"
READ_BYTES: Final = 1 << 20
"""Of the registry's topic, at a time."""
ERRORS_MAX: Final = 100
"""Most invalid records that are reported one by one."""
TOGETHER_MIN: Final = 16
"""Records of a batch from which on they are looked at together."""
UNFRAMED: Final = -1
"""In place of an id, of what has no head."""
_HEAD: Final = struct.Struct(">bI")


class Contracts:
    """Checks what is produced.

    Args:
        topics: where the registry's topic is, if there is one.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._state: Subjects | None = None
        self._of: object = None
        self._next = 0
        self._together: Callable[..., tuple[int, list[tuple[int, int, int]]]] | None = None
        self._loading: threading.Thread | None = None

    @staticmethod
    def holds(topic: Topic) -> bool:
        """Whether a topic's records are looked at."""
        settings = topic.settings
        return settings.get(VALUES) == "true" or settings.get(KEYS) == "true"

    def check(self, topic: Topic, batch: Buffer) -> None:
        """Refuses a batch with records that break the topic's contract.

        Raises:
            AppendError: with the records that do, by their places.
        """
        if len(batch) < HEADER_BYTES:
            return  # the log refuses it
        header = batches.parse(batch)
        if header.magic != batches.MAGIC or header.size != len(batch) or header.is_control:
            return
        wanted = [
            (at, f"{topic.name}-{part}", part)
            for at, (name, part) in enumerate(((KEYS, "key"), (VALUES, "value")))
            if topic.settings.get(name) == "true"
        ]
        state = self._fresh()
        known = [(at, {one.id for one in state.versions(subject)}) for at, subject, _ in wanted]
        try:
            count, faults = self._faults(batch, header, known)
        except (CorruptError, LimitError, IndexError, ValueError) as error:
            raise _others(header, error) from None
        if not count:
            return
        subjects = {at: (subject, part) for at, subject, part in wanted}
        found = tuple(RecordError(index, _fault(id_, *subjects[at])) for index, at, id_ in faults)
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"{found[0].message} (record {found[0].batch_index} of {header.record_count}; "
            f"{count} at fault). Register the schema, or turn {VALUES} off",
            found,
        )

    def _faults(
        self, batch: Buffer, header: Header, known: list[tuple[int, set[int]]]
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """How many keys and values are at fault, and the first of them: see `frames.faults_of`."""
        if header.record_count >= TOGETHER_MIN:
            if self._together is not None:
                return self._together(batch, header, known, ERRORS_MAX)
            if self._loading is None:
                self._loading = threading.Thread(target=self._load, daemon=True)
                self._loading.start()
        count = 0
        found: list[tuple[int, int, int]] = []
        for index, record in enumerate(_records(batch, header)):
            for at, ids in known:
                id_ = _id(record[at])
                if id_ is not None and id_ not in ids:
                    count += 1
                    if len(found) < ERRORS_MAX:
                        found.append((index, at, id_))
        return count, found

    def _load(self) -> None:
        from penstock.broker.storage import frames

        frames.warm()
        self._together = frames.faults_of

    def _fresh(self) -> Subjects:
        """The registry's schemas; reads what is new in its topic."""
        from penstock.schemas.subjects import Subjects

        topic = self._topics.get(SCHEMAS)
        if self._state is None or topic is not self._of:
            self._state, self._of, self._next = Subjects(), topic, 0
        hosted = None if topic is None else topic.partition(0)
        if hosted is not None:
            end = hosted.log.last_stable_offset
            self._next = max(self._next, hosted.log.start_offset)
            while self._next < end:
                before = self._next
                for header, batch in self._batches(hosted, end):
                    self._next = max(self._next, header.next_offset)
                    if not header.is_control and not _is_aborted(hosted, header):
                        for key, value in _records(batch, header):
                            self._state.apply(
                                None if key is None else bytes(key),
                                None if value is None else bytes(value),
                            )
                if self._next == before:
                    break
        return self._state

    def _batches(self, hosted: Hosted, end: int) -> Iterator[tuple[Header, memoryview]]:
        data = memoryview(hosted.log.read(self._next, READ_BYTES, upto=end))
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = batches.parse(data, at)
            if at + header.size > len(data):
                return
            if header.next_offset > self._next:
                yield header, data[at : at + header.size]
            at += header.size


def _is_aborted(hosted: Hosted, header: Header) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset
        for one in hosted.log.aborted(header.base_offset, header.next_offset)
    )


def _id(part: memoryview | None) -> int | None:
    """The id in the head of a key or a value; None of NULL, `UNFRAMED` where there is none."""
    if part is None:
        return None
    if len(part) < _HEAD.size or part[0]:
        return UNFRAMED
    found: int = _HEAD.unpack_from(part)[1]
    return found


def _fault(id_: int, subject: str, part: str) -> str:
    """The fault of a key or a value."""
    if id_ == UNFRAMED:
        return (
            f"expected a {part} that begins with a zero byte and a schema's id; found another one"
        )
    return f"expected a {part} by a schema of the subject {subject}; found id {id_}"


def _records(
    batch: Buffer, header: Header
) -> Iterator[tuple[memoryview | None, memoryview | None]]:
    """The keys and values of a batch.

    Raises:
        AppendError: its records are not what the header says.
    """
    payload = memoryview(batch)[HEADER_BYTES : header.size]
    try:
        body = memoryview(batches.decompressed(header, payload)) if header.codec_number else payload
        at = 0
        for _ in range(header.record_count):
            length, at = batches.read_varint(body, at)
            if not 0 < length <= len(body) - at:
                raise CorruptError(f"a record of {length} bytes")
            record, at = body[at : at + length], at + length
            _, field = batches.read_varint(record, 1)
            _, field = batches.read_varint(record, field)
            size, field = batches.read_varint(record, field)
            key = None if size < 0 else record[field : field + size]
            size, field = batches.read_varint(record, field + max(size, 0))
            yield key, None if size < 0 else record[field : field + size]
    except (CorruptError, LimitError, IndexError, ValueError) as error:
        raise _others(header, error) from None


def _others(header: Header, error: Exception) -> AppendError:
    """What refuses a batch that isn't what its header says."""
    return AppendError(
        ErrorCode.INVALID_RECORD,
        f"expected {header.record_count} records; found others ({error})",
    )
