"""The rules of requests about topics and their records (see `rules`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.handlers.base import Fields
from penstock.broker.rules.base import DENIED, Answer, Asked, Rule, denial, split
from penstock.broker.security.model import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["RULES", "Parts", "by_topic"]

NO_TOPIC: Final = DENIED[ResourceType.TOPIC]


@dataclass(frozen=True, slots=True)
class Parts:
    """How a request and its answer name topics and partitions.

    Attributes:
        name: the key of a topic's name, in both.
        asked: the key of the partitions in the request.
        given: the key of the partitions in the answer.
        index: the key of a partition's number, in both; in the request it may stand alone.
        topics: the key of the topics in the answer.
    """

    name: str = "name"
    asked: str = "partitions"
    given: str = "partitions"
    index: str = "partition_index"
    topics: str = "topics"

    def refuse(self, entry: Fields, code: ErrorCode = NO_TOPIC, **more: Any) -> Fields:
        """A topic's part of an answer that says no for each partition."""
        numbers = [one[self.index] if isinstance(one, dict) else one for one in entry[self.asked]]
        refused = {key: entry[key] for key in (self.name, "topic_id") if key in entry}
        return refused | {
            self.given: [{self.index: number, "error_code": code, **more} for number in numbers]
        }


def by_topic(operation: Operation, parts: Parts, **more: Any) -> Rule:
    """Each topic of a request needs an operation on it.

    Args:
        operation: which.
        parts: how the request and its answer are laid out.
        more: what else a refused partition's answer has.
    """

    def rule(asked: Asked, fields: Fields) -> Answer:
        allowed, refused = split(asked, operation, fields["topics"], parts.name)
        if not refused:
            return asked.proceed(fields)

        def finish(answer: Fields) -> Fields:
            given = [*answer.get(parts.topics, ())]
            given += [parts.refuse(one, **more) for one in refused]
            return answer | {parts.topics: given}

        return asked.proceed(fields | {"topics": allowed}, finish)

    return rule


def metadata(asked: Asked, fields: Fields) -> Answer:
    """Topics need DESCRIBE, and CREATE where asking makes them; in a list of all, others are not
    there.
    """
    wanted = fields["topics"]
    if wanted is None or (asked.call.version == 0 and not wanted):

        def visible(answer: Fields) -> Fields:
            topics = answer["topics"]
            shown = [one for one in topics if asked.may_topic(Operation.DESCRIBE, one["name"])]
            return answer | {"topics": shown}

        return asked.proceed(fields, visible)
    allowed, refused = split(asked, Operation.DESCRIBE, wanted)
    broker = asked.call.broker
    may_create = fields.get("allow_auto_topic_creation", True) and broker.config.auto_create_topics
    if may_create and not asked.may_cluster(Operation.CREATE):
        known = []
        for one in allowed:
            name: str = one.get("name") or ""
            is_new = name and broker.topics.get(name) is None
            if is_new and not asked.may_topic(Operation.CREATE, name):
                refused.append(one)
            else:
                known.append(one)
        allowed = known

    def finish(answer: Fields) -> Fields:
        denied = [
            {"error_code": NO_TOPIC, "name": one.get("name"), "topic_id": one.get("topic_id")}
            if one.get("name") is None
            else {"error_code": NO_TOPIC, "name": one["name"]}
            for one in refused
        ]
        return answer | {"topics": [*answer["topics"], *denied]}

    return asked.proceed(fields | {"topics": allowed}, finish)


def create_topics(asked: Asked, fields: Fields) -> Answer:
    """CREATE on the cluster or on each topic; its settings are shown to those who may see them."""
    may_all = asked.may_cluster(Operation.CREATE)
    allowed: list[Any] = []
    refused: list[Any] = []
    for one in fields["topics"]:
        is_allowed = may_all or asked.may_topic(Operation.CREATE, one["name"])
        (allowed if is_allowed else refused).append(one)

    def finish(answer: Fields) -> Fields:
        topics = []
        for one in answer["topics"]:
            if one.get("configs") and not asked.may_topic(Operation.DESCRIBE_CONFIGS, one["name"]):
                hidden = {"configs": None, "num_partitions": -1, "replication_factor": -1}
                topics.append(one | hidden | {"topic_config_error_code": NO_TOPIC})
            else:
                topics.append(one)
        topics += [_refused_topic(one) for one in refused]
        return answer | {"topics": topics}

    return asked.proceed(fields | {"topics": allowed}, finish)


def _refused_topic(one: Fields) -> Fields:
    return denial(ResourceType.TOPIC, name=one["name"], error_message="Authorization failed.")


def delete_topics(asked: Asked, fields: Fields) -> Answer:
    """DELETE on each topic; the name of a topic that may not be described is not shown."""
    wanted = fields.get("topics")
    key = "topics"
    if wanted is None:
        wanted, key = [{"name": name} for name in fields["topic_names"]], "topic_names"
    allowed, refused = split(asked, Operation.DELETE, wanted)
    left = allowed if key == "topics" else [one["name"] for one in allowed]

    def finish(answer: Fields) -> Fields:
        denied = [denial(ResourceType.TOPIC, **one) for one in refused]
        return answer | {"responses": [*answer["responses"], *denied]}

    return asked.proceed(fields | {key: left}, finish)


def create_partitions(asked: Asked, fields: Fields) -> Answer:
    """ALTER on each topic."""
    allowed, refused = split(asked, Operation.ALTER, fields["topics"])

    def finish(answer: Fields) -> Fields:
        return answer | {"results": [*answer["results"], *map(_refused_topic, refused)]}

    return asked.proceed(fields | {"topics": allowed}, finish)


def describe_topic_partitions(asked: Asked, fields: Fields) -> Answer:
    """DESCRIBE on each topic."""
    allowed, refused = split(asked, Operation.DESCRIBE, fields["topics"])

    def finish(answer: Fields) -> Fields:
        shown = [one for one in answer["topics"] if _may_see(asked, one)]
        denied = [denial(ResourceType.TOPIC, name=one["name"]) for one in refused]
        return answer | {"topics": [*shown, *denied]}

    return asked.proceed(fields | {"topics": allowed}, finish)


def _may_see(asked: Asked, topic: Fields) -> bool:
    return not topic.get("name") or asked.may_topic(Operation.DESCRIBE, topic["name"])


def configs(operation: Operation, key: str) -> Rule:
    """An operation on each resource whose settings are meant; the broker's are the cluster's."""

    def resource(one: Fields) -> tuple[ResourceType, str]:
        match one["resource_type"]:
            case 2:
                return ResourceType.TOPIC, one["resource_name"]
            case 32:
                return ResourceType.GROUP, one["resource_name"]
            case _:
                return ResourceType.CLUSTER, CLUSTER_NAME

    def rule(asked: Asked, fields: Fields) -> Answer:
        allowed: list[Any] = []
        refused: list[Any] = []
        for one in fields["resources"]:
            is_allowed = asked.may(operation, *resource(one))
            (allowed if is_allowed else refused).append(one)

        def finish(answer: Fields) -> Fields:
            denied = [
                {
                    "error_code": DENIED[resource(one)[0]],
                    "error_message": "Authorization failed.",
                    "resource_type": one["resource_type"],
                    "resource_name": one["resource_name"],
                    "configs": [],
                }
                for one in refused
            ]
            return answer | {key: [*answer[key], *denied]}

        return asked.proceed(fields | {"resources": allowed}, finish)

    return rule


RULES: Final[dict[ApiKey, Rule]] = {
    ApiKey.LIST_OFFSETS: by_topic(Operation.DESCRIBE, Parts(), offset=-1, timestamp=-1),
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: by_topic(Operation.DELETE, Parts(), low_watermark=-1),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: by_topic(
        Operation.DESCRIBE,
        Parts(name="topic", index="partition"),
        leader_epoch=-1,
        end_offset=-1,
    ),
    ApiKey.DESCRIBE_CONFIGS: configs(Operation.DESCRIBE_CONFIGS, "results"),
    ApiKey.ALTER_CONFIGS: configs(Operation.ALTER_CONFIGS, "responses"),
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs(Operation.ALTER_CONFIGS, "responses"),
    ApiKey.DESCRIBE_PRODUCERS: by_topic(Operation.READ, Parts(asked="partition_indexes")),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
