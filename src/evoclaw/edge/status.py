"""The machine's metrics in a heartbeat; metrics that a system lacks are left out."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from evoclaw.executors import machine

_MB = 1024 * 1024
_PROCESSOR = ("cpu", "soc", "x86_pkg", "core", "package", "k10temp")
"""Parts of the names of processor sensors."""


class Vitals(Struct, frozen=True, omit_defaults=True):
    """The machine's metrics. A metric that is unavailable keeps its default and is left out."""

    cpu_percent: float = 0.0
    """CPU use of all processors since the last reading."""
    memory_mb: float = 0.0
    """Memory of this process."""
    memory_total_mb: float = 0.0
    memory_available_mb: float = 0.0
    uptime_s: float = 0.0
    """The uptime of the machine."""
    load: float = 0.0
    """The load average of the last minute."""
    temperature_c: float | None = None
    """The temperature of the processor, or of the first sensor."""


class MachineStatus:
    """Reads the metrics from the system; never raises."""

    def __init__(self) -> None:
        self._times = machine.cpu_times()
        self._cpu_percent = 0.0

    def read(self, *, sensors: bool = True) -> Vitals:
        """The current metrics.

        Args:
            sensors: Whether to read the temperature: a sensor may take milliseconds.
        """
        memory, load = machine.memory(), machine.load_average()
        figures = {
            "cpu_percent": self._cpu(),
            "memory_mb": _megabytes(machine.own_memory()),
            "memory_total_mb": _megabytes(memory.total if memory else None),
            "memory_available_mb": _megabytes(memory.available if memory else None),
            "uptime_s": machine.uptime(),
            "load": round(load[0], 2) if load else None,
            "temperature_c": of_processor(machine.temperatures()) if sensors else None,
        }
        return Vitals(**{name: figure for name, figure in figures.items() if figure is not None})

    def _cpu(self) -> float | None:
        now, before = machine.cpu_times(), self._times
        if now is None or before is None:
            return None
        percent = now.percent_since(before)
        if percent is not None:
            self._cpu_percent, self._times = percent, now
        return self._cpu_percent


def of_processor(temperatures: Mapping[str, float]) -> float | None:
    """The reading of the processor's sensor, or of the first sensor."""
    named = (
        degrees
        for name, degrees in temperatures.items()
        if any(word in name.lower() for word in _PROCESSOR)
    )
    found = next(named, next(iter(temperatures.values()), None))
    return round(found, 1) if found is not None else None


def _megabytes(size: int | None) -> float | None:
    return round(size / _MB, 1) if size is not None else None
