"""The rules of a data directory, in `security/acls.json`, and the answers that they give.

Authorization is on where it is configured, and from the first rule on. It stays on when the last rule
is removed; then only super users are allowed anything. Only removing the file turns it off, at the next
start. Answers about one connection are remembered until the rules change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.broker.security.acls import (
    ACLS_MAX,
    Acl,
    AclFilter,
    AclSet,
    PatternType,
    Permission,
    acl_fault,
)
from penstock.broker.security.files import SecurityFile
from penstock.broker.security.model import Caller, Operation, ResourceType
from penstock.errors import LimitError, SetupError, UserError

__all__ = ["Authorizer"]

_log = logging.getLogger(__name__)


class Authorizer:
    """Who may do what in a data directory.

    Args:
        data: the data directory.
        super_users: principals that may do everything.
        allow_if_none: the answer for a resource that no rule is about.
        always: whether to be on without any rule, too.

    Raises:
        SetupError: the file can't be read.
    """

    def __init__(
        self,
        data: Path,
        super_users: Iterable[str] = (),
        *,
        allow_if_none: bool = False,
        always: bool = False,
    ) -> None:
        self._file = SecurityFile(data, "acls.json", "acls")
        self._is_on = always
        self.acls = AclSet(super_users, allow_if_none=allow_if_none)
        #: Grows with each change, so that remembered answers can be checked for validity.
        self.generation = 0
        self._load()

    @property
    def is_on(self) -> bool:
        """Whether anything is refused at all."""
        return self._is_on

    def _load(self) -> None:
        try:
            found = self._file.load()
            self.acls.replace([_read(one) for one in found or ()])
        except (KeyError, TypeError, ValueError) as error:
            raise SetupError(
                f"expected access control lists in {str(self._file.path)!r}; found: {error!r}; "
                "restore the file"
            ) from None
        self._is_on |= found is not None
        self.generation += 1

    def refresh(self) -> None:
        """Reads the file again if it has changed; keeps what it had where that fails."""
        if self._file.has_changed():
            try:
                self._load()
            except SetupError as error:
                _log.warning("keeping the access control lists that are known: %s", error)

    def allows(
        self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a caller may do something with a resource."""
        is_allowed = self.acls.allows(
            caller.principal, caller.client_host, operation, resource_type, name
        )
        if not is_allowed:
            _log.debug(
                "%s from %s may not %s %s %r",
                caller.principal,
                caller.client_host,
                operation.name,
                resource_type.name,
                name,
            )
        return is_allowed

    def allows_some(
        self, caller: Caller, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether a caller may do something with at least one resource."""
        return self.acls.allows_some(caller.principal, caller.client_host, operation, resource_type)

    def add(self, acls: Sequence[Acl]) -> None:
        """Adds rules, all or none; those that are there already stay.

        Raises:
            UserError: one makes no sense.
            LimitError: there would be too many.
            SetupError, OSError: the file can't be written.
        """
        for acl in acls:
            if fault := acl_fault(acl):
                raise UserError(fault)
        self._change(lambda known: known | set(acls))

    def remove(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Removes the rules that filters mean; for each filter, those that it meant."""
        found: list[list[Acl]] = []

        def without(known: set[Acl]) -> set[Acl]:
            found.extend(sorted(acl for acl in known if one.matches(acl)) for one in filters)
            return known - {acl for acls in found for acl in acls}

        self._change(without)
        return found

    def _change(self, change: Callable[[set[Acl]], set[Acl]]) -> None:
        with self._file.locked():
            self._load()
            known = set(self.acls)
            changed = change(known)
            if len(changed) > max(ACLS_MAX, len(known)):
                raise LimitError(
                    f"expected at most {ACLS_MAX} rules; found {len(changed)}; use prefixes, or "
                    "remove some"
                )
            if changed == known:
                return
            self._file.store([_write(acl) for acl in sorted(changed)])
            self.acls.replace(changed)
            self._is_on = True
            self.generation += 1


def _write(acl: Acl) -> dict[str, str]:
    return {
        "resource_type": acl.resource_type.name,
        "name": acl.name,
        "pattern": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def _read(fields: dict[str, Any]) -> Acl:
    acl = Acl(
        ResourceType[fields["resource_type"]],
        fields["name"],
        PatternType[fields["pattern"]],
        fields["principal"],
        fields["host"],
        Operation[fields["operation"]],
        Permission[fields["permission"]],
    )
    if fault := acl_fault(acl):
        raise ValueError(fault)
    return acl
