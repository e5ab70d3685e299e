"""Making, growing and deleting topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields, missing, topic_of
from penstock.broker.handlers.configs.describing import topic_configs
from penstock.broker.storage.topic_settings import SettingError, validate
from penstock.broker.storage.topics import name_fault
from penstock.broker.tier.settings import check_tier_settings
from penstock.errors import LimitError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

SYNC_POLL_S: Final = 0.001
"""How often a deletion looks whether the last sync of its topic has ended."""


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def create_topics(call: Call, fields: Fields) -> Fields:
    """Makes topics, or checks for each whether that would work."""
    names = [topic["name"] for topic in fields["topics"]]
    results = []
    for wanted in fields["topics"]:
        result: Fields = {"name": wanted["name"]}
        try:
            if names.count(wanted["name"]) > 1:
                raise _RefusedError(
                    ErrorCode.INVALID_REQUEST, "expected each topic once in a request; found two"
                )
            result |= _create(call, wanted, dry_run=fields.get("validate_only", False))
        except _RefusedError as refused:
            result |= {"error_code": refused.code, "error_message": str(refused)}
        results.append(result)
    return {"topics": results}


def _create(call: Call, wanted: Fields, *, dry_run: bool) -> Fields:
    name, topics = wanted["name"], call.broker.topics
    fault = name_fault(name)
    if fault is not None:
        raise _RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name in topics.refused:
        raise _RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, topics.refused[name])
    if topics.is_taken(name):
        raise _RefusedError(
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"expected a new topic; found that {name!r} already exists",
        )
    try:
        settings = {one["name"]: validate(one["name"], one["value"]) for one in wanted["configs"]}
        check_tier_settings(settings, {}, has_tier=call.broker.tiering is not None)
    except SettingError as error:
        raise _RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from None
    partitions = _partition_count(call, wanted)
    result: Fields = {"num_partitions": partitions, "replication_factor": 1}
    result["configs"] = topic_configs(call.broker.dynamic, settings, {})
    with _needing_room():
        if dry_run:
            topics.check_room(1, partitions, partitions)
        else:
            result["topic_id"] = topics.create(name, partitions, settings).id
    return result


@contextlib.contextmanager
def _needing_room() -> Iterator[None]:
    """Refuses what there is no room for, by the limits or on the disk."""
    try:
        yield
    except LimitError as error:
        raise _RefusedError(ErrorCode.INVALID_PARTITIONS, str(error)) from None
    except OSError as error:
        raise _RefusedError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"expected room; found {error}"
        ) from None


def _partition_count(call: Call, wanted: Fields) -> int:
    count, factor = wanted["num_partitions"], wanted["replication_factor"]
    if wanted["assignments"]:
        indexes = sorted(one["partition_index"] for one in wanted["assignments"])
        if indexes != list(range(len(indexes))) or count not in {-1, len(indexes)}:
            raise _RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected partitions numbered from 0 on; found {indexes[:10]}",
            )
        return len(indexes)
    wrong_factor = _RefusedError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"expected a replication factor of 1 (there is one broker); found {factor}",
    )
    if factor < -1 or factor == 0:
        raise wrong_factor
    if count < -1 or count == 0:
        raise _RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"expected 1 partition or more; found {count}"
        )
    if factor > 1:
        raise wrong_factor
    return int(count) if count > 0 else call.broker.config.default_partitions


async def delete_topics(call: Call, fields: Fields) -> Fields:
    """Deletes topics with all their records."""
    wanted = fields.get("topics")
    if wanted is None:
        wanted = [{"name": name} for name in fields["topic_names"]]
    results = []
    for one in wanted:
        topic = topic_of(call, one)
        if topic is None:
            code, text = ErrorCode.UNKNOWN_TOPIC_ID, "expected a topic of that id; found none"
            if one.get("name") is not None:
                code, text = missing(call, one["name"])
            results.append({**one, "error_code": code, "error_message": text})
            continue
        call.broker.topics.withdraw(topic)
        while any(part.is_busy for part in topic.partitions):  # noqa: ASYNC110 - rare, short
            await asyncio.sleep(SYNC_POLL_S)
        call.broker.note_removal(topic)
        call.broker.topics.discard(topic, keeps_name=True)
        await call.broker.flusher.make_durable(call.broker.former.forget(topic.name))
        call.broker.topics.free_name(topic.name)
        results.append({"name": topic.name, "topic_id": topic.id})
    return {"responses": results}


def create_partitions(call: Call, fields: Fields) -> Fields:
    """Adds partitions to topics."""
    results = []
    for wanted in fields["topics"]:
        result: Fields = {"name": wanted["name"], "error_code": 0, "error_message": None}
        try:
            _grow(call, wanted, dry_run=fields["validate_only"])
        except _RefusedError as refused:
            result |= {"error_code": refused.code, "error_message": str(refused)}
        results.append(result)
    return {"results": results}


def _grow(call: Call, wanted: Fields, *, dry_run: bool) -> None:
    topic = call.broker.topics.get(wanted["name"])
    if topic is None:
        raise _RefusedError(*missing(call, wanted["name"]))
    count, present = wanted["count"], len(topic.partitions)
    if count <= present:
        raise _RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"expected more than {present} partitions; found {count}"
        )
    with _needing_room():
        if dry_run:
            call.broker.topics.check_room(0, count - present, count)
        else:
            call.broker.topics.grow(topic, count)


APIS: Final = (
    Api(ApiKey.CREATE_TOPICS, 2, 7, create_topics),
    Api(ApiKey.DELETE_TOPICS, 1, 6, delete_topics),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, create_partitions),
)
