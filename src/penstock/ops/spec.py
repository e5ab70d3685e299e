"""What a windowed aggregate computes, as data: a reader of a view needs this and no user code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from penstock.core import vectors
from penstock.core.schema import Schema, type_text
from penstock.core.time import duration_text
from penstock.errors import FlowError
from penstock.ops.windows import Window

Kind = Literal["count", "sum", "min", "max", "avg"]

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True)
class Column:
    """A column of the input.

    Args:
        name: of the column.
        type: its Arrow type.
        required: whether no row may have NULL there, which saves counting NULLs.
    """

    name: str
    type: pa.DataType
    required: bool = False

    def to_spec(self) -> list[Any]:
        """The same as JSON."""
        return [self.name, type_text(self.type), self.required]

    @staticmethod
    def from_spec(spec: list[Any]) -> Column:
        """Reads what `to_spec` gave."""
        return Column(spec[0], Schema.parse(f"x {spec[1]}")["x"].type, spec[2])


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: `count` of rows (no column) or of values, `sum`, `min`, `max`, `avg`.

    NULLs are skipped as in SQL: without any value, `count` is 0 and the others are NULL.
    """

    name: str
    kind: Kind
    column: Column | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise FlowError(
                f"expected one of the aggregates {', '.join(get_args(Kind))}; found {self.kind!r}"
            )
        if self.column is None:
            if self.kind != "count":
                raise FlowError(f"expected {self.kind} of a column; found none. Name one")
            return
        type_ = self.column.type
        number = pa.types.is_integer(type_) or vectors.is_float(type_)
        if self.kind in ("sum", "avg") and not number:
            raise FlowError(
                f"expected a column of numbers for {self.kind}({self.column.name}); found {type_}"
            )
        if self.kind in ("min", "max") and not (vectors.is_fixed(type_) or vectors.is_text(type_)):
            raise FlowError(
                f"expected a column that can be ordered for {self.kind}({self.column.name}); found {type_}"
            )

    @property
    def type(self) -> pa.DataType:
        """The type of the result."""
        if self.column is None or self.kind == "count":
            return pa.int64()
        if self.kind == "avg":
            return pa.float64()
        if self.kind == "sum":
            return pa.float64() if vectors.is_float(self.column.type) else pa.int64()
        return self.column.type


@dataclass(frozen=True)
class AggregateSpec:
    """A windowed aggregate.

    Args:
        keys: columns to group by, beside the window.
        window: how rows are put into windows.
        aggregates: what is computed of each group.
        time: the event-time column; None only without windows.
        retracts: whether the input may take rows back (has `$weight`). Without it, min and max are
            cheap, and a batch needs no look at the state.
        changes: whether `step` gives the view's changes as a delta.
        closed: whether `step` gives the rows of the windows that the watermark has closed.
        keep_us: how long closed windows stay in the view; None is for ever.
        correct_us: for so long after a window was closed, rows still count in it, and `closed` takes back
            what it gave; 0 makes them late.
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
        for key in self.keys:
            if not (vectors.is_fixed(key.type) or vectors.is_text(key.type)):
                raise FlowError(f"expected a key of a plain type; found {key.name!r}, a {key.type}")
        ends = [
            pa.field(n, pa.timestamp("us", "UTC"), nullable=False)
            for n in (WINDOW_START, WINDOW_END)
        ]
        fields = [
            *(ends if windowed else []),
            *(pa.field(key.name, key.type, not key.required) for key in self.keys),
            *(pa.field(a.name, a.type, a.kind != "count") for a in self.aggregates),
        ]
        names = [f.name for f in fields]
        for name in names:
            if names.count(name) > 1 or name.startswith("$"):
                raise FlowError(
                    f"expected names that differ and don't begin with '$'; found {name!r} among "
                    f"{', '.join(names)}. Rename a key or an aggregate"
                )
        object.__setattr__(self, "schema", pa.schema(fields))

    def to_spec(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "keys": [key.to_spec() for key in self.keys],
            "window": self.window.to_spec(),
            "aggregates": [
                [a.name, a.kind, a.column and a.column.to_spec()] for a in self.aggregates
            ],
            "time": self.time,
            "retracts": self.retracts,
            "changes": self.changes,
            "closed": self.closed,
            "keep_us": self.keep_us,
            "correct_us": self.correct_us,
        }

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> AggregateSpec:
        """Reads what `to_spec` gave."""
        return AggregateSpec(
            keys=tuple(Column.from_spec(key) for key in spec["keys"]),
            window=Window.from_spec(spec["window"]),
            aggregates=tuple(
                Aggregate(name, kind, column and Column.from_spec(column))
                for name, kind, column in spec["aggregates"]
            ),
            time=spec["time"],
            retracts=spec["retracts"],
            changes=spec["changes"],
            closed=spec["closed"],
            keep_us=spec["keep_us"],
            correct_us=spec["correct_us"],
        )
