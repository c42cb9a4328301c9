"""What a heartbeat says of the machine: true where it can be had, left out where not."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from evoclaw.edge.status import MachineStatus, of_processor

STAT = "cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 5\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine's files, which psutil reads instead of the kernel's."""
    write_times(tmp_path, user=100, idle=100)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return tmp_path


def write_times(proc: Path, *, user: int, idle: int) -> None:
    (proc / "stat").write_text(STAT.format(user=user, idle=idle))


@pytest.mark.skipif(platform.system() != "Linux", reason="it is compared with the kernel's files")
def test_machine_status_matches_the_kernels_values() -> None:
    asked = MachineStatus()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    vitals = asked.read()
    assert 0 < vitals.cpu_percent <= 100
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert vitals.memory_mb == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, rel=0.2)
    assert vitals.memory_mb < vitals.memory_total_mb
    assert 0 < vitals.memory_available_mb <= vitals.memory_total_mb
    assert vitals.uptime_s == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=30)
    assert vitals.load == pytest.approx(os.getloadavg()[0], abs=1)


@pytest.mark.skipif(platform.system() != "Linux", reason="the made-up machine has Linux's files")
def test_cpu_percent_is_measured_since_the_last_read(proc: Path) -> None:
    asked = MachineStatus()
    assert asked.read().cpu_percent == 0.0
    write_times(proc, user=175, idle=125)
    assert asked.read().cpu_percent == 75.0
    assert asked.read().cpu_percent == 75.0  # no tick since: the last word still holds
    write_times(proc, user=175, idle=225)
    assert asked.read().cpu_percent == 0.0
    write_times(proc, user=170, idle=235)
    assert asked.read().cpu_percent == 0.0  # a counter that steps back


def test_the_cpu_temperature_sensor_is_preferred() -> None:
    assert of_processor({}) is None
    assert of_processor({"battery": 30.0}) == 30.0
    assert of_processor({"battery": 30.0, "cpu_thermal": 45.612}) == 45.6
    assert of_processor({"acpitz": 27.8, "coretemp Package id 0": -5.0}) == -5.0


@pytest.mark.skipif(platform.system() != "Linux", reason="the made-up machine has Linux's files")
def test_unreadable_values_are_omitted_from_machine_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    vitals = msgspec.to_builtins(MachineStatus().read())
    # The load and the temperature are not read from there.
    assert vitals.keys() <= {"load", "temperature_c"}


def test_reading_machine_status_leaves_no_file_descriptor_open() -> None:
    asked = MachineStatus()
    asked.read()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(100):
        asked.read()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
