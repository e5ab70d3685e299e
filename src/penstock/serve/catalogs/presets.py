"""Settings of the server and of its sessions, and the words of PostgreSQL's grammar, as it lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

__all__ = ["SERVER_VERSION", "SETTINGS", "Row", "current_setting", "keyword_rows", "setting_rows"]

Row: TypeAlias = dict[str, str | int | float | list[int] | None]
"""A row of a relation, by column; a column that isn't there is NULL."""
SERVER_VERSION: Final = "16.0"
"""Whose catalogs these are: clients choose their queries by it."""
_LOOK, _STATEMENTS, _FIXED = (
    "Client Connection Defaults / Locale and Formatting",
    "Client Connection Defaults / Statement Behavior",
    "Preset Options",
)
_KNOWN: Final[dict[str, tuple[str, str, str]]] = {
    "application_name": ("", "string", "Reporting and Logging / What to Log"),
    "client_encoding": ("UTF8", "string", _LOOK),
    "datestyle": ("ISO, MDY", "string", _LOOK),
    "default_transaction_isolation": ("read committed", "enum", _STATEMENTS),
    "default_transaction_read_only": ("on", "bool", _STATEMENTS),
    "extra_float_digits": ("1", "integer", _LOOK),
    "in_hot_standby": ("off", "bool", _FIXED),
    "integer_datetimes": ("on", "bool", _FIXED),
    "intervalstyle": ("postgres", "enum", _LOOK),
    "is_superuser": ("off", "bool", _FIXED),
    "max_identifier_length": ("63", "integer", _FIXED),
    "max_index_keys": ("32", "integer", _FIXED),
    "search_path": ("public", "string", _STATEMENTS),
    "server_encoding": ("UTF8", "string", _FIXED),
    "server_version": (SERVER_VERSION, "string", _FIXED),
    "server_version_num": ("160000", "integer", _FIXED),
    "session_authorization": ("penstock", "string", _STATEMENTS),
    "standard_conforming_strings": ("on", "bool", _FIXED),
    "statement_timeout": ("0", "integer", _STATEMENTS),
    "timezone": ("UTC", "string", _LOOK),
    "transaction_isolation": ("read committed", "enum", _STATEMENTS),
    "transaction_read_only": ("on", "bool", _STATEMENTS),
}
"""By name in small letters: what it is at first, of which type, and under which heading."""
SETTINGS: Final = {name: value for name, (value, _, _) in _KNOWN.items()}
"""What SHOW answers before anyone has SET it."""
_SHOWN: Final = {"datestyle": "DateStyle", "intervalstyle": "IntervalStyle", "timezone": "TimeZone"}
_CATEGORIES: Final = {
    "U": "unreserved",
    "C": "unreserved (cannot be function or type name)",
    "T": "reserved (can be function or type name)",
    "R": "reserved",
}


def current_setting() -> str:
    """The value of a setting x, as an expression of DuckDB's; NULL where there is none."""
    cases = (f"WHEN '{name}' THEN '{value}'" for name, value in SETTINGS.items())
    return f"CASE lower(x) {' '.join(cases)} END"


def setting_rows() -> list[Row]:
    """The rows of `pg_settings`: what settings are at first."""
    return [
        {
            "name": _SHOWN.get(name, name), "setting": value, "category": category, "vartype": kind,
            "unit": "ms" if name == "statement_timeout" else None, "short_desc": "", "source": "default",
            "context": "internal" if category == _FIXED else "user", "boot_val": value,
            "reset_val": value, "pending_restart": False,
        }
        for name, (value, kind, category) in _KNOWN.items()
    ]  # fmt: skip


def keyword_rows(words: Mapping[str, str]) -> list[Row]:
    """The rows of `pg_get_keywords()`.

    Args:
        words: by category, with `-` behind it where they need AS as labels.
    """
    return [
        {
            "word": word, "catcode": kind[0], "barelabel": not kind.endswith("-"),
            "catdesc": _CATEGORIES[kind[0]],
            "baredesc": "requires AS" if kind.endswith("-") else "can be bare label",
        }
        for kind, some in words.items()
        for word in some.split()
    ]  # fmt: skip
