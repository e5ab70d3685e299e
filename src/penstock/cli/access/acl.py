"""`penstock acl`: who may do what with a broker, in its data directory or by its address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.support.security import place_options, remote_of
from penstock.cli.support.tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.access import Rule

F = TypeVar("F", bound=Callable[..., Any])

_RESOURCES: Final = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional_id": "TRANSACTIONAL_ID",
}


def _rule_options(command: F) -> F:
    for option in reversed(
        (
            click.option("--topic", metavar="NAME", help="About a topic; * for all."),
            click.option("--group", metavar="NAME", help="About a consumer or share group."),
            click.option("--transactional-id", metavar="NAME", help="About a transactional id."),
            click.option("--cluster", is_flag=True, help="About the cluster."),
            click.option("--prefix", is_flag=True, help="The name is a prefix."),
            click.option("--host", metavar="ADDRESS", help="Only from this address."),
            click.option(
                "--operation",
                "operations",
                multiple=True,
                metavar="NAME",
                help="read, write, create, delete, alter, describe, …, all; several times.",
            ),
            click.option(
                "--deny", is_flag=True, help="Deny; this takes precedence over what is allowed."
            ),
        )
    ):
        command = option(command)
    return command


@click.group(
    epilog="""\b
Examples:
  penstock acl add User:ann --topic orders --operation read --operation write
  penstock acl add User:app --topic app- --prefix --operation all
  penstock acl add User:app --group app --operation read
  penstock acl list
  penstock acl remove User:ann --topic orders
  penstock acl list --broker kafka+tls://admin@broker.example:9094
"""
)
def acl() -> None:
    """Manage access control lists (Kafka's model).

    Once there is a rule, everything that no rule allows is refused. Start the broker with --super-user
    User:NAME for an administrator. With --data it changes the directory of a broker on this machine,
    which applies changes within seconds; with --broker it changes a broker or a cluster with
    authorization turned on.
    """


@acl.command()
@click.argument("principal")
@_rule_options
@place_options
def add(principal: str, data: Path, broker: str | None, **given: Any) -> None:
    """Add rules for a principal such as User:ann, User:CN=app,O=Acme or User:*."""
    from penstock.broker.security.acls import Acl, PatternType, Permission, acl_fault
    from penstock.broker.security.authorizer import Authorizer
    from penstock.broker.security.model import ResourceType

    kind, name = _resource(given)
    operations = [_operation(one) for one in given["operations"]]
    if kind is None or name is None or not operations:
        raise UserError(
            "expected what the rule is about (--topic, --group, --transactional-id or --cluster) "
            "and an --operation"
        )
    rules = [
        Acl(
            ResourceType[kind],
            name,
            PatternType.PREFIXED if given["prefix"] else PatternType.LITERAL,
            principal,
            given["host"] or "*",
            operation,
            Permission.DENY if given["deny"] else Permission.ALLOW,
        )
        for operation in operations
    ]
    was_on, remote = True, remote_of(broker)
    if remote is None:
        authorizer = Authorizer(data)
        was_on = authorizer.is_on
        authorizer.add(rules)
    else:
        from penstock.client.access import Rule

        if fault := next(filter(None, map(acl_fault, rules)), None):
            raise UserError(fault)
        with remote as admin:
            admin.add_rules(Rule(*astuple(one)) for one in rules)
    note(f"added {len(rules)} rule{'s' if len(rules) > 1 else ''}")
    if not was_on:
        note("from now on, what no rule allows is refused")


@acl.command()
@click.argument("principal", required=False)
@_rule_options
@click.option("--all", "everything", is_flag=True, help="All rules, unless options select some.")
@place_options
def remove(
    principal: str | None, data: Path, broker: str | None, *, everything: bool, **given: Any
) -> None:
    """Remove the rules that match."""
    from penstock.broker.security.authorizer import Authorizer

    filters = _filters(principal, given)
    is_any = principal is None and _resource(given)[0] is None and not given["operations"]
    if is_any and not everything:
        raise UserError("expected which rules to remove; found nothing; --all removes all")
    remote = remote_of(broker)
    removed: set[Any]
    if remote is None:
        removed = {one for found in Authorizer(data).remove(filters) for one in found}
    else:
        with remote as admin:
            removed = admin.remove_rules(_remote_filters(filters))
    note(f"removed {len(removed)} rule{'' if len(removed) == 1 else 's'}")


@acl.command("list")
@click.argument("principal", required=False)
@_rule_options
@place_options
def list_(principal: str | None, data: Path, broker: str | None, **given: Any) -> None:
    """List rules: principal, host, what it may do, and with what."""
    from penstock.broker.security.acls import PatternType
    from penstock.broker.security.authorizer import Authorizer

    filters, remote = _filters(principal, given), remote_of(broker)
    if remote is None:
        known = Authorizer(data).acls
        found = {one for wanted in filters for one in known.find(wanted)}
    else:
        with remote as admin:
            rules = (one for wanted in _remote_filters(filters) for one in admin.rules(wanted))
            found = {_local(one) for one in rules}
    for one in sorted(found):
        name = f"{one.name}…" if one.pattern is PatternType.PREFIXED else one.name
        what = f"{one.permission.name.lower()} {one.operation.name.lower()}"
        click.echo(f"{one.principal}\t{one.host}\t{what}\t{one.resource_type.name.lower()} {name}")


def _filters(principal: str | None, given: dict[str, Any]) -> list[Any]:
    from penstock.broker.security.acls import AclFilter, PatternType, Permission
    from penstock.broker.security.model import Operation, ResourceType

    kind, name = _resource(given)
    operations = [_operation(one) for one in given["operations"]] or [Operation.ANY]
    return [
        AclFilter(
            ResourceType[kind] if kind else ResourceType.ANY,
            name,
            PatternType.PREFIXED if given["prefix"] else PatternType.ANY,
            principal,
            given["host"],
            operation,
            Permission.DENY if given["deny"] else Permission.ANY,
        )
        for operation in operations
    ]


def _remote_filters(filters: list[Any]) -> list[Any]:
    from penstock.client.access import RuleFilter

    return [RuleFilter(*astuple(one)) for one in filters]


def _local(rule: Rule) -> Any:
    from penstock.broker.security.acls import Acl, PatternType, Permission
    from penstock.broker.security.model import Operation, ResourceType

    return Acl(
        ResourceType(rule.resource_type),
        rule.name,
        PatternType(rule.pattern),
        rule.principal,
        rule.host,
        Operation(rule.operation),
        Permission(rule.permission),
    )


def _resource(given: dict[str, Any]) -> tuple[str | None, str | None]:
    from penstock.broker.security.model import CLUSTER_NAME

    said = [(kind, given[key]) for key, kind in _RESOURCES.items() if given[key] is not None]
    if given["cluster"]:
        said.append(("CLUSTER", CLUSTER_NAME))
    if len(said) > 1:
        raise UserError("expected one of --topic, --group, --transactional-id and --cluster")
    return said[0] if said else (None, None)


def _operation(text: str) -> Any:
    from penstock.broker.security.model import Operation

    known = {one.name.lower(): one for one in Operation if one > Operation.ANY}
    found = known.get(text.lower().replace("-", "_"))
    if found is None:
        raise UserError(f"expected an operation of {', '.join(known)}; found {text!r}")
    return found
