"""The messages of pgoutput, PostgreSQL's own output plugin: bytes to values, without I/O. Rows are read in
`rows`, pieces of open transactions in `stream`.

Source: PostgreSQL's documentation, "Logical Replication Message Formats", protocol version 1. A value
comes as text, as bytes of the server's encoding, here always UTF-8.

Order: transactions come in the order in which they committed, each whole. So the position of a change is
that of its transaction's commit; positions of changes themselves go backwards.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import CorruptError

__all__ = [
    "Begin",
    "Column",
    "Commit",
    "Event",
    "Message",
    "Origin",
    "Relation",
    "Truncate",
    "lsn_number",
    "lsn_text",
    "parse",
]

_EPOCH_US: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from which PostgreSQL counts."""
_INT: Final = struct.Struct(">i").unpack_from
_OID: Final = struct.Struct(">I").unpack_from
_BEGIN: Final = struct.Struct(">qqI").unpack_from
_COMMIT: Final = struct.Struct(">Bqqq").unpack_from


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the server describes it: its name, its type's oid and modifier, whether it is of the
    replica identity.
    """

    name: str
    oid: int
    modifier: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is for the changes that follow.

    Attributes:
        oid: which.
        schema: in which it is.
        name: its name.
        identity: of its replica identity: `d`efault, `f`ull, `i`ndex or `n`othing.
        columns: in order.
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


class Begin(NamedTuple):
    """A transaction begins: the position of its commit, its time (microseconds since 1970), its number."""

    commit_lsn: int
    time_us: int
    xid: int


class Origin(NamedTuple):
    """The transaction was replicated: the position of its commit at the server that it comes from (0: it
    isn't known yet), and the name of its replication origin.
    """

    lsn: int
    name: str


class Commit(NamedTuple):
    """The transaction ends: the position behind its commit."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were emptied: their oids."""

    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What `pg_logical_emit_message` wrote."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Event: TypeAlias = Relation | Begin | Origin | Commit | Truncate | Message


def parse(data: bytes) -> Event | None:
    """One message; None for those that say nothing of rows (types).

    Raises:
        CorruptError: it ends early, or is of no kind that this protocol has.
    """
    try:
        return _parse(data)
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptError(
            f"expected a message of pgoutput; found {data[:40]!r} ({error})"
        ) from None


def _parse(data: bytes) -> Event | None:
    match data[:1]:
        case b"B":
            lsn, time_us, xid = _BEGIN(data, 1)
            return Begin(lsn, time_us + _EPOCH_US, xid)
        case b"C":
            _, _, end, _ = _COMMIT(data, 1)
            return Commit(end)
        case b"R":
            return _relation(data)
        case b"T":
            count = _INT(data, 1)[0]
            return Truncate(tuple(_OID(data, 6 + 4 * i)[0] for i in range(count)))
        case b"M":
            (lsn,) = struct.unpack_from(">q", data, 2)
            prefix, at = _name(data, 10)
            size = _INT(data, at)[0]
            return Message(bool(data[1] & 1), lsn, prefix, data[at + 4 : at + 4 + size])
        case b"O":
            return Origin(struct.unpack_from(">q", data, 1)[0], _name(data, 9)[0])
        case b"Y":
            return None
        case other:
            raise ValueError(f"unknown kind {other!r}")


def _relation(data: bytes) -> Relation:
    oid = _OID(data, 1)[0]
    schema, at = _name(data, 5)
    name, at = _name(data, at)
    identity, count = chr(data[at]), (data[at + 1] << 8) | data[at + 2]
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _name(data, at + 1)
        columns.append(Column(column, _OID(data, at)[0], _INT(data, at + 4)[0], bool(flags & 1)))
        at += 8
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _name(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def lsn_number(text: str) -> int:
    """A position from its text.

    >>> lsn_number("16/B374D848")
    97500059720
    """
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """A position as PostgreSQL writes it.

    >>> lsn_text(97500059720)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
