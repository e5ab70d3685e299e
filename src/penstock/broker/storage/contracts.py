"""Which schemas a topic takes: those that a registry has for it.

A topic with `confluent.value.schema.validation` takes values that begin with a registry's head (a zero byte
and a schema's id in four bytes) whose id is one of the subject TOPIC-value; keys likewise. Whether the rest
is data of that schema is left to those who read it. The registry's records are in this log, in the topic
`_schemas`: the broker reads them itself, so it knows a schema once a serializer was told its id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptError, LimitError
from penstock.log.errors import AppendError, RecordError, Refusal
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Buffer, Header

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
"""Records at fault that are told one by one."""
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
        known = {subject: {one.id for one in state.versions(subject)} for _, subject, _ in wanted}
        found: list[RecordError] = []
        count = 0
        for index, record in enumerate(_records(batch, header)):
            for at, subject, part in wanted:
                fault = _fault(record[at], known[subject], subject, part)
                if fault is not None:
                    count += 1
                    if len(found) < ERRORS_MAX:
                        found.append(RecordError(index, fault))
        if count:
            raise AppendError(
                Refusal.INVALID_RECORD,
                f"{found[0].message} (record {found[0].batch_index} of {header.record_count}; "
                f"{count} at fault). Register the schema, or turn {VALUES} off",
                tuple(found),
            )

    def _fresh(self) -> Subjects:
        """What the registry has; of its topic, what is new is read."""
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


def _fault(part: memoryview | None, known: set[int], subject: str, name: str) -> str | None:
    """What is wrong with a key or a value."""
    if part is None:
        return None
    if len(part) < _HEAD.size or part[0]:
        return (
            f"expected a {name} that begins with a zero byte and a schema's id; found another one"
        )
    id_ = _HEAD.unpack_from(part)[1]
    if id_ in known:
        return None
    return f"expected a {name} by a schema of the subject {subject}; found id {id_}"


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
        raise AppendError(
            Refusal.INVALID_RECORD,
            f"expected {header.record_count} records, found others ({error})",
        ) from None
