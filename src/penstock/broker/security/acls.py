"""Access control lists: who may do what with which resource. Pure, and Kafka's model (KIP-11,
KIP-290, KIP-679; its StandardAuthorizer is what is followed where they leave something open).

Rules of a resource are those whose pattern matches its name: literally, `*`, or by a prefix. Of the
rules that match the principal, the host and the operation, one that denies wins. One that allows may
allow more than it says: READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies
DESCRIBE_CONFIGS; a denial implies nothing. Without a matching rule the answer is no, except for a
resource that no rule at all is about where `allow_if_none` is set. Super users may do everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.broker.security.model import CLUSTER_NAME, Operation, ResourceType

__all__ = [
    "ACLS_MAX",
    "ANY_HOST",
    "ANY_NAME",
    "ANY_PRINCIPAL",
    "IMPLIED_BY",
    "SUPPORTED",
    "Acl",
    "AclFilter",
    "AclSet",
    "PatternType",
    "Permission",
    "acl_fault",
]

ACLS_MAX: Final = 10_000
"""Rules of one broker: each takes half a kilobyte, and the file is written whole."""
ANY_NAME: Final = "*"
ANY_HOST: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
TEXT_CHARACTERS_MAX: Final = 2048
"""Longest principal, host or name: certificates' subjects can be long."""


class PatternType(IntEnum):
    """How a rule's name stands for resources; ANY and MATCH are for filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a rule says; ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Which allowed operations allow an operation, where it is more than itself."""

_GROUP = (Operation.READ, Operation.DESCRIBE, Operation.DELETE)
_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (*_GROUP, Operation.WRITE, Operation.CREATE, Operation.ALTER, *_CONFIGS),
    ResourceType.GROUP: (*_GROUP, *_CONFIGS),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
        *_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.DESCRIBE,
        Operation.WRITE,
        Operation.TWO_PHASE_COMMIT,
    ),
}
"""The operations that make sense with each type of resource, and the types that have rules."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One rule."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def is_about(self, resource_type: ResourceType, name: str) -> bool:
        """Whether the pattern matches a resource."""
        if self.resource_type is not resource_type:
            return False
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, ANY_NAME}

    def is_for(self, principal: str, host: str) -> bool:
        """Whether the rule matches who asks."""
        return self.principal in {principal, ANY_PRINCIPAL} and self.host in {host, ANY_HOST}


def acl_fault(acl: Acl) -> str | None:
    """What keeps a rule from being stored, if anything."""
    kind, _, who = acl.principal.partition(":")
    texts = (acl.name, acl.principal, acl.host)
    if acl.resource_type not in SUPPORTED:
        known = ", ".join(one.name for one in SUPPORTED)
        return f"expected a resource type of {known}; found {acl.resource_type.name}"
    if acl.operation not in {Operation.ALL, *SUPPORTED[acl.resource_type]}:
        return f"expected an operation of {acl.resource_type.name}; found {acl.operation.name}"
    if acl.pattern not in {PatternType.LITERAL, PatternType.PREFIXED}:
        return f"expected a LITERAL or PREFIXED pattern; found {acl.pattern.name}"
    if acl.permission not in {Permission.ALLOW, Permission.DENY}:
        return f"expected ALLOW or DENY; found {acl.permission.name}"
    if not kind or not who:
        return f"expected a principal such as User:ann; found {acl.principal!r}"
    if not all(texts) or max(map(len, texts)) > TEXT_CHARACTERS_MAX:
        return f"expected a name, principal and host of 1 to {TEXT_CHARACTERS_MAX} characters"
    if acl.resource_type is ResourceType.CLUSTER and acl.name not in {CLUSTER_NAME, ANY_NAME}:
        return f"expected the cluster's name, {CLUSTER_NAME}; found {acl.name!r}"
    return None


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which rules are meant; None and ANY stand for all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether a rule is meant."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._names(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _names(self, acl: Acl) -> bool:
        match self.pattern:
            case PatternType.ANY:
                return self.name in {None, acl.name}
            case PatternType.MATCH:
                return self.name is None or acl.is_about(acl.resource_type, self.name)
            case pattern:
                return pattern is acl.pattern and self.name in {None, acl.name}


class AclSet:
    """All rules, found by resource.

    Args:
        super_users: principals that may do everything.
        allow_if_none: the answer for a resource that no rule is about.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allow_if_none: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._acls: set[Acl] = set()
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefix_sizes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __len__(self) -> int:
        return len(self._acls)

    def replace(self, acls: Iterable[Acl]) -> None:
        """Forgets all rules and takes these."""
        self._acls = set(acls)
        self._literal, self._prefixed = {}, {}
        for acl in self._acls:
            table = self._prefixed if acl.pattern is PatternType.PREFIXED else self._literal
            table.setdefault((acl.resource_type, acl.name), []).append(acl)
        self._prefix_sizes = tuple(sorted({len(name) for _, name in self._prefixed}))

    def find(self, wanted: AclFilter) -> list[Acl]:
        """The rules that a filter means, in order."""
        return sorted(acl for acl in self._acls if wanted.matches(acl))

    def about(self, resource_type: ResourceType, name: str) -> list[Acl]:
        """The rules whose pattern matches a resource."""
        found = [*self._literal.get((resource_type, name), ())]
        if name != ANY_NAME:
            found += self._literal.get((resource_type, ANY_NAME), ())
        for size in self._prefix_sizes:
            if size > len(name):
                break
            found += self._prefixed.get((resource_type, name[:size]), ())
        return found

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether a principal may perform an operation on a resource."""
        if principal in self._super_users:
            return True
        rules = self.about(resource_type, name)
        if not rules:
            return self._allow_if_none
        implying = IMPLIED_BY.get(operation, frozenset({operation}))
        is_allowed = False
        for acl in rules:
            if not acl.is_for(principal, host):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in {operation, Operation.ALL}:
                    return False
            elif acl.operation is Operation.ALL or acl.operation in implying:
                is_allowed = True
        return is_allowed

    def allows_some(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether a principal may perform an operation on at least one resource that may exist."""
        if principal in self._super_users:
            return True
        denied: list[Acl] = []
        allowed: list[Acl] = []
        implying = IMPLIED_BY.get(operation, frozenset({operation}))
        for acl in self._acls:
            if acl.resource_type is not resource_type or not acl.is_for(principal, host):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in {operation, Operation.ALL}:
                    denied.append(acl)
            elif acl.operation is Operation.ALL or acl.operation in implying:
                allowed.append(acl)
        if any(_is_everything(acl) for acl in denied):
            return False
        if self._allow_if_none or any(_is_everything(acl) for acl in allowed):
            return True
        return any(not any(_covers(no, yes) for no in denied) for yes in allowed)

    def check(self) -> None:
        """Asserts that the tables hold exactly the rules."""
        tables = [*self._literal.values(), *self._prefixed.values()]
        held = [acl for table in tables for acl in table]
        assert len(held) == len(self._acls)
        assert set(held) == self._acls
        assert all(acl_fault(acl) is None for acl in held)


def _is_everything(acl: Acl) -> bool:
    return acl.pattern is PatternType.LITERAL and acl.name == ANY_NAME


def _covers(denial: Acl, allowance: Acl) -> bool:
    """Whether a denial is about all that an allowance is about."""
    if denial.pattern is PatternType.PREFIXED:
        return allowance.name.startswith(denial.name)
    return allowance.pattern is PatternType.LITERAL and allowance.name == denial.name
