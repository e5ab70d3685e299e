"""The rules of requests about transactions and producers (see `rules`)."""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.handlers.base import Fields
from penstock.broker.rules.base import DENIED, Answer, Asked, Rule, denial, split, whole
from penstock.broker.rules.topics import Parts
from penstock.broker.security.model import Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["RULES"]

NO_TOPIC: Final = DENIED[ResourceType.TOPIC]
NO_TRANSACTION: Final = DENIED[ResourceType.TRANSACTIONAL_ID]


def init_producer_id(asked: Asked, fields: Fields) -> Answer:
    """WRITE on the transactional id; without one, IDEMPOTENT_WRITE on the cluster or WRITE on any
    topic (KIP-679).
    """
    refusal: Fields = {"producer_id": -1, "producer_epoch": -1}
    name = fields["transactional_id"]
    if name is not None:
        if asked.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            return asked.proceed(fields)
        return denial(ResourceType.TRANSACTIONAL_ID, **refusal)
    may_write_some = asked.call.broker.guard.authorizer.allows_some(
        asked.call, Operation.WRITE, ResourceType.TOPIC
    )
    if may_write_some or asked.may_cluster(Operation.IDEMPOTENT_WRITE):
        return asked.proceed(fields)
    return denial(ResourceType.CLUSTER, **refusal)


def _partitions(
    topics: list[Fields], refused: dict[str, ErrorCode], rest: ErrorCode
) -> list[Fields]:
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": refused.get(topic["name"], rest),
                }
                for index in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def add_partitions(asked: Asked, fields: Fields) -> Answer:
    """WRITE on the transactional id and on each topic; one topic that may not be written keeps the
    others out of the transaction, too. The form for several transactions is for brokers.
    """
    if "transactions" in fields:
        if asked.may_cluster(Operation.CLUSTER_ACTION):
            return asked.proceed(fields)
        return denial(ResourceType.CLUSTER)
    topics = fields["v3_and_below_topics"]
    name = fields["v3_and_below_transactional_id"]
    if not asked.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return {"results_by_topic_v3_and_below": _partitions(topics, {}, NO_TRANSACTION)}
    _, refused = split(asked, Operation.WRITE, topics)
    if not refused:
        return asked.proceed(fields)
    codes = {one["name"]: NO_TOPIC for one in refused}
    rest = ErrorCode.OPERATION_NOT_ATTEMPTED
    return {"results_by_topic_v3_and_below": _partitions(topics, codes, rest)}


def add_offsets(asked: Asked, fields: Fields) -> Answer:
    """WRITE on the transactional id, READ on the group."""
    if not asked.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, fields["transactional_id"]):
        return denial(ResourceType.TRANSACTIONAL_ID)
    if not asked.may_group(Operation.READ, fields["group_id"]):
        return denial(ResourceType.GROUP)
    return asked.proceed(fields)


def commit_offsets(asked: Asked, fields: Fields) -> Answer:
    """WRITE on the transactional id, READ on the group and on each topic."""
    parts, topics = Parts(), fields["topics"]
    code = None
    if not asked.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, fields["transactional_id"]):
        code = NO_TRANSACTION
    elif not asked.may_group(Operation.READ, fields["group_id"]):
        code = DENIED[ResourceType.GROUP]
    if code is not None:
        return {"topics": [parts.refuse(one, code) for one in topics]}
    allowed, refused = split(asked, Operation.READ, topics)

    def finish(answer: Fields) -> Fields:
        return answer | {"topics": [*answer["topics"], *map(parts.refuse, refused)]}

    return asked.proceed(fields | {"topics": allowed}, finish)


def describe_transactions(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on each transactional id; of its topics, those that may be seen."""
    allowed: list[Any] = []
    refused: list[Any] = []
    for name in fields["transactional_ids"]:
        is_allowed = asked.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        (allowed if is_allowed else refused).append(name)

    def finish(answer: Fields) -> Fields:
        shown = []
        for one in answer["transaction_states"]:
            topics = [
                topic
                for topic in one.get("topics", ())
                if asked.may_topic(Operation.DESCRIBE, topic["topic"])
            ]
            shown.append(one | {"topics": topics})
        denied = [denial(ResourceType.TRANSACTIONAL_ID, transactional_id=one) for one in refused]
        return answer | {"transaction_states": [*shown, *denied]}

    return asked.proceed(fields | {"transactional_ids": allowed}, finish)


def list_transactions(asked: Asked, fields: Fields) -> Answer:
    """Those whose transactional id may be DESCRIBEd."""

    def finish(answer: Fields) -> Fields:
        states = [
            one
            for one in answer.get("transaction_states", ())
            if asked.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, one["transactional_id"])
        ]
        return answer | {"transaction_states": states}

    return asked.proceed(fields, finish)


def write_markers(asked: Asked, fields: Fields) -> Answer:
    """CLUSTER_ACTION or ALTER on the cluster: ending others' transactions."""
    if asked.may_cluster(Operation.ALTER) or asked.may_cluster(Operation.CLUSTER_ACTION):
        return asked.proceed(fields)
    code = DENIED[ResourceType.CLUSTER]
    parts = Parts(asked="partition_indexes")
    markers = [
        {
            "producer_id": one["producer_id"],
            "topics": [parts.refuse(topic, code) for topic in one["topics"]],
        }
        for one in fields["markers"]
    ]
    return {"markers": markers}


RULES: Final[dict[ApiKey, Rule]] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets,
    ApiKey.END_TXN: whole(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id"),
    ApiKey.WRITE_TXN_MARKERS: write_markers,
    ApiKey.TXN_OFFSET_COMMIT: commit_offsets,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
}
