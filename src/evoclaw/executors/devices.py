"""`LocalDevice`: the sensors of this machine, read from the kernel or by the usual programs."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from evoclaw.core.bound import Output
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, TextBlock
from evoclaw.core.ops import Completed, ExecOps

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
"""Programs that print the state of a pin, which is their last argument."""
NOTIFY_COMMANDS = (("notify-send", "--app-name=EvoClaw"), ("wall",))
"""Programs that show their last argument to people."""


class LocalDevice:
    """The sensors of this machine; `exec` runs the programs of its camera and its pins."""

    def __init__(
        self, exec: ExecOps, *, proc: str = "/proc", thermal: str = "/sys/class/thermal"
    ) -> None:
        self._exec, self._proc, self._thermal = exec, Path(proc), Path(thermal)
        self._camera = _present(CAMERA_COMMANDS)
        self._pins = _present(GPIO_COMMANDS)

    def senses(self) -> Sequence[str]:
        """What can be asked for here."""
        return tuple(self._ways())

    async def sense(self, what: str, pin: int | None) -> Output:
        """Look at one of them."""
        if what == "gpio":
            return await self._gpio(pin or 0)
        return await self._ways()[what]()

    def _ways(self) -> dict[str, Callable[[], Awaitable[Output]]]:
        ways: dict[str, Callable[[], Awaitable[Output]]] = {
            "cpu": self._cpu,
            "memory": self._memory,
            "disk": self._disk,
            "processes": self._processes,
        }
        if self._temperatures():
            ways["temperature"] = self._temperature
        if self._camera:
            ways["camera"] = self._picture
        if self._pins:
            ways["gpio"] = lambda: self._gpio(0)
        return ways

    def _temperatures(self) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        for zone in sorted(self._thermal.glob("thermal_zone*")):
            value = _text(zone / "temp").strip()
            if value.removeprefix("-").isdigit():
                found[_text(zone / "type").strip() or zone.name] = int(value) / 1000
        return found

    async def _temperature(self) -> Output:
        found = self._temperatures()
        return _said(
            "; ".join(f"{name}: {degrees:.1f} °C" for name, degrees in found.items()),
            celsius=found,
        )

    async def _cpu(self) -> Output:
        before = self._ticks()
        await asyncio.sleep(CPU_SAMPLE_S)
        busy, total = (now - then for now, then in zip(self._ticks(), before, strict=True))
        percent = round(100 * busy / total, 1) if total > 0 else 0.0
        load = _text(self._proc / "loadavg").split()[:3]
        cores = os.cpu_count() or 1
        text = f"{percent} % of {cores} cores busy; load {' '.join(load)}"
        return _said(text, percent=percent, cores=cores, load=[float(value) for value in load])

    def _ticks(self) -> tuple[int, int]:
        """Busy and all ticks since the machine began."""
        words = _text(self._proc / "stat").partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]]
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)

    async def _memory(self) -> Output:
        rows = dict(
            line.split(":", 1) for line in _text(self._proc / "meminfo").splitlines() if ":" in line
        )
        kilobytes = {name: int(rows[name].split()[0]) for name in ("MemTotal", "MemAvailable")}
        total, free = kilobytes["MemTotal"] // 1024, kilobytes["MemAvailable"] // 1024
        return _said(f"{free:,} of {total:,} MB free", total_mb=total, free_mb=free)

    async def _disk(self) -> Output:
        lines: list[str] = []
        disks: dict[str, JSON] = {}
        for place in self._mounts():
            try:
                about = os.statvfs(place)
            except OSError:
                continue  # another user's, or gone
            total, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
            if total:
                used = round(100 * (1 - free / total))
                lines.append(f"{place}: {free / 1e9:.1f} of {total / 1e9:.1f} GB free ({used} %)")
                disks[place] = {"total": total, "free": free}
        return _said("\n".join(lines) or "no disk is to be seen", disks=disks)

    def _mounts(self) -> list[str]:
        """Where disks are mounted; one of several places of the same disk, and the root."""
        rows = [line.split() for line in _text(self._proc / "mounts").splitlines()]
        found = {row[0]: row[1] for row in reversed(rows) if row and row[0].startswith("/dev/")}
        return sorted({"/", *found.values()})

    async def _processes(self) -> Output:
        found = await asyncio.to_thread(self._heaviest)
        lines = ["    pid  MB     name", *(f"{pid:7} {mb:6.1f}  {name}" for mb, pid, name in found)]
        rows: list[JSON] = [{"pid": pid, "mb": mb, "name": name} for mb, pid, name in found]
        return _said("\n".join(lines), processes=rows)

    def _heaviest(self) -> list[tuple[float, int, str]]:
        page = os.sysconf("SC_PAGE_SIZE")
        found: list[tuple[float, int, str]] = []
        for folder in self._proc.iterdir():
            words = _text(folder / "statm").split() if folder.name.isdigit() else []
            if len(words) > 1:
                name = _text(folder / "comm").strip() or "?"
                found.append((round(int(words[1]) * page / 1e6, 1), int(folder.name), name))
        return sorted(found, reverse=True)[:MAX_LISTED_PROCESSES]

    async def _picture(self) -> Output:
        done = await self._exec.run(self._camera, max_output=2 * MAX_PICTURE_BYTES)
        data = done.stdout
        if done.exit_code or not data.startswith(b"\xff\xd8\xff"):
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why("The camera gave no picture", done))
        if done.stdout_bytes > MAX_PICTURE_BYTES:
            raise ToolFailure(ErrorKind.TOO_LARGE, "The camera's picture is larger than 5 MB.")
        block = ImageBlock("image/jpeg", base64.b64encode(data).decode())
        return Output((block,), {"bytes": len(data)})

    async def _gpio(self, pin: int) -> Output:
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
        """Whether there is a way."""
        return bool(self._program)

    async def notify(self, message: str) -> str:
        """Show a message; how it was shown."""
        done = await self._exec.run((*self._program, "--", message))
        if done.exit_code:
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, _why("It could not be shown", done))
        return f"shown by {self._program[0]}"


def _present(programs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return next((argv for argv in programs if shutil.which(argv[0])), ())


def _text(path: Path) -> str:
    """A small file of the kernel; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _why(what: str, done: Completed) -> str:
    said = done.stderr.decode(errors="replace").strip()[-500:]
    return f"{what} (exit code {done.exit_code}): {said or 'it said nothing'}"


def _said(text: str, **details: JSON) -> Output:
    return Output((TextBlock(text),), details)
