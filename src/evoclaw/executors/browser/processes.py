"""Finds Chromium on this machine; ends all processes of a browser, and verifies it.

Chromium starts a dozen processes, and some leave their parent. They keep the environment they were
started with, or the session of a process that did; a mark in that environment identifies them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

END_TIMEOUT_S = 5.0
"""How long to wait for what should take milliseconds."""
END_POLL_INTERVAL_S = 0.02
PROC_FOLDER = Path("/proc")


class _Process(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    marked: bool
    arguments: tuple[bytes, ...]


class BrowserMain(Struct, frozen=True):
    """The process that Playwright started."""

    driver: int = 0
    """The pid of its parent, Playwright's driver; 0 if unknown."""
    profile: str = ""
    """The folder that Playwright created for it; it remains if the driver is killed."""


def _living(mark: bytes) -> Iterator[_Process]:
    """All live processes; none where there is no `/proc`."""
    if not PROC_FOLDER.is_dir():
        return
    for folder in PROC_FOLDER.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # it ended meanwhile
            state, parent, _, session = _stat(folder)
            line = (folder / "cmdline").read_bytes()
            marked = mark in line or mark in _environment(folder)
            if state not in "ZX":
                arguments = tuple(line.split(b"\0"))
                yield _Process(int(folder.name), int(parent), int(session), marked, arguments)


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()[:4]


def _environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        # Another user's, or in Chromium's sandbox: then its session identifies it.
        return b""


def belonging(mark: str) -> set[int]:
    """The processes that carry a mark, and those in a session with one of them."""
    found = list(_living(mark.encode()))
    own = os.getsid(0)
    sessions = {match.session for match in found if match.marked} - {own, 0}
    return {match.pid for match in found if match.marked or match.session in sessions} - {
        os.getpid()
    }


def find_main(mark: str) -> BrowserMain:
    """Find the process that has a mark in its arguments and was started by Playwright."""
    for process in _living(mark.encode()):
        if process.marked and b"--remote-debugging-pipe" in process.arguments:
            option = b"--user-data-dir="
            profiles = [
                it.removeprefix(option) for it in process.arguments if it.startswith(option)
            ]
            driver = 0 if process.parent in (1, os.getpid()) else process.parent
            return BrowserMain(driver, os.fsdecode(profiles[0]) if profiles else "")
    return BrowserMain()


async def end_all(mark: str, *, also: int = 0) -> None:
    """Kill the remaining processes of a browser, and wait until they are dead.

    Args:
        mark: The mark in the environment of its processes.
        also: The pid of a further process; 0 for none.
    """
    async with asyncio.timeout(END_TIMEOUT_S):
        while remaining := await asyncio.to_thread(belonging, mark):
            for pid in remaining:
                _kill(pid)
            await asyncio.sleep(END_POLL_INTERVAL_S)
        while also and await asyncio.to_thread(_lives, also):
            _kill(also)
            await asyncio.sleep(END_POLL_INTERVAL_S)


def _lives(pid: int) -> bool:
    try:
        return _stat(PROC_FOLDER / str(pid))[0] not in "ZX"
    except OSError:
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM_PATHS = (
    "/usr/lib/chromium/chromium",
    "/snap/bin/chromium",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
PROGRAM_PATTERNS = (
    ".cache/ms-playwright/chromium-*/chrome-linux*/chrome",
    "Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
"""Where `playwright install chromium` puts it, below the home folder."""


def find_browser(named: str = "", *, env: Mapping[str, str] | None = None) -> Path | str:
    """The path of a usable Chromium, or as text why there is none and what to do about it.

    Args:
        named: The program that the configuration names; no other is searched for then.
        env: The environment; this process's if not given.
    """
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install 'evoclaw[browser]'"
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    if named:
        found = shutil.which(named, path=path)
        return Path(found) if found else f"no such program: {named!r}"
    for name in (*PROGRAM_NAMES, *PROGRAM_PATHS):
        if found := shutil.which(name, path=path):
            return Path(found)
    for pattern in PROGRAM_PATTERNS:
        if own := sorted(Path.home().glob(pattern)):
            return own[-1]
    return "Chromium is not installed: install your system's package `chromium`"
