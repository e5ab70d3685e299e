"""`TargetKind`: how a kind of target declares itself, next to its code.

Messages, the command line, the stub of `penstock.sinks` and the tables of the documentation are made of
declarations. docs/plugins.md describes how other distributions add kinds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from penstock.core.databases import described
from penstock.plugins import Option, read_options
from penstock.sinks.targets.contract import Target

__all__ = ["Address", "Facts", "Option", "Rebuilt", "TargetKind"]

PASSWORD: Final = "PENSTOCK_SINK_PASSWORD"  # noqa: S105 - its name
"""The variable with the password of an address of Redis, over HTTP, or of Kafka, that has none."""
AUTHORIZATION: Final = "PENSTOCK_SINK_AUTHORIZATION"
"""The variable with the header `Authorization` of requests, such as `Bearer …`."""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild does: cells of Markdown.

    Attributes:
        new: what it writes.
        replaced: how that takes the place of the live one.
        old: where the one before remains.
    """

    new: str = ""
    replaced: str = (
        "topics and URLs can't be renamed. Write to another one with a sink of another `--name`, then move "
        "the readers"
    )
    old: str = ""


@dataclass(frozen=True)
class Facts:
    """What the tables of docs/sinks.md and docs/sink-targets.md say of a kind: cells of Markdown.

    Attributes:
        guarantee: whether it is exactly once: `yes`, or the reservation.
        exactly_once: by what.
        older_process: what becomes of a process that another one has taken over from.
        loading: how rows are written.
        others: what other processes can do meanwhile.
        left_out: what becomes of a value that an update leaves out, as `unchanged` of its targets says.
        rebuilt: by a rebuild; the default says that it can't be.
    """

    guarantee: str
    exactly_once: str
    older_process: str = ""
    loading: str = ""
    others: str = ""
    left_out: str = "makes the record a dead letter"
    rebuilt: Rebuilt = Rebuilt()


@dataclass(frozen=True)
class Address:
    """Where a target is, as somebody wrote it.

    Attributes:
        url: the address; without options, where its kind has some.
        table: in it; empty where it has none.
        options: those behind `?` that the kind declares, as values.
    """

    url: str
    table: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_password(self, *, needs_user: bool = True) -> str:
        """The address with the password of the environment, PENSTOCK_SINK_PASSWORD, where it has none.

        Args:
            needs_user: whether that is so only of an address with a user.
        """
        password, parts = self.password, urlsplit(self.url)
        if not password or parts.password is not None or (needs_user and not parts.username):
            return self.url
        user, _, host = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()

    @property
    def password(self) -> str | None:
        """That of the environment, PENSTOCK_SINK_PASSWORD."""
        return os.environ.get(PASSWORD)

    @property
    def headers(self) -> dict[str, str] | None:
        """`Authorization` as the environment has it, in PENSTOCK_SINK_AUTHORIZATION."""
        authorization = os.environ.get(AUTHORIZATION)
        return {"Authorization": authorization} if authorization else None


@dataclass(frozen=True)
class TargetKind:
    """A kind of target.

    Attributes:
        name: of the function in `penstock.sinks`; of a plugin's entry point.
        title: the system's name, for people.
        make: what makes a target: the function that programs call. Its first argument is the address, and
            `table` the table, if it has one.
        arguments: of `make`, as documentation shows them: `url, table=…`.
        examples: addresses, as messages and `--help` show them.
        facts: for the tables of the documentation.
        schemes: what is before `://` in its addresses.
        suffixes: what its files or directories end in.
        table: what a table is called there, in a few words, for `penstock sink targets`; empty: it has none.
        options: arguments that an address may give behind `?`. Without any, what is there belongs to the
            address.
        extra: of this distribution, with what it needs; empty: it needs nothing more.
        of: makes a target of an address, where that isn't
            `make(address.url, table=address.table, **address.options)`.
    """

    name: str
    title: str
    make: Callable[..., Target]
    arguments: str
    examples: tuple[str, ...]
    facts: Facts
    schemes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    table: str = "the table"
    options: tuple[Option, ...] = ()
    extra: str = ""
    of: Callable[[Address], Target] | None = None

    def begins(self, address: str) -> bool:
        """Whether an address has a scheme of this kind."""
        scheme, found, _ = address.partition("://")
        return bool(found) and scheme in self.schemes

    def ends(self, address: str) -> bool:
        """Whether a path ends as those of this kind do."""
        path = address.partition("?")[0] if self.options else address
        return bool(self.suffixes) and path.endswith(self.suffixes)

    def target(self, address: str, table: str) -> Target:
        """The target at an address.

        Raises:
            UserError: its options aren't right.
        """
        url, options = address, dict[str, Any]()
        if self.options:
            url, _, query = address.partition("?")
            given = parse_qsl(query, keep_blank_values=True) or [(query, "")][: bool(query)]
            options = read_options(self.options, dict(given), f"behind {described(url)}?", query)
        place = Address(url, table, options)
        if self.of is not None:
            return self.of(place)
        if not self.table:
            return self.make(url, **options)
        return self.make(url, table=table, **options)
