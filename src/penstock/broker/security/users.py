"""Who may log in: users and their SCRAM credentials, in `security/users.json`.

No password is stored, in whatever form it came: PLAIN is verified against the same credentials.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.broker.security.files import SecurityFile
from penstock.errors import LimitError, SetupError, UserError
from penstock.wire.scram import ITERATIONS, MECHANISMS, NAME_BYTES_MAX, Credential, ServerExchange

__all__ = ["Users", "name_fault"]

USERS_MAX: Final = 10_000
"""Users of one broker: each takes 1 KB, and the file is written whole."""
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 24
PASSWORD_CHARACTERS_MAX: Final = 1024

_log = logging.getLogger(__name__)


class Users:
    """The users of a data directory.

    Args:
        data: the data directory.

    Raises:
        SetupError: the file can't be read.
    """

    def __init__(self, data: Path) -> None:
        self._file = SecurityFile(data, "users.json", "users")
        self._users: dict[str, dict[str, Credential]] = {}
        self._secret = os.urandom(32)  # what made-up credentials come from
        self._load()

    def _load(self) -> None:
        try:
            self._users = {
                user: {name: _read(name, one) for name, one in credentials.items()}
                for user, credentials in (self._file.load() or {}).items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SetupError(
                f"expected users in {str(self._file.path)!r}; found: {error!r}; restore the file"
            ) from None

    def refresh(self) -> None:
        """Reads the file again if it has changed; keeps what it had where that fails."""
        if self._file.has_changed():
            try:
                self._load()
            except SetupError as error:
                _log.warning("keeping the users that are known: %s", error)

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, user: str) -> bool:
        return user in self._users

    def describe(self) -> dict[str, dict[str, int]]:
        """Each user's mechanisms and their iterations."""
        return {
            user: {name: one.iterations for name, one in sorted(credentials.items())}
            for user, credentials in sorted(self._users.items())
        }

    def has(self, user: str, mechanism: str) -> bool:
        """Whether there is such a credential."""
        return mechanism in self._users.get(user, {})

    def add(self, user: str, password: str, iterations: int = ITERATIONS) -> bool:
        """Adds a user, or changes the password; whether it is a new one."""
        if not password or len(password) > PASSWORD_CHARACTERS_MAX or "\0" in password:
            raise UserError(
                f"expected a password of 1 to {PASSWORD_CHARACTERS_MAX} characters without NUL"
            )
        self.refresh()
        is_new = user not in self._users
        self.change(
            put=[
                (user, Credential.from_password(one, password, os.urandom(SALT_BYTES), iterations))
                for one in MECHANISMS
            ]
        )
        return is_new

    def remove(self, user: str) -> bool:
        """Removes a user; whether there was one."""
        self.refresh()
        gone = [(user, mechanism) for mechanism in self._users.get(user, {})]
        self.change(remove=gone)
        return bool(gone)

    def change(
        self, put: Sequence[tuple[str, Credential]] = (), remove: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Stores and removes users' credentials (user, mechanism), all or nothing.

        Raises:
            UserError: a name makes no sense.
            LimitError: there would be too many users.
            SetupError, OSError: the file can't be written.
        """
        for user, _ in put:
            if name_fault(user):
                raise UserError(name_fault(user))
        with self._file.locked():
            self._load()
            users = {user: dict(credentials) for user, credentials in self._users.items()}
            for user, mechanism in remove:
                users.get(user, {}).pop(mechanism, None)
            for user, credential in put:
                users.setdefault(user, {})[credential.mechanism] = credential
            users = {user: credentials for user, credentials in users.items() if credentials}
            if len(users) > max(USERS_MAX, len(self._users)):
                raise LimitError(f"expected at most {USERS_MAX} users; remove some first")
            self._file.store(
                {
                    user: {name: _write(one) for name, one in credentials.items()}
                    for user, credentials in users.items()
                }
            )
            self._users = users

    def exchange(self, mechanism: str) -> ServerExchange:
        """A SCRAM log-in about to begin."""

        def credential_of(user: str) -> Credential:
            return self._users.get(user, {}).get(mechanism) or self._made_up(mechanism, user)

        return ServerExchange(mechanism, credential_of, secrets.token_urlsafe(NONCE_BYTES))

    def fits(self, user: str, password: str) -> bool:
        """Whether this is the user's password; takes milliseconds, also for unknown users."""
        credentials = self._users.get(user, {})
        for mechanism in reversed(MECHANISMS):
            if mechanism in credentials:
                return credentials[mechanism].fits(password)
        return self._made_up("SCRAM-SHA-512", user).fits(password) and False

    def _made_up(self, mechanism: str, user: str) -> Credential:
        """A credential that no password fits; always the same, as a real one would be."""
        seed = hmac.digest(self._secret, f"{mechanism}/{user}".encode(), "sha512")
        size = hashlib.new(MECHANISMS[mechanism]).digest_size
        key = hmac.digest(self._secret, seed, "sha512")[:size]
        return Credential(mechanism, seed[:SALT_BYTES], ITERATIONS, key, key)


def name_fault(user: str) -> str | None:
    """The fault of a user's name; None if it is valid."""
    if user and len(user.encode()) <= NAME_BYTES_MAX and user.isprintable():
        return None
    return f"expected a user's name of 1 to {NAME_BYTES_MAX} printable bytes; found {user!r}"


def _write(credential: Credential) -> dict[str, Any]:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "salt": text(credential.salt),
        "iterations": credential.iterations,
        "stored_key": text(credential.stored_key),
        "server_key": text(credential.server_key),
    }


def _read(mechanism: str, fields: dict[str, Any]) -> Credential:
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism {mechanism!r}")
    salt, stored, server = (
        base64.b64decode(fields[name], validate=True)
        for name in ("salt", "stored_key", "server_key")
    )
    return Credential(mechanism, salt, int(fields["iterations"]), stored, server)
