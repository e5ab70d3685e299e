"""Machines that tests make up, with the interface of psutil."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

Times = namedtuple("Times", "user system idle iowait guest")
SECOND_US = 1_000_000


@dataclass
class Process:
    """A process; `gone` is what looking at it raises."""

    pid: int
    created: float = 1.0
    title: str = "worker"
    user: float = 0.0
    gone: type[Exception] | None = None

    @contextlib.contextmanager
    def oneshot(self) -> Iterator[None]:
        yield

    def create_time(self) -> float:
        if self.gone is not None:
            raise self.gone(self.pid)
        return self.created

    def name(self) -> str:
        return self.title

    def cpu_times(self) -> Any:
        return SimpleNamespace(user=self.user, system=0.0)

    def memory_info(self) -> Any:
        return SimpleNamespace(rss=1000)


@dataclass
class Machine:
    """What psutil would say."""

    now_us: int = 0
    cores: list[Times] = field(default_factory=lambda: [Times(0.0, 0.0, 0.0, 0.0, 0.0)])
    disks: dict[str, Any] | None = field(default_factory=dict)
    networks: dict[str, Any] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def cpu_times(self, *, percpu: bool) -> list[Any]:
        return list(self.cores)

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=100, available=40)

    def disk_io_counters(self, *, perdisk: bool) -> dict[str, Any] | None:
        return self.disks

    def net_io_counters(self, *, pernic: bool) -> dict[str, Any]:
        return self.networks

    def process_iter(self) -> list[Process]:
        return list(self.processes)

    def tick(self) -> None:
        """A second passes: half of it worked, bytes moved, a process works and another starts."""
        self.now_us += SECOND_US
        second = self.now_us / SECOND_US
        self.cores = [Times(second / 2, 0.0, second / 2, 0.0, 0.0)] * 2
        moved = int(second) * 1000
        self.disks = {"sda": SimpleNamespace(read_bytes=moved, write_bytes=moved)}
        self.networks = {"eth0": SimpleNamespace(bytes_recv=moved, bytes_sent=moved)}
        pid = int(second)
        self.processes = [Process(1, user=second / 2), Process(pid + 10, created=second)]


def busy_machine() -> Machine:
    """A machine that does something every second of 2026."""
    return Machine(now_us=1_767_225_600 * SECOND_US)
