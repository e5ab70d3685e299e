"""The drivers of databases, which come with extras: loaded where they are used, and how they connect.

An address is taken as the database's own tools take it, so the environment (`MYSQL_PWD`) and the user's
settings (`~/.my.cnf`) count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.core.databases import described
from penstock.core.lazy import installed
from penstock.errors import SetupError, UserError

__all__ = [
    "ALIVE_EACH_S",
    "ALIVE_IDLE_S",
    "ALIVE_TRIES",
    "UNHEARD_MS",
    "keepalives",
    "mysql_parameters",
    "psycopg_module",
    "pymysql_module",
    "tls_error",
]

ALIVE_IDLE_S: Final = 30
"""After how long without a packet TCP asks a peer whether it is there; by default after two hours."""
ALIVE_EACH_S: Final = 10
ALIVE_TRIES: Final = 3
"""Questions without an answer after which a connection ends: a machine that vanished sends no FIN."""
UNHEARD_MS: Final = 60_000
"""How long the peer may leave what was sent unacknowledged."""

_NO_FILE: Final = "root certificate file"
_TLS: Final = {
    ("does not match host name", "Hostname mismatch", "IP address mismatch"): (
        "The server's certificate is for other hosts: connect to one that it names, or give the server one "
        "for this host"
    ),
    ("certificate verify failed", "CERTIFICATE_VERIFY_FAILED"): (
        "The server's certificate wasn't signed by the given authority, or has expired: name the file with "
        "the authority's certificate (PostgreSQL: sslrootcert=FILE, MySQL: ssl_ca=FILE)"
    ),
    (_NO_FILE,): (
        "Name the file with the certificate of the server's authority (PostgreSQL: sslrootcert=FILE, "
        "MySQL: ssl_ca=FILE)"
    ),
    ("server does not support SSL", "SSL is required"): (
        "Set up TLS on the server (PostgreSQL: ssl = on, MySQL: ssl_cert and ssl_key), or ask for none in "
        "the address"
    ),
}
"""What errors of drivers say, and what to do. The first that fits counts."""


def tls_error(url: str, error: BaseException) -> SetupError | None:
    """What a driver's error means, if TLS was refused, which no later attempt changes; else None.

    Args:
        url: of the database.
        error: of the attempt to connect.
    """
    text = str(error.args[-1] if error.args else error).strip()
    if isinstance(error, FileNotFoundError):  # PyMySQL's, of the authority's file
        text = f"{_NO_FILE}: {text}"
    for signs, advice in _TLS.items():
        if any(one in text for one in signs):
            return SetupError(
                f"expected a verified connection to {described(url)}; found: {text}. {advice}"
            )
    return None


def psycopg_module() -> Any:
    """The module `psycopg`.

    Raises:
        SetupError: it isn't installed.
    """
    return installed("psycopg", "postgres", "to talk to PostgreSQL")


def keepalives(url: str, *, with_timeout: bool = True) -> dict[str, int]:
    """Arguments of psycopg with which a connection to a server that vanished ends, within about a minute;
    without those that the address says.

    Args:
        url: the address.
        with_timeout: whether also what was sent has to be received within that time. A server that is busy
            may stop to read for longer, where much is sent.
    """
    given = psycopg_module().conninfo.conninfo_to_dict(url)
    wanted = {
        "keepalives_idle": ALIVE_IDLE_S,
        "keepalives_interval": ALIVE_EACH_S,
        "keepalives_count": ALIVE_TRIES,
    }
    if with_timeout:
        wanted["tcp_user_timeout"] = UNHEARD_MS
    return {name: value for name, value in wanted.items() if name not in given}


def pymysql_module() -> Any:
    """The module `pymysql`.

    Raises:
        SetupError: it isn't installed.
    """
    return installed("pymysql", "mysql", "to talk to MySQL or MariaDB", package="PyMySQL")


def mysql_parameters(url: str) -> dict[str, Any]:
    """An address as arguments of PyMySQL. With `ssl_ca` the server's certificate and its host are verified,
    unless the address says what is.

    Raises:
        UserError: it has no database, or says what isn't known.
    """
    parts = urlsplit(url)
    database = unquote(parts.path[1:])
    if not database or "/" in database:
        raise UserError(
            f"expected an address such as mysql://ann@localhost:3306/shop; found {described(url)!r}"
        )
    arguments: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "database": database,
    }
    if parts.username:
        arguments["user"] = unquote(parts.username)
    password = unquote(parts.password) if parts.password else os.environ.get("MYSQL_PWD")
    if password:
        arguments["password"] = password
    own = Path("~/.my.cnf").expanduser()
    if own.is_file():
        arguments["read_default_file"] = str(own)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if "unix_socket" in options:
        arguments["unix_socket"] = options.pop("unix_socket")
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        if name in options:
            arguments[name] = options.pop(name)
    for name in ("ssl_verify_cert", "ssl_verify_identity"):
        if name in options:
            arguments[name] = options.pop(name).lower() in {"1", "true", "yes"}
    if (
        "ssl_ca" in arguments and "ssl_verify_cert" not in arguments
    ):  # else PyMySQL verifies nothing
        arguments.setdefault("ssl_verify_identity", True)
    if options:
        raise UserError(
            "expected unix_socket, ssl_ca, ssl_cert, ssl_key, ssl_verify_cert or ssl_verify_identity in the "
            f"address; found {', '.join(sorted(options))}"
        )
    return arguments
