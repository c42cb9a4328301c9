"""Seeing to it that a browser's processes have ended, all of them.

Chromium starts a dozen, and some leave their parent. What they keep is the environment they were
born with, or the session of one that did; a mark in it tells them from everything else.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

PATIENCE = 5.0
"""Seconds to wait for what takes milliseconds, before calling it broken."""
NUDGE = 0.02
PROC = Path("/proc")


class _Process(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    marked: bool
    arguments: tuple[bytes, ...]


class Main(Struct, frozen=True):
    """What is known of the process that Playwright started."""

    driver: int = 0
    """Who started it: Playwright's own process; 0 if that is not known."""
    profile: str = ""
    """The folder that Playwright made for it, which stays behind if its driver is killed."""


def _living(mark: bytes) -> Iterator[_Process]:
    """All processes that are not dead already; nothing where there is no `/proc`."""
    if not PROC.is_dir():
        return
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # gone between two looks
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
        # Somebody else's, or in Chromium's sandbox: then its session tells.
        return b""


def belonging(mark: str) -> set[int]:
    """The processes that carry a mark, and those in a session with one of them."""
    found = list(_living(mark.encode()))
    own = os.getsid(0)
    sessions = {match.session for match in found if match.marked} - {own, 0}
    return {match.pid for match in found if match.marked or match.session in sessions} - {
        os.getpid()
    }


def find_main(mark: str) -> Main:
    """Look for the process that carries a mark among its arguments and was started for us."""
    for process in _living(mark.encode()):
        if process.marked and b"--remote-debugging-pipe" in process.arguments:
            option = b"--user-data-dir="
            profiles = [
                it.removeprefix(option) for it in process.arguments if it.startswith(option)
            ]
            driver = 0 if process.parent in (1, os.getpid()) else process.parent
            return Main(driver, os.fsdecode(profiles[0]) if profiles else "")
    return Main()


async def end_all(mark: str, *, also: int = 0) -> None:
    """Kill what is left of a browser, and wait until it is gone.

    Args:
        mark: What all of it carries.
        also: One more process.
    """
    async with asyncio.timeout(PATIENCE):
        while left := await asyncio.to_thread(belonging, mark):
            for pid in left:
                _kill(pid)
            await asyncio.sleep(NUDGE)
        while also and await asyncio.to_thread(_lives, also):
            _kill(also)
            await asyncio.sleep(NUDGE)


def _lives(pid: int) -> bool:
    try:
        return _stat(PROC / str(pid))[0] not in "ZX"
    except OSError:
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
