"""Who is there, and who may do what: SaslHandshake, SaslAuthenticate, SCRAM credentials of users
(KIP-554), access control lists.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.security.acls import Acl, AclFilter, PatternType, Permission, acl_fault
from penstock.broker.security.model import Operation, ResourceType
from penstock.broker.security.sasl import LogInError
from penstock.broker.security.users import name_fault
from penstock.errors import LimitError, SetupError, UserError
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, Credential

__all__ = ["APIS"]

MECHANISM_NUMBERS: Final = dict(enumerate(MECHANISMS, start=1))
"""Kafka's ScramMechanism numbers."""
_NUMBERS: Final = {name: number for number, name in MECHANISM_NUMBERS.items()}


def sasl_handshake(call: Call, fields: Fields) -> Fields:
    """Begins a log-in."""
    session = call.connection.session
    if session is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE}
    if not session.choose(fields["mechanism"]):
        call.connection.finish()
        return {
            "error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "mechanisms": session.mechanisms,
        }
    return {"mechanisms": session.mechanisms}


async def sasl_authenticate(call: Call, fields: Fields) -> Fields:
    """One step of a log-in; a failure is answered late, and is the connection's end."""
    session, guard, loop = call.connection.session, call.broker.guard, call.broker.loop
    if session is None:
        return {
            "error_code": ErrorCode.ILLEGAL_SASL_STATE,
            "error_message": "expected SaslAuthenticate on a listener with SASL",
        }
    try:
        answer = await session.authenticate(fields["auth_bytes"], loop.time())
    except LogInError as error:
        await asyncio.sleep(guard.failures.add(call.client_host, loop.time()))
        call.connection.finish()
        return {
            "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
            "error_message": str(error),
        }
    if session.is_done:
        assert session.principal is not None
        call.connection.trust(session.principal)
    lifetime_ms = round(session.lifetime_s * 1000) if session.is_done else 0
    return {"auth_bytes": answer, "session_lifetime": lifetime_ms}


def describe_scram_credentials(call: Call, fields: Fields) -> Fields:
    """Users' mechanisms and iterations."""
    known = call.broker.guard.users.describe()
    wanted = [one["name"] for one in fields["users"] or ()]
    results = []
    for name in dict.fromkeys(wanted or known):
        result: Fields = {"user": name}
        if wanted.count(name) > 1:
            result |= _fault(
                ErrorCode.DUPLICATE_RESOURCE, f"expected {name!r} once; found it twice"
            )
        elif name not in known:
            result |= _fault(
                ErrorCode.RESOURCE_NOT_FOUND, f"expected a user with SCRAM; found {name!r}"
            )
        else:
            result["credential_infos"] = [
                {"mechanism": _NUMBERS[mechanism], "iterations": iterations}
                for mechanism, iterations in known[name].items()
            ]
        results.append(result)
    return {"results": results}


def alter_scram_credentials(call: Call, fields: Fields) -> Fields:
    """Sets and removes credentials: all of a user's changes, or none of them."""
    users = call.broker.guard.users
    faults: dict[str, Fields] = {}
    put: list[tuple[str, Credential]] = []
    remove: list[tuple[str, str]] = []
    seen: set[tuple[str, int]] = set()
    for one in [*fields["deletions"], *fields["upsertions"]]:
        name, number = one["name"], one["mechanism"]
        fault = _change_fault(call, one)
        if fault is None and (name, number) in seen:
            fault = _fault(ErrorCode.DUPLICATE_RESOURCE, "expected each credential once")
        seen.add((name, number))
        if fault is not None:
            faults.setdefault(name, fault)
        elif "salt" in one:
            credential = Credential.from_salted(
                MECHANISM_NUMBERS[number], one["salted_password"], one["salt"], one["iterations"]
            )
            put.append((name, credential))
        else:
            remove.append((name, MECHANISM_NUMBERS[number]))
    names = dict.fromkeys(name for name, _ in seen)
    try:
        users.change(
            [one for one in put if one[0] not in faults],
            [one for one in remove if one[0] not in faults],
        )
    except (OSError, SetupError, LimitError, UserError) as error:
        faults |= dict.fromkeys(names, _fault(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
    call.broker.guard.expel(but=call.connection)
    return {"results": [{"user": name} | faults.get(name, {}) for name in names]}


def _change_fault(call: Call, change: Fields) -> Fields | None:
    name, mechanism = change["name"], MECHANISM_NUMBERS.get(change["mechanism"])
    if name_fault(name):
        return _fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, name_fault(name) or "")
    if mechanism is None:
        return _fault(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, "expected SCRAM-SHA-256 (1) or SCRAM-SHA-512 (2)"
        )
    if "salt" not in change:
        if call.broker.guard.users.has(name, mechanism):
            return None
        return _fault(ErrorCode.RESOURCE_NOT_FOUND, f"expected {mechanism} of {name!r}; found none")
    if not ITERATIONS_MIN <= change["iterations"] <= ITERATIONS_MAX:
        return _fault(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations; found "
            f"{change['iterations']}",
        )
    if not change["salt"] or not change["salted_password"]:
        return _fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "expected a salt and a salted password")
    return None


def _fault(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


def describe_acls(call: Call, fields: Fields) -> Fields:
    """The rules that a filter means, by resource."""
    if not call.broker.guard.authorizer.is_on:
        return _NO_AUTHORIZER | {"resources": []}
    wanted = _filter(fields, "resource_type_filter")
    if wanted is None:
        return _fault(ErrorCode.INVALID_REQUEST, _NO_FILTER) | {"resources": []}
    by_resource: dict[tuple[int, str, int], list[Fields]] = {}
    for acl in call.broker.guard.authorizer.acls.find(wanted):
        where = acl.resource_type, acl.name, acl.pattern
        by_resource.setdefault(where, []).append(
            {
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
        )
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in by_resource.items()
        ]
    }


def create_acls(call: Call, fields: Fields) -> Fields:
    """Adds rules, each by itself."""
    authorizer, creations = call.broker.guard.authorizer, fields["creations"]
    if not authorizer.is_on:
        return {"results": [_NO_AUTHORIZER for _ in creations]}
    results: list[Fields] = []
    good: list[Acl] = []
    for one in creations:
        acl, fault = _acl(one)
        if acl is None:
            results.append(_fault(ErrorCode.INVALID_REQUEST, fault))
        else:
            good.append(acl)
            results.append({"error_code": 0})
    try:
        authorizer.add(good)
    except (OSError, SetupError, LimitError) as error:
        refused = _fault(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        results = [one if one["error_code"] else refused for one in results]
    return {"results": results}


def delete_acls(call: Call, fields: Fields) -> Fields:
    """Removes the rules that filters mean."""
    authorizer = call.broker.guard.authorizer
    if not authorizer.is_on:
        return {"filter_results": [_NO_AUTHORIZER for _ in fields["filters"]]}
    filters = [_filter(one, "resource_type_filter") for one in fields["filters"]]
    try:
        removed = iter(authorizer.remove([one for one in filters if one is not None]))
    except (OSError, SetupError) as error:
        fault = _fault(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return {"filter_results": [fault for _ in filters]}
    return {
        "filter_results": [
            _fault(ErrorCode.INVALID_REQUEST, _NO_FILTER)
            if one is None
            else {"matching_acls": [_describe(acl) for acl in next(removed)]}
            for one in filters
        ]
    }


_NO_AUTHORIZER: Final = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "expected access control lists to be in use; start the broker with "
    "--authorize, or enter the first one with penstock acl add",
}
_NO_FILTER: Final = "expected known types, operations and permissions in a filter"


def _filter(fields: Fields, kind: str) -> AclFilter | None:
    try:
        wanted = AclFilter(
            ResourceType(fields[kind]),
            fields["resource_name_filter"],
            PatternType(fields["pattern_type_filter"]),
            fields["principal_filter"],
            fields["host_filter"],
            Operation(fields["operation"]),
            Permission(fields["permission_type"]),
        )
    except ValueError:
        return None
    known = wanted.resource_type, wanted.pattern, wanted.operation, wanted.permission
    return wanted if all(known) else None


def _acl(fields: Fields) -> tuple[Acl | None, str]:
    try:
        acl = Acl(
            ResourceType(fields["resource_type"]),
            fields["resource_name"],
            PatternType(fields["resource_pattern_type"]),
            fields["principal"],
            fields["host"],
            Operation(fields["operation"]),
            Permission(fields["permission_type"]),
        )
    except ValueError as error:
        return None, str(error)
    fault = acl_fault(acl)
    return (acl, "") if fault is None else (None, fault)


def _describe(acl: Acl) -> Fields:
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


APIS: Final = (
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, describe_acls),
    Api(ApiKey.CREATE_ACLS, 1, 3, create_acls),
    Api(ApiKey.DELETE_ACLS, 1, 3, delete_acls),
    Api(ApiKey.SASL_HANDSHAKE, 1, 1, sasl_handshake),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, sasl_authenticate),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, describe_scram_credentials),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, alter_scram_credentials),
)
