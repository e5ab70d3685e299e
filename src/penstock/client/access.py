"""Quotas, access control lists and users of a broker or cluster, for its operators.

    AccessAdmin.quotas, set_quotas              KIP-546
    AccessAdmin.rules, add_rules, remove_rules  KIP-11, KIP-290
    AccessAdmin.users, put_user, remove_user    KIP-554: SCRAM credentials

Numbers of resource types, patterns, operations and permissions are Kafka's. A password never leaves
this process: what is sent is what the mechanism derives from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.client import Client
from penstock.wire import scram
from penstock.wire.protocol import ApiKey

__all__ = ["AccessAdmin", "Rule", "RuleFilter"]

MECHANISM_NUMBERS: Final = {name: number for number, name in enumerate(scram.MECHANISMS, start=1)}
"""Kafka's ScramMechanism numbers."""
SALT_BYTES: Final = 16
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter of quotas matches names."""

Entity = tuple[tuple[str, str | None], ...]
"""Types (`user`, `client-id`) and names; None: the default."""


class Rule(NamedTuple):
    """One rule of an access control list."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class RuleFilter(NamedTuple):
    """Which rules are meant; None and the number of ANY stand for all."""

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def fields(self) -> dict[str, Any]:
        """As messages carry it."""
        return {
            "resource_type_filter": self.resource_type,
            "resource_name_filter": self.name,
            "pattern_type_filter": self.pattern,
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }


class AccessAdmin(Client):
    """A client for who may do what, and how much; not to be shared between threads."""

    def _ask(self, api: ApiKey, what: str, fields: dict[str, Any], *lists: str) -> dict[str, Any]:
        return self._cluster.request(what, self._cluster.controller, api, fields, *lists)

    # -- quotas ------------------------------------------------------------------------------------

    def quotas(self) -> dict[Entity, dict[str, float]]:
        """All quotas of users and client ids, by entity."""
        found: dict[Entity, dict[str, float]] = {}
        for kind in ("user", "client-id"):
            one = {"entity_type": kind, "match_type": ANY, "match": None}
            fields = {"components": [one], "strict": False}
            answer = self._ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, "describe quotas", fields)
            for entry in answer["entries"] or ():
                names = ((each["entity_type"], each["entity_name"]) for each in entry["entity"])
                values = {each["key"]: each["value"] for each in entry["values"]}
                found[tuple(sorted(names))] = values
        return found

    def set_quotas(self, entity: Entity, values: Mapping[str, float | None]) -> None:
        """Sets limits of an entity; None removes one."""
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [
                {"key": key, "value": value or 0.0, "remove": value is None}
                for key, value in values.items()
            ],
        }
        fields = {"entries": [entry], "validate_only": False}
        self._ask(ApiKey.ALTER_CLIENT_QUOTAS, "change a quota", fields, "entries")

    # -- access control lists ----------------------------------------------------------------------

    def rules(self, wanted: RuleFilter) -> list[Rule]:
        """The rules that are meant, in order."""
        answer = self._ask(ApiKey.DESCRIBE_ACLS, "describe access control lists", wanted.fields())
        return sorted(
            _rule({**resource, **one})
            for resource in answer["resources"]
            for one in resource["acls"]
        )

    def add_rules(self, rules: Iterable[Rule]) -> None:
        """Adds rules."""
        creations = [
            {
                "resource_type": one.resource_type,
                "resource_name": one.name,
                "resource_pattern_type": one.pattern,
                "principal": one.principal,
                "host": one.host,
                "operation": one.operation,
                "permission_type": one.permission,
            }
            for one in rules
        ]
        what = "add access control lists"
        self._ask(ApiKey.CREATE_ACLS, what, {"creations": creations}, "results")

    def remove_rules(self, filters: Iterable[RuleFilter]) -> set[Rule]:
        """Removes the rules that are meant; which."""
        what = "remove access control lists"
        fields = {"filters": [one.fields() for one in filters]}
        lists = "filter_results", "matching_acls"
        answer = self._ask(ApiKey.DELETE_ACLS, what, fields, *lists)
        return {
            _rule(one) for result in answer["filter_results"] for one in result["matching_acls"]
        }

    # -- users -------------------------------------------------------------------------------------

    def users(self) -> dict[str, dict[str, int]]:
        """Each user's mechanisms and their iterations."""
        names = {number: name for name, number in MECHANISM_NUMBERS.items()}
        answer = self._ask(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "describe users", {"users": None}
        )
        return {
            one["user"]: {
                names.get(each["mechanism"], str(each["mechanism"])): each["iterations"]
                for each in one["credential_infos"]
            }
            for one in sorted(answer["results"], key=lambda one: str(one["user"]))
        }

    def put_user(self, name: str, password: str) -> bool:
        """Adds a user, or changes the password; whether it is a new one."""
        is_new = name not in self.users()
        changes = []
        for mechanism, number in MECHANISM_NUMBERS.items():
            salt = os.urandom(SALT_BYTES)
            salted = scram.salt_password(mechanism, password, salt, scram.ITERATIONS)
            changes.append(
                {
                    "name": name,
                    "mechanism": number,
                    "iterations": scram.ITERATIONS,
                    "salt": salt,
                    "salted_password": salted,
                }
            )
        self._alter_users(f"store the user {name!r}", upsertions=changes)
        return is_new

    def remove_user(self, name: str) -> bool:
        """Removes all of a user's credentials; whether there were any."""
        mechanisms = self.users().get(name)
        if not mechanisms:
            return False
        gone = [{"name": name, "mechanism": MECHANISM_NUMBERS[one]} for one in mechanisms]
        self._alter_users(f"remove the user {name!r}", deletions=gone)
        return True

    def _alter_users(self, what: str, **changes: Any) -> None:
        fields = {"deletions": [], "upsertions": []} | changes
        self._ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, what, fields, "results")


def _rule(fields: Mapping[str, Any]) -> Rule:
    return Rule(
        fields["resource_type"],
        fields["resource_name"],
        fields["pattern_type"],
        fields["principal"],
        fields["host"],
        fields["operation"],
        fields["permission_type"],
    )
