"""Process trees: a command and everything it starts, ended together and verified to be dead.

Killing a process, or its group, leaves behind what moved to its own session. Two ways do not: a
pid namespace, which the kernel empties when its first process ends; and, where that is not
allowed, a supervisor that inherits the orphans. Both also end everything when we are killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from evoclaw.executors.process_output import ProcessWatch

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0
"""How long to wait for what should take milliseconds."""
END_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command to run, checked: the program exists and the folder is allowed."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None


class ProcessTree(Protocol):
    """A command and everything it starts."""

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Start it; `OSError` if that fails."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        ...

    async def end(self) -> int:
        """Kill what is left, wait until it is dead, and return the exit code."""
        ...

    def met(self) -> list[str]:
        """The limits that the command reached, as far as the kernel reports them."""
        ...


class NamespaceHolder(asyncio.SubprocessProtocol):
    """The first process of a namespace: `cat`, which echoes when ready and ends with its input."""

    def __init__(self) -> None:
        self.ready, self.exited = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Note the echo: the namespace is ready."""
        self.ready.set()

    def process_exited(self) -> None:
        """Note that it ended, and with it everything in the namespace."""
        self.exited.set()
        self.ready.set()


@dataclass(frozen=True, slots=True)
class UnshareTools:
    """The programs that make a pid namespace on this machine."""

    unshare: str
    nsenter: str
    cat: str
    user: bool
    """Through a user namespace, as users other than root need."""


class NamespaceTree:
    """A command in its own pid namespace."""

    def __init__(self, how: UnshareTools) -> None:
        self._how = how
        self._holder = NamespaceHolder()
        self._held: asyncio.SubprocessTransport | None = None
        self._main: asyncio.SubprocessTransport | None = None
        self._watch: ProcessWatch | None = None

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Make the namespace, then enter it with the command."""
        loop = asyncio.get_running_loop()
        user = ("--user", "--map-current-user") if self._how.user else ()
        self._held, _ = await loop.subprocess_exec(
            lambda: self._holder,
            *(self._how.unshare, *user, "--pid", "--fork", "--kill-child", "--mount-proc"),
            self._how.cat,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={},
        )
        cast("asyncio.WriteTransport", self._held.get_pipe_transport(0)).write(b"\n")
        async with asyncio.timeout(END_TIMEOUT_S):
            await self._holder.ready.wait()
        if self._holder.exited.is_set():
            raise ChildProcessError("no pid namespace could be made")
        spaces = f"/proc/{self._held.get_pid()}/ns"
        enter = (f"--user={spaces}/user", "--preserve-credentials") if self._how.user else ()
        self._main = await _spawn(
            (self._how.nsenter, *enter)
            + (f"--pid={spaces}/pid_for_children", f"--mount={spaces}/mnt", f"--wdns={job.cwd}")
            + ("--", *job.argv),
            job,
            watch,
        )
        self._watch = watch

    def terminate(self) -> None:
        """Signal everything in the namespace, but never nsenter, which must live to reap."""
        if self._held is not None:
            for pid in _members(self._held.get_pid()):
                _signal(pid, signal.SIGTERM)
                _signal(pid, signal.SIGCONT)

    async def end(self) -> int:
        """Let the first process end; the kernel kills the others and only then reports it."""
        if self._held is not None:
            stdin = self._held.get_pipe_transport(0)
            if stdin is not None:
                stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._emptied()
            self._held.close()
        return await _close(self._main, self._watch)

    def met(self) -> list[str]:
        """None: it had no limits."""
        return []

    async def _emptied(self) -> None:
        # The kernel waits until nsenter has reaped the command, and nsenter stops itself when
        # the command does: wake it until it is done.
        while not self._holder.exited.is_set():
            if self._main is not None and self._main.get_returncode() is None:
                _signal(self._main.get_pid(), signal.SIGCONT)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_POLL_INTERVAL_S):
                    await self._holder.exited.wait()


def _members(holder: int) -> list[int]:
    """The processes in the pid namespace that `holder` made."""
    found: list[int] = []
    with suppress(OSError):
        space = Path(f"/proc/{holder}/ns/pid_for_children").readlink()
        for name in Path("/proc").glob("[0-9]*/ns/pid"):
            # It ended meanwhile, or belongs to another user.
            with suppress(OSError):
                if name.readlink() == space:
                    found.append(int(name.parts[2]))
    return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class SupervisedTree:
    """A command below a supervisor."""

    def __init__(self) -> None:
        self._control: int | None = None
        self._main: asyncio.SubprocessTransport | None = None
        self._watch: ProcessWatch | None = None

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Start the supervisor, which starts the command."""
        control_read, self._control = os.pipe()
        script = str(Path(__file__).with_name("supervisor_program.py"))
        argv = (sys.executable, "-I", "-S", script, str(control_read), *job.argv)
        try:
            self._main = await _spawn(argv, job, watch, control_read)
        finally:
            os.close(control_read)
        self._watch = watch

    def terminate(self) -> None:
        """Have every descendant signalled."""
        if self._control is not None:
            with suppress(BrokenPipeError):
                os.write(self._control, b"T")

    async def end(self) -> int:
        """Have everything killed; the supervisor ends when it has no descendant left."""
        if self._control is not None:
            os.close(self._control)
            self._control = None
        if self._main is not None and self._watch is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._watch.exited.wait()
        return await _close(self._main, self._watch)

    def met(self) -> list[str]:
        """None: it had no limits."""
        return []


def memory_file(data: bytes) -> int:
    """A descriptor to read the data from; unlike a pipe it needs no writer and never blocks."""
    descriptor = os.memfd_create("given")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


async def _spawn(
    argv: tuple[str, ...], job: CommandSpec, watch: ProcessWatch, *keep: int
) -> asyncio.SubprocessTransport:
    stdin = memory_file(job.stdin) if job.stdin is not None else None
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: watch,
            *argv,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd=job.cwd,
            env=dict(job.env),
            pass_fds=keep,
        )
        return transport
    finally:
        if stdin is not None:
            os.close(stdin)


async def _close(main: asyncio.SubprocessTransport | None, watch: ProcessWatch | None) -> int:
    if main is None or watch is None:
        return 0
    if not watch.exited.is_set():
        main.kill()
    if not await watch.settled(END_TIMEOUT_S):
        logger.warning("process %d or one of its children could not be killed", main.get_pid())
    code = main.get_returncode()
    # Closing also frees a pipe whose other end an unkillable process still holds.
    main.close()
    return -int(signal.SIGKILL) if code is None else code
