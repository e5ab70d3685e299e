"""Records of a group of the binary log, until its end says which of them count. Pure.

A group that ends with ROLLBACK, or in which a savepoint was gone back to, is in the binary log if it has
changed a table whose engine has no transactions. Those changes stay; the others never were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from penstock.capture._envelope import Record
from penstock.errors import SetupError

__all__ = ["Group"]

HELD_BYTES: Final = 8 << 20
"""Of a group's records; beyond them they are passed on, and can't be taken back."""


class Group:
    """Records that wait.

    Args:
        add: takes those that count, with their tables.
        without_transactions: of some tables those whose engine has no transactions.
        name: the capture's, for messages.
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

    def add(self, table: tuple[str, str], record: Record) -> None:
        """Takes a record of a change of a table."""
        self._held.append((table, record))
        self._bytes += 96 + len(record.value or b"")
        if self._bytes > HELD_BYTES:
            self._pass_on()

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
