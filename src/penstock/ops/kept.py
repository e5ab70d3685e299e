"""What an operator keeps: some traces by name, and what its ports were promised before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import CorruptError
from penstock.state.files import StateFiles
from penstock.state.layout import Layout
from penstock.state.trace import Trace

__all__ = ["Kept"]


@dataclass(frozen=True)
class Kept:
    """One version of an operator's state on one shard; immutable.

    Attributes:
        traces: by name.
        frontiers_us: of its ports, as they were with the batch that made it; empty where it doesn't ask.
    """

    traces: Mapping[str, Trace]
    frontiers_us: tuple[int, ...] = ()

    @staticmethod
    def open(
        layouts: Mapping[str, Layout], files: StateFiles, description: Mapping[str, Any]
    ) -> Kept:
        """The state that a description is of; files are read when they are needed.

        Raises:
            CorruptError: the description is of another operator.
        """
        traces = description["traces"]
        if set(traces) != set(layouts):
            raise CorruptError(
                f"expected the traces {sorted(layouts)} of this operator; found {sorted(traces)}: the "
                "pipeline's definition has changed. Run it with --rebuild"
            )
        opened = {name: Trace.open(lo, files, traces[name]) for name, lo in layouts.items()}
        return Kept(opened, tuple(description["frontiers_us"]))

    def describe(self) -> dict[str, Any]:
        """All that `open` needs, as JSON."""
        return {
            "traces": {name: trace.describe() for name, trace in self.traces.items()},
            "frontiers_us": list(self.frontiers_us),
        }

    def check(self) -> None:
        """Asserts every invariant; opens and verifies every file."""
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
