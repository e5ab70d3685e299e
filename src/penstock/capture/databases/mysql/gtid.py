"""Which groups of a server's binary log were captured, by their GTIDs. Pure.

    MariaDB    of each domain the newest: 0-7-42,1-8-3
    MySQL      of each source all, as intervals: 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7

Source: MariaDB's documentation, "Global Transaction ID"; MySQL's, "GTID Sets", and its sources,
sql/rpl_gtid_set.cc, for the bytes of COM_BINLOG_DUMP_GTID.
"""

from __future__ import annotations

import re
import struct
import uuid
from typing import Final

__all__ = ["Gtids"]

_NEWEST: Final = re.compile(r"(\d+)-\d+-\d+")
_INTERVALS: Final = re.compile(r"([0-9a-fA-F-]{36})((?::\d+(?:-\d+)?)+)")


class Gtids:
    """GTIDs of groups, or that they aren't known.

    Args:
        text: as the server writes them. None: they aren't known, as where it has others, such as MySQL's with
            tags.
        is_mariadb: whether the server is MariaDB.

    >>> mariadb, mysql = Gtids("0-7-42,1-8-3", is_mariadb=True), Gtids("", is_mariadb=False)
    >>> mariadb.add("0-8-43")
    >>> mariadb.text
    '0-8-43,1-8-3'
    """

    def __init__(self, text: str | None, *, is_mariadb: bool) -> None:
        self._is_mariadb, self._is_known = is_mariadb, text is not None
        self._newest: dict[str, str] = {}
        self._intervals: dict[str, list[list[int]]] = {}
        for part in "".join(text.split()).split(",") if text else ():
            found = (_NEWEST if is_mariadb else _INTERVALS).fullmatch(part)
            if found is None:
                self.forget()
                return
            if is_mariadb:
                self._newest[found[1]] = part
                continue
            intervals = self._intervals.setdefault(found[1].lower(), [])
            for one in found[2][1:].split(":"):
                first, _, last = one.partition("-")
                intervals.append([int(first), int(last or first)])
            intervals.sort()

    @property
    def text(self) -> str | None:
        """As the server writes them: empty where there are none; None where they aren't known."""
        if not self._is_known:
            return None
        if self._is_mariadb:
            return ",".join(self._newest.values())
        return ",".join(
            f"{source}:" + ":".join(f"{a}-{b}" if a < b else str(a) for a, b in intervals)
            for source, intervals in sorted(self._intervals.items())
        )

    def forget(self) -> None:
        """A group had no GTID: which ones were captured can't be said by them."""
        self._is_known = False
        self._newest.clear()
        self._intervals.clear()

    def add(self, gtid: str) -> None:
        """A group was captured. Nothing where those before it aren't known.

        >>> one = Gtids("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-2:5", is_mariadb=False)
        >>> one.add("3e11fa47-71ca-11e1-9e33-c80aa9429562:3")
        >>> one.add("3e11fa47-71ca-11e1-9e33-c80aa9429562:4")
        >>> one.text
        '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'
        """
        if not self._is_known:
            return
        if self._is_mariadb:
            self._newest[gtid.partition("-")[0]] = gtid
            return
        source, _, number_text = gtid.partition(":")
        number, made = int(number_text), []
        new = [number, number]
        for one in self._intervals.get(source, ()):
            if one[1] + 1 < new[0] or new[1] + 1 < one[0]:
                made.append(one)
            else:
                new = [min(one[0], new[0]), max(one[1], new[1])]
        self._intervals[source] = sorted([*made, new])

    def lacking(self, state: str) -> list[str]:
        """Of those of MariaDB the ones that a log hasn't, whose newest groups of each domain and server are
        these, as `@@gtid_binlog_state` has them.

        >>> Gtids("0-7-42,1-8-3", is_mariadb=True).lacking("0-7-42,0-8-43,1-8-2")
        ['1-8-3']
        """
        newest = {}
        for one in state.split(",") if state else ():
            of, _, number = one.rpartition("-")
            newest[of] = int(number)
        wanted = {one: one.rpartition("-") for one in self._newest.values()}
        return [one for one, (of, _, n) in wanted.items() if newest.get(of, -1) < int(n)]

    def packed(self) -> bytes:
        """Those of MySQL, as COM_BINLOG_DUMP_GTID has them: the ends of intervals aren't in them.

        >>> len(Gtids("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-2:5", is_mariadb=False).packed())
        64
        """
        parts = [struct.pack("<Q", len(self._intervals))]
        for source, intervals in sorted(self._intervals.items()):
            parts.append(uuid.UUID(source).bytes + struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)


def mysql_gtid(data: bytes) -> str:
    """The GTID of an event of MySQL's."""
    return f"{uuid.UUID(bytes=data[1:17])}:{int.from_bytes(data[17:25], 'little')}"
