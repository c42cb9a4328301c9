"""`LocalProcesses`: the processes of this machine, each call a tree that is dead when it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess
from evoclaw.executors.command_limits import WorkspaceWatch, limits_met
from evoclaw.executors.process_output import STDERR, STDOUT, ProcessWatch, wait_uncancelled
from evoclaw.executors.process_trees import (
    CommandSpec,
    NamespaceTree,
    ProcessTree,
    SupervisedTree,
    UnshareTools,
)
from evoclaw.executors.roots import Roots

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
PID_NAMESPACE, NO_ISOLATION = "pid-namespace", "none"
MAX_SHOWN_OUTPUT_BYTES = 2_000
"""Bytes of a stopped command's output that are shown in the refusal."""


class ProcessSandbox(Protocol):
    """A sandbox that the processes of this machine run in."""

    name: str
    """The name of the isolation in results."""

    async def ready(self) -> None:
        """Raise `ToolFailure` (`sandbox_unavailable`) unless it passed its self-test."""
        ...

    def environment(self) -> Mapping[str, str]:
        """The environment variables of every command in it."""
        ...

    def tree(self) -> ProcessTree:
        """A process tree for one command."""
        ...

    def watch_workspace(self, watch: ProcessWatch) -> WorkspaceWatch:
        """Watch the workspace from outside while a command runs."""
        ...


class LocalProcesses:
    """Processes of this machine.

    They start in a clean environment (only PATH, HOME and LANG of ours), without a terminal and
    without input. When a call ends, however it ends, everything it started is dead. That is
    cleanup, not isolation: the `sandbox` decides what a command may reach, and without a sandbox
    a command may reach what we may.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        roots: Iterable[str | Path] = (),
        env: Mapping[str, str] | None = None,
        isolation: Literal["auto", "pid-namespace", "none"] = "auto",
        max_bytes: int = 128 << 20,
        grace: float = 0.3,
        sandbox: ProcessSandbox | None = None,
    ) -> None:
        """Set the workspace and the isolation.

        Args:
            root: The workspace; relative folders start here.
            roots: Further folders a command may start in, by absolute path.
            env: Further environment variables for every command.
            isolation: `pid-namespace` refuses to run without one; `auto` uses one if it can, and
                results say so; `none` does not try, for programs that bring their own.
            max_bytes: A command that writes more than this is stopped.
            grace: Seconds between asking a command to end and killing it.
            sandbox: The sandbox they run in; `isolation` is then ignored.
        """
        self._roots = Roots(root, writable=roots, mounts=True)
        self._env = dict(env or {})
        self._wanted = isolation
        self._max_bytes, self._grace = max_bytes, grace
        self._how: UnshareTools | None = None
        self._probed = isolation == NO_ISOLATION
        self._sandbox = sandbox

    async def isolation(self) -> str:
        """The isolation that commands really get: an engine's name, `pid-namespace` or `none`."""
        if self._sandbox is not None:
            await self._sandbox.ready()
            return self._sandbox.name
        if not self._probed:
            probing = asyncio.create_task(_probe(self._roots.workspace.path))
            try:
                await asyncio.wait([probing])
            except asyncio.CancelledError:
                # As in `run`: even if cancelled, the probe ends what it started.
                await wait_uncancelled(probing)
                raise
            self._how = probing.result()
            self._probed = True
        if self._how is None and self._wanted == PID_NAMESPACE:
            raise ToolFailure(
                ErrorKind.SANDBOX_UNAVAILABLE,
                "This machine does not allow a pid namespace, and commands here need one. "
                "Explain this to the user.",
            )
        return NO_ISOLATION if self._how is None else PID_NAMESPACE

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> CompletedProcess:
        """Run a program until it and everything it started has ended."""
        # Not in a thread: it only stats folders that starting a program reads anyway.
        job = self._job(tuple(argv), cwd, env or {}, stdin)
        isolation = await self.isolation()
        tree = self._tree()
        watch = ProcessWatch(max_output, self._max_bytes, on_output)
        watched = None if self._sandbox is None else self._sandbox.watch_workspace(watch)
        # A separate task: cancelling the caller must not cancel the cleanup.
        task = asyncio.create_task(self._live(tree, job, watch, watched))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            watch.wake.set()
            await wait_uncancelled(task)
            raise
        try:
            code, met = task.result()
        except OSError as problem:
            raise _refused(problem, job.argv[0]) from None
        if watched is not None and watched.refused:
            raise _left_protected_files(watched.refused, code, watch, isolation)
        if watch.overflowed:
            raise self._too_much(watch, isolation)
        stderr = watch.kept[STDERR].content()
        if met := limits_met(code, stderr, met + tree.met(), sandboxed=self._sandbox is not None):
            raise _limited(met, code, watch, isolation)
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        return CompletedProcess(code, out.content(), err.content(), out.total, err.total, isolation)

    def _tree(self) -> ProcessTree:
        if self._sandbox is not None:
            return self._sandbox.tree()
        return SupervisedTree() if self._how is None else NamespaceTree(self._how)

    async def _live(
        self,
        tree: ProcessTree,
        job: CommandSpec,
        watch: ProcessWatch,
        watched: WorkspaceWatch | None,
    ) -> tuple[int, list[str]]:
        """Run a command to its end; its exit code, and the limits it reached on the disk."""
        met: list[str] = []
        try:
            await tree.start(job, watch)
            await watch.wake.wait()
            if not watch.exited.is_set() and not watch.overflowed:
                tree.terminate()
                await watch.settled(self._grace)
        finally:
            try:
                code = await tree.end()
            finally:
                if watched is not None:
                    met = await watched.stop()
        return code, met

    def _job(
        self, argv: tuple[str, ...], cwd: str, env: Mapping[str, str], stdin: bytes | None
    ) -> CommandSpec:
        folder = self._roots.real_folder(cwd)
        environment = _clean_environment()
        if self._sandbox is not None:
            environment |= self._sandbox.environment()
        environment |= self._env | dict(env)
        for text in (*argv, *environment.keys(), *environment.values()):
            _check_text(text)
        if not argv or not argv[0]:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "The command names no program.")
        name = argv[0]
        program = str(Path(folder, name)) if "/" in name else name
        found = shutil.which(program, path=environment.get("PATH", DEFAULT_PATH))
        if found is None:
            raise ToolFailure(
                ErrorKind.NOT_FOUND,
                f"The program '{name}' is not installed on this machine. Use another one.",
            )
        return CommandSpec((str(Path(folder, found)), *argv[1:]), folder, environment, stdin)

    def _too_much(self, watch: ProcessWatch, isolation: str) -> ToolFailure:
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        head = (out.content() or err.content())[:MAX_SHOWN_OUTPUT_BYTES].decode(errors="replace")
        return ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The command wrote more than {self._max_bytes:,} bytes and was stopped. Send its "
            f"output to a file, or cut it with head, tail or grep. It started with:\n{head}",
            stdout_bytes=out.total,
            stderr_bytes=err.total,
            isolation=isolation,
        )


def _left_protected_files(
    refused: list[str], code: int, watch: ProcessWatch, isolation: str
) -> ToolFailure:
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        "The command ran, but left protected files, which programs run or obey by themselves "
        f"outside the sandbox: {', '.join(refused)}. They were renamed or removed. Do not create "
        "them again; explain to the user what should be in them. "
        f"Exit code {code}; its last output:\n"
        f"{_tail(watch)}",
        refused=list(refused),
        exit_code=code,
        isolation=isolation,
    )


def _tail(watch: ProcessWatch) -> str:
    """The end of what a command wrote."""
    kept = (watch.kept[STDOUT].content(), watch.kept[STDERR].content())
    return (
        b"".join(part[-MAX_SHOWN_OUTPUT_BYTES:] for part in kept).decode(errors="replace").strip()
    )


def _limited(met: list[str], code: int, watch: ProcessWatch, isolation: str) -> ToolFailure:
    what = " and ".join(met)
    return ToolFailure(
        ErrorKind.RESOURCE,
        f"The command reached the limit on {what} and was stopped or failed. Do it in smaller "
        f"pieces, or tell the user that it needs a higher limit. Exit code {code}; its "
        "last output:\n"
        f"{_tail(watch)}",
        limits=list(met),
        exit_code=code,
        isolation=isolation,
    )


def _clean_environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "TERM": "dumb",
    }


def _check_text(text: str) -> None:
    try:
        if b"\0" not in os.fsencode(text):
            return
    except UnicodeEncodeError:
        pass
    raise ToolFailure(
        ErrorKind.INVALID_PARAMS,
        "An argument contains a NUL character or is not valid text. Leave it out.",
    )


def _refused(problem: OSError, program: str) -> ToolFailure:
    if problem.errno == errno.E2BIG:
        return ToolFailure(
            ErrorKind.TOO_LARGE,
            "The command is too long for this machine. Write it to a file and run that.",
        )
    reason = problem.strerror or str(problem)
    return ToolFailure(ErrorKind.EXECUTION_FAILED, f"'{program}' could not be started: {reason}.")


async def _probe(folder: str) -> UnshareTools | None:
    """Find how this machine makes pid namespaces, by making one."""
    names = ("unshare", "nsenter", "cat", "true")
    unshare, nsenter, cat, true = (
        shutil.which(name, path=os.environ.get("PATH", "") + ":" + DEFAULT_PATH) for name in names
    )
    if unshare is None or nsenter is None or cat is None or true is None:
        return None
    for user in (False, True) if os.geteuid() == 0 else (True,):
        how = UnshareTools(unshare, nsenter, cat, user)
        tree, watch = NamespaceTree(how), ProcessWatch(1024, 1024)
        try:
            await tree.start(CommandSpec((true,), folder, {}), watch)
            worked = await watch.settled(5)
        except (OSError, TimeoutError):
            worked = False
        finally:
            code = await tree.end()
        if worked and code == 0:
            return how
    return None
