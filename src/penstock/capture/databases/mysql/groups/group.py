"""Records of a group of the binary log, until it is known which of them count. Pure.

A group that ends with ROLLBACK, or in which a savepoint was gone back to, is in the binary log if it has
changed a table whose engine has no transactions. Those changes stay; the others never were.

An XA transaction's group ends when it is prepared. Another group says, maybe much later, whether it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from penstock.capture.envelope import Record
from penstock.errors import SetupError

__all__ = ["HELD_BYTES", "Group"]

HELD_BYTES: Final = 8 << 20
"""Of a group's records; beyond them they are passed on, and can't be taken back."""


PREPARED_BYTES_MAX: Final = 64 << 20
"""Of the records of XA transactions that are prepared: none of them can be passed on."""


class Group:
    """Records that wait.

    Args:
        add: takes those that count, with their tables.
        without_transactions: of some tables those whose engine has no transactions.
        name: the capture's, for messages.

    Attributes:
        prepared: XA transactions that wait, with their records.
        xa: the one that this group is of; empty: none.
    """

    def __init__(
        self,
        add: Callable[[tuple[str, str], Record], None],
        without_transactions: Callable[[Iterable[tuple[str, str]]], Collection[tuple[str, str]]],
        name: str,
    ) -> None:
        self._add, self._without, self._name = add, without_transactions, name
        self._held: list[tuple[tuple[str, str], Record]] = []
        self._marks: dict[str, int] = {}
        self._bytes = 0
        self._passed = 0
        self.prepared: dict[str, list[tuple[tuple[str, str], Record]]] = {}
        self.xa = ""
        self._prepared_bytes: dict[str, int] = {}

    def add(self, table: tuple[str, str], record: Record) -> None:
        """Takes a record of a change of a table."""
        self._held.append((table, record))
        self._bytes += 96 + len(record.value or b"")
        if self._bytes > HELD_BYTES and not self.xa:
            self._pass_on()
        elif self._bytes + sum(self._prepared_bytes.values()) > PREPARED_BYTES_MAX:
            raise SetupError(
                f"expected at most {PREPARED_BYTES_MAX >> 20} MB of changes in XA transactions that aren't "
                "committed yet; found more. Commit or roll them back (XA RECOVER lists them), make them "
                f"smaller, and start again with a new snapshot: penstock capture drop {self._name}"
            )

    def prepare(self) -> None:
        """The group of an XA transaction is complete; its records wait."""
        self.prepared[self.xa], self._prepared_bytes[self.xa] = self._held, self._bytes
        self._held = []
        self.end()

    def finish(self, xa: str, *, is_rolled_back: bool) -> None:
        """An XA transaction has committed, or not.

        Raises:
            SetupError: it has, and was prepared before anything was captured.
        """
        held = self.prepared.pop(xa, None)
        self._prepared_bytes.pop(xa, None)
        if held is not None and not is_rolled_back:
            self._held.extend(held)
        if held is None and not is_rolled_back:
            raise SetupError(
                f"expected the XA transaction {xa} to be prepared while it was captured; found that it was "
                "prepared before the snapshot, and has committed since: its changes are missing. Start again "
                f"with a new snapshot: penstock capture drop {self._name}"
            )

    def savepoint(self, name: str) -> None:
        """What follows may be taken back."""
        self._marks[name.casefold()] = self._passed + len(self._held)

    def back_to(self, name: str) -> None:
        """Takes back what came since a savepoint; all, where it was set before the first change.

        Raises:
            SetupError: it was passed on already.
        """
        self._take_back(self._marks.get(name.casefold(), 0))

    def end(self, *, is_rolled_back: bool = False) -> None:
        """The group is complete.

        Raises:
            SetupError: it is taken back, and was passed on already.
        """
        if is_rolled_back:
            self._take_back(0)
        self._pass_on()
        self._marks.clear()
        self._passed = 0
        self.xa = ""

    def _take_back(self, mark: int) -> None:
        first = mark - self._passed
        if first < 0:
            raise SetupError(
                f"expected at most {HELD_BYTES >> 20} MB of changes in a transaction that is rolled back "
                "and has changed tables with and without transactions; found more. Start again with a new "
                f"snapshot: penstock capture drop {self._name}"
            )
        taken = self._held[first:]
        stay = self._without({table for table, _ in taken}) if taken else ()
        self._held[first:] = [one for one in taken if one[0] in stay]

    def _pass_on(self) -> None:
        for table, record in self._held:
            self._add(table, record)
        self._passed += len(self._held)
        self._held.clear()
        self._bytes = 0
