"""The machine sampler: what psutil sees of this machine, as events for topics.

A sampler keeps the last counters and gives rates since then. It takes nothing for sure: a process
may vanish between two looks, a counter may wrap or be reset, a figure may be forbidden or missing
on this system. Then the event is left out, never guessed. Clock and system come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import psutil

from penstock.core.time import instant_text

TOPICS: Final = ("cpu", "memory", "disk", "network", "processes", "work")
# Looking at every process takes tens of milliseconds; this bounds it to a twentieth of a core.
PROCESS_SHARE_MAX: Final = 0.05
PROCESSES_MAX: Final = 20_000  # processes looked at; more is not a machine to watch with psutil
NAME_CHARS_MAX: Final = 80  # of a process: the kernel gives 15, command lines may give anything

Row = dict[str, Any]
_GONE: Final = (psutil.Error, OSError)


class System(Protocol):
    """The part of psutil that the sampler looks at."""

    def cpu_times(self, *, percpu: bool) -> list[Any]:
        """Seconds by what they went to, for each core since the start."""
        ...

    def virtual_memory(self) -> Any:
        """Bytes of memory."""
        ...

    def disk_io_counters(self, *, perdisk: bool) -> Mapping[str, Any] | None:
        """Bytes by device since the start."""
        ...

    def net_io_counters(self, *, pernic: bool) -> Mapping[str, Any]:
        """Bytes by interface since the start."""
        ...

    def process_iter(self) -> Iterable[Any]:
        """The processes there are."""
        ...


@dataclass
class _Process:
    name: str
    cpu_s: float


class Sampler:
    """Looks at the machine; each look gives the events since the last.

    Args:
        clock_us: the wall clock, microseconds since 1970 UTC.
        system: psutil, or a test's.
    """

    def __init__(self, clock_us: Callable[[], int], system: System | None = None) -> None:
        self._clock_us = clock_us
        self._system: System = cast("System", psutil) if system is None else system
        self._cores: list[tuple[float, float]] = []
        self._io: dict[str, dict[str, tuple[int, int]]] = {}
        self._io_at_us = 0
        self._processes: dict[tuple[int, float], _Process] | None = None
        self._processes_due_us = 0

    def sample(self) -> dict[str, list[Row]]:
        """Looks once. Returns rows by topic; rates and work begin with the second look."""
        now_us = self._clock_us()
        at = instant_text(now_us // 1000 * 1000)
        rows = {
            "cpu": self._cpu(at),
            "memory": self._memory(at),
            **self._rates(now_us, at),
        }
        if now_us >= self._processes_due_us:
            started, work = self._look_at_processes(at)
            rows["processes"], rows["work"] = started, work
            took_us = self._clock_us() - now_us
            self._processes_due_us = now_us + int(took_us / PROCESS_SHARE_MAX)
        return {topic: found for topic, found in rows.items() if found}

    def _cpu(self, at: str) -> list[Row]:
        cores = [_busy_and_total(times) for times in self._system.cpu_times(percpu=True)]
        before, self._cores = self._cores, cores
        rows = []
        for core, (now, last) in enumerate(zip(cores, before, strict=False)):
            busy, total = now[0] - last[0], now[1] - last[1]
            if total > 0 and busy >= 0:
                rows.append({"core": core, "busy": round(min(busy / total, 1.0), 4), "at": at})
        return rows

    def _memory(self, at: str) -> list[Row]:
        memory = self._system.virtual_memory()
        used = memory.total - memory.available
        return [{"used": used, "available": memory.available, "total": memory.total, "at": at}]

    def _rates(self, now_us: int, at: str) -> dict[str, list[Row]]:
        seconds = (now_us - self._io_at_us) / 1e6
        disks = _counters(lambda: self._system.disk_io_counters(perdisk=True))
        networks = _counters(lambda: self._system.net_io_counters(pernic=True))
        now = {
            "disk": {name: (c.read_bytes, c.write_bytes) for name, c in disks.items()},
            "network": {name: (c.bytes_recv, c.bytes_sent) for name, c in networks.items()},
        }
        before, self._io, self._io_at_us = self._io, now, now_us
        fields = {
            "disk": ("device", "read_per_s", "written_per_s"),
            "network": ("interface", "received_per_s", "sent_per_s"),
        }
        return {
            topic: _rate_rows(fields[topic], counters, before.get(topic, {}), seconds, at)
            for topic, counters in now.items()
        }

    def _look_at_processes(self, at: str) -> tuple[list[Row], list[Row]]:
        """Starts and ends, and who worked, since the last look."""
        before, now, work = self._processes, {}, []
        events: list[Row] = []
        for count, process in enumerate(self._system.process_iter()):
            if count >= PROCESSES_MAX:
                break
            try:
                with process.oneshot():
                    identity = (process.pid, process.create_time())
                    name = process.name()[:NAME_CHARS_MAX]
                    times = process.cpu_times()
                    memory = process.memory_info().rss
            except _GONE:
                continue
            cpu_s = times.user + times.system
            now[identity] = _Process(name, cpu_s)
            last = None if before is None else before.get(identity)
            row = {"pid": process.pid, "name": name, "at": at}
            if before is not None and last is None:
                events.append({"event": "start", **row})
            spent = cpu_s - (last.cpu_s if last else cpu_s if before is None else 0.0)
            if spent > 0:
                work.append({**row, "cpu_s": round(spent, 3), "memory": memory})
        for (pid, created), gone in (before or {}).items():
            if (pid, created) not in now:
                events.append({"event": "end", "pid": pid, "name": gone.name, "at": at})
        self._processes = now
        return events, work


def _busy_and_total(times: Any) -> tuple[float, float]:
    """Seconds worked and seconds in all of one core. Guests' time is in `user` already."""
    values = times._asdict()
    total = sum(v for k, v in values.items() if not k.startswith("guest"))
    idle = values.get("idle", 0.0) + values.get("iowait", 0.0)
    return total - idle, total


def _counters(read: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any]:
    """What a system without such devices, or one that forbids to look, doesn't have is empty."""
    try:
        return read() or {}
    except _GONE:
        return {}


def _rate_rows(
    names: tuple[str, str, str],
    now: Mapping[str, tuple[int, int]],
    before: Mapping[str, tuple[int, int]],
    seconds: float,
    at: str,
) -> list[Row]:
    """Rates of the devices that were there before; a counter that went back was reset: no rate."""
    rows = []
    for device, (first, second) in now.items():
        last = before.get(device)
        if last is None or seconds <= 0 or first < last[0] or second < last[1]:
            continue
        if first == second == 0:  # a loop device, a tunnel that nobody uses
            continue
        rates = ((first - last[0]) / seconds, (second - last[1]) / seconds)
        rows.append(
            {names[0]: device, names[1]: round(rates[0], 1), names[2]: round(rates[1], 1), "at": at}
        )
    return rows
