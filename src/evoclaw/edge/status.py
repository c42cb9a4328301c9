"""What a heartbeat says of this machine, read from the kernel; what a system lacks is left out."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_MB = 1024 * 1024
_HOTTEST, _COLDEST = 200.0, -60.0
"""Degrees Celsius beyond which a sensor is not believed."""
_PROCESSOR = ("cpu", "soc", "x86_pkg", "core", "package")
"""What the sensor of a processor has in its name."""


class Vitals(Struct, frozen=True, omit_defaults=True):
    """How the machine is. A figure that cannot be had here keeps its default and is left out."""

    cpu_percent: float = 0.0
    """Of all processors, since it was asked last."""
    memory_mb: float = 0.0
    """Of this process."""
    memory_total_mb: float = 0.0
    memory_available_mb: float = 0.0
    uptime_s: float = 0.0
    """Of the machine."""
    load: float = 0.0
    """Processes that run or want to, the mean of the last minute."""
    temperature_c: float | None = None
    """Of the processor, or of whatever there is a sensor for."""


class MachineStatus:
    """Asks the kernel; never raises."""

    def __init__(self, proc: str = "/proc", thermal: str = "/sys/class/thermal") -> None:
        self._proc = proc
        self._sensor = _find_sensor(Path(thermal))
        self._ticks = self._read_ticks()
        self._cpu_percent = 0.0

    def read(self) -> Vitals:
        """How the machine is now."""
        memory = self._memory()
        figures = {
            "cpu_percent": self._cpu(),
            "memory_mb": self._own_memory(),
            "memory_total_mb": memory.get(b"MemTotal"),
            "memory_available_mb": memory.get(b"MemAvailable"),
            "uptime_s": _first_number(self._file("uptime")),
            "load": _first_number(self._file("loadavg")),
            "temperature_c": _temperature(self._sensor),
        }
        return Vitals(**{name: figure for name, figure in figures.items() if figure is not None})

    def _file(self, name: str) -> bytes:
        return _read(f"{self._proc}/{name}")

    def _cpu(self) -> float | None:
        now, before = self._read_ticks(), self._ticks
        if now is None or before is None:
            return None
        if now[1] > before[1]:
            # The kernel's counters may step back a little.
            share = min(max((now[0] - before[0]) / (now[1] - before[1]), 0.0), 1.0)
            self._cpu_percent, self._ticks = round(100 * share, 1), now
        return self._cpu_percent

    def _read_ticks(self) -> tuple[int, int] | None:
        """Busy and all ticks since the machine began."""
        words = self._file("stat").split(b"\n", 1)[0].split()
        # user nice system idle iowait irq softirq steal; guests are within user.
        ticks = [int(word) for word in words[1:9] if word.isdigit()]
        if words[:1] != [b"cpu"] or len(ticks) < 4:
            return None
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)

    def _own_memory(self) -> float | None:
        words = self._file("self/statm").split()
        if len(words) < 2 or not words[1].isdigit():
            return None
        return round(int(words[1]) * os.sysconf("SC_PAGE_SIZE") / _MB, 1)

    def _memory(self) -> dict[bytes, float]:
        found: dict[bytes, float] = {}
        for line in self._file("meminfo").split(b"\n", 5)[:5]:
            name, _, amount = line.partition(b":")
            words = amount.split()
            if words and words[0].isdigit():
                found[name] = round(int(words[0]) / 1024, 1)
        return found


def _find_sensor(folder: Path) -> str | None:
    """The file of the processor's sensor, or else of the first; looked for once, as it is slow."""
    try:
        zones = sorted(folder.glob("thermal_zone*"))
    except OSError:
        return None
    named = {f"{zone}/temp": _read(f"{zone}/type").decode(errors="replace") for zone in zones}
    working = {path: name.lower() for path, name in named.items() if _temperature(path) is not None}
    ours = (path for path, name in working.items() if any(word in name for word in _PROCESSOR))
    return next(ours, next(iter(working), None))


def _temperature(path: str | None) -> float | None:
    text = _read(path).strip() if path else b""
    if not text.removeprefix(b"-").isdigit():
        return None
    degrees = int(text) / 1000
    return round(degrees, 1) if _COLDEST < degrees < _HOTTEST else None


def _first_number(text: bytes) -> float | None:
    words = text.split(maxsplit=1)
    return float(words[0]) if words and words[0].replace(b".", b"", 1).isdigit() else None


def _read(path: str) -> bytes:
    """A small file of the kernel; empty where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        # A sensor that is asleep or broken says so only now.
        return b""
    finally:
        os.close(descriptor)
