"""What a windowed aggregate computes, as data: a reader of a view needs this and no user code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Final, Self

import pyarrow as pa

from penstock.core.time import duration_text
from penstock.errors import FlowError
from penstock.ops.aggregates import (
    ROWS,
    Column,
    Function,
    Kept,
    Parameter,
    Part,
    make_function,
)
from penstock.ops.codec import FLAT, RARE
from penstock.ops.operator import Operator, Parcels, Port, Traits
from penstock.ops.windows import Window
from penstock.state.layout import Layout

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: a function of a column.

    NULLs are skipped as in SQL: without any value, counts are 0 and the others are NULL.

    Args:
        name: of the result's column.
        kind: which function; see `penstock.ops.aggregates`.
        column: what it is computed of; None counts rows.
        by: the second column, of functions that take two.
        parameter: a number, or some, of functions that take one.
    """

    listed: ClassVar = True  # in specs

    name: str
    kind: str
    column: Column | None = None
    by: Column | None = None
    parameter: Parameter | None = None
    function: Function = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        made = make_function(self.kind, self.column, self.by, self.parameter)
        object.__setattr__(self, "function", made)

    @property
    def type(self) -> pa.DataType:
        """The type of the result."""
        return self.function.type


@dataclass(frozen=True)
class AggregateSpec:
    """A windowed aggregate.

    Args:
        keys: columns to group by, next to the window.
        window: how rows are put into windows.
        aggregates: what is computed of each group.
        time: the event-time column; None only without windows.
        retracts: whether the input may take rows back (has `$weight`). Without it, min and max are
            cheap, and a batch needs no look at the state.
        changes: whether `step` gives the view's changes as a delta.
        closed: whether `step` gives the rows of the windows that the watermark has closed.
        keep_us: how long closed windows stay in the view; None is forever.
        correct_us: for so long after a window was closed, rows still count in it, and `closed` takes back
            what it gave; 0 makes them late.
        mixed: whether rows that may be late come together with those that may be taken back, which never are.
    """

    keys: tuple[Column, ...]
    window: Window
    aggregates: tuple[Aggregate, ...]
    time: str | None = None
    retracts: bool = False
    changes: bool = False
    closed: bool = False
    keep_us: int | None = None
    correct_us: int = 0
    mixed: Annotated[bool, RARE] = False
    schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        windowed = self.window.kind != "none"
        if windowed and self.time is None:
            raise FlowError("expected an event-time column for windows; found none")
        if not windowed and (self.closed or self.keep_us is not None or self.correct_us):
            raise FlowError(
                "expected windows that close; found none. Add a window, or don't keep/emit"
            )
        if self.keep_us is not None and self.keep_us < self.correct_us:
            raise FlowError(
                f"expected windows to be kept at least as long as they are corrected "
                f"({duration_text(self.correct_us)}); found {duration_text(self.keep_us)}"
            )
        ends = [
            pa.field(n, pa.timestamp("us", "UTC"), nullable=False)
            for n in (WINDOW_START, WINDOW_END)
        ]
        fields = [
            *(ends if windowed else []),
            *(pa.field(key.name, key.type, not key.required) for key in self.keys),
            *(pa.field(a.name, a.type, not a.function.counts) for a in self.aggregates),
        ]
        names = [f.name for f in fields]
        for name in names:
            if names.count(name) > 1 or name.startswith("$"):
                raise FlowError(
                    f"expected names that differ and don't begin with '$'; found {name!r} among "
                    f"{', '.join(names)}. Rename a key or an aggregate"
                )
        object.__setattr__(self, "schema", pa.schema(fields))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is kept of a group: the count of its rows, and what its aggregates need, each once."""
        parts = [
            part
            for aggregate in self.aggregates
            for part in aggregate.function.parts(retracts=self.retracts)
        ]
        return tuple({part.value.name: part for part in [ROWS, *parts]}.values())

    @cached_property
    def kept(self) -> tuple[Kept, ...]:
        """The columns whose values are kept one by one, each once."""
        return tuple(dict.fromkeys(part.kept for part in self.parts if part.kept is not None))

    @cached_property
    def inputs(self) -> Mapping[str, Column]:
        """The columns of the input that are read, by name."""
        wanted = [c for a in self.aggregates for c in (a.column, a.by) if c is not None]
        return {column.name: column for column in (*wanted, *self.keys)}

    @property
    def partly_late(self) -> bool:
        """Whether a row may be late for some of its windows, and count in the others."""
        return self.window.paned and (self.mixed or not self.retracts)

    @property
    def reads(self) -> frozenset[str]:
        """The names of the input's columns that are looked at."""
        return frozenset(self.inputs) | ({self.time} if self.time is not None else set())


@dataclass(frozen=True)
class Windowed(Operator):
    """A table of aggregates per window and key: window_start, window_end, keys, aggregates.

    Args:
        spec: what is computed, and what of it is given.
    """

    spec: Annotated[AggregateSpec, FLAT]

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping columns."""
        return tuple(key.name for key in self.spec.keys)

    def _traits(
        self,
        parcels: Parcels,
        keeps: Mapping[str, Layout],
        *,
        reads: frozenset[str] | None,
    ) -> Traits:
        """A row of a window happens in its last instant; sessions begin whenever they begin."""
        windowed = self.spec.window.kind != "none"
        return Traits(
            schema=self.spec.schema,
            ports=(Port(parcels, self.keys, reads),),
            keeps=keeps,
            keys=self.keys,
            timed=windowed,
            closes=windowed,
            corrects=self.spec.correct_us > 0,
            every_us=self.spec.window.even_us,
            frontiers_kept=1,
        )

    def emitting(self, *, changes: bool, closed: bool) -> Self:
        """See `Operator`."""
        return replace(self, spec=replace(self.spec, changes=changes, closed=closed))
