"""What operators have in common: those of windows, those that pass rows on, streams and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from penstock.core.delta import WEIGHT
from penstock.core.vectors import from_int64
from penstock.ops.kept import Kept
from penstock.ops.operator import Clockless, Unwindowed
from penstock.ops.routed import Routed, parse_routed
from penstock.ops.spec import AggregateSpec
from penstock.ops.windows import NO_TIME
from penstock.state.bag import COUNT, weights_of
from penstock.state.files import StateFiles
from penstock.state.layout import Layout
from penstock.state.trace import Trace

__all__ = ["Keeping", "Stream", "Timeless", "Windowed", "changes_of"]


class Windowed(Clockless):
    """An operator that is a dataclass, and computes an `AggregateSpec`: aggregates per window and key."""

    kind: ClassVar[str]

    spec: AggregateSpec

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """The operator that `to_spec` described."""
        return cls(AggregateSpec.from_spec(spec))  # type: ignore[call-arg]

    def to_spec(self) -> dict[str, Any]:
        """What it computes, as JSON."""
        return {"kind": self.kind, **self.spec.to_spec()}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view: window_start, window_end, keys, aggregates."""
        return self.spec.schema

    @property
    def retracts(self) -> bool:
        """See `Operator`: groups change, sessions grow and are joined."""
        return True

    @property
    def timed(self) -> bool:
        """See `Operator`: a row of a window happens in its last instant."""
        return self.spec.window.kind != "none"

    @property
    def closes(self) -> bool:
        """See `Operator`."""
        return self.timed

    @property
    def corrects(self) -> bool:
        """See `Operator`."""
        return self.spec.correct_us > 0

    @property
    def every_us(self) -> int:
        """See `Operator`: sessions begin whenever they begin."""
        return self.spec.window.even_us

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping columns."""
        return tuple(key.name for key in self.spec.keys)

    def key(self, port: int) -> tuple[str, ...]:  # noqa: ARG002
        """See `Operator`."""
        return self.keys

    @property
    def placed_by(self) -> tuple[str, ...]:
        """See `Operator`."""
        return self.keys

    def emitting(self, *, changes: bool, closed: bool) -> Self:
        """See `Operator`."""
        return replace(self, spec=replace(self.spec, changes=changes, closed=closed))  # type: ignore[type-var]


class Keeping(Clockless):
    """An operator whose parcels are `Routed` and whose state is `Kept`."""

    @property
    def _layouts(self) -> Mapping[str, Layout]:
        """Of its traces, by name."""
        raise NotImplementedError

    @property
    def _parcels(self) -> Sequence[pa.Schema]:
        """Of what is sent to a shard, by port."""
        raise NotImplementedError

    @property
    def _promised(self) -> int:
        """How many frontiers the state keeps from one batch to the next."""
        return 0

    def key(self, port: int) -> tuple[str, ...]:
        """See `Operator`."""
        raise NotImplementedError

    @property
    def placed_by(self) -> tuple[str, ...]:
        """See `Operator`: the first port's key."""
        return self.key(0)

    def combine(self, port: int, parts: Sequence[Routed]) -> Routed:  # noqa: ARG002
        """See `Operator`."""
        return Routed.combine(parts)

    def parse(self, port: int, blob: bytes | memoryview | pa.Buffer) -> Routed:
        """See `Operator`."""
        return parse_routed(self._parcels[port], blob)

    def empty(self, files: StateFiles) -> Kept:
        """See `Operator`."""
        traces = {name: Trace(layout, files) for name, layout in self._layouts.items()}
        return Kept(traces, (NO_TIME,) * self._promised)

    def open(self, files: StateFiles, description: Mapping[str, object]) -> Kept:
        """See `Operator`.

        Raises:
            CorruptError: the description is of another operator.
        """
        return Kept.open(self._layouts, files, description)


class Stream(Keeping, Unwindowed):
    """One that gives a stream: rows that are never taken back, each with its time."""

    @property
    def retracts(self) -> bool:
        """See `Operator`: what was given is final."""
        return False

    @property
    def timed(self) -> bool:
        """See `Operator`."""
        return True

    def scan(
        self,
        state: Kept,  # noqa: ARG002
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: a stream has no content."""
        return iter(())


class Timeless(Keeping, Unwindowed):
    """One that gives a table as it is now, whatever the time: changes have none, and time changes nothing."""

    @property
    def retracts(self) -> bool:
        """See `Operator`: it is a table."""
        return True

    @property
    def timed(self) -> bool:
        """See `Operator`."""
        return False

    def frontier(self, inputs_us: Sequence[int]) -> int:  # noqa: ARG002
        """See `Operator`: it promises nothing."""
        return NO_TIME

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:  # noqa: ARG002
        """See `Operator`."""
        return False


def changes_of(moved: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows of a bag as a table's changes, with `$weight`: all that go before all that come.

    Args:
        moved: each row once, with how often it comes; negative where it goes.
        schema: of the table's rows.
    """
    weights = weights_of(moved)
    order = np.concatenate([np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)])
    moved = moved.take(from_int64(order))
    columns = [moved.column(name) for name in [*schema.names, COUNT]]
    return pa.Table.from_arrays(columns, schema=schema.append(pa.field(WEIGHT, pa.int64())))
