"""`LocalDevice`: the sensors of this machine, read from the system or by the usual programs."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, TextBlock
from evoclaw.core.ops import CompletedProcess, ExecOps
from evoclaw.executors import machine

CPU_SAMPLE_S = 0.25
"""How long the CPU load is measured."""
MAX_LISTED_PROCESSES = 15
MAX_PICTURE_BYTES = 5 << 20
CAMERA_COMMANDS = (
    ("rpicam-still", "-n", "-t", "500", "--width", "1280", "--height", "960", "-o", "-"),
    ("libcamera-still", "-n", "-t", "500", "--width", "1280", "--height", "960", "-o", "-"),
    ("fswebcam", "-q", "-r", "1280x960", "--no-banner", "-"),
)
"""Programs that write one JPEG to their output, the best first."""
GPIO_COMMANDS = (("raspi-gpio", "get"), ("pinctrl", "get"))
"""Programs that print the state of a pin, which is their last argument; with `set` instead of
`get`, the pin and `op dh` or `op dl`, they make it a high or low output."""
NOTIFY_COMMANDS = (("notify-send", "--app-name=EvoClaw"), ("wall",))
"""Programs that show their last argument to people."""


class LocalDevice:
    """The sensors of this machine; `exec` runs the programs of its camera and its pins."""

    def __init__(
        self, exec: ExecOps, *, temperatures: Callable[[], dict[str, float]] = machine.temperatures
    ) -> None:
        self._exec, self._temperatures = exec, temperatures
        self._camera = _present(CAMERA_COMMANDS)
        self._pins = _present(GPIO_COMMANDS)

    def sensor_names(self) -> Sequence[str]:
        """The sensors of this machine that can be read."""
        return tuple(self._ways())

    async def read_sensor(self, what: str, pin: int | None) -> ToolOutput:
        """Read one sensor."""
        if what == "gpio":
            return await self._gpio(pin or 0)
        return await self._ways()[what]()

    def _ways(self) -> dict[str, Callable[[], Awaitable[ToolOutput]]]:
        ways: dict[str, Callable[[], Awaitable[ToolOutput]]] = {
            "cpu": self._cpu,
            "memory": self._memory,
            "disk": self._disk,
            "processes": self._processes,
        }
        if self._has_temperature:
            ways["temperature"] = self._temperature
        if self._camera:
            ways["camera"] = self._picture
        if self._pins:
            ways["gpio"] = lambda: self._gpio(0)
        return ways

    @cached_property
    def _has_temperature(self) -> bool:
        return bool(self._temperatures())

    async def _temperature(self) -> ToolOutput:
        found = await asyncio.to_thread(self._temperatures)
        if not found:
            raise _unknown("its temperature")
        text = "; ".join(f"{name}: {degrees:.1f} °C" for name, degrees in found.items())
        return _said(text, celsius={**found})

    async def _cpu(self) -> ToolOutput:
        before = machine.cpu_times()
        await asyncio.sleep(CPU_SAMPLE_S)
        now = machine.cpu_times()
        if now is None or before is None:
            raise _unknown("how busy its processors are")
        percent = now.percent_since(before) or 0.0
        load = [round(value, 2) for value in machine.load_average() or ()]
        cores = os.cpu_count() or 1
        text = f"{percent} % of {cores} cores busy"
        if load:
            text += f"; load {' '.join(f'{value:.2f}' for value in load)}"
        return _said(text, percent=percent, cores=cores, load=[*load])

    async def _memory(self) -> ToolOutput:
        found = machine.memory()
        if found is None:
            raise _unknown("its memory")
        total, free = found.total >> 20, found.available >> 20
        return _said(f"{free:,} of {total:,} MB free", total_mb=total, free_mb=free)

    async def _disk(self) -> ToolOutput:
        lines: list[str] = []
        disks: dict[str, JSON] = {}
        for path, (total, free) in (await asyncio.to_thread(machine.disks)).items():
            used = round(100 * (1 - free / total))
            lines.append(f"{path}: {free / 1e9:.1f} of {total / 1e9:.1f} GB free ({used} %)")
            disks[path] = {"total": total, "free": free}
        return _said("\n".join(lines) or "no disk was found", disks=disks)

    async def _processes(self) -> ToolOutput:
        heaviest = await asyncio.to_thread(machine.heaviest_processes, MAX_LISTED_PROCESSES)
        found = [
            (round(process.resident / 1e6, 1), process.pid, process.name) for process in heaviest
        ]
        lines = ["    pid  MB     name", *(f"{pid:7} {mb:6.1f}  {name}" for mb, pid, name in found)]
        rows: list[JSON] = [{"pid": pid, "mb": mb, "name": name} for mb, pid, name in found]
        return _said("\n".join(lines), processes=rows)

    async def _picture(self) -> ToolOutput:
        done = await self._exec.run(self._camera, max_output=2 * MAX_PICTURE_BYTES)
        data = done.stdout
        if done.exit_code or not data.startswith(b"\xff\xd8\xff"):
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why("The camera gave no picture", done))
        if done.stdout_bytes > MAX_PICTURE_BYTES:
            raise ToolFailure(ErrorKind.TOO_LARGE, "The camera's picture is larger than 5 MB.")
        block = ImageBlock("image/jpeg", base64.b64encode(data).decode())
        return ToolOutput((block,), {"bytes": len(data)})

    @property
    def has_pins(self) -> bool:
        """Whether this machine has a program that reads and sets its pins."""
        return bool(self._pins)

    async def write_pin(self, pin: int, *, high: bool) -> str:
        """Make a pin an output with this level; returns its new state."""
        level = "dh" if high else "dl"
        done = await self._exec.run((self._pins[0], "set", str(pin), "op", level))
        if done.exit_code:
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why(f"Pin {pin} cannot be set", done))
        done = await self._exec.run((*self._pins, str(pin)))
        return done.stdout.decode(errors="replace").strip() or f"pin {pin} was set"

    async def _gpio(self, pin: int) -> ToolOutput:
        done = await self._exec.run((*self._pins, str(pin)))
        if done.exit_code:
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why(f"Pin {pin} cannot be read", done))
        return _said(done.stdout.decode(errors="replace").strip(), pin=pin)


class LocalNotifier:
    """Notifies the users of this machine: on the desktop, or on the terminals."""

    def __init__(self, exec: ExecOps) -> None:
        self._exec = exec
        self._program = _present(NOTIFY_COMMANDS)

    @property
    def works(self) -> bool:
        """Whether this machine has a notification program."""
        return bool(self._program)

    async def notify(self, message: str) -> str:
        """Show a message; return how it was shown."""
        done = await self._exec.run((*self._program, "--", message))
        if done.exit_code:
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why("It could not be shown", done))
        return f"shown by {self._program[0]}"


def _present(programs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return next((argv for argv in programs if shutil.which(argv[0])), ())


def _unknown(what: str) -> ToolFailure:
    return ToolFailure(ErrorKind.EXECUTION_FAILED, f"This system does not report {what}.")


def _why(what: str, done: CompletedProcess) -> str:
    stderr = done.stderr.decode(errors="replace").strip()[-500:]
    return f"{what} (exit code {done.exit_code}): {stderr or 'no error output'}"


def _said(text: str, **details: JSON) -> ToolOutput:
    return ToolOutput((TextBlock(text),), details)
