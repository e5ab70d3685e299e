"""Quotas: DescribeClientQuotas, AlterClientQuotas (KIP-546)."""

from __future__ import annotations

import math
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.security.quotas import CLIENT, USER, Entity, Quota, entity_of
from penstock.errors import LimitError, SetupError, UserError
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

EXACT, DEFAULT, ANY = 0, 1, 2


def describe_quotas(call: Call, fields: Fields) -> Fields:
    """The quotas of the entities that a filter means."""
    components = fields["components"]
    wrong = [one for one in components if one["entity_type"] not in {USER, CLIENT}]
    if wrong or any(one["match_type"] not in {EXACT, DEFAULT, ANY} for one in components):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": f"expected to match {USER} and {CLIENT} exactly (0), by default (1) "
            "or at all (2)",
            "entries": None,
        }
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
        }
        for entity, values in call.broker.guard.quotas
        if _is_meant(entity, components, strict=fields["strict"])
    ]
    return {"entries": entries}


def _is_meant(entity: Entity, components: list[Fields], *, strict: bool) -> bool:
    names = dict(entity)
    for one in components:
        kind = one["entity_type"]
        if kind not in names:
            return False
        if one["match_type"] == EXACT and names[kind] != one["match"]:
            return False
        if one["match_type"] == DEFAULT and names[kind] is not None:
            return False
    return not strict or len(names) == len(components)


def alter_quotas(call: Call, fields: Fields) -> Fields:
    """Sets and removes limits, each entity by itself."""
    results = []
    for entry in fields["entries"]:
        result: Fields = {"entity": entry["entity"]}
        try:
            names = {one["entity_type"]: one["entity_name"] for one in entry["entity"]}
            values = {one["key"]: _value(one) for one in entry["ops"]}
            if len(names) != len(entry["entity"]):
                raise UserError("expected each entity type once")
            if not fields["validate_only"]:
                call.broker.guard.quotas.change({entity_of(names): values})
            else:
                entity_of(names)
        except UserError as error:
            result |= {"error_code": ErrorCode.INVALID_REQUEST, "error_message": str(error)}
        except (OSError, SetupError, LimitError) as error:
            result |= {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR, "error_message": str(error)}
        results.append(result)
    return {"entries": results}


def _value(change: Fields) -> float | None:
    if change["key"] not in set(Quota):
        raise UserError(f"expected one of {', '.join(Quota)}; found {change['key']!r}")
    if change["remove"]:
        return None
    value = float(change["value"])
    if not (value > 0 and math.isfinite(value)):
        raise UserError(f"expected a limit above 0; found {value}")
    return value


APIS: Final = (
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, describe_quotas),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, alter_quotas),
)
