"""The table of all rules, and the way from a request to its handler.

Also fills in what a caller may do with the cluster, topics and groups, where a client asks for it
(KIP-430): where authorization is off, everything that makes sense.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.rules import groups as group_rules
from penstock.broker.rules import topics as topic_rules
from penstock.broker.rules import transactions as transaction_rules
from penstock.broker.rules.base import Asked, Rule, free, whole
from penstock.broker.security.acls import SUPPORTED
from penstock.broker.security.model import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["RULES", "serve"]

Entries = dict[str, str]

_CLUSTER: Final = ResourceType.CLUSTER


def _empty(key: str, operation: Operation = Operation.DESCRIBE) -> Rule:
    """An operation on the cluster; the list of a refusal is empty."""

    def refuse(_: Fields, code: ErrorCode) -> Fields:
        return {"error_code": code, "error_message": "Authorization failed.", key: []}

    return whole(operation, _CLUSTER, refuse=refuse)


def _each(operation: Operation, asked: tuple[str, ...], given: str, same: Entries) -> Rule:
    """An operation on the cluster; a refusal is reported for each entry of the request.

    Args:
        operation: which.
        asked: the lists of the request.
        given: the list of the answer.
        same: what an entry of the answer takes over: its key, and the key in the request.
    """

    def refuse(fields: Fields, code: ErrorCode) -> Fields:
        entries = [one for key in asked for one in fields[key]]
        refused = [{key: one[source] for key, source in same.items()} for one in entries]
        error = {"error_code": code, "error_message": "Authorization failed."}
        return {given: [error | one for one in refused]}

    return whole(operation, _CLUSTER, refuse=refuse)


RULES: Final[dict[ApiKey, Rule]] = {
    **topic_rules.RULES,
    **group_rules.RULES,
    **transaction_rules.RULES,
    ApiKey.SASL_HANDSHAKE: free,
    ApiKey.API_VERSIONS: free,
    ApiKey.DESCRIBE_ACLS: _empty("resources"),
    ApiKey.CREATE_ACLS: _each(Operation.ALTER, ("creations",), "results", {}),
    ApiKey.DELETE_ACLS: _each(Operation.ALTER, ("filters",), "filter_results", {}),
    ApiKey.DESCRIBE_LOG_DIRS: _empty("results"),
    ApiKey.SASL_AUTHENTICATE: free,
    ApiKey.ELECT_LEADERS: _empty("replica_election_results", Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _empty("responses", Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _empty("topics"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: whole(
        Operation.DESCRIBE_CONFIGS,
        _CLUSTER,
        refuse=lambda _, code: {"error_code": code, "entries": None},
    ),  # DescribeClientQuotas
    ApiKey.ALTER_CLIENT_QUOTAS: _each(
        Operation.ALTER_CONFIGS, ("entries",), "entries", {"entity": "entity"}
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _empty("results"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _each(
        Operation.ALTER, ("deletions", "upsertions"), "results", {"user": "name"}
    ),
    ApiKey.UPDATE_FEATURES: _empty("results", Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: free,  # as Kafka, to everyone who may connect
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: free,
    ApiKey.PUSH_TELEMETRY: free,
    ApiKey.LIST_CONFIG_RESOURCES: whole(
        Operation.DESCRIBE_CONFIGS,
        _CLUSTER,
        refuse=lambda _, code: {"error_code": code, "config_resources": []},
    ),  # ListConfigResources
}
"""What every request type but Produce and Fetch needs; a test sees that none is missing."""


def serve(call: Call, api: Api, fields: Fields) -> Fields | Awaitable[Fields]:
    """The answer to a request, as far as the caller may have it."""
    asked = Asked(call, api)
    is_on = call.broker.guard.authorizer.is_on
    answer = RULES[api.key](asked, fields) if is_on else api.handle(call, fields)
    wanted = _WANTED.get(api.key)
    if wanted is None or not any(fields.get(key) for key in wanted):
        return answer
    if inspect.isawaitable(answer):
        return _later(asked, fields, answer)
    return _with_operations(asked, fields, answer)


async def _later(asked: Asked, fields: Fields, answer: Awaitable[Fields]) -> Fields:
    return _with_operations(asked, fields, await answer)


_IN_TOPICS: Final = "include_topic_authorized_operations"
_IN_CLUSTER: Final = "include_cluster_authorized_operations"
_IN_GROUPS: Final = "include_authorized_operations"
_WANTED: Final = {
    ApiKey.METADATA: (_IN_TOPICS, _IN_CLUSTER),
    ApiKey.DESCRIBE_GROUPS: (_IN_GROUPS,),
    ApiKey.DESCRIBE_CLUSTER: (_IN_CLUSTER,),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_IN_GROUPS,),
    ApiKey.SHARE_GROUP_DESCRIBE: (_IN_GROUPS,),
}


def _with_operations(asked: Asked, fields: Fields, answer: Fields) -> Fields:
    answer = dict(answer)
    if fields.get(_IN_CLUSTER):
        may_see = asked.may_cluster(Operation.DESCRIBE)
        found = _operations(asked, ResourceType.CLUSTER, CLUSTER_NAME) if may_see else 0
        answer["cluster_authorized_operations"] = found
    for flag, key, name, kind, target in (
        (_IN_TOPICS, "topics", "name", ResourceType.TOPIC, "topic_authorized_operations"),
        (_IN_GROUPS, "groups", "group_id", ResourceType.GROUP, "authorized_operations"),
    ):
        if fields.get(flag):
            answer[key] = [
                one
                if not one[name] or (kind is ResourceType.GROUP and one.get("error_code"))
                else one | {target: _operations(asked, kind, one[name])}
                for one in answer[key]
            ]
    return answer


def _operations(asked: Asked, resource_type: ResourceType, name: str) -> int:
    """The operations that are allowed, one bit each."""
    allowed = [one for one in SUPPORTED[resource_type] if asked.may(one, resource_type, name)]
    return sum(1 << operation for operation in allowed)
