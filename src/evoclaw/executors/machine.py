"""What this machine reports of itself, on every system that psutil knows.

The only module that uses psutil. A value that the system lacks, or does not let us read, is None or
left out; no function raises for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import psutil
from psutil import Error as PsutilError

from evoclaw.core.hosts import is_loopback

T = TypeVar("T")

MIN_CELSIUS, MAX_CELSIUS = -60.0, 200.0
"""A reading outside these limits is ignored."""
_UNUSED_ADDRESS = "192.0.2.1", 9
"""An address for documentation: nothing is sent there, only the route to it is looked up."""
_UNREADABLE = (
    PsutilError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    AttributeError,
)
"""What psutil raises where a system lacks something, or where a file of the kernel is garbled. An
AttributeError: the function itself does not exist on this system."""


class CpuTimes(NamedTuple):
    """Seconds of all processors together since the machine started."""

    busy: float
    total: float

    def percent_since(self, before: CpuTimes) -> float | None:
        """How busy the processors were in between; None if no time has passed."""
        total = self.total - before.total
        if total <= 0:
            return None
        # The kernel's counters may step back a little.
        return round(100 * min(max((self.busy - before.busy) / total, 0.0), 1.0), 1)


class MemoryUsage(NamedTuple):
    """Bytes of main memory."""

    total: int
    available: int


class DiskUsage(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


class ProcessMemory(NamedTuple):
    """A process and its resident bytes."""

    resident: int
    pid: int
    name: str


class Sensor(Protocol):
    """One reading, as psutil gives it."""

    @property
    def label(self) -> str:
        """Its name on its chip; often empty."""
        ...

    @property
    def current(self) -> float:
        """Degrees Celsius."""
        ...


def cpu_times() -> CpuTimes | None:
    """The processors' times; two samples yield the CPU load."""
    times = _or_none(psutil.cpu_times)
    if times is None:
        return None
    # On Linux the times of guests are contained in `user` and `nice`.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CpuTimes(total - times.idle - getattr(times, "iowait", 0.0), total)


def load_average() -> tuple[float, float, float] | None:
    """The load averages of the last 1, 5 and 15 minutes."""
    return _or_none(psutil.getloadavg)


def memory() -> MemoryUsage | None:
    """The machine's memory."""
    found = _or_none(psutil.virtual_memory)
    return MemoryUsage(found.total, found.available) if found is not None else None


def own_memory() -> int | None:
    """Resident bytes of this process."""
    return _or_none(lambda: psutil.Process().memory_info().rss)


def uptime() -> float | None:
    """Seconds since the machine started."""
    started = _or_none(psutil.boot_time)
    return max(round(time.time() - started, 2), 0.0) if started is not None else None


def temperatures() -> dict[str, float]:
    """Degrees Celsius by the sensor's name; some sensors take milliseconds to answer."""
    # A lambda, as the function does not exist on every system.
    return by_sensor(_or_none(lambda: psutil.sensors_temperatures()) or {})


def by_sensor(chips: Mapping[str, Sequence[Sensor]]) -> dict[str, float]:
    """The plausible readings, each named by its chip and, if it has one, its label."""
    found: dict[str, float] = {}
    for chip, sensors in chips.items():
        for number, sensor in enumerate(sensors):
            if MIN_CELSIUS < sensor.current < MAX_CELSIUS:
                label = sensor.label or (str(number) if number else "")
                found[f"{chip} {label}".strip()] = sensor.current
    return found


def disks() -> dict[str, DiskUsage]:
    """The file systems on disks by mount point, the root first of all."""
    mounted: dict[str, str] = {}
    for partition in _or_none(psutil.disk_partitions) or ():
        # One of several mount points of the same disk is enough.
        mounted.setdefault(partition.device, partition.mountpoint)
    found: dict[str, DiskUsage] = {}
    for path in sorted({Path.home().anchor or os.sep, *mounted.values()}):
        usage = _or_none(psutil.disk_usage, path)
        if usage is not None and usage.total:
            found[path] = DiskUsage(usage.total, usage.free)
    return found


def heaviest_processes(limit: int) -> list[ProcessMemory]:
    """The processes with the most resident memory; unreadable ones are left out."""
    found: list[ProcessMemory] = []
    for process in psutil.process_iter():
        try:
            resident = process.memory_info().rss
        except _UNREADABLE:
            continue
        found.append(ProcessMemory(resident, process.pid, ""))
    heaviest = sorted(found, reverse=True)[:limit]
    return [entry._replace(name=_process_name(entry.pid)) for entry in heaviest]


def network_addresses() -> list[str]:
    """The IPv4 addresses of this machine on its networks, without loopback."""
    states = _or_none(psutil.net_if_stats) or {}
    return sorted(
        {
            address.address
            for name, addresses in (_or_none(psutil.net_if_addrs) or {}).items()
            for address in addresses
            if name in states
            and states[name].isup
            and address.family == socket.AF_INET
            and not is_loopback(address.address)
        }
    )


def default_address() -> str:
    """The address that other machines most likely reach this one at; empty if that is unclear."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(_UNUSED_ADDRESS)
            return str(trial.getsockname()[0])
        except OSError:
            found = network_addresses()
    return found[0] if len(found) == 1 else ""


def _process_name(pid: int) -> str:
    return _or_none(lambda: psutil.Process(pid).name()) or "?"


def _or_none(read: Callable[..., T], *arguments: str) -> T | None:
    try:
        return read(*arguments)
    except _UNREADABLE:
        return None
