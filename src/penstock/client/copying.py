"""Replays a stretch of a topic into another one, each record once, however often it is interrupted.

Invariant: what a step sends is a function of the job and of the source offset that the step begins at
(so of the log, not of how it came in chunks).
Each source partition is sent as a producer of its own (KIP-98), and after each step the next offset
and that producer's sequence numbers are committed, in one commit, as an offset of the group
`replay.NAME`. Who is killed between sending and committing repeats the step with the same sequence
numbers, and the target's leaders keep one of each batch.

Old records may be read from the topic's Iceberg table (`OldRecords`), which gives the same ones. A
job that was begun with it continues with it, for the log may have lost by then what the table has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.groups import GroupAdmin
from penstock.client.producer import Producer
from penstock.client.reader import Reader
from penstock.core.closing import Closing
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import CorruptError, LimitError, UserError
from penstock.wire.columns import Records
from penstock.wire.headers import raw_headers

if TYPE_CHECKING:
    from penstock.client.tables.history import TopicTable
    from penstock.client.tables.old_records import OldRecords

__all__ = ["GROUP_PREFIX", "Copy", "CopyJob"]

GROUP_PREFIX: Final = "replay."
STEP_OFFSETS: Final = 20_000
"""Source offsets of a step: what is sent between two commits, and is in memory at a time."""
STEP_BYTES_MAX: Final = 32 << 20
"""Bytes of keys and values of a step; a single larger record is a step of its own."""
METADATA_CHARACTERS_MAX: Final = 4096
"""Longest metadata of a committed offset, Kafka's offset.metadata.max.bytes: a job's description."""


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What is to be replayed.

    Attributes:
        source: the topic that is read.
        target: the topic that is written.
        spans: by partition of the source, from which offset to which (exclusive).
        keys: only records with these keys; None: all.
    """

    source: str
    target: str
    spans: dict[int, tuple[int, int]]
    keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise UserError(
                f"expected another topic than {self.source!r} to replay into; found the same; a "
                "replay into its own source would never end"
            )


@dataclass(slots=True)
class _Place:
    """How far a source partition is."""

    position: int
    stop: int
    producer: tuple[int, int]
    sequences: dict[int, int]


class Copy(Closing):
    """A replay that can continue where it was.

    Args:
        bootstrap: "host:port[,host:port]".
        name: under which its progress is kept.
        settings: as for `Client`.
    """

    def __init__(self, bootstrap: str, name: str, **settings: Any) -> None:
        self._table: str | None = None
        self._old: OldRecords | None = None
        self.group = GROUP_PREFIX + name
        self.copied = 0
        self.read = 0
        self._admin = GroupAdmin(bootstrap, **settings)
        self._reader = Reader(bootstrap, **settings)
        self._producer = Producer(bootstrap, acks="all", **settings)
        self._places: dict[int, _Place] = {}
        self._job: CopyJob
        self._keys: pa.Array | None = None
        self._target_partitions = 0

    def close(self) -> None:
        """Closes the connections."""
        for part in (self._admin, self._reader, self._producer):
            part.close()

    @property
    def job(self) -> CopyJob:
        """What is being replayed."""
        return self._job

    @property
    def left(self) -> int:
        """Source offsets that are still to be read."""
        return sum(place.stop - place.position for place in self._places.values())

    def read_from(self, history: TopicTable) -> None:
        """Reads what a table covers from there; to be said before a job is run.

        Raises:
            UserError: the table has decoded values only, or the job was begun without it.
        """
        from penstock.client.tables.old_records import OldRecords

        if self._places and self._table != history.name:
            raise UserError(
                f"expected replay {self.group!r} to continue as it was begun, "
                f"{f'from table {self._table}' if self._table else 'from the log alone'}; found "
                f"table {history.name}"
            )
        self._old = OldRecords(history, self._reader)
        self._table = history.name

    def start(self, job: CopyJob) -> None:
        """Writes a new job down.

        Raises:
            UserError: the name is taken by a job that isn't finished.
        """
        if self._admin.committed_entries(self.group):
            raise UserError(
                f"expected a new name; found an unfinished replay {self.group!r}; continue it "
                f"(--resume {self.group.removeprefix(GROUP_PREFIX)}), or forget it: penstock groups "
                f"delete {self.group}"
            )
        self._take(job, len(self._admin.partitions(job.target)))
        for partition, (start, stop) in job.spans.items():
            producer = self._admin.init_producer_id()
            self._places[partition] = _Place(start, stop, producer, {})
        self._commit(list(self._places))

    def resume(self) -> None:
        """Takes up a job where it was.

        Raises:
            UserError: there is none of that name that isn't finished.
        """
        entries = self._admin.committed_entries(self.group)
        if not entries:
            raise UserError(
                f"expected an unfinished replay {self.group!r}; found none: it is finished, or was "
                "never begun; `penstock groups list` shows those that are there"
            )
        try:
            spans = {}
            for (_, partition), (position, metadata) in entries.items():
                stored = json.loads(metadata)
                sequences = {int(p): sequence for p, sequence in stored["sequences"].items()}
                producer_id, epoch = stored["producer"]
                place = _Place(position, stored["stop"], (producer_id, epoch), sequences)
                self._places[partition] = place
                spans[partition] = position, place.stop
            self._table = stored.get("table")
            keys = None if stored["keys"] is None else tuple(stored["keys"])
            (source,) = {topic for topic, _ in entries}
            self._take(CopyJob(source, stored["target"], spans, keys), stored["partitions"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"expected a replay's progress in group {self.group!r}; found {error!r}; start it again "
                "under another name"
            ) from None

    def _take(self, job: CopyJob, target_partitions: int) -> None:
        self._job = job
        self._target_partitions = target_partitions
        if job.keys is not None:
            self._keys = pa.array([one.encode() for one in job.keys], pa.binary())

    def run(
        self, on_step: Callable[[], None] = lambda: None, step_offsets: int = STEP_OFFSETS
    ) -> int:
        """Replays all that is left, partition by partition in turn; returns how many were sent.

        Args:
            on_step: called after each step: it may wait, to keep to a rate.
            step_offsets: source offsets of a step; the same in each run of a job.

        Raises:
            UserError: the job was begun with a table, and none was given (`read_from`).
        """
        if self._table and self._old is None:
            raise UserError(
                f"expected the catalog of table {self._table}, which replay {self.group!r} was "
                "begun with; found none; give --iceberg-catalog again"
            )
        while self.left:
            for partition, place in self._places.items():
                if place.position < place.stop:
                    self._step(partition, place, step_offsets)
                    on_step()
                while self._is_old(partition, place):  # a file of the table is opened once
                    self._step(partition, place, step_offsets)
                    on_step()
        self._admin.delete_group(self.group)
        return self.copied

    def _is_old(self, partition: int, place: _Place) -> bool:
        old = self._old
        is_left = place.position < place.stop
        return is_left and old is not None and old.covers(partition, place.position)

    def _step(self, partition: int, place: _Place, step_offsets: int) -> None:
        end = min(place.position + step_offsets, place.stop)
        taken: list[Records] = []
        size = 0
        reader = self._old or self._reader
        for records in reader.read(
            self._job.source, partition, place.position, end, missing="skip"
        ):
            sizes = np.maximum(records.key_length, 0) + np.maximum(records.value_length, 0)
            room = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), STEP_BYTES_MAX - size))
            if room < len(records):  # a record beyond the limit still goes where it is the first
                part = records.slice(0, max(room, 0 if taken else 1))
                taken.append(part)
                end = part.next_offset
                break
            taken.append(records)
            size += int(sizes.sum())
        self.read += sum(map(len, taken))
        if taken:
            self._send(partition, place, taken)
        place.position = end
        self._commit([partition])

    def _send(self, partition: int, place: _Place, taken: list[Records]) -> None:
        keys = pa.concat_arrays([one.keys() for one in taken])
        values = pa.concat_arrays([one.values() for one in taken])
        headers = _headers(taken)
        times = np.concatenate([one.timestamp_ms for one in taken])
        chosen = np.ones(len(keys), bool)
        if self._keys is not None:
            chosen = pc.is_in(keys, self._keys).to_numpy(zero_copy_only=False)
        targets = murmur2_partitions(keys, self._target_partitions)
        targets = np.where(targets < 0, partition % self._target_partitions, targets)
        for target in np.unique(targets[chosen]).tolist():
            index = np.flatnonzero(chosen & (targets == target))
            take = pa.array(index, pa.int64())
            place.sequences[target] = self._producer.send(
                self._job.target,
                target,
                keys.take(take),
                values.take(take),
                np.ascontiguousarray(times[index]),
                headers=None if headers is None else headers.take(take),
                producer_id=place.producer[0],
                producer_epoch=place.producer[1],
                base_sequence=place.sequences.get(target, 0),
            )
            self.copied += len(index)

    def _commit(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            place = self._places[partition]
            stored = {
                "stop": place.stop,
                "target": self._job.target,
                "partitions": self._target_partitions,
                "keys": self._job.keys,
                "producer": place.producer,
                "sequences": place.sequences,
            }
            if self._table:
                stored["table"] = self._table
            metadata = json.dumps(stored, separators=(",", ":"))
            if len(metadata) > METADATA_CHARACTERS_MAX:
                raise LimitError(
                    f"expected a replay's progress in {METADATA_CHARACTERS_MAX} characters; found "
                    f"{len(metadata)}; name fewer keys, or replay into fewer partitions"
                )
            offsets = {(self._job.source, partition): place.position}
            self._admin.commit(self.group, offsets, metadata)


def _headers(taken: list[Records]) -> pa.Array | None:
    """All headers as they stand; None where no record has any."""
    parts = [raw_headers(one) for one in taken]
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [
            pa.array([b"\0"] * len(one), pa.binary()) if part is None else part
            for part, one in zip(parts, taken, strict=True)
        ]
    )
