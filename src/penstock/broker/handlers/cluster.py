"""Who is there: ApiVersions, Metadata, DescribeCluster, UpdateFeatures."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields, missing
from penstock.broker.storage.topics import Hosted, Topic, name_fault
from penstock.errors import LimitError
from penstock.log.partition import LEADER_EPOCH
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS", "NODE_ID", "described"]

NODE_ID: Final = 1
"""The only broker's id."""
FEATURES: Final[dict[str, int]] = {
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
}
"""Kafka's features, by level. group.version 1: the group protocol of KIP-848; share.version 1: share
groups (KIP-932); transaction.version 2: an epoch per transaction (KIP-890)."""
ZERO_MINIMUM_FROM: Final = 4
"""Version of ApiVersions from which on clients understand a feature's least version of 0."""
UPGRADE_TYPE_FROM: Final = 1
"""Version of UpdateFeatures from which on a request carries the kind of its update."""
UPGRADE: Final = 1
DOWNGRADES: Final = (2, 3)
"""Safe, unsafe."""
OPERATIONS_OMITTED: Final = -(1 << 31)
"""Kafka's mark for authorized operations that the request didn't ask for."""
_log = logging.getLogger(__name__)


def api_versions(call: Call, _: Fields) -> Fields:
    """The request types that are served, and the features that clients may use."""
    return {
        "api_keys": call.broker.advertised,
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level}
            for name, level in FEATURES.items()
            if call.version >= ZERO_MINIMUM_FROM
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in FEATURES.items()
        ],
    }


def metadata(call: Call, fields: Fields) -> Fields:
    """The broker's address and the topics; makes topics on first use where that is configured.

    As with Kafka, the request that creates a topic is answered that it doesn't exist; the next request
    finds it.
    """
    wanted = fields["topics"]
    if wanted is None or (call.version == 0 and not wanted):
        topics = [described(topic, topic.partitions) for topic in call.broker.topics]
        topics += [
            {"error_code": missing(call, name)[0], "name": name}
            for name in call.broker.topics.refused
        ]
    else:
        may_create = fields.get("allow_auto_topic_creation", True)
        topics = [_look_up(call, one, may_create=may_create) for one in wanted]
    return {
        "brokers": [_node(call) | {"node_id": NODE_ID}],
        "cluster_id": call.broker.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "cluster_authorized_operations": OPERATIONS_OMITTED,
    }


def _node(call: Call) -> Fields:
    host, port = call.address
    return {"host": host, "port": port, "rack": None}


def _look_up(call: Call, wanted: Fields, *, may_create: bool) -> Fields:
    name, topic_id = wanted["name"], wanted.get("topic_id")
    broker = call.broker
    if name is None:
        topic = broker.topics.by_id(topic_id.bytes) if topic_id is not None else None
        if topic is None:
            return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id}
        return described(topic, topic.partitions)
    topic = broker.topics.get(name)
    code, _ = missing(call, name)
    if name_fault(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic is None and may_create and _is_free(call, name):
        code = _make(call, name)
    return (
        described(topic, topic.partitions)
        if topic is not None
        else {"error_code": code, "name": name}
    )


def _make(call: Call, name: str) -> ErrorCode:
    """Makes a topic on first use; returns the error code for the answer."""
    try:
        call.broker.topics.create(name, call.broker.config.default_partitions, {})
    except LimitError as error:
        _log.warning("did not make topic %s: %s", name, error)
        return ErrorCode.INVALID_PARTITIONS
    except OSError as error:
        _log.warning("did not make topic %s: %s", name, error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _is_free(call: Call, name: str) -> bool:
    return call.broker.config.auto_create_topics and not call.broker.topics.is_taken(name)


def described(topic: Topic, partitions: Iterable[Hosted]) -> Fields:
    """A topic with some of its partitions, as answers describe them."""
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "topic_authorized_operations": OPERATIONS_OMITTED,
        "partitions": [
            {
                "partition_index": one.index,
                "leader_id": NODE_ID,
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": [NODE_ID],
                "isr_nodes": [NODE_ID],
            }
            for one in partitions
        ],
    }


def describe_cluster(call: Call, _: Fields) -> Fields:
    """The broker's address, for administration clients."""
    return {
        "endpoint_type": 1,
        "cluster_id": call.broker.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [_node(call) | {"broker_id": NODE_ID}],
        "cluster_authorized_operations": OPERATIONS_OMITTED,
    }


def update_features(call: Call, fields: Fields) -> Fields:
    """Whether features may have the levels that are asked for: those that they have. All or none."""
    updates = fields["feature_updates"]
    for one in updates:
        fault = _feature_fault(one, call.version)
        if fault is not None:
            return {"error_code": ErrorCode.INVALID_UPDATE_VERSION, "error_message": fault}
    return {"results": [{"feature": one["feature"]} for one in updates]}


def _feature_fault(update: Fields, version: int) -> str | None:
    name, level = update["feature"], update["max_version_level"]
    kinds = (UPGRADE, *DOWNGRADES)
    kind = update["upgrade_type"] if version >= UPGRADE_TYPE_FROM else UPGRADE
    if kind not in kinds:
        return f"expected an upgrade type of {', '.join(map(str, kinds))} for {name}; found {kind}"
    if name not in FEATURES:
        return f"expected one of {', '.join(FEATURES)}; found {name!r}"
    if level != FEATURES[name]:
        return (
            f"expected level {FEATURES[name]} of {name}; found {level}; "
            "this broker's features stay at the newest levels that it knows"
        )
    return None


APIS: Final = (
    Api(ApiKey.METADATA, 0, 13, metadata),
    Api(ApiKey.API_VERSIONS, 0, 4, api_versions),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, update_features),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, describe_cluster),
)
