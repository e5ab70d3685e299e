"""The machine sampler, over a machine that tests make up and over the real one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.demo.machines import SECOND_US, Machine, Process, Times
from tests.patience import wait_until

from penstock.demo.machine import TOPICS, Sampler


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def sampler(machine: Machine) -> Sampler:
    return Sampler(lambda: machine.now_us, machine)


def test_load_is_the_share_of_time_worked_since_the_last_look(
    machine: Machine, sampler: Sampler
) -> None:
    """The first look has nothing to compare with; waiting for disks is not work, guests count once."""
    assert "cpu" not in sampler.sample()
    machine.now_us = SECOND_US
    machine.cores = [Times(0.2, 0.1, 0.5, 0.2, 0.2)]
    at = "1970-01-01T00:00:01Z"
    assert sampler.sample()["cpu"] == [{"core": 0, "busy": 0.3, "at": at}]


def test_cores_that_come_and_go_and_clocks_that_stand_still_are_left_out(
    machine: Machine, sampler: Sampler
) -> None:
    """A core without a past, or whose counters went back, has no figure."""
    sampler.sample()
    machine.cores = [Times(-1.0, 0.0, 2.0, 0.0, 0.0), Times(1.0, 0.0, 0.0, 0.0, 0.0)]
    assert "cpu" not in sampler.sample()


def test_rates_are_per_second_and_resets_are_skipped(machine: Machine, sampler: Sampler) -> None:
    """A counter that wrapped or was reset gives no figure, and the next look is right again."""

    def disk(read: int, written: int) -> dict[str, Any]:
        return {"sda": SimpleNamespace(read_bytes=read, write_bytes=written)}

    machine.disks = disk(100, 100)
    assert "disk" not in sampler.sample()
    machine.now_us, machine.disks = 2 * SECOND_US, disk(300, 100)
    assert sampler.sample()["disk"][0] | {"at": 0} == {
        "device": "sda",
        "read_per_s": 100.0,
        "written_per_s": 0.0,
        "at": 0,
    }
    machine.now_us, machine.disks = 3 * SECOND_US, disk(5, 120)
    assert "disk" not in sampler.sample()
    machine.now_us, machine.disks = 4 * SECOND_US, disk(15, 120)
    assert sampler.sample()["disk"][0]["read_per_s"] == 10.0


def test_a_machine_without_disks_has_no_disk_events(machine: Machine, sampler: Sampler) -> None:
    """Psutil gives None in some containers."""
    machine.disks = None
    sampler.sample()
    assert "disk" not in sampler.sample()


def test_processes_start_work_and_end(machine: Machine, sampler: Sampler) -> None:
    """What was there at the first look has not started; a reused process id is another process."""
    machine.processes = [Process(1, user=5.0), Process(2)]
    assert "processes" not in sampler.sample()
    machine.now_us = SECOND_US
    machine.processes = [Process(1, user=5.5), Process(2, created=2.0, title="new", user=0.25)]
    rows = sampler.sample()
    assert [(e["event"], e["pid"], e["name"]) for e in rows["processes"]] == [
        ("start", 2, "new"),
        ("end", 2, "worker"),
    ]
    assert [(w["pid"], w["cpu_s"]) for w in rows["work"]] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize("gone", [psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess])
def test_processes_that_vanish_or_forbid_a_look_are_left_out(
    machine: Machine, sampler: Sampler, gone: type[Exception]
) -> None:
    """One process that can't be seen doesn't hide the others."""
    machine.processes = [Process(1, gone=gone), Process(2, user=1.0)]
    sampler.sample()
    machine.now_us, machine.processes[1].user = SECOND_US, 2.0
    assert [w["pid"] for w in sampler.sample()["work"]] == [2]


def test_the_real_machine_gives_every_kind_of_figure() -> None:
    """Psutil has what the sampler asks for, on the machine that runs the tests."""
    sampler = Sampler(lambda: time.time_ns() // 1000)
    sampler.sample()
    seen: set[str] = set()

    def is_complete() -> bool:
        seen.update(sampler.sample().keys())
        return {"cpu", "memory", "work"} <= seen

    wait_until(is_complete, lambda: f"every kind, found {seen}")
    assert {"cpu", "memory", "work"} <= seen <= set(TOPICS)
