"""States that a lane keeps open between batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.engine.physical import Placed
from penstock.engine.record.values import Json
from penstock.state import StateFiles

__all__ = ["Hot"]


@dataclass
class Hot:
    """States that stay open in a lane between batches, each with the description that it is of."""

    states: dict[tuple[str, int], tuple[Json, Any]] = field(default_factory=dict)

    def open(self, placed: Placed, shard: int, files: StateFiles, description: Json | None) -> Any:
        """The state that a description is of; the empty one where there is none."""
        if description is None:
            return placed.operator.empty(files)
        known = self.states.get((placed.id, shard))
        if known is not None and known[0] == description:
            return known[1]
        return placed.operator.open(files, description)

    def keep(self, placed: Placed, shard: int, description: Json, state: Any) -> None:
        """Keeps a state for the next batch: if it begins with this one, no file is opened again."""
        self.states[placed.id, shard] = (description, state)
