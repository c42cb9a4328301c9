"""Seeing whether processes live, and ending them at the right moment."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ops import CompletedProcess
from evoclaw.executors.processes import LocalProcesses

SOON = 4.0
"""Seconds within which a cancelled command is gone on a busy machine; less than our patience."""
Isolation = Literal["auto", "pid-namespace", "none"]


async def make_processes(
    root: Path, isolation: Isolation, max_bytes: int = 128 << 20
) -> LocalProcesses:
    found = LocalProcesses(root, isolation=isolation, max_bytes=max_bytes)
    try:
        await found.isolation()
    except ToolFailure:
        pytest.skip("this machine allows no pid namespace")
    return found


def unique_seconds() -> str:
    """A number of seconds that no other process sleeps."""
    return f"{3000 + secrets.randbelow(5000)}.{secrets.randbelow(10**9):09d}"


def alive(mark: str) -> list[str]:
    """The command lines of the living processes that carry a mark there."""
    return list(alive_by_pid(mark).values())


def alive_by_pid(mark: str) -> dict[int, str]:
    """The living processes that carry a mark in their command line."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark in line and state != "Z":
                found[int(folder.name)] = line.replace("\0", " ")
    return found


def children() -> set[int]:
    """Our own processes, also those that are dead and were not waited for."""
    found: set[int] = set()
    for place in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that is gone
            found.update(map(int, place.read_text().split()))
    return found


async def bash(processes: LocalProcesses, command: str) -> CompletedProcess:
    async with asyncio.timeout(30):
        return await processes.run(["bash", "-c", command])


async def cancelled_when_ready(processes: LocalProcesses, command: str) -> float:
    """Run a command, cancel it when it says `ready`; the seconds that took."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    heard: list[str] = []

    def listen(text: str) -> None:
        heard.append(text)
        if "ready" in "".join(heard):
            ready.set()

    task = asyncio.create_task(processes.run(["bash", "-c", command], on_output=listen))
    async with asyncio.timeout(30):
        await ready.wait()
        began = loop.time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return loop.time() - began
