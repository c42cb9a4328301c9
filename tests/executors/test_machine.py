"""What the system reports of this machine: true where it can be had, left out where not."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from evoclaw.executors import machine
from evoclaw.executors.machine import CpuTimes

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux", reason="the made-up machines have Linux's files"
)

STAT = "cpu  {user} 0 0 {idle} 0 0 0 0 {guest} 0\ncpu0 1 2 3 4\nintr 5\nbtime {started}\n"
MEMORY = """MemTotal: 2048000 kB
MemFree: 1 kB
MemAvailable: 1024000 kB
Buffers: 2 kB
Cached: 3 kB
Active: 4 kB
Inactive: 5 kB
Shmem: 6 kB
Slab: 7 kB
"""
FILES = ("stat", "meminfo", f"{os.getpid()}/statm", f"{os.getpid()}/stat", "filesystems", "mounts")
FIGURES: tuple[Callable[[], object], ...] = (
    machine.cpu_times,
    machine.memory,
    machine.own_memory,
    machine.uptime,
)


class Sensor(NamedTuple):
    label: str
    current: float


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine's files, which psutil reads instead of the kernel's."""
    folder = tmp_path / "proc"
    (folder / str(os.getpid())).mkdir(parents=True)
    write_times(folder, user=100, idle=100)
    (folder / "meminfo").write_text(MEMORY)
    (folder / str(os.getpid()) / "statm").write_text("2000 256 100 1 0 200 0\n")
    own = Path("/proc/self/stat").read_text()
    (folder / str(os.getpid()) / "stat").write_text(own)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder))
    return folder


def write_times(proc: Path, *, user: int, idle: int, guest: int = 0) -> None:
    started = int(time.time()) - 1000
    (proc / "stat").write_text(STAT.format(user=user, idle=idle, guest=guest, started=started))


def test_memory_and_uptime_are_read_from_proc(proc: Path) -> None:
    assert machine.memory() == (2048000 * 1024, 1024000 * 1024)
    assert machine.own_memory() == 256 * os.sysconf("SC_PAGE_SIZE")
    assert machine.uptime() == pytest.approx(1000, abs=30)


def test_cpu_percent_excludes_idle_time_and_counts_guest_time_once(proc: Path) -> None:
    before = machine.cpu_times()
    write_times(proc, user=175, idle=125, guest=50)
    now = machine.cpu_times()
    assert before is not None and now is not None
    assert now.percent_since(before) == 75.0
    assert now.percent_since(now) is None


def test_cpu_percent_is_clamped_when_a_counter_decreases() -> None:
    assert CpuTimes(0.9, 4.0).percent_since(CpuTimes(1.0, 2.0)) == 0.0
    assert CpuTimes(9.0, 4.0).percent_since(CpuTimes(1.0, 2.0)) == 100.0


@pytest.mark.parametrize("rubbish", ["", "\n", "cpu", "cpu a b c d", "x" * 10_000, "\0\xff", "-1"])
def test_malformed_proc_files_yield_no_values(proc: Path, rubbish: str) -> None:
    for name in FILES:
        (proc / name).write_text(rubbish)
    assert [figure() for figure in FIGURES] == [None] * len(FIGURES)
    assert set(machine.disks()) <= {"/"}


def test_a_missing_proc_folder_yields_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    assert [figure() for figure in FIGURES] == [None] * len(FIGURES)


def test_a_folder_in_place_of_meminfo_yields_no_value(proc: Path) -> None:
    (proc / "meminfo").unlink()
    (proc / "meminfo").mkdir()
    assert machine.memory() is None


def test_a_system_without_sensors_reports_no_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "sensors_temperatures")
    assert machine.temperatures() == {}


def test_sensors_are_named_by_chip_and_label_and_broken_readings_dropped() -> None:
    chips = {
        "cpu_thermal": [Sensor("", 48.3)],
        "coretemp": [Sensor("Package id 0", 51.0), Sensor("", 50.0)],
        "broken": [Sensor("", -274.0), Sensor("", 655.35)],
    }
    assert machine.by_sensor(chips) == {
        "cpu_thermal": 48.3,
        "coretemp Package id 0": 51.0,
        "coretemp 1": 50.0,
    }


def test_disks_include_the_root_file_system() -> None:
    found = machine.disks()
    assert all(0 <= disk.free <= disk.total for disk in found.values())
    root = os.statvfs("/")
    assert found["/"].total == root.f_blocks * root.f_frsize


def test_the_largest_processes_come_first_up_to_the_requested_count() -> None:
    found = machine.heaviest_processes(3)
    assert found == sorted(found, reverse=True)
    assert 1 <= len(found) <= 3 and all(each.name for each in found)
