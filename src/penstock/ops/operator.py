"""What every stateful operator is: rows of its ports in, rows out, and state between batches.

    prepare    where the rows are: judges lateness, aggregates ahead, hashes      -> a parcel
    (exchange) parcels are cut by the hash of the key, so that a key is on one shard
    step       where the state is: parcels of all ports, state -> state, changes, closed rows
    scan       the content of a table, for readers of a view

An operator is a value: what it computes, and nothing of where it runs. Everything that a step may know
is in its state, its parcels and its context, so a batch that is repeated gives the same rows, byte for byte.
What it is to others (`Traits`) and what is written of it (`to_spec`) follow from its fields.

Frontiers. A frontier f of an edge promises that no row of a time before f will come any more. A step
sees the frontiers of its ports as they are with this batch; what the operator itself promises is
`frontier` of them. Rows that lie before their own watermark, `$watermark`, are late: `prepare` leaves them
out and says which. Those of a source have one, and those of an operator that hands rows on whenever they
come (`passes_late`), be they late or not. Nothing else is ever late, as operators keep their promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Protocol, Self

import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.ops.codec import UNSAID, read_fields, written_fields
from penstock.ops.state import Shared, State
from penstock.ops.windows import NO_TIME
from penstock.state.files import StateFiles
from penstock.state.layout import Layout
from penstock.state.runs import Writer
from penstock.state.trace import Trace

if TYPE_CHECKING:
    from penstock.ops.rows import Refused

__all__ = [
    "KINDS",
    "Context",
    "Follow",
    "Operator",
    "Parcel",
    "Parcels",
    "Port",
    "Prepared",
    "Step",
    "Traits",
]

KINDS: Final[dict[str, type[Operator]]] = {}
"""The operators that are imported, by kind."""


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
        """What `Parcels.parse` reads."""
        ...


class Parcels(Protocol):
    """How the rows of a port travel. Most do as they are: `penstock.ops.routed.RowParcels`."""

    def prepared(self, rows: pa.Table, key: Sequence[str]) -> Prepared:
        """A parcel of rows, with the hash of their key."""
        ...

    def combine(self, parts: Sequence[Any]) -> Any:
        """One parcel of several of this lane, at least one, in their order."""
        ...

    def parse(self, blob: bytes | memoryview | pa.Buffer) -> Any:
        """Reads what `Parcel.to_bytes` gave."""
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
class Port:
    """What an operator takes from one of its inputs.

    Attributes:
        parcels: how rows travel to their shards.
        key: columns that decide the shard; none: all rows go to one.
        reads: columns that are looked at; None is all.
        arranges: the traces that depend on the port's rows and on nothing else: by name, in which form.
            Traces of the same rows in forms that are equal are the same, whichever operators keep them, so
            `step` makes them by `Context.appended`. The state has no frontiers then.
    """

    parcels: Parcels
    key: tuple[str, ...] = ()
    reads: frozenset[str] | None = None
    arranges: Mapping[str, object] = field(default_factory=dict)


class Follow(Enum):
    """How an operator's rows follow from those of its inputs."""

    EACH = auto()
    """There is one at least for each of every input's."""
    FIRST = auto()
    """They are some of the first input's."""
    NEWEST = auto()
    """They are the newest of each key."""
    ANSWER = auto()
    """They are what is found in some of the inputs', which says nothing of how many there are."""
    GROUPS = auto()
    """There is one for each group."""


@dataclass(frozen=True)
class Traits:
    """What an operator is to those who place it, run it and read it. By default, it is a table without time.

    Attributes:
        schema: of its rows, without Penstock's own columns.
        ports: of its inputs, in their order.
        keeps: the layouts of the traces that it keeps, by name.
        keys: columns that identify a table's rows, with the window where there is one; of a stream, those
            that its records are keyed by.
        other_keys: likewise, further columns that each identify a table's rows.
        single: whether a table without `keys` has one row at most, and not rows that nothing identifies.
        placed_by: columns of its rows that have the values of the key: rows that agree in them share a
            shard. By default, they have the names of the first port's.
        follow: how its rows follow from those of its inputs.
        retracts: whether its rows may be taken back: it is a table. Otherwise it is a stream.
        timed: whether its rows have an event time (`$time`).
        closes: whether it is a table whose rows are final when a window is closed.
        corrects: whether closed rows are taken back where late rows change them.
        every_us: from the start of one of a table's windows to the next one's; 0 where it has none.
        clock_us: in which steps it sees the plan's wall clock, as a frontier behind its ports', so that
            `wakes` and `step` are given one more than there are ports; 0: it doesn't.
        always: whether it gives rows even of no input, and so has a step in every batch.
        passes_late: whether it gives late rows as well, with their `$watermark`, for its readers to judge.
        everywhere: the names of traces that each shard has, and all of them the same rows.
        frontiers_kept: how many frontiers its state keeps from one batch to the next.
    """

    schema: pa.Schema
    ports: tuple[Port, ...]
    keeps: Mapping[str, Layout]
    keys: tuple[str, ...] = ()
    other_keys: tuple[tuple[str, ...], ...] = ()
    single: bool = False
    placed_by: tuple[str, ...] | None = None
    follow: Follow = Follow.GROUPS
    retracts: bool = True
    timed: bool = False
    closes: bool = False
    corrects: bool = False
    every_us: int = 0
    clock_us: int = 0
    always: bool = False
    passes_late: bool = False
    everywhere: frozenset[str] = frozenset()
    frontiers_kept: int = 0

    @property
    def placed(self) -> tuple[str, ...]:
        """`placed_by`, or its default."""
        if self.placed_by is not None:
            return self.placed_by
        return self.ports[0].key if self.ports else ()


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
        """What makes a trace that a port `arranges`, in this batch."""
        return self.shared.get(name) or Shared()

    def writer(self, name: str) -> Writer:
        """Writes the runs of the trace of this name."""
        return Writer(self.files, f"{self.directory}/{name}", self.version, self.attempt)

    def appended(
        self,
        state: State,
        deltas: Mapping[str, pa.RecordBatch],
        *,
        low_us: Mapping[str, int | None] | None = None,
        frontiers_us: Sequence[int] = (),
    ) -> State:
        """A state's next version.

        Args:
            state: the version before.
            deltas: of its traces, sorted and consolidated, by name; the others stay as they are.
            low_us: of some of these, below which nothing need be kept any longer.
            frontiers_us: that it is to remember.
        """
        traces, lows = dict(state.traces), low_us or {}
        for name, delta in deltas.items():
            writer = self.writer(name)
            if name in self.shared:
                traces[name] = self.shared[name].append(traces[name], delta, writer)
            else:
                traces[name] = traces[name].append(delta, writer, low_us=lows.get(name))
        return State(traces, tuple(frontiers_us))


@dataclass(frozen=True)
class Step:
    """What a step made.

    Attributes:
        state: the new version.
        changes: of a stream, its new rows; of a table, its changes with `$weight`, all that go before all
            that come. None unless asked. A table with retention says by `$expiry` what that takes.
        closed: of a table with windows, the rows of those that were closed; None unless asked.
        more: changes that follow, where they may be many more than came: made as they are asked for.
        refused: what couldn't be computed, and why: rows as dead letters show them, such as groups' keys.
    """

    state: State
    changes: pa.Table | None = None
    closed: pa.Table | None = None
    more: Iterable[pa.Table] = field(default=(), kw_only=True)
    refused: Sequence[Refused] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Operator(ABC):
    """A stateful operator: a frozen dataclass whose fields say what it computes.

    One states its `kind`, `traits` and `step`; a table, `scan`; and of the rest what differs. Its module has
    the name of its kind, anywhere in `penstock.ops`; one of another package is named by an entry point of
    `penstock.operators`. See `penstock.ops.registry`.

    Attributes:
        gives: whether changes are read, so that `step` must give them.
    """

    kind: ClassVar[str]

    gives: Annotated[bool, UNSAID] = field(default=True, kw_only=True)

    def __init_subclass__(cls) -> None:
        if "kind" not in cls.__dict__:
            return  # what some operators have in common
        known = KINDS.get(cls.kind, cls)
        names = [f"{one.__module__}.{one.__qualname__}" for one in (known, cls)]
        if names[0] != names[1]:
            raise FlowError(
                f"expected one operator of the kind {cls.kind!r}; found {' and '.join(names)}. Give one of "
                "them another kind"
            )
        KINDS[cls.kind] = cls

    # -- what it is ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What others must know of it."""

    def to_spec(self) -> dict[str, Any]:
        """What it computes, as JSON."""
        return {"kind": self.kind, **written_fields(self)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """The operator that `to_spec` described.

        Raises:
            CorruptError: a field is missing.
        """
        made: Self = read_fields(cls, spec)
        return made

    def emitting(self, *, changes: bool, closed: bool) -> Self:  # noqa: ARG002
        """The operator that gives what is read of it."""
        return replace(self, gives=changes)

    # -- time ---------------------------------------------------------------------------------------

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """What it promises where its inputs promise this; `NO_TIME` is nothing."""
        return min(inputs_us) if self.traits.timed else NO_TIME

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether frontiers that move this far give rows, without any row that comes."""
        return False

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """Makes a parcel of rows; `$watermark` is there where some of them may be late."""
        one = self.traits.ports[port]
        return one.parcels.prepared(rows, one.key)

    # -- state --------------------------------------------------------------------------------------

    def empty(self, files: StateFiles) -> State:
        """The state before any row."""
        traces = {name: Trace(layout, files) for name, layout in self.traits.keeps.items()}
        return State(traces, (NO_TIME,) * self.traits.frontiers_kept)

    def open(self, files: StateFiles, description: Mapping[str, Any]) -> State:
        """The state that `State.describe` described; files are read when they are needed.

        Raises:
            CorruptError: the description is of another operator.
        """
        return State.open(self.traits.keeps, files, description)

    def check(self, state: State) -> None:
        """Asserts every invariant of a state; opens and verifies every file."""
        state.check()

    @abstractmethod
    def step(self, state: State, inputs: Sequence[Sequence[Any]], context: Context) -> Step:
        """Makes the next version of a shard's state.

        Args:
            state: the version before.
            inputs: by port, the shard's parcels, in an order that a retry repeats.
            context: of the batch.

        Raises:
            CorruptError: a file of the state is not what was written.
        """

    def scan(
        self,
        state: State,  # noqa: ARG002
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """A table's rows, of windows that start in [lo_us, hi_us) where it has some; of a stream, none."""
        return iter(())

    def scan_noting(
        self,
        state: State,
        refused: list[Refused],  # noqa: ARG002
        lo_us: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What `scan` gives; what can't be computed of it, and why, is added to `refused`, as in `Step`."""
        return self.scan(state, lo_us)
