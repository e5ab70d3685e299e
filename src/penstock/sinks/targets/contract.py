"""What a sink writes to: the contract of targets.

Contract of a `Target`, which the tests in `tests/sinks` check for each kind:

1. `open` takes the sink's name over: a target that was opened before, by any process, writes nothing more
   (`FencedError`), and doesn't take it back: one that is opened again, such as after an error that passes,
   is fenced where another process has opened it meanwhile. It gives the offsets that were written, by
   partition.
2. `write` makes rows, deletions and offsets true together, or nothing of them.
   A target with `keeps_offsets = False` gets changes again after a kill, with the same offsets.
3. A row that the system doesn't take raises `RefusedError`, and nothing is written. What passes, such as a
   server that is away, is an error of `passing`.
4. Values that a batch's `kept` names stay as they are in the target, where its `unchanged` is "kept". If it
   doesn't have the row, it raises `RefusedError`. Written again, the batch changes nothing.

Contract of a `Switchable`, a target that is rebuilt next to the live one:

5. `beside` is a target for the sink `NAME.rebuild`, with offsets of its own. What was written to it stays
   when that is killed; what was removed from outside begins with the first record.
6. `switch` puts it in the live one's place together with its offsets, and keeps the live one. Readers see
   the one or the other; after a kill, so does the next process that opens, builds, switches or goes back.
7. `go_back` exchanges the two.
8. A sink that runs meanwhile loses nothing: its next write goes to the new one, or raises an error of
   `passing`, after which it opens the new one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import FencedError, PenstockError, UserError

__all__ = [
    "NEW",
    "OLD",
    "BaseTarget",
    "Batch",
    "Bury",
    "Choosing",
    "RefusedError",
    "Rows",
    "Sorting",
    "Switchable",
    "Target",
    "Unchanged",
    "changed",
    "check_columns",
    "fenced",
    "no_row",
    "nothing_before",
    "replaced",
]

NEW: Final = "__new"
"""Behind a name: what a rebuild writes."""
OLD: Final = "__old"
"""Behind a name: what was there before the last rebuild."""


Unchanged: TypeAlias = Literal["kept", "logged", "refused"]
"""What a target does with a value that a change leaves out: it keeps its own; it is a log of the changes, and
gets the placeholder, as the topic has it; it can do neither."""


class RefusedError(PenstockError):
    """The target doesn't take a row."""


@dataclass(frozen=True)
class Rows:
    """What rows are like.

    Attributes:
        topic: where they come from.
        schema: their columns.
        key: those that distinguish rows; empty where rows only appear.
    """

    topic: str
    schema: Schema
    key: tuple[str, ...]

    def nothing(self) -> pa.RecordBatch:
        """No rows, with these columns."""
        columns = [pa.field(one.name, one.type) for one in self.schema]
        return pa.RecordBatch.from_pylist([], pa.schema(columns))


@dataclass(frozen=True)
class Batch:
    """Changes, one of a key.

    Attributes:
        upserts: rows, in the schema's columns; of a sink without a key, inserts.
        deletes: keys, in the key's columns.
        upserted_at: the offset of the record of each of `upserts`.
        deleted_at: the offset of the record of each of `deletes`.
        partition: of all these records.
        kept: of some columns, which of `upserts` have no value of it, as their records leave it out: that of
            the target stays.
    """

    upserts: pa.RecordBatch
    deletes: pa.RecordBatch
    upserted_at: npt.NDArray[np.int64]
    deleted_at: npt.NDArray[np.int64]
    partition: int
    kept: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.upserts) + len(self.deletes)

    @property
    def is_partial(self) -> npt.NDArray[np.bool_]:
        """Which of `upserts` lack values."""
        found = np.zeros(len(self.upserts), np.bool_)
        for some in self.kept.values():
            found |= some
        return found

    def parts(self) -> Iterator[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """Rows of `upserts` by the columns that they lack, which they don't have."""
        if not self.kept:
            yield self.upserts, ()
            return
        names, lacking = [*self.kept], np.stack([*self.kept.values()])
        found, numbers = np.unique(lacking, axis=1, return_inverse=True)
        for number in range(found.shape[1]):
            lacks = tuple(
                name for name, is_one in zip(names, found[:, number], strict=True) if is_one
            )
            rows = self.upserts.filter(pa.array(numbers.reshape(-1) == number))
            yield rows.drop_columns([*lacks]), lacks


class Target(Protocol):
    """What a sink writes to; see the contract above. `BaseTarget` has what most targets have."""

    @property
    def name(self) -> str:
        """Which, for people: without a password."""

    @property
    def table(self) -> str:
        """What it writes there, in a word: the sink's name is by default `TOPIC.TABLE`."""

    @property
    def keeps_offsets(self) -> bool:
        """Whether it stores offsets; else those of the group in the log are the ones that count."""

    @property
    def pace_s(self) -> float:
        """The shortest time between two writes, in seconds, where the sink says none."""

    @property
    def unchanged(self) -> Unchanged:
        """What it does with values that a change leaves out."""

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Errors after which the same may succeed."""

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over; the next offsets, by partition."""

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""

    def close(self) -> None:
        """Ends connections; it may be opened again."""


class BaseTarget(abc.ABC):
    """A target that keeps offsets, is written to at once, and refuses changes that leave values out.

    A subclass has a `name`, too, an attribute or a property.
    """

    table: str = "sink"
    keeps_offsets: bool = True
    pace_s: float = 0.0
    unchanged: Unchanged = "refused"

    @property
    @abc.abstractmethod
    def passing(self) -> tuple[type[BaseException], ...]:
        """Errors after which the same may succeed."""

    @abc.abstractmethod
    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over; the next offsets, by partition."""

    @abc.abstractmethod
    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends connections; it may be opened again."""


Bury: TypeAlias = Callable[[Sequence[str | None]], None]
"""Puts aside what was refused: for each change the reason, or None."""


@runtime_checkable
class Choosing(Protocol):
    """A target that not all rows fit, which can be known without asking it."""

    def check_rows(self, rows: Rows) -> None:
        """Checks what it is to have.

        Raises:
            UserError: it can't have these rows.
        """


@runtime_checkable
class Sorting(Protocol):
    """A target that finds the changes that it refuses within one transaction."""

    def write_rest(
        self,
        count: int,
        batch: Callable[[slice], Batch],
        offsets: Mapping[int, int],
        bury: Bury,
    ) -> list[Batch]:
        """Makes the changes that it takes and the offsets true together; finds the others by halving.

        Args:
            count: of changes, which it has refused as a whole.
            batch: what some of them come to.
            offsets: behind all of them.
            bury: called before that is true.

        Returns: what was written.
        """


@runtime_checkable
class Switchable(Target, Protocol):
    """A target that is rebuilt next to the live one; see the contract above."""

    def beside(self, sink: str, rows: Rows) -> Target:
        """What the rebuild of a sink writes to."""

    def switch(self, sink: str, rows: Rows) -> None:
        """Puts what was built in the live one's place, which is kept.

        Raises:
            UserError: nothing was built.
        """

    def go_back(self, sink: str, rows: Rows) -> None:
        """Exchanges the live one and the one before.

        Raises:
            UserError: there is none.
        """


def check_columns(table: str, rows: Rows, there: Sequence[str], advice: str = "Add them") -> None:
    """Looks whether a table has the columns that are written to it.

    Raises:
        UserError: it lacks some.
    """
    missing = [name for name in rows.schema.names if name not in there]
    if missing:
        raise UserError(
            f"expected the table {table!r} to have the columns {', '.join(missing)}, to write them; "
            f"found {', '.join(there)}. {advice}, or remove them from the schema"
        )


def fenced(table: str, sink: str) -> FencedError:
    """What is said to a process that another one has taken over from."""
    return FencedError(
        f"expected to write to {table!r} as the sink {sink!r}; found that another process has begun under "
        "this name. Run one at a time"
    )


def changed(table: str, error: BaseException) -> ConnectionError:
    """What is raised where a table was dropped or altered meanwhile: it passes, as it is opened again."""
    return ConnectionError(f"{table} isn't what it was when it was opened: {str(error).strip()}")


def replaced(table: str) -> ConnectionError:
    """What is raised where another table took this one's place: it passes, as that one is opened next."""
    return ConnectionError(f"{table} has replaced another one")


def no_row(lacks: Sequence[str]) -> RefusedError:
    """What is said of a change that leaves values out, of a row that isn't there."""
    return RefusedError(
        f"expected a row of this key, as the change leaves out {', '.join(lacks)} as unchanged; found none. "
        "Write the row to the topic again, as a whole"
    )


def nothing_before(table: str) -> UserError:
    """What is said where there is nothing to go back to."""
    return UserError(
        f"expected {table + OLD!r}; found none. Only what a rebuild has replaced can be put back"
    )


def nothing_built(table: str) -> UserError:
    """What is said where there is nothing to switch to."""
    return UserError(f"expected {table + NEW!r}; found none. Rebuild it first")
