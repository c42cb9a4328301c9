"""`WorkerPool`: a process inside a sandbox that forks workers ahead of the commands."""

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
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.process_trees import END_TIMEOUT_S, CommandSpec, memory_file
from evoclaw.sandbox.cgroups import Cgroup, CgroupFactory, wait_until_removed

logger = logging.getLogger(__name__)

WORKER_START_TIMEOUT_S = 20.0
"""How long a worker may take to start, on a small and busy machine."""
SPARE_WORKERS = 3
"""Workers kept ready; further concurrent commands get workers that are made on demand."""
REFILL_DELAY_S = 0.01
"""How long to wait before spare workers are made, so that running commands are not slowed."""
POOL_IDLE_TIMEOUT_S = 300.0
"""How long a pool without commands is kept; the next command starts another."""
CREDENTIALS_STRUCT = struct.Struct("3i")


class Worker:
    """A process that runs one command; `core.sandboxes.WarmEngine` describes the protocol."""

    def __init__(self, control: socket.socket, exit_pipe: int, group: Cgroup | None) -> None:
        self._control, self._exit_pipe, self._group = control, exit_pipe, group
        self._loop = asyncio.get_running_loop()
        self.ready, self.dead = self._loop.create_future(), asyncio.Event()
        self.pid = 0
        self.code: int | None = None
        self.refused = 0
        """Why the command could not be started: an errno."""
        self._on_end: Callable[[], None] | None = None
        self._alone = False
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._on_message)
        self._loop.add_reader(exit_pipe, self._exit_pipe_closed)

    def _on_message(self) -> None:
        try:
            data, extra, _, _ = self._control.recvmsg(
                8192, socket.CMSG_SPACE(CREDENTIALS_STRUCT.size)
            )
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            data, extra = b"", []
        kind, rest = data[:1], data[1:]
        if kind == b"R":
            self._started(extra)
        elif kind in (b"S", b"L"):
            self._alone = kind == b"S"
            self._ended(struct.unpack("i", rest)[0])
        elif kind == b"E":
            self.refused = struct.unpack("i", rest)[0]
            self._ended(127)
        else:
            self._failed(rest.decode(errors="replace") or "the worker ended")

    def _started(self, extra: list[tuple[int, int, bytes]]) -> None:
        for level, kind, body in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = CREDENTIALS_STRUCT.unpack(body[: CREDENTIALS_STRUCT.size])[0]
        try:
            if self._group is not None:
                self._group.add(self.pid)
        except OSError as problem:
            self._failed(f"no control group: {problem}")
            return
        if not self.ready.done():
            self.ready.set_result(None)

    def _failed(self, reason: str) -> None:
        self._loop.remove_reader(self._control.fileno())
        if not self.ready.done():
            self.ready.set_exception(ChildProcessError(errno.ECHILD, reason))
            # Marks the exception as retrieved: a spare worker has no waiter.
            self.ready.exception()
        elif self.code is None:
            self._ended(-int(signal.SIGKILL))

    def _ended(self, code: int) -> None:
        self.code = code
        if self._on_end is not None:
            self._on_end()

    def _exit_pipe_closed(self) -> None:
        self._loop.remove_reader(self._exit_pipe)
        self.dead.set()

    def run(
        self, job: CommandSpec, streams: tuple[int, int, int], on_end: Callable[[], None]
    ) -> None:
        """Send it the command; `OSError` if the worker has ended."""
        self._on_end = on_end
        argv = [os.fsencode(argument) for argument in job.argv]
        env = {os.fsencode(name): os.fsencode(value) for name, value in job.env.items()}
        text = memory_file(marshal.dumps((argv, os.fsencode(job.cwd), env)))
        try:
            socket.send_fds(self._control, [b"J"], [text, *streams])
        finally:
            os.close(text)

    def terminate(self) -> None:
        """Ask everything in the worker to end."""
        with suppress(OSError):
            self._control.send(b"T")

    @property
    def empty(self) -> bool:
        """Whether the command and everything it started are known to be dead."""
        return self._alone or self.dead.is_set()

    def limits_met(self) -> list[str]:
        """The limits that the command reached."""
        return self._group.met() if self._group is not None and self.code else []

    async def end(self) -> None:
        """End the worker and everything in it, and wait until it is dead."""
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if not await self._wait_dead(END_TIMEOUT_S / 2) and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if not await self._wait_dead(END_TIMEOUT_S / 2):
                logger.warning("sandbox worker %d could not be killed", self.pid)
        self._loop.remove_reader(self._exit_pipe)
        os.close(self._exit_pipe)

    async def _wait_dead(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.dead.wait()
        return self.dead.is_set()


class WorkerPool:
    """A warm pool process inside a sandbox, and the workers it keeps ready."""

    def __init__(
        self,
        argv: tuple[str, ...],
        policy: SandboxPolicy,
        groups: CgroupFactory | None,
        *,
        idle: float = POOL_IDLE_TIMEOUT_S,
    ) -> None:
        """Set the pool's command line; `start` runs it."""
        self._argv, self._policy, self._groups, self._idle = argv, policy, groups, idle
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._spare: list[Worker] = []
        self._made: dict[Worker, Cgroup | None] = {}
        self._ending: dict[Worker, asyncio.Task[None]] = {}
        self._refill_timer: asyncio.TimerHandle | None = None
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = -1

    @property
    def alive(self) -> bool:
        """Whether the pool process still runs."""
        if self._control is None or self._process is None or self._process.returncode is not None:
            return False
        try:
            # Once ready it sends nothing more: only end-of-file can be read.
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def busy(self) -> bool:
        """Whether a worker runs a command."""
        return len(self._made) > len(self._spare) + len(self._ending)

    async def start(self) -> None:
        """Start the pool process; `ToolFailure` if it does not start."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        ours.setblocking(False)
        self._stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        finally:
            theirs.close()
        greeting = b""
        with suppress(TimeoutError, ConnectionResetError):
            async with asyncio.timeout(WORKER_START_TIMEOUT_S):
                greeting = await asyncio.get_running_loop().sock_recv(ours, 16)
        if greeting != b"up":
            stderr = self.stderr()
            await self.close()
            raise sandbox_unavailable(
                f"its worker pool did not start: {stderr or 'no reason given'}"
            )
        self._refill()

    def stderr(self) -> str:
        """What the pool process wrote to stderr."""
        text = os.pread(self._stderr, 2000, 0).decode(errors="replace")
        return " ".join(text.split())

    def _refill(self) -> None:
        while self.alive and len(self._spare) < SPARE_WORKERS:
            self._spare.append(self._make())

    def _make(self) -> Worker:
        if self._control is None:
            raise ChildProcessError(errno.ECHILD, "the worker pool has ended")
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Before the worker can send: earlier messages carry no credentials.
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        exit_pipe, held = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            socket.send_fds(self._control, [b"C"], [theirs.fileno(), held])
            group = None if self._groups is None else self._groups.make(self._policy)
        except OSError:
            control.close()
            os.close(exit_pipe)
            raise
        finally:
            theirs.close()
            os.close(held)
        worker = Worker(control, exit_pipe, group)
        self._made[worker] = group
        return worker

    async def take(self) -> Worker:
        """A ready worker, for one command; `OSError` if the pool has ended."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        async with asyncio.timeout(WORKER_START_TIMEOUT_S):
            worker = await self._next()
        try:
            async with asyncio.timeout(WORKER_START_TIMEOUT_S):
                await worker.ready
        except BaseException:
            await self.give_back(worker)
            raise
        return worker

    async def _next(self) -> Worker:
        while self._closing is None:
            try:
                return self._spare.pop(0) if self._spare else self._make()
            except BlockingIOError:
                # The pool has not yet read the earlier requests.
                await asyncio.sleep(REFILL_DELAY_S)
        raise ChildProcessError(errno.ECHILD, "the worker pool has ended")

    def _refill_quietly(self) -> None:
        self._refill_timer = None
        try:
            self._refill()
        except OSError as problem:
            # The next `take` raises it.
            logger.debug("spare sandbox worker not started: %s", problem)

    async def give_back(self, worker: Worker) -> None:
        """End a worker; an empty one is left to end by itself."""
        ending = self._end_once(worker)
        if ending is not None and not worker.empty:
            await asyncio.shield(ending)
        if self._refill_timer is None and self.alive:
            # A moment later: making workers must not slow down the command that was just started.
            loop = asyncio.get_running_loop()
            self._refill_timer = loop.call_later(REFILL_DELAY_S, self._refill_quietly)
        if self._closing is not None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(self._idle, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self.busy and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    def _end_once(self, worker: Worker) -> asyncio.Task[None] | None:
        """The task that ends a worker, started if need be; none: the worker has ended."""
        if worker in self._made and worker not in self._ending:
            self._ending[worker] = asyncio.create_task(self._end(worker))
        return self._ending.get(worker)

    async def _end(self, worker: Worker) -> None:
        await worker.end()
        group = self._made.pop(worker)
        del self._ending[worker]
        if group is not None and self._groups is not None:
            self._groups.remove(group)

    async def close(self) -> None:
        """End the pool process, and with it everything in the sandbox; may be called twice."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for timer in (self._refill_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S / 2):
                    await self._process.wait()
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if endings := [task for worker in tuple(self._made) if (task := self._end_once(worker))]:
            await asyncio.wait(endings)
        self._spare.clear()
        await wait_until_removed(self._groups)
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1


def sandbox_unavailable(reason: str, **details: JSON) -> ToolFailure:
    """The error when no sandbox is available: nothing runs outside of one.

    The message is for the model; `reason` in its details is for a person.
    """
    return ToolFailure(
        ErrorKind.SANDBOX_UNAVAILABLE,
        "Commands must run in a sandbox here, and the sandbox is not available: "
        f"{reason}. Nothing was run. "
        "Explain this to the user.",
        reason=reason,
        **details,
    )
