"""A pipeline as its page sees it, without one: what it says of itself, and what it has committed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.record import samples

from penstock.app import Facts, Found
from penstock.engine.record.marks import Held
from penstock.engine.record.version import Counts, Version
from penstock.errors import QueryError
from penstock.web import StatusBoard

S = 1_000_000
NOW = 1_767_225_600 * S  # midnight

# A pipeline that reads 1,000 records a second and is well.
WELL = Facts(
    app="shop",
    pid=7,
    machine="here",
    directory="shop.penstock",
    started_us=NOW - 600 * S,
    said_us=NOW,
    topics=["clicks"],
    command="penstock run shop.py",
    log="127.0.0.1:9092",
    spark_us=NOW - 590 * S,
    looked_us=NOW - S // 10,
    batch_us=NOW - S // 10,
    batch_ms=20.0,
    slowest_ms=150.0,
    read_us=NOW - S // 10,
    asked_us=NOW - 595 * S,
    answered_us=NOW - S // 2,
    answering_us=NOW - 594 * S,
    lag={"clicks": 500},
    behind_us=NOW - S // 2,
    abreast_us=NOW - 500 * S,
)

# Of a program with two sinks: one is well, the other's target is away.
SINKS = {
    name: {
        "phase": "waiting" if trouble else "following",
        "since_ms": (NOW - 40 * S) // 1_000,
        "at_ms": NOW // 1_000,
        "topic": f"shop.{name}",
        "target": f"postgresql://ann@db/shop {name}",
        "breaker": "open" if trouble else "closed",
        "trouble": trouble,
        "last_error": trouble,
        "lag": 1_200 if trouble else 0,
        "progress": 0.94 if trouble else 1.0,
        "upserts": 18_800,
        "deletes": 3,
        "dead": 2,
        "retries": 5 if trouble else 0,
        "behind_ms": 40_000 if trouble else 0,
    }
    for name, trouble in (("users", ""), ("orders", "connection refused"))
}


@dataclass
class Pipeline:
    """What a pipeline says of itself, and what it has committed."""

    now_us: int = NOW
    facts: Facts | None = WELL
    alive: bool = True
    version: int = 0
    rows: int = 0
    late: int = 0
    dead: int = 0
    lost: int = 0
    watermark_us: int | None = None
    board: StatusBoard = field(init=False)

    def __post_init__(self) -> None:
        self.board = StatusBoard("shop", lambda: self.now_us, self.found, self.committed, cores=2)

    def found(self) -> Found | None:
        return None if self.facts is None else Found(self.facts, self.alive)

    def committed(self) -> Version:
        if not self.version:
            raise QueryError("nothing yet")
        watermarks = {} if self.watermark_us is None else {"clicks": self.watermark_us}
        return samples.version(
            self.version,
            name="shop",
            wall_us=self.now_us,
            offsets={"clicks": {0: self.rows}},
            watermark_us=watermarks,
            held={"clicks": Held(1, None, None, "partition 1", NOW - 90 * S)},
            counts=Counts(
                rows={"clicks": self.rows},
                late={"clicks": self.late},
                dead={"clicks": self.dead, "an operator": 1},
                lost={"clicks": self.lost},
            ),
        )

    def read(self, rows: int, seconds: float = 1) -> dict[str, Any]:
        """The status after so many more rows, and seconds in which the process said all is well."""
        self.now_us += int(seconds * S)
        self.rows += rows
        self.version += 1
        self.facts = replace(
            WELL, said_us=self.now_us, answered_us=self.now_us, looked_us=self.now_us
        )
        return self.board.status()


@dataclass
class Progress:
    """What the engine reports after a batch."""

    batch_ms: float
    seconds: dict[str, float]
