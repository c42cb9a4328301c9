"""A command in a cell that was made before it came."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from evoclaw.executors.process_output import STDERR, STDOUT, Watch
from evoclaw.executors.process_trees import PATIENCE, Job, memory_file
from evoclaw.sandbox.egress.relay_command import relayed
from evoclaw.sandbox.workers.pool import Cell, Nursery

PIECE = 256 << 10


class CellTree:
    """A command in a cell."""

    def __init__(self, nursery: Callable[[], Awaitable[Nursery]], proxy: str = "") -> None:
        """Take a way to a worker that lives, and the socket of the egress proxy."""
        self._find, self._proxy = nursery, proxy
        self._nursery: Nursery | None = None
        self._cell: Cell | None = None
        self._met: list[str] = []
        self._readers: set[int] = set()
        self._watch: Watch | None = None

    async def start(self, job: Job, watch: Watch) -> None:
        """Take a cell and hand it the command."""
        self._watch = watch
        cell = self._cell = await self._take()
        given = (
            memory_file(job.stdin) if job.stdin is not None else os.open(os.devnull, os.O_RDONLY)
        )
        theirs = [given]
        try:
            for stream in (STDOUT, STDERR):
                ours, end = os.pipe2(os.O_CLOEXEC)
                theirs.append(end)
                self._listen(ours, stream, watch)
            cell.run(
                with_way_out(job, self._proxy),
                (theirs[0], theirs[1], theirs[2]),
                watch.process_exited,
            )
        finally:
            for one in theirs:
                os.close(one)

    async def _take(self) -> Cell:
        self._nursery = await self._find()
        try:
            return await self._nursery.take()
        except OSError:
            # Nothing was begun yet. If it is the worker that is gone, there will be another.
            self._nursery = await self._find()
        return await self._nursery.take()

    def _listen(self, end: int, stream: int, watch: Watch) -> None:
        os.set_blocking(end, False)
        loop = asyncio.get_running_loop()
        self._readers.add(end)

        def heard() -> None:
            try:
                data = os.read(end, PIECE)
            except BlockingIOError:
                return
            if data:
                watch.pipe_data_received(stream, data)
            else:
                self._close(end)
                watch.pipe_connection_lost(stream, None)

        loop.add_reader(end, heard)

    def _close(self, end: int) -> None:
        asyncio.get_running_loop().remove_reader(end)
        self._readers.discard(end)
        os.close(end)

    def terminate(self) -> None:
        """Ask everything in the cell to end."""
        if self._cell is not None:
            self._cell.terminate()

    async def end(self) -> int:
        """End the cell; the kernel kills what is in it, and only then is its grave closed."""
        if self._cell is None or self._watch is None or self._nursery is None:
            return 0
        self._met = self._cell.limits_met()
        await self._nursery.give_back(self._cell)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._watch.closed.wait()
        for left in tuple(self._readers):
            self._close(left)
        if self._cell.refused:
            raise OSError(self._cell.refused, os.strerror(self._cell.refused))
        return -int(signal.SIGKILL) if self._cell.code is None else self._cell.code

    def met(self) -> list[str]:
        """The limits that the command met, as far as the kernel tells."""
        return self._met


def with_way_out(job: Job, proxy: str) -> Job:
    """The command with a port that leads to the egress proxy, if there is one."""
    if not proxy:
        return job
    python = os.path.realpath(sys.executable)
    return replace(job, argv=relayed(job.argv, proxy, python=python))
