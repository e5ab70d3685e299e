"""Groups of the binary log: statements in them, and records until it is known that they count."""

from penstock.capture._mysql._groups._group import HELD_BYTES, Group
from penstock.capture._mysql._groups._statements import (
    Defined,
    Replaced,
    back_to,
    bare_of,
    defined,
    is_change,
    refuse_statement,
    replaced,
    savepoint,
    truncated,
    xa_of,
)

__all__ = [
    "HELD_BYTES",
    "Defined",
    "Group",
    "Replaced",
    "back_to",
    "bare_of",
    "defined",
    "is_change",
    "refuse_statement",
    "replaced",
    "savepoint",
    "truncated",
    "xa_of",
]
