"""Targets by their names and addresses: the kinds that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.core.databases import described
from penstock.errors import UserError
from penstock.plugins import Registry
from penstock.sinks.targets.contract import Target
from penstock.sinks.targets.kind import TargetKind

__all__ = ["TARGETS", "from_address", "is_address", "kind_at"]

TARGETS: Final = Registry("penstock.targets", "penstock.sinks.targets", TargetKind)
"""Modules next to this one declare kinds in `KINDS`; those of other distributions are entry points."""


def from_address(address: str, table: str) -> Target:
    """A target by its address: see docs/sinks.md.

    What others may not see needs not be in it: passwords of databases are found as their own programs find
    them, that of Redis, of servers over HTTP and of a Kafka cluster in PENSTOCK_SINK_PASSWORD, and the header
    `Authorization` of servers over HTTP in PENSTOCK_SINK_AUTHORIZATION.

    Args:
        address: `postgresql://…`, a file such as `users.sqlite`, or of another kind, also of another
            distribution: `penstock sink targets` lists them. Options of a kind are behind `?`, as in
            `redis://…?value=hash&expire_s=60`.
        table: in it; empty where it has none.

    Raises:
        UserError: it is none of these.
        SetupError: what the kind needs isn't installed.
    """
    kind = kind_at(address)
    if kind is None:
        examples = [one for kind in TARGETS.own() for one in kind.examples]
        raise UserError(
            f"expected a target such as {', '.join(examples[:-1])} or {examples[-1]}; found "
            f"{described(address.rpartition('@')[2])!r}{TARGETS.broken()}"
        )
    return kind.target(address, table)


def kind_at(address: str) -> TargetKind | None:
    """The kind of an address: by its scheme, or else by how it ends. Our own come first."""
    ways: list[Callable[[TargetKind], bool]] = [lambda one: one.ends(address)]
    if "://" in address:
        ways.insert(0, lambda one: one.begins(address))
    for fits in ways:
        if (found := _first(TARGETS.own(), fits) or _first(TARGETS.others(), fits)) is not None:
            return found
    return None


def _first(kinds: Iterable[TargetKind], fits: Callable[[TargetKind], bool]) -> TargetKind | None:
    return next((one for one in kinds if fits(one)), None)


def is_address(text: str) -> bool:
    """Whether a text is the address of a system that a sink writes, and not the name of a topic.

    >>> [is_address(text) for text in ("kafka://db:9092", "out/users", "users.sqlite", "users")]
    [True, True, True, False]

    Raises:
        SetupError: it ends in the name of a plugin that can't be loaded.
    """
    if "/" in text:
        return True
    if "." not in text:
        return False
    if kind_at(text) is not None:
        return True
    TARGETS.named(text.partition("?")[0].rpartition(".")[2])  # which may be broken
    return False
