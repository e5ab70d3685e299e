"""All that decides who gets in, in one place: what the broker holds and asks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.security.authorizer import Authorizer
from penstock.broker.security.model import Caller, Operation, ResourceType
from penstock.broker.security.quotas import Quotas
from penstock.broker.security.sasl import Failures, SaslSession, Verifier
from penstock.broker.security.tls import Tls
from penstock.broker.security.users import Users
from penstock.wire.scram import PLAIN

if TYPE_CHECKING:
    from penstock.broker.config import BrokerConfig
    from penstock.broker.listeners import Listener

__all__ = ["Guard", "Guarded", "Verdicts"]

VERDICTS_MAX: Final = 4096
"""Topics whose verdicts a connection remembers; then it forgets them all and asks again."""

STRANGERS_MAX: Final = 512
"""Connections that have not said yet who they are; beyond, the oldest of them is closed: a client
says so within milliseconds, an attacker never does."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 2048
"""Connections of one address beyond this machine: no single one can take all."""


_log = logging.getLogger(__name__)


class Verdicts:
    """What a connection may read and write, as far as it has asked."""

    __slots__ = ("generation", "known")

    def __init__(self) -> None:
        self.generation = 0
        """Of the rules that were asked."""
        self.known: dict[tuple[Operation, str], bool] = {}


class Guarded(Caller, Protocol):
    """A connection, as those see it who decide what it may do."""

    @property
    def listener(self) -> Listener:
        """Where it came in."""
        ...

    @property
    def peer(self) -> str:
        """Who is at its other end: address and port."""
        ...

    @property
    def session(self) -> SaslSession | None:
        """Its log-in, where its listener asks for one."""
        ...

    @property
    def verdicts(self) -> Verdicts:
        """What it is known to be allowed."""
        ...

    def finish(self) -> None:
        """Serves nothing more, and closes it once all answers are sent."""

    def close(self) -> None:
        """Closes it; what was not sent yet is lost."""


class Guard:
    """Users, certificates, and counts of connections.

    Raises:
        SetupError: a file in the data directory's `security/`, or a certificate, can't be read.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.users = Users(config.data)
        self.verifier = Verifier(self.users)
        self.failures = Failures()
        self.quotas = Quotas(config.data)
        self.authorizer = Authorizer(
            config.data,
            config.super_users,
            allow_if_none=config.allow_if_no_acl,
            always=config.authorize,
        )
        self.tls = Tls(config.tls) if config.tls is not None else None
        self._strangers: dict[Guarded, None] = {}
        self._of_address: Counter[str] = Counter()
        self._limit = config.connections_per_address
        self._limits: Mapping[str, int] = {}
        self._of_user: dict[str, set[Guarded]] = {}

    def limit_addresses(self, limit: int | None, limits: Mapping[str, int]) -> None:
        """How many connections an address may have from now on; None: as configured.

        Args:
            limit: any address.
            limits: single ones.
        """
        self._limit = self._config.connections_per_address if limit is None else limit
        self._limits = limits

    # -- connections -------------------------------------------------------------------------------

    def enter(self, connection: Guarded) -> str | None:
        """Counts a connection; returns the reason if it must be closed."""
        listener, host = connection.listener, connection.client_host
        limit = self._limits.get(host, self._limit)
        if limit is None and not listener.is_loopback:
            limit = CONNECTIONS_PER_ADDRESS_MAX
        if limit is not None and self._of_address[host] >= limit:
            return f"expected at most {limit} connections from one address"
        self._of_address[host] += 1
        if listener.protocol.has_tls or listener.protocol.has_sasl:
            while len(self._strangers) >= STRANGERS_MAX:
                next(iter(self._strangers)).close()
            self._strangers[connection] = None
        return None

    def trust(self, connection: Guarded) -> None:
        """A connection has said who it is."""
        self._strangers.pop(connection, None)
        if connection.session is not None:
            user = connection.principal.removeprefix("User:")
            self._of_user.setdefault(user, set()).add(connection)

    def leave(self, connection: Guarded) -> None:
        """A connection that had entered is gone."""
        self._strangers.pop(connection, None)
        user = connection.principal.removeprefix("User:")
        if connection in self._of_user.get(user, ()):
            self._of_user[user].discard(connection)
            if not self._of_user[user]:
                del self._of_user[user]
        self._of_address[connection.client_host] -= 1
        if self._of_address[connection.client_host] <= 0:
            del self._of_address[connection.client_host]

    def expel(self, but: Guarded | None = None) -> None:
        """Closes connections of users that are no more; one of them may still get its answer."""
        for user in [one for one in self._of_user if one not in self.users]:
            for connection in list(self._of_user[user]):
                _log.info("closed %s: its user was removed", connection.peer)
                if connection is but:
                    connection.finish()
                else:
                    connection.close()

    def session(self, listener: Listener) -> SaslSession | None:
        """The log-in of a new connection, where its listener asks for one."""
        if not listener.protocol.has_sasl:
            return None
        mechanisms = self._config.mechanisms
        if not (listener.protocol.has_tls or listener.is_loopback or self._config.allow_remote):
            mechanisms = tuple(one for one in mechanisms if one != PLAIN)  # it would be readable
        return SaslSession(self.users, self.verifier, mechanisms, self._config.session_lifetime_s)

    # -- authorization -----------------------------------------------------------------------------

    def may(self, connection: Guarded, operation: Operation, topic: str) -> bool:
        """Whether a connection may read or write a topic: remembered, since each request asks."""
        authorizer, verdicts = self.authorizer, connection.verdicts
        if not authorizer.is_on:
            return True
        if verdicts.generation != authorizer.generation or len(verdicts.known) > VERDICTS_MAX:
            verdicts.known.clear()
            verdicts.generation = authorizer.generation
        verdict = verdicts.known.get((operation, topic))
        if verdict is None:
            verdict = authorizer.allows(connection, operation, ResourceType.TOPIC, topic)
            verdicts.known[operation, topic] = verdict
        return verdict

    def allows(
        self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a caller (a `Call`, or a connection) may do something with a resource."""
        authorizer = self.authorizer
        return not authorizer.is_on or authorizer.allows(caller, operation, resource_type, name)

    # -- upkeep ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes up what the command line has changed; to be called every second or so."""
        self.users.refresh()
        self.expel()
        self.authorizer.refresh()
        self.quotas.refresh()

    def reload(self) -> None:
        """Takes up everything that may have changed, certificates included."""
        self.refresh()
        if self.tls is not None:
            self.tls.reload()

    def close(self) -> None:
        """Ends the threads."""
        self.verifier.close()
