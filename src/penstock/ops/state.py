"""What an operator keeps: some traces by name, and what its ports were promised before.

Several operators may keep the same trace; in a batch it is then made once (`Shared`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import CorruptError
from penstock.state.files import StateFiles
from penstock.state.layout import Layout
from penstock.state.runs import Writer
from penstock.state.trace import Trace

__all__ = ["Shared", "State"]


@dataclass(frozen=True)
class State:
    """One version of an operator's state on one shard; immutable.

    Attributes:
        traces: by name. Rows lie under the hash of the operator's key, but for what is kept everywhere.
        frontiers_us: of its ports, as they were with the batch that made it; empty where it doesn't ask.
    """

    traces: Mapping[str, Trace]
    frontiers_us: tuple[int, ...] = ()

    @staticmethod
    def open(
        layouts: Mapping[str, Layout], files: StateFiles, description: Mapping[str, Any]
    ) -> State:
        """The state that a description is of; files are read when they are needed.

        Raises:
            CorruptError: the description is of another operator.
        """
        description = described(description)
        traces = description["traces"]
        if set(traces) != set(layouts):
            raise CorruptError(
                f"expected the traces {sorted(layouts)} of this operator; found {sorted(traces)}: the "
                "pipeline's definition has changed. Run it with --rebuild"
            )
        opened = {name: Trace.open(lo, files, traces[name]) for name, lo in layouts.items()}
        return State(opened, tuple(description["frontiers_us"]))

    def describe(self) -> dict[str, Any]:
        """All that `open` needs, as JSON."""
        return {
            "traces": {name: trace.describe() for name, trace in self.traces.items()},
            "frontiers_us": list(self.frontiers_us),
        }

    def above(self, low_us: Mapping[str, int]) -> State:
        """The same without what lies below a time, in some traces."""
        traces = {
            name: replace(self.traces[name], low_us=max(low, self.traces[name].low_us))
            for name, low in low_us.items()
        }
        return replace(self, traces={**self.traces, **traces})

    def check(self) -> None:
        """Asserts every invariant of its traces; opens and verifies every file."""
        for trace in self.traces.values():
            trace.check()

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(trace.rows for trace in self.traces.values())

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(trace.bytes for trace in self.traces.values())


def described(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `State.describe` gives, of a description that this release or one before wrote."""
    if "traces" not in description:  # a table of a changelog, whose rows were all
        return {"traces": description, "frontiers_us": []}
    if "watermark_us" in description:  # aggregates had one port, and so one frontier
        return {
            "traces": description["traces"],
            "frontiers_us": [description["watermark_us"]],
        }
    return description


@dataclass
class Shared:
    """A trace that several operators keep alike, in one batch: the first that steps makes it for all.

    Attributes:
        before: as it was; None until an operator steps.
        after: as it is.
    """

    before: Trace | None = None
    after: Trace | None = None
    _delta: pa.RecordBatch | None = None

    def delta(self, make: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        """The trace's delta, which depends on the rows that came alone."""
        if self._delta is None:
            self._delta = make()
        return self._delta

    def append(self, trace: Trace, delta: pa.RecordBatch, writer: Writer) -> Trace:
        """An operator's trace with the delta added: the one that is made already, where it was equal."""
        if self.before is None:
            self.before, self.after = trace, trace.append(delta, writer)
        if not self.was(trace):
            return trace.append(delta, writer)
        assert self.after is not None
        return self.after

    def was(self, trace: Trace) -> bool:
        """Whether a trace is the one from before, whichever operator keeps it: of the same files."""
        return self.before is not None and _content(trace) == _content(self.before)

    @property
    def rests(self) -> bool:
        """Whether nothing was made, or the same as before."""
        return self.after is None or self.was(self.after)


def _content(trace: Trace) -> tuple[object, ...]:
    return trace.runs, trace.merges, trace.low_us
