"""Transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, WriteTxnMarkers, and
looking at them.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.groups.offsets import METADATA_CHARACTERS_MAX, Committed, Key
from penstock.broker.handlers.base import Api, Call, Fields, hosted
from penstock.broker.handlers.offsets import end_below, known_parts
from penstock.broker.storage.flusher import made_durable
from penstock.broker.storage.topic_patterns import matching
from penstock.broker.transactions.machine import (
    NO_EPOCH,
    NO_ID,
    OFFSETS,
    Answer,
    Place,
    State,
    Transaction,
)
from penstock.errors import UserError
from penstock.log.errors import AppendError, StorageError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS", "carry_out", "older"]

FENCED_FROM: Final = 2
"""Version from which on an answer may say that the producer is fenced."""
VERIFIED_FROM: Final = 4
"""Version of AddPartitionsToTxn that brokers use among themselves, for many transactions."""
ABORTABLE_FROM: Final = 4
"""Version of TxnOffsetCommit whose clients know that they may abort and continue (KIP-890)."""
JOINS_FROM: Final = 5
"""Version of TxnOffsetCommit that makes its group part of the transaction (KIP-890)."""
BUMPS_FROM: Final = 5
"""Version of EndTxn that gives the producer a new epoch (KIP-890)."""


def older(code: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """The code, or what older clients know in its place."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


async def carry_out(call: Call, answer: Answer) -> Answer:
    """Carries out an answer's change; returns the answer for the client."""
    if answer.change is not None and not await call.broker.transactions.carry_out(answer.change):
        return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return answer


async def add_partitions(call: Call, fields: Fields) -> Fields:
    """Partitions become part of a transaction."""
    if call.version >= VERIFIED_FROM:
        results = [await _add_many(call, one) for one in fields["transactions"]]
        return {"results_by_transaction": results}
    topics = fields["v3_and_below_topics"]
    codes = await _add(
        call,
        fields["v3_and_below_transactional_id"],
        fields["v3_and_below_producer_id"],
        fields["v3_and_below_producer_epoch"],
        topics,
    )
    return {"results_by_topic_v3_and_below": _results(topics, codes)}


async def _add_many(call: Call, one: Fields) -> Fields:
    who = one["transactional_id"], one["producer_id"], one["producer_epoch"]
    if one["verify_only"]:
        codes = {}
        for place in _places(one["topics"]):
            fault = call.broker.transactions.machine.fault_of(*who, place=place)
            if fault is ErrorCode.INVALID_TXN_STATE:
                fault = ErrorCode.TRANSACTION_ABORTABLE
            codes[place] = fault or ErrorCode.NONE
    else:
        codes = await _add(call, *who, one["topics"])
    return {
        "transactional_id": one["transactional_id"],
        "topic_results": _results(one["topics"], codes),
    }


async def _add(
    call: Call, transactional_id: str, producer_id: int, epoch: int, topics: list[Fields]
) -> dict[Place, ErrorCode]:
    places = _places(topics)
    missing = {place for place in places if hosted(call, *place) is None}
    if missing:
        unknown, rest = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        return {place: unknown if place in missing else rest for place in places}
    broker = call.broker
    answer = broker.transactions.machine.add(
        broker.clock_ms(), transactional_id, producer_id, epoch, places=places
    )
    answer = await carry_out(call, answer)
    code = older(answer.code, knows_fenced=call.version >= FENCED_FROM)
    return dict.fromkeys(places, code)


def _places(topics: list[Fields]) -> list[Place]:
    return [(topic["name"], index) for topic in topics for index in topic["partitions"]]


def _results(topics: list[Fields], codes: dict[Place, ErrorCode]) -> list[Fields]:
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[topic["name"], index]}
                for index in topic["partitions"]
            ],
        }
        for topic in topics
    ]


async def add_offsets(call: Call, fields: Fields) -> Fields:
    """A group's offsets become part of a transaction."""
    broker = call.broker
    if not fields["group_id"]:
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    answer = broker.transactions.machine.add(
        broker.clock_ms(),
        fields["transactional_id"],
        fields["producer_id"],
        fields["producer_epoch"],
        groups=(fields["group_id"],),
    )
    answer = await carry_out(call, answer)
    return {"error_code": older(answer.code, knows_fenced=call.version >= FENCED_FROM)}


async def end_txn(call: Call, fields: Fields) -> Fields:
    """Commits or aborts; answers when that is durable and readers see it."""
    broker = call.broker
    if broker.transactions.is_full:
        return {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS}
    who = fields["transactional_id"], fields["producer_id"], fields["producer_epoch"]
    try:
        answer = broker.transactions.machine.end(
            broker.clock_ms(),
            *who,
            commit=fields["committed"],
            bumps=call.version >= BUMPS_FROM,
        )
    except OSError:
        answer = Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    change, count = answer.change, fields.get("penstock_records", -1)
    if (
        change is not None
        and fields["committed"]
        and count >= 0
        and not broker.transactions.has_records(change, count)
    ):
        answer = Answer(ErrorCode.TRANSACTION_ABORTABLE)
    answer = await carry_out(call, answer)
    is_done = answer.code is ErrorCode.NONE
    return {
        "error_code": older(answer.code, knows_fenced=call.version >= FENCED_FROM),
        "producer_id": answer.producer_id if is_done else NO_ID,
        "producer_epoch": answer.epoch if is_done else NO_EPOCH,
        "penstock_counts": count >= 0,
    }


# -- offsets ---------------------------------------------------------------------------------------


async def txn_offset_commit(call: Call, fields: Fields) -> Fields:
    """Stages offsets until the transaction ends; answers when they are durable."""
    broker = call.broker
    group_id, who = fields["group_id"], (fields["producer_id"], fields["producer_epoch"])
    fault = _group_fault(call, fields) or await _join(call, fields)
    accepted: dict[Key, Committed] = {}
    topics = []
    for wanted in fields["topics"]:
        parts = []
        for one in wanted["partitions"]:
            code = fault or _offset_fault(call, wanted["name"], one)
            if not code:
                accepted[wanted["name"], one["partition_index"]] = Committed(
                    one["committed_offset"],
                    one.get("committed_leader_epoch", -1),
                    one["committed_metadata"] or "",
                    broker.clock_ms(),
                    end_below(
                        hosted(call, wanted["name"], one["partition_index"]),
                        one["committed_offset"],
                    ),
                )
            parts.append({"partition_index": one["partition_index"], "error_code": code or 0})
        topics.append({"name": wanted["name"], "partitions": parts})
    known = broker.transactions.machine.get(fields["transactional_id"])
    if accepted and known is not None and not await _stage(call, known, who, group_id, accepted):
        for part in (part for topic in topics for part in topic["partitions"]):
            part["error_code"] = part["error_code"] or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {"topics": topics}


async def _stage(
    call: Call,
    known: Transaction,
    who: tuple[int, int],
    group_id: str,
    offsets: dict[Key, Committed],
) -> bool:
    broker = call.broker
    try:
        broker.group_offsets.stage(known.serial, who, group_id, offsets, broker.clock_ms())
    except StorageError:
        return False
    return await made_durable(broker.flusher.make_durable, [broker.group_offsets.journal])


async def _join(call: Call, fields: Fields) -> ErrorCode | None:
    """Why the group is not part of the transaction; newer clients make it so with this request."""
    machine, group_id = call.broker.transactions.machine, fields["group_id"]
    who = fields["transactional_id"], fields["producer_id"], fields["producer_epoch"]
    if call.version >= JOINS_FROM:
        answer = machine.add(call.broker.clock_ms(), *who, groups=(group_id,))
        fault: ErrorCode | None = (await carry_out(call, answer)).code
    else:
        fault = machine.fault_of(*who, group=group_id)
    if fault is ErrorCode.INVALID_TXN_STATE and call.version >= ABORTABLE_FROM:
        return ErrorCode.TRANSACTION_ABORTABLE
    return older(fault, knows_fenced=False) if fault else None


def _group_fault(call: Call, fields: Fields) -> ErrorCode | None:
    """Why the group's member may not commit. Who names no member is not asked (KIP-447)."""
    group_id = fields["group_id"]
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    fault = call.broker.registry.commit_fault(
        call.broker.now_ms(),
        group_id,
        fields.get("generation_id", -1),
        fields.get("member_id", ""),
        fields.get("group_instance_id"),
        known_parts(call, fields["topics"]),
        call.version,
        is_transactional=True,
    )
    return None if fault is ErrorCode.REBALANCE_IN_PROGRESS else fault


def _offset_fault(call: Call, topic: str, one: Fields) -> ErrorCode | None:
    if hosted(call, topic, one["partition_index"]) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(one["committed_metadata"] or "") > METADATA_CHARACTERS_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return None


# -- administration --------------------------------------------------------------------------------


async def write_markers(call: Call, fields: Fields) -> Fields:
    """Ends transactions in single partitions, whatever their coordinator says: an administrator's
    way out of one that hangs.
    """
    results, touched = [], []
    for marker in fields["markers"]:
        topics = []
        for topic in marker["topics"]:
            parts = []
            for index in topic["partition_indexes"]:
                code = _write_marker(call, marker, topic["name"], index)
                place = hosted(call, topic["name"], index)
                if place is not None:
                    touched.append(place.log)
                parts.append({"partition_index": index, "error_code": code})
            topics.append({"name": topic["name"], "partitions": parts})
        results.append({"producer_id": marker["producer_id"], "topics": topics})
    await call.broker.flusher.make_durable(touched)
    return {"markers": results}


def _write_marker(call: Call, marker: Fields, topic: str, index: int) -> int:
    place = hosted(call, topic, index)
    if place is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        place.log.append_marker(
            marker["producer_id"],
            marker["producer_epoch"],
            commit=marker["transaction_result"],
            coordinator_epoch=marker["coordinator_epoch"],
            now_ms=call.broker.clock_ms(),
        )
    except AppendError as error:
        return int(error.code)
    except StorageError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    place.wake()
    return ErrorCode.NONE


def describe_transactions(call: Call, fields: Fields) -> Fields:
    """Where transactional ids stand."""
    machine = call.broker.transactions.machine
    states = []
    for transactional_id in fields["transactional_ids"]:
        known = machine.get(transactional_id)
        if known is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            states.append({"error_code": code, "transactional_id": transactional_id})
        else:
            states.append(_describe(known))
    return {"transaction_states": states}


def _describe(known: Transaction) -> Fields:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(known.places - {OFFSETS}):
        topics.setdefault(topic, []).append(index)
    return {
        "transactional_id": known.id,
        "transaction_state": known.state.value,
        "transaction_timeout": known.timeout_ms,
        "transaction_start_time": known.started_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.epoch,
        "topics": [{"topic": topic, "partitions": parts} for topic, parts in topics.items()],
    }


async def list_transactions(call: Call, fields: Fields) -> Fields:
    """Transactional ids, by state, producer id, age and pattern."""
    names = {state.value for state in State}
    states, ids = set(fields["state_filters"]), set(fields["producer_id_filters"])
    older_ms = fields.get("duration_filter", -1)
    now_ms = call.broker.clock_ms()
    found = [
        one
        for one in call.broker.transactions.machine
        if (not states or one.state.value in states)
        and (not ids or one.producer_id in ids)
        and (older_ms < 0 or (one.started_ms >= 0 and now_ms - one.started_ms > older_ms))
    ]
    if pattern := fields.get("transactional_id_pattern"):
        loop, ids_found = call.broker.loop, [one.id for one in found]
        try:  # elsewhere: the first expression loads an engine
            wanted = await loop.run_in_executor(None, matching, pattern, ids_found)
        except UserError:
            return {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
        found = [one for one in found if one.id in wanted]
    return {
        "unknown_state_filters": sorted(states - names),
        "transaction_states": [
            {
                "transactional_id": one.id,
                "producer_id": one.producer_id,
                "transaction_state": one.state.value,
            }
            for one in found
        ],
    }


APIS: Final = (
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, add_partitions),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, add_offsets),
    Api(ApiKey.END_TXN, 0, 5, end_txn),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, write_markers),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, txn_offset_commit),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, describe_transactions),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, list_transactions),
)
