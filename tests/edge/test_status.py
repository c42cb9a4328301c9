"""What a heartbeat says of the machine: true where it can be had, left out where not."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import msgspec
import pytest

from evoclaw.edge.status import MachineStatus, Vitals

STAT = "cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 5\n"
MEMORY = "MemTotal:        2048000 kB\nMemFree:  1 kB\nMemAvailable:    1024000 kB\nBuffers: 2 kB\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A made-up machine's two folders."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "thermal").mkdir()
    (tmp_path / "proc" / "stat").write_text(STAT.format(user=100, idle=100))
    (tmp_path / "proc" / "meminfo").write_text(MEMORY)
    (tmp_path / "proc" / "uptime").write_text("350735.47 234388.90\n")
    (tmp_path / "proc" / "loadavg").write_text("0.20 0.18 0.12 1/80 11206\n")
    (tmp_path / "proc" / "self" / "statm").write_text("2000 256 100 1 0 200 0\n")
    return tmp_path


def status(machine: Path) -> MachineStatus:
    return MachineStatus(str(machine / "proc"), str(machine / "thermal"))


def add_sensor(machine: Path, number: int, kind: str, reading: str) -> Path:
    zone = machine / "thermal" / f"thermal_zone{number}"
    zone.mkdir()
    (zone / "type").write_text(f"{kind}\n")
    (zone / "temp").write_text(f"{reading}\n")
    return zone / "temp"


@pytest.mark.skipif(platform.system() != "Linux", reason="the kernel's files are Linux's")
def test_this_machine_tells_the_truth() -> None:
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


def test_the_kernels_words_are_understood(machine: Path) -> None:
    vitals = status(machine).read()
    assert (vitals.memory_total_mb, vitals.memory_available_mb) == (2000.0, 1000.0)
    assert (vitals.uptime_s, vitals.load) == (350735.47, 0.2)
    assert vitals.memory_mb == round(256 * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    assert vitals.temperature_c is None


def test_the_processor_is_measured_since_it_was_asked_last(machine: Path) -> None:
    asked = status(machine)
    assert asked.read().cpu_percent == 0.0
    (machine / "proc" / "stat").write_text(STAT.format(user=175, idle=125))
    assert asked.read().cpu_percent == 75.0
    assert asked.read().cpu_percent == 75.0  # no tick since: the last word still holds
    (machine / "proc" / "stat").write_text(STAT.format(user=175, idle=225))
    assert asked.read().cpu_percent == 0.0
    (machine / "proc" / "stat").write_text(STAT.format(user=170, idle=235))
    assert asked.read().cpu_percent == 0.0  # a counter that steps back


def test_the_processors_sensor_is_preferred_and_a_broken_one_is_not_asked(machine: Path) -> None:
    add_sensor(machine, 0, "battery", "30000")
    assert status(machine).read().temperature_c == 30.0
    add_sensor(machine, 1, "cpu-broken", "-274000")
    processor = add_sensor(machine, 2, "cpu-thermal", "45612")
    asked = status(machine)
    assert asked.read().temperature_c == 45.6
    processor.write_text("-5000\n")
    assert asked.read().temperature_c == -5.0
    processor.unlink()
    assert asked.read().temperature_c is None


def test_where_there_is_nothing_everything_is_left_out(tmp_path: Path) -> None:
    asked = MachineStatus(str(tmp_path / "none"), str(tmp_path / "none"))
    assert asked.read() == Vitals()
    assert msgspec.to_builtins(asked.read()) == {}


@pytest.mark.parametrize("rubbish", ["", "\n", "cpu", "cpu a b c d", "x" * 10_000, "\0\xff", "-1"])
def test_rubbish_is_left_out(machine: Path, rubbish: str) -> None:
    for name in ("stat", "meminfo", "uptime", "loadavg", "self/statm"):
        (machine / "proc" / name).write_text(rubbish)
    add_sensor(machine, 0, rubbish, rubbish)
    vitals = msgspec.to_builtins(status(machine).read())
    assert vitals in ({}, {"temperature_c": 0.0})


def test_a_folder_instead_of_a_file_is_left_out(machine: Path) -> None:
    (machine / "proc" / "uptime").unlink()
    (machine / "proc" / "uptime").mkdir()
    assert status(machine).read().uptime_s == 0.0


def test_asking_leaves_nothing_open(machine: Path) -> None:
    asked = status(machine)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(100):
        asked.read()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
