"""Cells: places for one command each, made ahead of time by a warm worker inside a cage."""

from __future__ import annotations

import asyncio
import errno
import logging
import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.sandboxes import Confines
from evoclaw.executors.process_trees import PATIENCE, Job, memory_file
from evoclaw.sandbox.cgroups import Group, Groups, emptied

logger = logging.getLogger(__name__)

START = 20.0
"""Seconds that a worker may take to stand, on a small and busy machine."""
SPARE = 3
"""Cells kept ready; when more commands come at once, theirs are made as they come."""
PAUSE = 0.01
"""Seconds of quiet before new ones are made."""
IDLE = 300.0
"""Seconds without a command after which a worker is ended; the next command starts another."""
CREDENTIALS = struct.Struct("3i")


class Cell:
    """One place for one command; see `core.sandboxes.Warm` for what is said on its line."""

    def __init__(self, line: socket.socket, grave: int, group: Group | None) -> None:
        self._line, self._grave, self._group = line, grave, group
        self._loop = asyncio.get_running_loop()
        self.ready, self.dead = self._loop.create_future(), asyncio.Event()
        self.pid = 0
        self.code: int | None = None
        self.refused = 0
        """Why the command could not be started: an errno."""
        self._on_end: Callable[[], None] | None = None
        self._alone = False
        line.setblocking(False)
        self._loop.add_reader(line.fileno(), self._heard)
        self._loop.add_reader(grave, self._buried)

    def _heard(self) -> None:
        try:
            data, extra, _, _ = self._line.recvmsg(8192, socket.CMSG_SPACE(CREDENTIALS.size))
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            data, extra = b"", []
        kind, rest = data[:1], data[1:]
        if kind == b"R":
            self._stands(extra)
        elif kind in (b"S", b"L"):
            self._alone = kind == b"S"
            self._ended(struct.unpack("i", rest)[0])
        elif kind == b"E":
            self.refused = struct.unpack("i", rest)[0]
            self._ended(127)
        else:
            self._failed(rest.decode(errors="replace") or "it ended")

    def _stands(self, extra: list[tuple[int, int, bytes]]) -> None:
        for level, kind, body in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = CREDENTIALS.unpack(body[: CREDENTIALS.size])[0]
        try:
            if self._group is not None:
                self._group.add(self.pid)
        except OSError as problem:
            self._failed(f"no control group: {problem}")
            return
        if not self.ready.done():
            self.ready.set_result(None)

    def _failed(self, reason: str) -> None:
        self._loop.remove_reader(self._line.fileno())
        if not self.ready.done():
            self.ready.set_exception(ChildProcessError(errno.ECHILD, reason))
            # Nobody may be waiting for this one.
            self.ready.exception()
        elif self.code is None:
            self._ended(-int(signal.SIGKILL))

    def _ended(self, code: int) -> None:
        self.code = code
        if self._on_end is not None:
            self._on_end()

    def _buried(self) -> None:
        self._loop.remove_reader(self._grave)
        self.dead.set()

    def run(self, job: Job, streams: tuple[int, int, int], on_end: Callable[[], None]) -> None:
        """Hand it the command; `OSError` if it is not there any more."""
        self._on_end = on_end
        argv = [os.fsencode(one) for one in job.argv]
        env = {os.fsencode(name): os.fsencode(value) for name, value in job.env.items()}
        text = memory_file(marshal.dumps((argv, os.fsencode(job.cwd), env)))
        try:
            socket.send_fds(self._line, [b"J"], [text, *streams])
        finally:
            os.close(text)

    def terminate(self) -> None:
        """Ask everything in it to end."""
        with suppress(OSError):
            self._line.send(b"T")

    @property
    def empty(self) -> bool:
        """Whether its command and all that it started are known to be dead."""
        return self._alone or self.dead.is_set()

    def limits_met(self) -> list[str]:
        """The limits that its command met."""
        return self._group.met() if self._group is not None and self.code else []

    async def end(self) -> None:
        """End it and all that is in it, and see that it is dead."""
        self._loop.remove_reader(self._line.fileno())
        self._line.close()
        if not await self._dies(PATIENCE / 2) and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if not await self._dies(PATIENCE / 2):
                logger.warning("what runs in cell %d could not be ended", self.pid)
        self._loop.remove_reader(self._grave)
        os.close(self._grave)

    async def _dies(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.dead.wait()
        return self.dead.is_set()


class Nursery:
    """A warm worker inside a cage, and the cells it keeps ready."""

    def __init__(
        self,
        argv: tuple[str, ...],
        confines: Confines,
        groups: Groups | None,
        *,
        idle: float = IDLE,
    ) -> None:
        """Take the worker's command line; it is started by `start`."""
        self._argv, self._confines, self._groups, self._idle = argv, confines, groups, idle
        self._resting: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._spare: list[Cell] = []
        self._made: dict[Cell, Group | None] = {}
        self._ending: dict[Cell, asyncio.Task[None]] = {}
        self._refilling: asyncio.TimerHandle | None = None
        self._control: socket.socket | None = None
        self._worker: asyncio.subprocess.Process | None = None
        self._complaints = -1

    @property
    def alive(self) -> bool:
        """Whether the worker is still there."""
        if self._control is None or self._worker is None or self._worker.returncode is not None:
            return False
        try:
            # It says nothing more once it stands: all that can be heard is its end.
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def busy(self) -> bool:
        """Whether a cell is in use."""
        return len(self._made) > len(self._spare) + len(self._ending)

    async def start(self) -> None:
        """Start the worker; `ToolFailure` if it does not come to stand."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        ours.setblocking(False)
        self._complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
        try:
            self._worker = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._complaints,
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        finally:
            theirs.close()
        said = b""
        with suppress(TimeoutError, ConnectionResetError):
            async with asyncio.timeout(START):
                said = await asyncio.get_running_loop().sock_recv(ours, 16)
        if said != b"up":
            complaint = self.complaint()
            await self.close()
            raise unavailable(f"the cage did not come to stand: {complaint or 'no reason given'}")
        self._refill()

    def complaint(self) -> str:
        """What the worker wrote about itself."""
        text = os.pread(self._complaints, 2000, 0).decode(errors="replace")
        return " ".join(text.split())

    def _refill(self) -> None:
        while self.alive and len(self._spare) < SPARE:
            self._spare.append(self._make())

    def _make(self) -> Cell:
        if self._control is None:
            raise ChildProcessError(errno.ECHILD, "the worker is gone")
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Before anybody can speak on it: what was said earlier does not say by whom.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        grave, held = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            socket.send_fds(self._control, [b"C"], [theirs.fileno(), held])
            group = None if self._groups is None else self._groups.make(self._confines)
        except OSError:
            line.close()
            os.close(grave)
            raise
        finally:
            theirs.close()
            os.close(held)
        cell = Cell(line, grave, group)
        self._made[cell] = group
        return cell

    async def take(self) -> Cell:
        """A cell that is ready, for one command; `OSError` if the worker is gone."""
        if self._resting is not None:
            self._resting.cancel()
        async with asyncio.timeout(START):
            cell = await self._next()
        try:
            async with asyncio.timeout(START):
                await cell.ready
        except BaseException:
            await self.give_back(cell)
            raise
        return cell

    async def _next(self) -> Cell:
        while self._closing is None:
            try:
                return self._spare.pop(0) if self._spare else self._make()
            except BlockingIOError:
                # More were asked for than it has yet had time to read.
                await asyncio.sleep(PAUSE)
        raise ChildProcessError(errno.ECHILD, "the worker is gone")

    def _refill_quietly(self) -> None:
        self._refilling = None
        try:
            self._refill()
        except OSError as problem:
            # Whoever takes the next one is told.
            logger.debug("no cell was made: %s", problem)

    async def give_back(self, cell: Cell) -> None:
        """End a cell; one that is empty already is left to end by itself."""
        ending = self._end_once(cell)
        if ending is not None and not cell.empty:
            await asyncio.shield(ending)
        if self._refilling is None and self.alive:
            # A moment later: the making of cells must not slow down who has just asked for one.
            loop = asyncio.get_running_loop()
            self._refilling = loop.call_later(PAUSE, self._refill_quietly)
        if self._closing is not None:
            return
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(self._idle, self._rest)

    def _rest(self) -> None:
        if not self.busy and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    def _end_once(self, cell: Cell) -> asyncio.Task[None] | None:
        """The ending of a cell, begun if nobody has; none: it is over."""
        if cell in self._made and cell not in self._ending:
            self._ending[cell] = asyncio.create_task(self._end(cell))
        return self._ending.get(cell)

    async def _end(self, cell: Cell) -> None:
        await cell.end()
        group = self._made.pop(cell)
        del self._ending[cell]
        if group is not None and self._groups is not None:
            self._groups.remove(group)

    async def close(self) -> None:
        """End the worker, and with it everything in the cage; however often it is asked."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for timer in (self._refilling, self._resting):
            if timer is not None:
                timer.cancel()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._worker is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE / 2):
                    await self._worker.wait()
            with suppress(ProcessLookupError):
                self._worker.kill()
            await self._worker.wait()
        if endings := [task for cell in tuple(self._made) if (task := self._end_once(cell))]:
            await asyncio.wait(endings)
        self._spare.clear()
        await emptied(self._groups)
        if self._complaints >= 0:
            os.close(self._complaints)
            self._complaints = -1


def unavailable(reason: str) -> ToolFailure:
    """The refusal to run anything outside a cage that cannot be had."""
    return ToolFailure(
        ErrorKind.SANDBOX_UNAVAILABLE,
        f"Commands must run in a sandbox here, and it cannot be used: {reason}. Nothing was run. "
        "Explain this to the user.",
    )
