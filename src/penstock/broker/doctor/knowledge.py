"""What a data directory's journals know of its partitions."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.known_ends import TRANSACTIONS, KnownEnd, known_ends
from penstock.broker.storage import machine_run
from penstock.broker.transactions.machine import Place
from penstock.broker.transactions.records import Outcome, outcomes_in, unsettled_in
from penstock.log.disk.journal import bodies_in

__all__ = ["Knowledge"]


@dataclass(slots=True)
class Knowledge:
    """What other files know of partitions, by topic and number.

    Attributes:
        lost_power: whether the machine may have gone down since a broker last recovered them.
        ends: up to where they once were.
        outcomes: how transactions ended in them.
        unsettled: serials of those whose markers the next start writes where they are missing.
    """

    lost_power: bool = True
    ends: dict[Place, KnownEnd] = field(default_factory=dict)
    outcomes: dict[Place, list[Outcome]] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, data: Path) -> Knowledge:
        """Reads the journals."""

        def load(path: str) -> bytes | None:
            file = data / path
            return file.read_bytes() if file.exists() else None

        topics = {}
        for file in data.glob("topics/*/topic.json"):
            with contextlib.suppress(
                ValueError, KeyError, TypeError, OSError
            ):  # reported elsewhere
                topics[uuid.UUID(json.loads(file.read_bytes())["id"]).hex] = file.parent.name
        said = list(bodies_in(load(TRANSACTIONS) or b""))
        return cls(
            machine_run.lost_power(data),
            known_ends(load, topics),
            outcomes_in(said),
            unsettled_in(said),
        )
