"""What bounds a batch, where it runs, and a batch as a driver hands it to a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report
from penstock.engine.record.values import Traces
from penstock.engine.store import VERSIONS_KEPT

__all__ = ["Execute", "Limits", "Settings", "Work"]


@dataclass(frozen=True)
class Limits:
    """How much one batch may take on.

    Attributes:
        rows_max: of one partition in one batch; bounds how long a batch takes when catching up, and its
            memory: what is grouped of so many rows lies in a lane twice, before and after it is one run.
        bytes_max: of one partition in one batch, keys and values: bounds memory where records are large. The
            record that reaches it is the batch's last one.
    """

    rows_max: int = 1_250_000
    bytes_max: int = 256 << 20


@dataclass(frozen=True)
class Settings:
    """Where a pipeline runs.

    Attributes:
        directory: of the state and Spark's log.
        spark: `spark://…`; None runs Spark on this machine.
        address: of this machine, for a cluster's workers; None: on the way to Spark's master.
        state: a URI that pyarrow knows, for state that a cluster shares; None is in `directory`.
        cores: tasks at a time.
        rows_max: of one partition in one batch.
        shards: into how many exchanged state is cut; None leaves it as it is, at first one for each core.
        versions_kept: how many committed versions can be read.
    """

    directory: Path
    spark: str | None = None
    address: str | None = None
    state: str | None = None
    cores: int = 2
    rows_max: int = Limits.rows_max
    shards: int | None = None
    versions_kept: int = VERSIONS_KEPT

    @property
    def state_uri(self) -> str:
        """Where the state is."""
        return self.state or str((self.directory / "state").absolute())

    @property
    def spark_folder(self) -> Path:
        """Spark's log, and its temporary files."""
        return self.directory / "spark"


@dataclass(frozen=True)
class Work:
    """A batch, as a driver hands it to a host.

    Attributes:
        attempt: gives the plan; asked at each attempt.
        traces_of: gives the state that a lane's shards begin with.
        write: writes the plan down. The lanes compute meanwhile, but write to topics only after it: what
            leaves the pipeline must be of the plan that counts. Called again, it does nothing.
    """

    attempt: Callable[[], Plan]
    traces_of: Callable[[int], Traces]
    write: Callable[[], None]


Execute: TypeAlias = Callable[[Work], list[Report]]
"""Runs a batch on all lanes, and gives their reports."""
