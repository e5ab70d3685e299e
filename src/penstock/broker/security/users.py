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
from pathlib import Path
from typing import Any, Final

from penstock.broker.security.files import SecurityFile
from penstock.errors import LimitError, SetupError, UserError
from penstock.wire.scram import ITERATIONS, MECHANISMS, NAME_BYTES_MAX, Credential, ServerExchange

__all__ = ["Users"]

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
                f"expected users in {str(self._file.path)!r}, found: {error!r}; restore the file"
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

    def describe(self) -> dict[str, dict[str, int]]:
        """Each user's mechanisms and their iterations."""
        return {
            user: {name: one.iterations for name, one in sorted(credentials.items())}
            for user, credentials in sorted(self._users.items())
        }

    def add(self, user: str, password: str, iterations: int = ITERATIONS) -> bool:
        """Adds a user, or changes the password; whether it is a new one."""
        if not password or len(password) > PASSWORD_CHARACTERS_MAX or "\0" in password:
            raise UserError(
                f"expected a password of 1 to {PASSWORD_CHARACTERS_MAX} characters without NUL"
            )
        is_new = user not in self._users
        for mechanism in MECHANISMS:
            salt = os.urandom(SALT_BYTES)
            self.put(user, Credential.from_password(mechanism, password, salt, iterations))
        return is_new

    def put(self, user: str, credential: Credential) -> None:
        """Stores a user's credential for one mechanism."""
        if not user or len(user.encode()) > NAME_BYTES_MAX or not user.isprintable():
            raise UserError(
                f"expected a user's name of 1 to {NAME_BYTES_MAX} printable bytes, found {user!r}"
            )
        with self._file.locked():
            self._load()
            if user not in self._users and len(self._users) >= USERS_MAX:
                raise LimitError(f"expected at most {USERS_MAX} users; remove some first")
            self._users.setdefault(user, {})[credential.mechanism] = credential
            self._store()

    def remove(self, user: str, mechanism: str | None = None) -> bool:
        """Removes a user (or one of the credentials); whether there was one."""
        with self._file.locked():
            self._load()
            credentials = self._users.get(user, {})
            gone = [name for name in credentials if mechanism in {None, name}]
            for name in gone:
                del credentials[name]
            if user in self._users and not credentials:
                del self._users[user]
            if gone:
                self._store()
        return bool(gone)

    def _store(self) -> None:
        self._file.store(
            {
                user: {name: _write(one) for name, one in credentials.items()}
                for user, credentials in self._users.items()
            }
        )

    def exchange(self, mechanism: str) -> ServerExchange:
        """A SCRAM log-in about to begin."""

        def credential_of(user: str) -> Credential:
            return self._users.get(user, {}).get(mechanism) or self._made_up(mechanism, user)

        return ServerExchange(mechanism, credential_of, secrets.token_urlsafe(NONCE_BYTES))

    def fits(self, user: str, password: str) -> bool:
        """Whether this is the user's password; takes milliseconds, whoever it is."""
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
