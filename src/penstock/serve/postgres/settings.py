"""What a session may SET and SHOW."""

from __future__ import annotations

import re
from typing import Final

from penstock.serve.catalogs.presets import SETTINGS as PRESETS
from penstock.serve.postgres.commands import Refused

__all__ = ["FIXED", "ISOLATIONS", "PINNING", "REPORTED", "SETTINGS", "seconds_of"]

AFTER_SECONDS: Final = (
    10.0  # how long a statement waits for a write, unless penstock.wait says otherwise
)
SETTINGS: Final = {
    **PRESETS,
    "penstock.after": "",
    "penstock.wait": f"{AFTER_SECONDS:g}",
    "penstock.version": "",
}
"""What SHOW answers before anyone has SET it. `penstock.version` is the one that was read last."""
REPORTED: Final = {
    "server_version": "server_version", "server_encoding": "server_encoding",
    "client_encoding": "client_encoding", "datestyle": "DateStyle",
    "intervalstyle": "IntervalStyle", "timezone": "TimeZone",
    "integer_datetimes": "integer_datetimes", "in_hot_standby": "in_hot_standby",
    "standard_conforming_strings": "standard_conforming_strings",
    "default_transaction_read_only": "default_transaction_read_only",
    "application_name": "application_name", "is_superuser": "is_superuser",
    "session_authorization": "session_authorization", "search_path": "search_path",
}  # fmt: skip
FIXED: Final = frozenset(
    {"server_version", "server_encoding", "server_version_num", "max_index_keys"}
)
PINNING: Final = ("repeatable read", "serializable")
ISOLATIONS: Final = ("read uncommitted", "read committed", *PINNING)
_UNITS_S: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def seconds_of(name: str, text: str) -> float:
    """A setting of PostgreSQL's that is a time: milliseconds, unless it has a unit.

    Raises:
        Refused: it is none.

    >>> seconds_of("statement_timeout", "2min")
    120.0
    """
    match = _TIME.fullmatch(text)
    if match is None or match[2] not in _UNITS_S:
        raise Refused("22023", f"expected {name} as a time, such as '30s' or 500; found {text!r}")
    return float(match[1]) * _UNITS_S[match[2]]
