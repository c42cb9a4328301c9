"""The process tree of a sandboxed command: `WorkerTree`, in a worker started ahead of it.

`EngineTree` is in a sandbox that is started for it alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from evoclaw.core.sandboxes import DetachedEngine, SandboxEngine, SandboxPolicy
from evoclaw.executors.process_output import STDERR, STDOUT, ProcessWatch
from evoclaw.executors.process_trees import END_TIMEOUT_S, CommandSpec, SupervisedTree, memory_file
from evoclaw.sandbox.cgroups import Cgroup, CgroupFactory
from evoclaw.sandbox.egress.relay_command import relay_command
from evoclaw.sandbox.workers.pool import Worker, WorkerPool

READ_BYTES = 256 << 10


class WorkerTree:
    """The process tree of a command in a worker."""

    def __init__(self, worker_pool: Callable[[], Awaitable[WorkerPool]], proxy: str = "") -> None:
        """Take a function that finds a live worker pool, and the socket of the egress proxy."""
        self._find, self._proxy = worker_pool, proxy
        self._worker_pool: WorkerPool | None = None
        self._worker: Worker | None = None
        self._met: list[str] = []
        self._readers: set[int] = set()
        self._watch: ProcessWatch | None = None

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Take a worker and send it the command."""
        self._watch = watch
        worker = self._worker = await self._take()
        given = (
            memory_file(job.stdin) if job.stdin is not None else os.open(os.devnull, os.O_RDONLY)
        )
        theirs = [given]
        try:
            for stream in (STDOUT, STDERR):
                ours, end = os.pipe2(os.O_CLOEXEC)
                theirs.append(end)
                self._listen(ours, stream, watch)
            worker.run(
                with_egress(job, self._proxy),
                (theirs[0], theirs[1], theirs[2]),
                watch.process_exited,
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    async def _take(self) -> Worker:
        self._worker_pool = await self._find()
        try:
            return await self._worker_pool.take()
        except OSError:
            # Nothing was started yet. If the pool has ended, another one is started.
            self._worker_pool = await self._find()
        return await self._worker_pool.take()

    def _listen(self, end: int, stream: int, watch: ProcessWatch) -> None:
        os.set_blocking(end, False)
        loop = asyncio.get_running_loop()
        self._readers.add(end)

        def on_readable() -> None:
            try:
                data = os.read(end, READ_BYTES)
            except BlockingIOError:
                return
            if data:
                watch.pipe_data_received(stream, data)
            else:
                self._close(end)
                watch.pipe_connection_lost(stream, None)

        loop.add_reader(end, on_readable)

    def _close(self, end: int) -> None:
        asyncio.get_running_loop().remove_reader(end)
        self._readers.discard(end)
        os.close(end)

    def terminate(self) -> None:
        """Ask everything in the worker to end."""
        if self._worker is not None:
            self._worker.terminate()

    async def end(self) -> int:
        """End the worker; its exit pipe closes only after the kernel has killed what is in it."""
        if self._worker is None or self._watch is None or self._worker_pool is None:
            return 0
        self._met = self._worker.limits_met()
        await self._worker_pool.give_back(self._worker)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._watch.closed.wait()
        for reader in tuple(self._readers):
            self._close(reader)
        if self._worker.refused:
            raise OSError(self._worker.refused, os.strerror(self._worker.refused))
        return -int(signal.SIGKILL) if self._worker.code is None else self._worker.code

    def met(self) -> list[str]:
        """The limits that the command reached, as far as the kernel reports them."""
        return self._met


def with_egress(job: CommandSpec, proxy: str) -> CommandSpec:
    """The command behind the egress relay, if there is an egress proxy."""
    if not proxy:
        return job
    python = os.path.realpath(sys.executable)
    return replace(job, argv=relay_command(job.argv, proxy, python=python))


OBEYED_VARIABLES = re.compile(
    r"(LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|BASH|PERL|XDG_|CONTAINER|DOCKER|TMP|IFS$|ENV$|PS4$"
    r"|SHELLOPTS$|LOCPATH$|NLSPATH$|HOME$|PATH$)"
)
"""Variables that programs outside the sandbox obey: only the command inside gets them."""
PASSED_ON_VARIABLES = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR")
ENTER_CGROUP_SCRIPT = (
    'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
)


class EngineTree:
    """The process tree of a command below an engine below a supervisor."""

    def __init__(
        self, engine: SandboxEngine, policy: SandboxPolicy, groups: CgroupFactory | None
    ) -> None:
        self._engine, self._policy, self._groups = engine, policy, groups
        self._group: Cgroup | None = None
        self._tree = SupervisedTree()
        self._command: tuple[str, ...] = ()
        self._watch: ProcessWatch | None = None
        self._met: list[str] = []

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Start the engine, which starts the command."""
        self._watch, job = watch, with_egress(job, self._policy.proxy)
        outside, inside = divide_environment(job.env)
        names = (f"{name}={value}" for name, value in inside.items())
        argv = ("/usr/bin/env", "-u", "XDG_RUNTIME_DIR", *names, *_named(job.argv))
        line = self._command = self._engine.command(self._policy, argv, job.cwd)
        if self._groups is not None:
            self._group = self._groups.make(self._policy)
            line = ("/bin/sh", "-c", ENTER_CGROUP_SCRIPT, "sh", *self._group.files(), "--", *line)
        await self._tree.start(CommandSpec(line, "/", outside, job.stdin), watch)

    def terminate(self) -> None:
        """Signal every descendant."""
        self._tree.terminate()

    async def end(self) -> int:
        """Kill everything, also what the engine started outside this process tree."""
        by_itself = self._watch is not None and self._watch.exited.is_set()
        if self._command and isinstance(self._engine, DetachedEngine) and not by_itself:
            await _run(self._engine.end_command(self._command))
        code = await self._tree.end()
        if self._group is not None and self._groups is not None:
            self._met = self._group.met() if code else []
            self._groups.remove(self._group)
        return code

    def met(self) -> list[str]:
        """The limits that the command reached, as far as the kernel reports them."""
        return self._met


def _named(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command, so that `env` does not take its name for a variable."""
    return ("/bin/sh", "-c", 'exec "$0" "$@"', *argv) if "=" in argv[0] else argv


def divide_environment(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment for the programs outside, and what only the command inside may see."""
    inside = {name: value for name, value in env.items() if OBEYED_VARIABLES.match(name)}
    outside = {name: value for name, value in env.items() if name not in inside}
    return outside | {
        name: os.environ[name] for name in PASSED_ON_VARIABLES if name in os.environ
    }, inside


async def _run(argv: tuple[str, ...]) -> None:
    ending = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * END_TIMEOUT_S):
            await ending.wait()
    except TimeoutError:
        ending.kill()
        await ending.wait()
