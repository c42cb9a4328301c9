"""Kills `tests.support.programs.crash_scenario` at many points; another life continues."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg

from evoclaw.store.databases.migrations import open_database
from evoclaw.wiring.store import all_schemas
from tests.support.programs.crash_scenario import Life
from tests.support.step_faults import arm_faults, reached_faults

ROOT = Path(__file__).parents[2]
CONCURRENT_LIVES = 2
LIFE_TIMEOUT_S = 60.0
COMMITS = (": COMMIT", ": function after its commit")
KillPoint: TypeAlias = tuple[str, int]
"""A point, as `procedure: moment`, and how often it is reached before the process dies."""


class ForkServer:
    """A process that forks a child for each life."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def live(self, life: Life) -> int:
        """Live one life; its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(life) + b"\n")
        async with asyncio.timeout(LIFE_TIMEOUT_S):
            return int(await self._process.stdout.readline())


@asynccontextmanager
async def fork_server(log: Path) -> AsyncGenerator[ForkServer]:
    """A fork server that ends with the block."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.programs.crash_scenario",
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield ForkServer(process)
        finally:
            process.kill()
            await process.wait()


class SqliteCopies:
    """Copies of an empty file with all tables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def prepare(self) -> None:
        """Create the original."""
        path = self._folder / "original.db"
        await (await open_database(path, all_schemas(), durable=False)).close()

    async def create(self, name: str) -> str:
        """A new copy."""
        path = self._folder / f"{name}.db"
        shutil.copyfile(self._folder / "original.db", path)
        return str(path)

    async def delete(self, name: str) -> None:
        """Delete a copy."""
        for path in self._folder.glob(f"{name}.db*"):
            path.unlink()


class PostgresCopies:
    """Copies of an empty database with all tables and functions."""

    def __init__(
        self, url: str, prefix: str, change: Callable[[str], Awaitable[object]] | None = None
    ) -> None:
        self._url, self._prefix, self._change = url, prefix, change

    async def prepare(self) -> None:
        """Create the original, and change it if wanted."""
        await self._execute(f"CREATE DATABASE {self._prefix}")
        url = self._at(self._prefix)
        await (await open_database(url, all_schemas(), durable=False)).close()
        if self._change is not None:
            await self._change(url)

    async def create(self, name: str) -> str:
        """A new copy."""
        copy = f"{self._prefix}_{name}"
        await self._execute(f"CREATE DATABASE {copy} TEMPLATE {self._prefix}")
        return self._at(copy)

    async def delete(self, name: str) -> None:
        """Delete a copy."""
        await self._execute(f"DROP DATABASE {self._prefix}_{name} WITH (FORCE)")

    def _at(self, database: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    async def _execute(self, statement: str) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute(statement.encode())


@dataclass
class CrashSweep:
    """Lives over copies of a database."""

    folder: Path
    copies: SqliteCopies | PostgresCopies
    servers: list[ForkServer] = field(default_factory=list[ForkServer])
    killed_at: list[str] = field(default_factory=list[str])
    """Where processes were killed: `procedure: moment`."""
    problems: list[str] = field(default_factory=list[str])

    @property
    def killed_procedures(self) -> set[str]:
        """The procedures at which processes were killed."""
        return {place.partition(":")[0] for place in self.killed_at} - {""}

    async def whole_life(self, *, loses_answers: bool = False) -> tuple[list[str], set[str]]:
        """Live a whole life; the points that it has, and the procedures that it used."""
        name = "answers_lost" if loses_answers else "whole"
        folder, database = await self._place(name)
        life = Life(database, str(folder), check=True, loses_answers=loses_answers)
        code = await self.servers[0].live(life)
        found = _read(folder / "problems")
        if code:
            self.problems.append(f"{name}: exit code {code}: {found}")
        await self.copies.delete(name)
        places = _read(folder / "places").splitlines()
        return places, set(_read(folder / "procedures").split())

    async def kill_at_each(self, points: Iterable[KillPoint]) -> None:
        """Kill a process at each of these points, and have another one continue."""
        waiting = enumerate(points)

        async def work(server: ForkServer) -> None:
            for number, point in waiting:
                await self._kill_at(server, f"p{number}", point)

        async with asyncio.TaskGroup() as group:
            for server in self.servers:
                group.create_task(work(server))

    async def _kill_at(self, server: ForkServer, name: str, point: KillPoint) -> None:
        folder, database = await self._place(name)
        place, times = point
        code = await server.live(Life(database, str(folder), times, place))
        if code == -signal.SIGKILL:
            self.killed_at += _read(folder / "killed_at").splitlines()
            code = await server.live(Life(database, str(folder), check=True))
        # Not every life has the same points: it may have ended before.
        if code:
            found = _read(folder / "problems")
            self.problems.append(f"killed at {point}: exit code {code}: {found}")
        await self.copies.delete(name)
        shutil.rmtree(folder)

    async def fail_at_each(self, groups: Iterable[Sequence[int]]) -> set[int]:
        """For each group a life in which steps fail at these points; the points reached."""
        waiting, reached = iter(groups), set[int]()

        async def work(server: ForkServer) -> None:
            for places in waiting:
                reached.update(await self._fail_at(server, places))

        async with asyncio.TaskGroup() as tasks:
            for server in self.servers:
                tasks.create_task(work(server))
        return reached

    async def _fail_at(self, server: ForkServer, places: Sequence[int]) -> set[int]:
        name = f"f{places[0]}"
        folder, database = await self._place(name)
        await arm_faults(database, places)
        code = await server.live(Life(database, str(folder), check=True))
        reached = await reached_faults(database, places)
        if code:
            self.problems.append(f"{name}: exit code {code}: {_read(folder / 'problems')}")
        await self.copies.delete(name)
        return reached

    async def _place(self, name: str) -> tuple[Path, str]:
        folder = self.folder / name
        folder.mkdir()
        return folder, await self.copies.create(name)


def kill_points(places: Sequence[str], max_times: int = 1) -> list[KillPoint]:
    """The points to die at: every commit, and each other one so many times at most."""
    found: list[KillPoint] = []
    for place, times in Counter(places).items():
        count = times if place in COMMITS else min(times, max_times)
        found += [(place, 1 + number * times // count) for number in range(count)]
    return found


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@asynccontextmanager
async def open_crash_sweep(
    folder: Path, copies: SqliteCopies | PostgresCopies, *, concurrent: int = CONCURRENT_LIVES
) -> AsyncGenerator[CrashSweep]:
    """A sweep whose processes end with the block."""
    async with AsyncExitStack() as stack:
        await copies.prepare()
        servers = [
            await stack.enter_async_context(fork_server(folder / f"server{number}.log"))
            for number in range(concurrent)
        ]
        yield CrashSweep(folder, copies, servers)
