"""What every stateful operator is: rows of its ports in, rows out, and state between batches.

    prepare    where the rows are: judges lateness, aggregates ahead, hashes      -> a parcel
    (exchange) parcels are cut by the hash of the key, so that a key is on one shard
    step       where the state is: parcels of all ports, state -> state, changes, closed rows
    scan       the content of a table, for readers of a view

An operator is a value: what it computes, and nothing of where it runs. Everything that a step may know
is in its state, its parcels and its context, so a batch that is repeated gives the same rows, byte for byte.

Frontiers. A frontier f of an edge promises that no row of a time before f will come any more. A step
sees the frontiers of its ports as they are with this batch; what the operator itself promises is
`frontier` of them. Rows that lie before their own watermark, `$watermark`, are late: `prepare` leaves them
out and says which. Those of a source have one, and those of an operator that hands rows on whenever they
come (`passes_late`), be they late or not. Nothing else is ever late, as operators keep their promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.ops.kept import Shared
from penstock.state.files import StateFiles
from penstock.state.runs import Writer
from penstock.state.trace import Trace

if TYPE_CHECKING:
    from penstock.ops.rows import Refused

__all__ = [
    "Clockless",
    "Context",
    "Operator",
    "OperatorState",
    "Parcel",
    "Prepared",
    "Step",
    "Unwindowed",
]


class Parcel(Protocol):
    """Rows of one port on their way to their shards."""

    @property
    def rows(self) -> int:
        """How many there are; a parcel without any isn't sent."""
        ...

    def cut(self, shards: int) -> Sequence[Parcel]:
        """The rows of each shard."""
        ...

    def to_bytes(self) -> bytes:
        """What `Operator.parse` reads."""
        ...


@dataclass(frozen=True)
class Prepared:
    """What `Operator.prepare` made of some rows.

    Attributes:
        parcel: of the rows that are in time.
        late: the positions of the rows that are late, so that they count nowhere; None is none.
        partly_late: likewise of rows that are late for some of their windows, and count in the others.
    """

    parcel: Any
    late: Vector | None = None
    partly_late: Vector | None = None


@dataclass(frozen=True)
class Context:
    """What a step may know of its batch.

    Attributes:
        files: where state is kept.
        directory: of this operator's state on this shard, such as `"runs/4f1c…/0003"`.
        version: being made; the batch's number.
        frontiers_us: of each port; `NO_TIME` where nothing is promised. They never go back. Behind them the
            clock, if the operator sees it.
        attempt: text that no other attempt at this version and shard has.
        shared: by name, those of its traces that other operators keep alike.
        stops: whether an error that rows cause ends the batch; otherwise an operator may refuse these rows.
    """

    files: StateFiles
    directory: str
    version: int
    frontiers_us: tuple[int, ...]
    attempt: str = "0"
    shared: Mapping[str, Shared] = field(default_factory=dict)
    stops: bool = False

    def arranged(self, name: str) -> Shared:
        """What makes a trace that the operator `arranges`, in this batch."""
        return self.shared.get(name) or Shared()

    def writer(self, name: str) -> Writer:
        """Writes the runs of the trace of this name."""
        return Writer(self.files, f"{self.directory}/{name}", self.version, self.attempt)


class OperatorState(Protocol):
    """One version of an operator's state on one shard; immutable."""

    @property
    def traces(self) -> Mapping[str, Trace]:
        """All that it keeps, by the names that `describe` has.

        Rows lie under the hash of the operator's key, but for what is kept `everywhere`.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """All that `Operator.open` needs, as JSON."""
        ...

    def check(self) -> None:
        """Asserts every invariant; opens and verifies every file."""
        ...

    @property
    def rows(self) -> int:
        """Rows in all files."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        ...


@dataclass(frozen=True)
class Step:
    """What a step made.

    Attributes:
        state: the new version.
        changes: of a stream, its new rows; of a table, its changes with `$weight`, all that go before all
            that come. None unless asked. A table with retention says by `$expiry` what that takes.
        closed: of a table with windows, the rows of those that were closed; None unless asked.
        files_written: how many, and `bytes_written`: how long they are together.
        more: changes that follow, where they may be many more than came: made as they are asked for.
        refused: what couldn't be computed, and why: rows as dead letters show them, such as groups' keys.
    """

    state: Any
    changes: pa.Table | None = None
    closed: pa.Table | None = None
    files_written: int = 0
    bytes_written: int = 0
    more: Iterable[pa.Table] = field(default=(), kw_only=True)
    refused: Sequence[Refused] = field(default=(), kw_only=True)


class Operator(Protocol):
    """A stateful operator. Each is a frozen dataclass, registered by `kind` in `penstock.ops.registry`."""

    kind: ClassVar[str]

    @property
    def schema(self) -> pa.Schema:
        """Of its rows, without Penstock's own columns."""
        ...

    @property
    def retracts(self) -> bool:
        """Whether its rows may be taken back: it is a table. Otherwise it is a stream."""
        ...

    @property
    def timed(self) -> bool:
        """Whether its rows have an event time (`$time`)."""
        ...

    @property
    def closes(self) -> bool:
        """Whether it is a table whose rows are final when a window is closed."""
        ...

    @property
    def corrects(self) -> bool:
        """Whether closed rows are taken back where late rows change them."""
        ...

    @property
    def every_us(self) -> int:
        """From the start of one of a table's windows to the next one's; 0 where it has none."""
        ...

    @property
    def clock_us(self) -> int:
        """In which steps it sees the plan's wall clock, as a frontier behind its ports'; 0: it doesn't.

        Frontiers that are handed to `wakes` and `step` then are one more than there are ports.
        """
        ...

    @property
    def always(self) -> bool:
        """Whether it gives rows even of no input, and so has a step in every batch."""
        ...

    @property
    def passes_late(self) -> bool:
        """Whether it gives late rows as well, with their `$watermark`, for its readers to judge."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a table's rows, with the window where there is one; of a stream, none."""
        ...

    def key(self, port: int) -> tuple[str, ...]:
        """The port's columns that decide the shard; none: all rows go to one."""
        ...

    def reads(self, port: int) -> frozenset[str] | None:
        """The port's columns that it looks at; None is all."""
        ...

    def arranges(self, port: int) -> Mapping[str, object]:
        """The traces that depend on the port's rows and on nothing else: by name, in which form.

        Traces of the same rows in forms that are equal are the same, whichever operators keep them, so
        `step` makes them by `Context.arranged`. The state is `Kept` then.
        """
        ...

    @property
    def placed_by(self) -> tuple[str, ...]:
        """Columns of its rows that have the values of the key: rows that agree in them share a shard."""
        ...

    @property
    def everywhere(self) -> frozenset[str]:
        """The names of traces that each shard has, and all of them the same rows."""
        ...

    def emitting(self, *, changes: bool, closed: bool) -> Operator:
        """The operator that gives what is read of it, and no more."""
        ...

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """What it promises where its inputs promise this; `NO_TIME` is nothing."""
        ...

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """Whether frontiers that move this far give rows, without any row that comes."""
        ...

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """Makes a parcel of rows; `$watermark` is there where some of them may be late."""
        ...

    def combine(self, port: int, parts: Sequence[Any]) -> Any:
        """One parcel of several of this lane, in their order."""
        ...

    def parse(self, port: int, blob: bytes | memoryview | pa.Buffer) -> Any:
        """Reads what `Parcel.to_bytes` gave."""
        ...

    def empty(self, files: StateFiles) -> Any:
        """The state before any row."""
        ...

    def open(self, files: StateFiles, description: Mapping[str, Any]) -> Any:
        """The state that a description is of; files are read when they are needed."""
        ...

    def step(self, state: Any, inputs: Sequence[Sequence[Any]], context: Context) -> Step:
        """Makes the next version of a shard's state.

        Args:
            state: the version before.
            inputs: by port, the shard's parcels, in an order that a retry repeats.
            context: of the batch.
        """
        ...

    def scan(
        self, state: Any, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A table's rows, of windows that start in [lo_us, hi_us) where it has some."""
        ...

    def scan_noting(
        self, state: Any, refused: list[Refused], lo_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """What `scan` gives; what can't be computed of it, and why, is added to `refused`, as in `Step`."""
        ...

    def to_spec(self) -> dict[str, Any]:
        """What it computes, as JSON."""
        ...


class Clockless:
    """What holds for every operator that sees no clock."""

    @property
    def clock_us(self) -> int:
        """See `Operator`: what it gives depends on its rows and their times alone."""
        return 0

    @property
    def everywhere(self) -> frozenset[str]:
        """See `Operator`: no row is on more than one shard."""
        return frozenset()

    def reads(self, port: int) -> frozenset[str] | None:  # noqa: ARG002
        """See `Operator`: it keeps whole rows."""
        return None

    def arranges(self, port: int) -> Mapping[str, object]:  # noqa: ARG002
        """See `Operator`: what it keeps is its own."""
        return {}

    @property
    def always(self) -> bool:
        """See `Operator`: nothing comes of nothing."""
        return False

    @property
    def passes_late(self) -> bool:
        """See `Operator`: it judges rows itself, or gives them no time."""
        return False

    def scan_noting(
        self: Operator,
        state: Any,
        refused: list[Refused],  # noqa: ARG002
        lo_us: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: reading computes nothing that fails."""
        return self.scan(state, lo_us)


class Unwindowed(Clockless):
    """What holds for every operator whose rows are in no windows of their own."""

    @property
    def closes(self) -> bool:
        """See `Operator`: there is nothing to close."""
        return False

    @property
    def corrects(self) -> bool:
        """See `Operator`."""
        return False

    @property
    def every_us(self) -> int:
        """See `Operator`."""
        return 0
