"""Where records are: ListOffsets, DeleteRecords, OffsetForLeaderEpoch, DescribeProducers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields, hosted
from penstock.errors import CorruptError, LimitError
from penstock.log.errors import OffsetRangeError, StorageError
from penstock.log.partition import LEADER_EPOCH, Partition
from penstock.log.tier import NotLoadedError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

READ_COMMITTED: Final = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)


def list_offsets(call: Call, fields: Fields) -> Fields | Awaitable[Fields]:
    """The offset for a time, exact to the record, or for one of Kafka's marks."""
    try:
        return _list_offsets(call, fields, is_patient=True)
    except NotLoadedError:
        return _list_offsets_later(call, fields)


async def _list_offsets_later(call: Call, fields: Fields) -> Fields:
    """Once what lies in the tier is at hand."""
    assert call.broker.tiering is not None
    try:
        found, _ = await call.broker.tiering.cache.loaded(
            lambda: _list_offsets(call, fields, is_patient=True)
        )
    except StorageError:
        return _list_offsets(call, fields, is_patient=False)
    return found


def _list_offsets(call: Call, fields: Fields, *, is_patient: bool) -> Fields:
    topics = []
    for topic in fields["topics"]:
        parts = []
        for wanted in topic["partitions"]:
            index = wanted["partition_index"]
            part: Fields = {"partition_index": index, "offset": -1, "timestamp": -1}
            place = hosted(call, topic["name"], index)
            if wanted["timestamp"] < EARLIEST_PENDING:
                part["error_code"] = ErrorCode.UNSUPPORTED_VERSION  # a mark of a later Kafka
            elif place is None:
                part["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif wanted.get("current_leader_epoch", -1) > LEADER_EPOCH:
                part["error_code"] = ErrorCode.UNKNOWN_LEADER_EPOCH
            else:
                try:
                    part |= _offset_for(place.log, wanted["timestamp"], _end(place.log, fields))
                except (StorageError, CorruptError, LimitError) as error:
                    if is_patient and isinstance(error, NotLoadedError):
                        raise
                    part["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
            parts.append(part)
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


def _end(log: Partition, fields: Fields) -> int:
    """Where the log ends for the one who asks."""
    is_committed = fields.get("isolation_level", 0) == READ_COMMITTED
    return log.last_stable_offset if is_committed else log.end_offset


def _offset_for(log: Partition, timestamp_ms: int, end: int) -> Fields:
    found: tuple[int, int] | None
    log.require_end()
    match timestamp_ms:
        case -1:
            found = end, -1
        case -2:
            found = log.start_offset, -1
        case -4:
            found = log.local_start_offset, -1
        case -3:
            found = log.find_latest_time()
        case -5:
            found = (log.remote.end_offset - 1, -1) if log.remote.segments else None
        case -6:
            is_tiered = log.config.remote_storage
            found = (log.uncopied_offset, -1) if is_tiered else None
        case _:
            found = log.find_time(timestamp_ms)
            found = found if found is not None and found[0] < end else None
    if found is None:
        return {"leader_epoch": -1}
    return {"offset": found[0], "timestamp": found[1], "leader_epoch": LEADER_EPOCH}


def delete_records(call: Call, fields: Fields) -> Fields:
    """Moves logs' starts; -1 stands for the end."""
    topics = []
    for topic in fields["topics"]:
        parts = []
        for wanted in topic["partitions"]:
            index, offset = wanted["partition_index"], wanted["offset"]
            part: Fields = {"partition_index": index, "low_watermark": -1, "error_code": 0}
            place = hosted(call, topic["name"], index)
            if place is None:
                part["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif place.log.config.compacts and not place.log.config.deletes:
                # its records go when newer ones have their keys
                part["error_code"] = ErrorCode.POLICY_VIOLATION
            else:
                try:
                    before = place.log.end_offset if offset == -1 else offset
                    place.log.delete_records(before, call.broker.clock_ms())
                    part["low_watermark"] = place.log.start_offset
                except OffsetRangeError:
                    part["error_code"] = ErrorCode.OFFSET_OUT_OF_RANGE
                except (StorageError, OSError):
                    part["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
            parts.append(part)
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


def offset_for_leader_epoch(call: Call, fields: Fields) -> Fields:
    """Where an epoch ends: there is but one, so the log's end."""
    topics = []
    for topic in fields["topics"]:
        parts = []
        for wanted in topic["partitions"]:
            index = wanted["partition"]
            place = hosted(call, topic["topic"], index)
            part: Fields = {"partition": index, "leader_epoch": -1, "end_offset": -1}
            if place is None:
                part["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif wanted.get("current_leader_epoch", -1) > LEADER_EPOCH:
                part["error_code"] = ErrorCode.UNKNOWN_LEADER_EPOCH
            elif place.log.is_end_unknown:
                part["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
            elif wanted["leader_epoch"] == LEADER_EPOCH:
                part |= {"leader_epoch": LEADER_EPOCH, "end_offset": place.log.end_offset}
            parts.append(part)
        topics.append({"topic": topic["topic"], "partitions": parts})
    return {"topics": topics}


def describe_producers(call: Call, fields: Fields) -> Fields:
    """The idempotent producers that partitions remember."""
    topics = []
    for topic in fields["topics"]:
        parts = []
        for index in topic["partition_indexes"]:
            place = hosted(call, topic["name"], index)
            if place is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                parts.append({"partition_index": index, "error_code": code})
                continue
            active = [
                {
                    "producer_id": one.producer_id,
                    "producer_epoch": one.epoch,
                    "last_sequence": one.last_sequence,
                    "last_timestamp": one.last_ms,
                    "coordinator_epoch": one.coordinator_epoch,
                    "current_txn_start_offset": one.transaction_start,
                }
                for one in place.log.producers.describe()
            ]
            parts.append({"partition_index": index, "active_producers": active})
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


APIS: Final = (
    Api(ApiKey.LIST_OFFSETS, 1, 11, list_offsets),
    Api(ApiKey.DELETE_RECORDS, 0, 2, delete_records),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, offset_for_leader_epoch),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, describe_producers),
)
